"""What a caller may do. Decides about one request; knows no store and no run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, get_args

from starlette.requests import Request

from perdure.errors import UsageError
from perdure.kernel.ids import BATCH, SECRET
from perdure.kernel.values.redaction import Redaction

# The permission that a route requires. `any`: no particular one; every caller that is admitted may use it.
Permission = Literal["read", "run", "approve", "debug", "admin", "metrics"]
Role = Literal["any", "read", "run", "approve", "debug", "admin", "metrics"]
PERMISSIONS: tuple[str, ...] = get_args(Permission)


@dataclass(frozen=True, slots=True)
class Access:
    """Who a request is from, and what that person or program may do.

    `may` are permissions: `read`, `run` (start, signal, cancel, pause, resume, retry, fork), `approve`, `debug`
    (source, variables, capsules), `admin` (schedules, locks, resolve), `metrics`. `programs` narrows them to runs of
    these. `redact` is left out of the values that they see, as in `$.card.number` or `*password*`.
    `by` says what they are known by, and `expires_at` until when.
    """

    name: str
    may: Collection[str] = frozenset({"read"})
    programs: Collection[str] | None = None
    redact: Sequence[str] = ()
    by: Literal["host", "machine", "token", "cookie"] = "host"
    expires_at: datetime | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"Access(name={self.name!r:.80}): a name says who it is, such as request.user.name")
        for what in ("may", "programs", "redact"):
            given = getattr(self, what)
            if isinstance(given, str):
                raise UsageError(f"Access({what}={given!r:.80}): give a set of them, such as {{{given!r:.40}}}")
        may = frozenset(self.may)
        if wrong := sorted(str(one) for one in may - set(PERMISSIONS)):
            raise UsageError(
                f"Access(may=...): {wrong[0]!r:.40} is not a permission; there are {', '.join(PERMISSIONS)}"
            )
        object.__setattr__(self, "may", may)
        object.__setattr__(self, "programs", None if self.programs is None else frozenset(self.programs))
        object.__setattr__(self, "redact", Redaction(self.redact).texts)

    def allows(self, role: str) -> bool:
        """Whether the caller may use a route with this role."""
        return role == "any" or role in self.may

    @property
    def listed(self) -> frozenset[str] | None:
        """The programs whose runs are in lists, those of their batches too; None for all."""
        if self.programs is None:
            return None
        return frozenset(self.programs) | {f"{name}{BATCH}" for name in self.programs}

    def sees(self, program: str) -> bool:
        """Whether the caller may see runs of this program and send them messages."""
        if program in SECRET:
            return False
        return self.programs is None or program.removesuffix(BATCH) in self.programs


# Identifies the caller of a request; None: the caller is not known, and the answer is 401.
Who: TypeAlias = Callable[[Request], "Access | Awaitable[Access | None] | None"]

# The access of a request that no guard was configured for: it came from this machine, and through no proxy.
EVERYTHING = Access("local", PERMISSIONS, by="machine")
