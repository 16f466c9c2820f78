"""What became of the questions of a run. Reads events, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from perdure.kernel.events import Batch, WaitOpened, WaitResolved, numbered


def closed(batches: Iterable[Batch], name: str, child: str = "") -> str:
    """What became of the last question of this name, or at this path, in a run or its child; empty if it has none.

    Also if that is still open.
    """
    asked, found = set[str](), ""
    for _, at, event in numbered(batches):
        if isinstance(event, WaitOpened):
            if (
                event.kind == "approval"
                and name in (event.name, event.op)
                and event.op.startswith(child and f"{child}/")
            ):
                asked.add(event.op)
        elif isinstance(event, WaitResolved) and event.op in asked:
            when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
            found = f"{name!r} {_how(event)} at {when}"
    return found


def _how(event: WaitResolved) -> str:
    person = f" by {event.person}" if event.person else ""
    if event.is_answer:
        return f"was answered{person}"
    if event.is_rejection:
        return f"was rejected{person}"
    return "expired" if event.by == "timeout" else "was withdrawn by its run"
