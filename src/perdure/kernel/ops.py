"""What is under way in a run: ops without an outcome, children without an end. Plain records, filled by the fold."""

from __future__ import annotations

from msgspec import Raw

from perdure.kernel.events import ChildFinished, ChildStarted, WaitOpened
from perdure.kernel.failures import Failure


class Shown:
    """What the attempts of a step have let others see before its outcome."""

    __slots__ = ("chunks", "count", "progress")

    def __init__(self) -> None:
        # The chunks that are valid, and how many numbers have been given to chunks and marks of a restart.
        self.chunks: list[Raw] = []
        self.count = 0
        self.progress: Raw | None = None

    def copy(self) -> Shown:
        """The same, as of now."""
        copied = Shown()
        copied.chunks, copied.count, copied.progress = list(self.chunks), self.count, self.progress
        return copied


class OpenOp:
    """An op that has begun and has no outcome yet."""

    __slots__ = (
        "allowed",
        "attempt",
        "due",
        "error",
        "failed",
        "failures",
        "kind",
        "name",
        "opened",
        "opened_at",
        "running",
        "shown",
        "source",
        "spent",
    )

    def __init__(self, kind: str, source: str) -> None:
        self.kind = kind
        self.source = source
        self.attempt = 0
        self.failures = 0
        # What the last attempt failed with, and how many attempts there may be, if the journal says so.
        self.error: Failure | None = None
        self.allowed = 0
        # The failure of the last attempt that was not the fallback's: only the fallback can save the step now.
        self.failed: Failure | None = None
        self.running = False
        self.due: float | None = None
        self.name = ""
        self.shown: Shown | None = None
        # For an approval, and a signal of a given type: what was asked for, and when.
        self.opened: WaitOpened | None = None
        self.opened_at = 0.0
        # How many of its events nobody needs once it has ended.
        self.spent = 0


class Child:
    """A child that lives in this journal, from its beginning to its end."""

    __slots__ = (
        "created_at",
        "finished",
        "finished_at",
        "incarnation",
        "parent",
        "path",
        "running",
        "started",
        "waiting",
    )

    def __init__(self, started: ChildStarted, parent: str, incarnation: int, at: float) -> None:
        self.path, self.started, self.incarnation, self.created_at = started.op, started, incarnation, at
        # The op path of the child that began it; none: the root.
        self.parent = parent
        self.finished: ChildFinished | None = None
        self.finished_at: float | None = None
        # How many ops in it, and in the children in it, are under way, and how many wait for something. A lock is under
        # way from where it is asked for to where it is given back: the owner has to see to it.
        self.running = self.waiting = 0

    @property
    def waits(self) -> bool:
        """Whether nothing goes on in it until something comes or is due."""
        return self.waiting > 0 and not self.running
