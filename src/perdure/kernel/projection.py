"""The index rows a journal implies. Rebuilding them from the journal gives the same rows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from perdure.kernel.events import NULL, Batch, RunStatus
from perdure.kernel.state import Child, RunState, fold
from perdure.kernel.values.failures import Failure


class Changes(Enum):
    """When a column may change after its row was written; a column without a mark never does."""

    # With any event of the run.
    IN_ROOTS = auto()
    # The same, also in the row of a child.
    IN_ALL = auto()
    # When the input is replaced before the run began.
    WITH_INPUT = auto()


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """One run, as lists and orchestrators see it without reading its journal.

    This is the only description of a column: stores make their statements and bindings from COLUMNS, which is made of
    the annotations here. A new column needs its line here, its value in `row`, and a migration of each SQL database.
    """

    run_id: str
    id: str
    incarnation: int
    program: str
    version: Annotated[str, Changes.IN_ROOTS]
    status: Annotated[RunStatus, Changes.IN_ALL]
    owner: Annotated[str | None, Changes.IN_ROOTS]
    epoch: Annotated[int, Changes.IN_ROOTS]
    wake_at: Annotated[float | None, Changes.IN_ROOTS]
    created_at: float
    finished_at: Annotated[float | None, Changes.IN_ALL]
    tags: dict[str, str]
    input: Annotated[Raw, Changes.WITH_INPUT]
    input_blob: Annotated[str, Changes.WITH_INPUT]
    output: Annotated[Raw, Changes.IN_ALL]
    output_blob: Annotated[str, Changes.IN_ALL]
    error: Annotated[Failure | None, Changes.IN_ALL]
    reason: Annotated[str, Changes.IN_ALL]
    # An awaited child has the run_id of the root, whose journal it is in; a root has none.
    parent: str = ""
    root: str = ""
    queue: str = ""
    queue_key: str = ""
    priority: Annotated[int, Changes.WITH_INPUT] = 0
    not_before: Annotated[float | None, Changes.WITH_INPUT] = None
    # When a queued run was admitted, for the rate limit.
    began_at: Annotated[float | None, Changes.IN_ROOTS] = None
    continued_as: Annotated[str, Changes.IN_ROOTS] = ""
    # How many approvals are open.
    approvals: Annotated[int, Changes.IN_ALL] = 0
    # The run_id of the run that it was forked from.
    forked_from: str = ""


class Kind(Enum):
    """The kind of value in a column."""

    TEXT = auto()
    INTEGER = auto()
    TIME = auto()
    JSON = auto()


class Column(msgspec.Struct, frozen=True):
    """One column of the table of runs."""

    name: str
    kind: Kind
    nullable: bool
    changes: Changes | None


def _column(name: str, annotation: Any) -> Column:
    changes: Changes | None = None
    if get_origin(annotation) is Annotated:
        annotation, changes = get_args(annotation)
    of = [part for part in get_args(annotation) if part is not NoneType] if isinstance(annotation, UnionType) else []
    plain = of[0] if of else annotation
    kind = {str: Kind.TEXT, RunStatus: Kind.TEXT, int: Kind.INTEGER, float: Kind.TIME}.get(plain, Kind.JSON)
    return Column(name, kind, bool(of), changes)


def columns_of(row: type[RunRow]) -> tuple[Column, ...]:
    """The columns that the fields of a row describe."""
    return tuple(_column(name, hint) for name, hint in get_type_hints(row, include_extras=True).items())


COLUMNS = columns_of(RunRow)


def row_key(state: RunState) -> tuple[Any, ...]:
    """What can change in a row: two states with the same key have the same row."""
    # A run may have been resumed and paused again, with another reason.
    return (state.status, state.owner, state.epoch, state.wake_at, state.approvals, state.paused)


def row(state: RunState, key: tuple[Any, ...] = ()) -> RunRow:
    """The row of a run in this state, of which the caller may have the key."""
    started, finished = state.started, state.finished
    status, _, _, wake_at, *_ = key or row_key(state)
    assert started is not None
    # An imported run does not count in a queue of this store.
    queued = started.queue and not state.imported
    return RunRow(
        run_id=state.run_id,
        id=started.id,
        incarnation=started.incarnation,
        program=started.program,
        version=started.version,
        status=status,
        owner=state.owner,
        epoch=state.epoch,
        wake_at=wake_at,
        created_at=state.created_at,
        finished_at=state.finished_at,
        tags=started.tags or {},
        input=started.input,
        input_blob=started.input_blob,
        output=finished.value if finished else Raw(b"null"),
        output_blob=finished.blob if finished else "",
        error=finished.error if finished else None,
        # The end of a run comes before its parking, and the parking before a pause.
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
    """The op path of a child in the journal of its root; empty for a root."""
    return row.run_id[len(row.root) + 1 :] if row.root else ""


def child_rows(state: RunState) -> list[RunRow]:
    """The rows of the children in `state.changed`; the caller clears that once it has written them."""
    return [child_row(state, child) for child in state.changed.values() if child.listed]


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
    """The status of an open child: paused or parked with its tree, otherwise waiting or running."""
    if state.parked is not None:
        return RunStatus.PARKED
    if state.paused is not None:
        return RunStatus.PAUSED
    return RunStatus.WAITING if child.waits else RunStatus.RUNNING


def project(run_id: str, batches: Iterable[Batch]) -> RunRow:
    """The row that the whole journal of a run implies."""
    return row(fold(run_id, batches))
