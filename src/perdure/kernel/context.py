"""The run that code is part of, as that code sees it. Derived from the journal only, so replay sees the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from perdure.kernel.events import RunStarted
    from perdure.kernel.state import RunState


class RunContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run that a workflow body or a step is part of."""

    id: str
    run_id: str
    program: str
    version: str
    root: str
    """The `run_id` of the root run, whose journal contains this run; its own if it is not a child."""
    parent: str | None = None
    """The `run_id` of the run that started it."""
    attempt: int = 1
    """Its number under its id, from 1 on: an id may be started again, retried, or continued by continue_as. The body of
    a retried run keeps its first number."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    queue: str | None = None
    schedule: str | None = None
    """The id of the schedule that started it."""
    scheduled_at: datetime | None = None
    """The time of the tick that started it, even if it began later; None when it was triggered by hand."""


def started_context(run_id: str, started: RunStarted) -> RunContext:
    """The context of a root run."""
    due = started.scheduled_at
    return RunContext(
        id=started.id,
        run_id=run_id,
        program=started.program,
        version=started.version,
        root=run_id,
        parent=started.parent or None,
        attempt=started.incarnation,
        tags=dict(started.tags or {}),
        queue=started.queue or None,
        schedule=started.schedule or None,
        scheduled_at=None if due is None else datetime.fromtimestamp(due, UTC),
    )


def run_context(state: RunState, path: str = "", origin: RunContext | None = None) -> RunContext:
    """The context of a run, or of the child at an op path in it.

    `origin`: the context of the origin, while the run repeats its past.
    """
    started = state.started
    assert started is not None
    if started.remote is not None and started.remote.run is not None:
        # A remote step is executed for another run, which its code sees as its own.
        return msgspec.structs.replace(started.remote.run, tags=dict(started.tags or {}))
    if origin is None:
        root = started_context(state.run_id, started)
    else:
        root = msgspec.structs.replace(origin, tags=dict(started.tags or {}))
    child = state.children.get(path) if path else None
    if child is None:
        return root
    return msgspec.structs.replace(
        root,
        id=child.started.id or f"{root.id}/{path}",
        run_id=f"{root.run_id}/{path}",
        program=child.started.program,
        version=child.started.version,
        parent=f"{root.run_id}/{child.parent}" if child.parent else root.run_id,
        attempt=child.incarnation,
        queue=None,
    )


def without_tags(context: RunContext) -> RunContext:
    """A context without tags, to be recorded beside a RunStarted that has them."""
    return msgspec.structs.replace(context, tags={})
