"""What happens when an id is used again."""

from __future__ import annotations

from typing import Literal, get_args

from perdure.kernel.events import RunStatus
from perdure.kernel.ids import WrongValue

Reuse = Literal["return_existing", "reject_duplicate", "allow_if_failed", "terminate_running"]
Decision = Literal["create", "return", "reject", "replace"]
_REUSES = get_args(Reuse)


def decide(reuse: Reuse, existing: RunStatus | None) -> Decision:
    """Create a new run, return the existing run, reject the start, or terminate the existing run and replace it."""
    if reuse not in _REUSES:
        raise WrongValue(f"reuse={reuse!r} is none of {', '.join(map(repr, _REUSES))}")
    if existing is None:
        return "create"
    if reuse == "return_existing":
        return "return"
    if reuse == "allow_if_failed":
        return "create" if existing in (RunStatus.FAILED, RunStatus.CANCELLED) else "reject"
    if reuse == "terminate_running":
        return "create" if existing.finished else "replace"
    return "reject"
