"""Views of runs and steps for callers: plain data, read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from perdure.client.chunks import OpenChunk
from perdure.errors import NotDecodable
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.events import RunStatus, StepStatus, moment
from perdure.kernel.ids import op_name
from perdure.kernel.inbound import may_answer
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.resting import questions
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.state import OpenOp, RunState
from perdure.kernel.step_records import StepRecord, began
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Head
from perdure.ports.leases import Lease, Registration, orchestrator_name
from perdure.ports.queues import QueueStats
from perdure.ports.upkeep import Load

if TYPE_CHECKING:
    from perdure.kernel.program import Program

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class WaitView:
    """Something a run waits for."""

    path: str
    kind: str
    deadline: datetime | None
    source: str
    name: str = ""
    request: Any = None
    schema: Any = None
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalView:
    """An open question. `approvers` may answer it now, including those it was escalated to; empty: anyone.

    `path` distinguishes it from others of the same name; `approve` and `reject` accept it in place of the name.
    """

    id: str
    run_id: str
    program: str
    name: str
    path: str
    request: Any
    schema: Any
    approvers: tuple[str, ...]
    asked_at: datetime
    deadline: datetime | None
    escalates_at: datetime | None

    def answerable_by(self, person: str) -> bool:
        """Whether this person may answer."""
        return not self.approvers or person in self.approvers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in a list: what its row says, without its journal. `get(id)` has the rest."""

    id: str
    run_id: str
    program: str
    version: str
    status: RunStatus
    input: Any
    output: Any
    error: Failure | None
    reason: str
    owner: str | None
    epoch: int
    tags: dict[str, str]
    parent: str | None
    root: str
    forked_from: str | None
    continued_as: str | None
    """The run_id of its next incarnation."""
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    next_seq: int
    size: int
    """The size of its journal in bytes, which is that of its root."""
    queue: str | None
    key: str | None
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView(RunSummary):
    """A run as it is now."""

    state: dict[str, Any]
    waits: tuple[WaitView, ...]
    locks: tuple[str, ...]
    """The keys of the locks that it holds; those it waits for are among its `waits`."""
    parked: str | None
    """Why it is parked, while it is: `diverged`, `no_program`, `no_version`, `undecodable`, `damaged`, `imported`,
    `redacted`, `poisoned`; `reason` says more."""
    divergence: Divergence | None
    """If it diverged: what has changed in the code, both sides with their lines, and what to write."""
    continued_from: str | None
    """The run_id of its previous incarnation."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One try of a step."""

    number: int
    status: StepStatus
    error: Failure | None
    started_at: datetime
    finished_at: datetime | None
    retry_at: datetime | None
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class StepView:
    """A step of a run as it is now."""

    path: str
    name: str
    status: StepStatus
    attempt: int
    attempts: tuple[AttemptView, ...]
    input_hash: str
    output: Any
    error: Failure | None
    progress: Any
    source: str
    started_at: datetime
    finished_at: datetime | None
    duration: timedelta | None = None
    """From the start of its first attempt to its end; None until then."""
    inputs: dict[str, Any] | None = None
    """Its arguments by name, as plain values: from replay if the code is loaded, or recorded with
    `@step(record_inputs=True)`; otherwise None.
    """
    replayed: bool = False
    """Whether its outcome was recorded before the present owner claimed the run, or before a fork: the program got it
    from the journal, and the step was not executed again."""
    chunks: tuple[Any, ...] = ()
    """The chunks that it has emitted and not withdrawn by a restart."""
    stream: StreamView | None = None
    """The state of its stream; None if it has emitted nothing."""
    skipped_by: str | None = None
    """For a node of a graph that was skipped or blocked, which has no attempts: the op that is the reason, or `when`
    for its own condition."""
    reason: str = ""
    """The same in words."""


@dataclass(frozen=True, slots=True)
class ItemView:
    """One item of a map: its number, the op path of its step or child run, and its outcome."""

    index: int
    path: str
    status: StepStatus
    output: Any
    error: Failure | None
    reason: str = ""
    """Why it was skipped: no gate or condition chose the node that makes its output."""


@dataclass(frozen=True, slots=True)
class BatchView:
    """A batch: how many rows it has, and how many of them are in which state."""

    id: str
    run_id: str
    program: str
    """The program that it runs for each row."""
    status: RunStatus
    rows: int
    completed: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    """Rows that have started, and wait for a signal, a person or a time."""
    queued: int = 0
    """Rows whose turn has not come."""
    unstarted: int = 0
    """Rows that will not start, because the batch has ended, unless it is retried."""


@dataclass(frozen=True, slots=True)
class StreamView:
    """The stream of a step: the number of the `next` chunk, how often it restarted, and whether it is still `open`.

    `stream(id, step, start=next)` continues after it.
    """

    next: int
    restarts: int
    open: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk that a step emitted. `index` is its number in the stream that was asked for.

    `restart`: it has no value, but marks what the step emitted before as void.
    """

    index: int
    path: str
    value: Any
    attempt: int
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Interrupt:
    """What a resting run needs: an `approval` or a `signal`, by its `kind`.

    `payload` is what people are shown, `schema` the JSON Schema of the answer. For a graph that is known here, they are
    the payload as the type it had, and the type of the answer. `path` distinguishes it from others of the same name;
    `id` is the run or the child that asks.
    """

    path: str
    name: str
    kind: str
    id: str
    payload: Any = None
    schema: Any = None
    deadline: datetime | None = None
    approvers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult(Generic[R]):
    """How a run ended, or where it stands. `error` is the exception, rebuilt; nothing is raised.

    With `until="rest"` it may have `interrupts`: everything that it needs before it can continue.
    """

    id: str
    run_id: str
    status: RunStatus
    output: R = None  # type: ignore[assignment]
    """The result of a run that completed or bailed; None for any other. Typed as the result of a completed run."""
    error: BaseException | None = None
    program: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    interrupts: tuple[Interrupt, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether it rests, with interrupts."""
        return bool(self.interrupts)

    @property
    def interrupt(self) -> Interrupt | None:
        """The first of its interrupts."""
        return self.interrupts[0] if self.interrupts else None

    @property
    def interrupt_name(self) -> str | None:
        """The name of the first interrupt: what `approve`, `signal` and `answers` take."""
        return self.interrupts[0].name if self.interrupts else None

    @property
    def suspend_payload(self) -> Any:
        """What the first interrupt shows: the `request` of its approval."""
        return self.interrupts[0].payload if self.interrupts else None

    @property
    def resume_schema(self) -> Any:
        """The type of the answer to the first interrupt, or its JSON Schema, if it has one."""
        return self.interrupts[0].schema if self.interrupts else None


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue: how many runs wait, and how many are in progress. `oldest` is the longest wait in seconds."""

    name: str
    queued: int
    running: int
    oldest: float | None = None
    limits: Queue | None = None
    """Its limits, if they are known: an Engine knows those of the queues it was given."""


def queue_view(stats: QueueStats, limits: Queue | None, now: float) -> QueueView:
    """A queue as callers see it."""
    oldest = None if stats.oldest is None else max(0.0, now - stats.oldest)
    return QueueView(stats.queue, stats.queued, stats.running, oldest, limits)


@dataclass(frozen=True, slots=True)
class OrchestratorView:
    """An orchestrator that is alive, or that is gone and still owns unfinished runs.

    `session` identifies its process; `expires_at` is when it counts as dead, unless a heartbeat comes. Of its runs,
    `running` are in progress, and `waiting` wait for something.
    """

    name: str
    alive: bool
    running: int = 0
    waiting: int = 0
    session: str | None = None
    expires_at: datetime | None = None
    programs: tuple[str, ...] | None = None
    """The programs that it has; None if it did not publish them, or they are too many."""


def orchestrator_views(
    leases: Sequence[Lease], loads: Sequence[Load], said: Mapping[str, Registration]
) -> list[OrchestratorView]:
    """Orchestrators as callers see them, by name."""
    views = {
        load.owner: OrchestratorView(load.owner, False, load.running, load.waiting) for load in loads if load.owner
    }
    for lease in leases:
        name = orchestrator_name(lease.key)
        seen = views.get(name, OrchestratorView(name, True))
        session = lease.owner.removeprefix(f"{name}#")
        programs = said[name].programs if name in said else None
        views[name] = replace(seen, alive=True, session=session, expires_at=moment(lease.expires), programs=programs)
    return sorted(views.values(), key=lambda view: view.name)


class RunPage(list[RunSummary]):
    """A page of runs. `cursor` gets the next page, and is None on the last.

    `searched`: only this many runs were searched for tags and values; older ones may match, and `cursor` continues
    there.
    """

    cursor: str | None = None
    searched: int | None = None


@dataclass(frozen=True, slots=True)
class RunCount:
    """How many runs of a program are in a status. `bounded`: at least this many."""

    program: str
    status: RunStatus
    count: int
    bounded: bool = False


@dataclass(frozen=True, slots=True)
class HistogramBucket:
    """How many runs ended from `since` and before `until`, by status."""

    since: datetime
    until: datetime
    counts: dict[RunStatus, int]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A row with its values, which may have been offloaded."""

    row: RunRow
    input: Any = None
    output: Any = None


def run_summary(loaded: Loaded, head: Head) -> RunSummary:
    """A run's row as callers see it."""
    return RunSummary(**_summary(loaded, head))


def run_view(loaded: Loaded, head: Head, state: RunState) -> RunView:
    """A run's row as callers see it, with what its folded journal says."""
    path = child_path(loaded.row)
    inside = f"{path}/" if path else ""
    values = state.child_values.get(path, {}) if path else state.values
    parked = state.parked if loaded.row.status is RunStatus.PARKED else None
    return RunView(
        **_summary(loaded, head),
        state={key: msgspec.json.decode(value) for key, value in values.items()},
        waits=tuple(_wait_view(at, op) for at, op in state.ops.items() if not op.running and at.startswith(inside)),
        locks=tuple(lock.key for op, lock in state.locks.items() if op.startswith(inside)),
        parked=parked.kind if parked is not None else None,
        divergence=parked.divergence if parked is not None else None,
        continued_from=(state.started.continued_from or None) if state.started is not None and not path else None,
    )


def _summary(loaded: Loaded, head: Head) -> dict[str, Any]:
    row = loaded.row
    same = ("id", "run_id", "program", "version", "status", "error", "reason", "owner", "epoch", "tags", "priority")
    return {name: getattr(row, name) for name in same} | {
        "input": loaded.input,
        "output": loaded.output,
        "parent": row.parent or None,
        "root": row.root or row.run_id,
        "forked_from": row.forked_from or None,
        "continued_as": row.continued_as or None,
        "created_at": moment(row.created_at),
        "updated_at": moment(head.at),
        "finished_at": _moment(row.finished_at),
        "next_seq": head.next_seq,
        "size": head.size,
        "queue": row.queue or None,
        "key": row.queue_key or None,
    }


def interrupts(
    state: RunState, program: Program | None, codec: Codec, chunks: Sequence[OpenChunk] = ()
) -> tuple[Interrupt, ...]:
    """The requests of a run, its children and its chunks, in order, with the types that the program has for them."""
    return tuple(
        _interrupt(one.state, path, one.scope, program, codec)
        for one in (OpenChunk("", state), *chunks)
        for path in questions(one.state)
    )


def _interrupt(state: RunState, path: str, scope: str, program: Program | None, codec: Codec) -> Interrupt:
    op = state.ops[path]
    wait, child = _wait_view(path, op), state.child_of(path)
    assert state.started is not None
    id = state.children[child].started.id or f"{state.started.id}/{child}" if child else state.started.id
    payload, schema = wait.request, wait.schema
    types = None if program is None else program.question_types(scope + path)
    if types is not None and op.opened is not None:
        shown, answer = types
        schema = schema if answer is Any else answer
        try:
            payload = codec.decode(op.opened.request, shown, f"the request of {wait.name!r}")
        except NotDecodable:
            pass  # the type has changed since; the value is shown all the same
    return Interrupt(scope + path, wait.name, wait.kind, id, payload, schema, wait.deadline, wait.approvers)


def _wait_view(path: str, op: OpenOp) -> WaitView:
    kind, asked = "retry" if op.kind == "step" else op.kind, op.opened
    if asked is None:
        return WaitView(path, kind, _moment(op.due), op.source, op.name.rpartition("/")[2])
    request, schema = msgspec.json.decode(asked.request), msgspec.json.decode(asked.schema)
    return WaitView(path, kind, _moment(op.due), op.source, asked.name, request, schema, asked.approvers)


def approval_views(row: RunRow, state: RunState, now: float) -> list[ApprovalView]:
    """The open approvals of a run, in the order it asked."""
    views = []
    for path, op in state.ops.items():
        asked = op.opened
        if asked is not None and asked.kind == "approval":
            views.append(
                ApprovalView(
                    id=row.id,
                    run_id=row.run_id,
                    program=row.program,
                    name=asked.name,
                    path=path,
                    request=msgspec.json.decode(asked.request),
                    schema=msgspec.json.decode(asked.schema),
                    approvers=may_answer(asked, now),
                    asked_at=moment(op.opened_at),
                    deadline=_moment(asked.deadline),
                    escalates_at=_moment(asked.escalate_at),
                )
            )
    return views


def step_view(
    record: StepRecord, output: msgspec.Raw, owner_lives: bool, inputs: dict[str, Any] | None = None
) -> StepView:
    """A step as callers see it. A step that runs without a living owner is unknown."""
    status = record.status
    if (
        status is StepStatus.RUNNING
        and not owner_lives
        and record.attempts
        and record.attempts[-1].status is StepStatus.RUNNING
    ):
        status = StepStatus.UNKNOWN
    attempts = tuple(
        AttemptView(
            a.number, a.status, a.error, moment(a.started_at), _moment(a.finished_at), _moment(a.retry_at), a.fallback
        )
        for a in record.attempts
    )
    return StepView(
        path=record.path,
        name=op_name(record.path),
        status=status,
        attempt=attempts[-1].number if attempts else 0,
        attempts=attempts,
        input_hash=record.inputs_hash,
        output=msgspec.json.decode(output),
        error=record.error,
        progress=msgspec.json.decode(record.progress),
        source=record.source,
        started_at=moment(began(record)),
        finished_at=_moment(record.finished_at),
        duration=None if record.finished_at is None else moment(record.finished_at) - moment(began(record)),
        inputs=inputs,
        replayed=record.replayed,
        chunks=tuple(msgspec.json.decode(chunk) for chunk in record.chunks),
        stream=StreamView(record.shown, record.restarts, record.finished_at is None) if record.shown else None,
        skipped_by=record.skipped_by or None,
        reason=record.reason,
    )


def _moment(at: float | None) -> datetime | None:
    return None if at is None else moment(at)
