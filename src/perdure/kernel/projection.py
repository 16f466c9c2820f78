"""The index rows a journal implies. Rebuilding them from the journal gives the same rows."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec import Raw

from perdure.kernel.events import NULL, Batch, RunStatus
from perdure.kernel.state import Child, RunState, fold
from perdure.kernel.values.failures import Failure


class RunRow(msgspec.Struct, frozen=True):
    """One run, as lists and orchestrators see it without reading its journal."""

    run_id: str
    id: str
    incarnation: int
    program: str
    version: str
    status: RunStatus
    owner: str | None
    epoch: int
    wake_at: float | None
    created_at: float
    finished_at: float | None
    tags: dict[str, str]
    input: Raw
    input_blob: str
    output: Raw
    output_blob: str
    error: Failure | None
    reason: str
    # A child that its parent waits for lives in the journal of the root; other runs are roots and have none.
    parent: str = ""
    root: str = ""
    queue: str = ""
    queue_key: str = ""
    priority: int = 0
    not_before: float | None = None
    # When a run of a queue began: what its rate is counted by.
    began_at: float | None = None
    continued_as: str = ""
    # How many approvals are open.
    approvals: int = 0
    # The run_id of the run that it was forked from.
    forked_from: str = ""


def row_key(state: RunState) -> tuple[object, ...]:
    """What can change in a row: two states with the same key have the same row."""
    # One that was resumed and paused again in between says why it is paused now.
    return (state.status, state.owner, state.epoch, state.wake_at, state.approvals, state.paused)


def row(state: RunState) -> RunRow:
    """The row of a run in this state."""
    started, finished = state.started, state.finished
    assert started is not None
    # A run that was imported takes no room in a queue of this store.
    queued = started.queue and not state.imported
    return RunRow(
        run_id=state.run_id,
        id=started.id,
        incarnation=started.incarnation,
        program=started.program,
        version=started.version,
        status=state.status,
        owner=state.owner,
        epoch=state.epoch,
        wake_at=state.wake_at,
        created_at=state.created_at,
        finished_at=state.finished_at,
        tags=started.tags or {},
        input=started.input,
        input_blob=started.input_blob,
        output=finished.value if finished else Raw(b"null"),
        output_blob=finished.blob if finished else "",
        error=finished.error if finished else None,
        # The latest word: a run that ended is no longer parked, and one that is parked says that rather than its pause.
        reason=getattr(finished or state.parked or state.paused, "reason", ""),
        parent=started.parent,
        queue=started.queue,
        queue_key=started.queue_key,
        priority=started.priority,
        not_before=started.not_before if started.queue else None,
        began_at=state.began_at if queued else None,
        continued_as=finished.continued_as if finished else "",
        approvals=state.approvals,
        forked_from=started.forked_from,
    )


def child_run_id(root: str, path: str) -> str:
    """The run_id of the child at an op path."""
    return f"{root}/{path}"


def child_path(row: RunRow) -> str:
    """The op path of a child in the journal of its root; none for a root."""
    return row.run_id[len(row.root) + 1 :] if row.root else ""


def child_rows(state: RunState) -> list[RunRow]:
    """The rows of the children that have changed since they were last taken."""
    if not state.changed:
        return []
    changed, state.changed = state.changed, {}
    return [child_row(state, child) for child in changed.values()]


def child_row(state: RunState, child: Child) -> RunRow:
    """The row of a child in this state of its root."""
    root, started, finished = state.started, child.started, child.finished
    assert root is not None
    return RunRow(
        run_id=child_run_id(state.run_id, child.path),
        id=started.id or f"{root.id}/{child.path}",
        incarnation=child.incarnation,
        program=started.program,
        version=started.version,
        status=finished.status if finished else _child_status(state, child),
        owner=None,
        epoch=0,
        wake_at=None,
        created_at=child.created_at,
        finished_at=child.finished_at,
        tags=root.tags or {},
        input=NULL if started.input_blob else started.input,
        input_blob=started.input_blob,
        output=finished.value if finished and not finished.blob else NULL,
        output_blob=finished.blob if finished else "",
        error=finished.error if finished else None,
        reason=getattr(finished or state.parked or state.paused, "reason", ""),
        parent=child_run_id(state.run_id, child.parent) if child.parent else state.run_id,
        root=state.run_id,
    )


def _child_status(state: RunState, child: Child) -> RunStatus:
    """Where a child stands that has not ended: it stands still when its tree does, and waits or runs by itself."""
    if state.parked is not None:
        return RunStatus.PARKED
    if state.paused is not None:
        return RunStatus.PAUSED
    return RunStatus.WAITING if child.waits else RunStatus.RUNNING


def project(run_id: str, batches: Iterable[Batch]) -> RunRow:
    """The row that the whole journal of a run implies."""
    return row(fold(run_id, batches))
