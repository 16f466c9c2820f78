"""The steps of a run, read from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from perdure.errors import Corrupt
from perdure.kernel.batches import error_of
from perdure.kernel.chunks import ChunkOutcome, chunk_range
from perdure.kernel.events import (
    NULL,
    AttemptFailed,
    Batch,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
    Event,
    RunClaimed,
    RunFinished,
    RunForked,
    RunStatus,
    StepFailed,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepStatus,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    events_in,
)
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.skips import why_no_result


class AttemptRecord(msgspec.Struct, gc=False):
    """One attempt of a step."""

    number: int
    started_at: float
    status: StepStatus = StepStatus.RUNNING
    finished_at: float | None = None
    error: Failure | None = None
    retry_at: float | None = None
    # Whether the fallback made it.
    fallback: bool = False


class NotRun(msgspec.Struct, frozen=True):
    """A node that had its turn and did not run: skipped, blocked by a failure, or itself failed when it was decided.

    `by` is the op that is the reason, `when` for a condition of its own, or `input` for one that was not given.
    """

    op: str
    status: StepStatus
    by: str
    reason: str
    source: str
    at: float
    error: Failure | None = None


def within(path: str, turn: NotRun) -> NotRun:
    """A turn of a child, as seen from the root."""
    if not path:
        return turn
    by = turn.by if turn.by in ("", "when", "input") else f"{path}/{turn.by}"
    return msgspec.structs.replace(turn, op=f"{path}/{turn.op}", by=by)


class Missed(msgspec.Struct):
    """The turns that did not run, as a replay finds them; all of them if the code fits the `whole` journal."""

    turns: list[NotRun] = []
    whole: bool = False


class StepRecord(msgspec.Struct, gc=False):
    """One step of a run."""

    path: str
    inputs_hash: str
    source: str
    attempts: list[AttemptRecord]
    status: StepStatus = StepStatus.RUNNING
    output: Raw = NULL
    output_blob: str = ""
    error: Failure | None = None
    finished_at: float | None = None
    progress: Raw = NULL
    # Whether it is remote: another run executes it, even if the owner of this one dies.
    remote: bool = False
    # Whether its own attempts have failed, and the fallback is next.
    fallback: bool = False
    # Its recorded arguments, if any, and their names.
    input: Raw = NULL
    input_blob: str = ""
    names: tuple[str, ...] = ()
    # Whether its outcome was recorded before the current owner claimed the run, or before the fork.
    replayed: bool = False
    # Its valid chunks, how many numbers its stream has used, and how often it restarted.
    chunks: list[Raw] = []
    shown: int = 0
    restarts: int = 0
    # Why it was skipped or blocked, for a node of a graph: the op that is the reason, and the words.
    skipped_by: str = ""
    reason: str = ""


def not_run(turn: NotRun) -> StepRecord:
    """The record of a node that did not run."""
    made = StepRecord(turn.op, "", turn.source, [], turn.status, finished_at=turn.at)
    made.skipped_by, made.reason, made.error = turn.by, turn.reason, turn.error
    return made


def began(record: StepRecord) -> float:
    """When a step began, or did not."""
    return record.attempts[0].started_at if record.attempts else record.finished_at or 0.0


class StepRecords:
    """Every step of a run with its attempts, as far as the journal has been fed."""

    def __init__(self) -> None:
        self._found: dict[str, StepRecord] = {}
        # Nodes that a gate chose: another gate may not have chosen them.
        self._chosen: set[str] = set()

    def feed(self, batches: Iterable[Batch]) -> None:
        """Take in what comes next in the journal. An outcome of what never began is Corrupt."""
        for batch in batches:
            for event in batch.events:
                try:
                    self._fold(event, batch.at)
                except LookupError:
                    op = getattr(event, "op", "")
                    raise Corrupt("the journal", f"{type(event).__name__} of {op!r}, which never began") from None

    def _fold(self, event: Event, at: float) -> None:
        if isinstance(event, StepStarted):
            record = self._found.get(event.op)
            if record is None or not record.attempts:
                record = StepRecord(event.op, event.inputs, event.source, [], remote=event.queue != "")
                record.input, record.input_blob, record.names = event.input, event.input_blob, event.names
                self._found[event.op] = record
            elif record.attempts[-1].status is StepStatus.RUNNING:
                # A new attempt without an outcome of the previous one: its owner died.
                record.attempts[-1].status = StepStatus.UNKNOWN
            record.attempts.append(AttemptRecord(event.attempt, at, fallback=record.fallback))
            record.status = StepStatus.RUNNING
        elif isinstance(event, StepSucceeded):
            record = self._found[event.op]
            record.output, record.output_blob = event.value, event.blob
            _end(record, StepStatus.SUCCEEDED, at, None)
        elif isinstance(event, AttemptFailed):
            last = self._found[event.op].attempts[-1]
            last.status, last.finished_at, last.error = StepStatus.FAILED, at, event.error
            last.retry_at = event.retry_at
            self._found[event.op].fallback = event.fallback
        elif isinstance(event, StepFailed):
            status = StepStatus.UNKNOWN if event.unknown else StepStatus.FAILED
            _end(self._found[event.op], status, at, event.error)
        elif isinstance(event, ChunkAppended):
            record = self._found[event.op]
            if event.restart:
                record.chunks, record.restarts = [], record.restarts + 1
            record.chunks += event.chunks
            record.shown = event.end
        elif isinstance(event, RunClaimed | RunForked):
            for record in self._found.values():
                record.replayed |= record.finished_at is not None
        elif isinstance(event, ValueRecorded) and event.kind in ("route", "when"):
            for turn in _skipped(event, at):
                self._found.setdefault(turn.op, not_run(turn))
            if event.kind == "route":
                self._chosen.update(_targets(event, "chose"))
        elif isinstance(event, StepProgressed):
            self._found[event.op].progress = event.progress
        elif isinstance(event, StepSkipped):
            _end(self._found[event.op], StepStatus.SKIPPED, at, event.error)
            self._found[event.op].attempts[-1].status = StepStatus.FAILED
        elif isinstance(event, RunFinished):
            for record in self._found.values():
                if record.status is StepStatus.RUNNING:
                    record.status = StepStatus.UNKNOWN

    def found(self) -> list[StepRecord]:
        """The steps in the order they began."""
        return [record for record in self._found.values() if record.attempts or record.path not in self._chosen]


def steps(batches: Iterable[Batch]) -> list[StepRecord]:
    """Every step of a run with its attempts, in the order they began."""
    records = StepRecords()
    records.feed(batches)
    return records.found()


def _skipped(event: ValueRecorded, at: float) -> Iterable[NotRun]:
    """The nodes that a recorded decision skips."""
    if event.kind == "when":
        yield NotRun(event.op, StepStatus.SKIPPED, "when", "its `when` is false", event.source, at)
        return
    gate = event.op.rpartition("/")[2]
    for op in _targets(event, "skips"):
        yield NotRun(op, StepStatus.SKIPPED, event.op, f"{gate} did not choose it", event.source, at)


def _targets(event: ValueRecorded, which: str) -> Iterable[str]:
    """The ops of nodes that a gate chose or not; in a loop they have the number of the gate."""
    scope, slash, gate = event.op.rpartition("/")
    for name in msgspec.json.decode(event.value).get(which, ()):
        if name is not None:
            yield f"{scope}{slash}{name}:{gate.rpartition(':')[2]}"


def _end(record: StepRecord, status: StepStatus, at: float, error: Failure | None) -> None:
    last = record.attempts[-1]
    last.status, last.finished_at, last.error = status, at, error
    record.status, record.finished_at, record.error = status, at, error


class ItemRecord(msgspec.Struct):
    """One item of a map: a step or a child run."""

    index: int
    path: str
    status: StepStatus = StepStatus.RUNNING
    output: Raw = NULL
    output_blob: str = ""
    error: Failure | None = None
    # Why its output was skipped.
    reason: str = ""


def items(batches: Iterable[Batch], op: str) -> list[ItemRecord]:
    """The items of a map that have begun, in their order."""
    found: dict[str, ItemRecord] = {}
    # By item: the ops in it that are under way, and whether each only waits: for a signal, a person, or a moment.
    inside: dict[str, dict[str, bool]] = {}
    for event in events_in(batches):
        path = getattr(event, "op", "")
        if not _is_item(path, op) or chunk_range(path) is not None:
            item_path, slash, _ = path[len(op) :].partition("/")
            if slash and path.startswith(f"{op}["):
                under_way = inside.setdefault(op + item_path, {})
                if isinstance(event, StepStarted | WaitOpened):
                    under_way[path] = isinstance(event, WaitOpened)
                elif isinstance(event, StepSucceeded | StepFailed | StepSkipped | WaitResolved):
                    under_way.pop(path, None)
            continue
        item = found.setdefault(path, ItemRecord(int(path[len(op) + 1 : -1]), path))
        if isinstance(event, StepSucceeded | ChildFinished):
            item.output, item.output_blob, item.status = event.value, event.blob, StepStatus.SUCCEEDED
            reason = why_no_result(event.value) if isinstance(event, ChildFinished) else None
            if reason is not None:
                item.output, item.status, item.reason = NULL, StepStatus.SKIPPED, reason
            elif isinstance(event, ChildFinished) and event.status is RunStatus.CANCELLED:
                item.status, item.reason = StepStatus.FAILED, event.reason
        if isinstance(event, StepFailed | StepSkipped | ChildFinished) and event.error is not None:
            item.error = event.error
            item.status = StepStatus.SKIPPED if isinstance(event, StepSkipped) else StepStatus.FAILED
    for path, under_way in inside.items():
        if under_way and all(under_way.values()) and found[path].status is StepStatus.RUNNING:
            found[path].status = StepStatus.WAITING
    return sorted(found.values(), key=lambda item: item.index)


def _is_item(path: str, op: str) -> bool:
    return path.startswith(f"{op}[") and path.endswith("]") and "/" not in path[len(op) :]


class ChunkRecord(msgspec.Struct):
    """One chunk of a map, with the numbers of its first and its last item."""

    path: str
    first: int
    last: int
    status: StepStatus = StepStatus.RUNNING
    outcome: ChunkOutcome | None = None

    def may_have(self, status: StepStatus | str | None) -> bool:
        """Whether there may be items in this status; None: in any."""
        if self.outcome is None or status is None:
            return True
        if status == StepStatus.FAILED:
            return self.outcome.failed > 0
        return status not in (StepStatus.RUNNING, StepStatus.WAITING)

    def items(self, outcome: ChunkOutcome, results: Sequence[Raw]) -> list[ItemRecord]:
        """Its items, reconstructed from the results: which of them have none is known, the reasons are not."""
        path, ended = self.path.rpartition("[")[0], StepStatus.FAILED if outcome.failed else StepStatus.SKIPPED
        # The results have None for an item without one, or leave it out.
        stand_ins = [results[n - self.first : n - self.first + 1] for n in outcome.without]
        with_none = all(one and (one[0] == NULL or error_of(one[0]) is not None) for one in stand_ins)
        succeeded = iter(results)
        found: list[ItemRecord] = []
        for number in range(self.first, self.first + len(results) + (0 if with_none else len(outcome.without))):
            lacks = number in outcome.without
            value = NULL if lacks and not with_none else next(succeeded)
            item = ItemRecord(number, f"{path}[{number}]", ended if lacks else StepStatus.SUCCEEDED, value)
            if lacks and (error := error_of(value)) is not None:
                item.output, item.error = NULL, error
            found.append(item)
        return found


def chunks(batches: Iterable[Batch], op: str) -> list[ChunkRecord]:
    """The chunks of a map that have begun, in their order."""
    found: dict[str, ChunkRecord] = {}
    for event in events_in(batches):
        path = getattr(event, "op", "")
        numbers = chunk_range(path) if _is_item(path, op) else None
        if numbers is None:
            continue
        chunk = found.setdefault(path, ChunkRecord(path, *numbers))
        if isinstance(event, StepStarted):
            chunk.status, chunk.outcome = StepStatus.RUNNING, None
        elif isinstance(event, StepSucceeded):
            chunk.status = StepStatus.SUCCEEDED
            chunk.outcome = msgspec.json.decode(event.value, type=ChunkOutcome)
        elif isinstance(event, StepFailed):
            chunk.status = StepStatus.FAILED
    return sorted(found.values(), key=lambda chunk: chunk.first)


def op_statuses(batches: Iterable[Batch]) -> dict[str, str]:
    """The status of each op in a journal: steps, gates, questions, conditions and child runs."""
    found: dict[str, str] = {}
    for event in events_in(batches):
        match event:
            case StepStarted() | ChildStarted():
                found[event.op] = "running"
            case WaitOpened():
                found[event.op] = "waiting"
            case StepSucceeded() | WaitResolved():
                found[event.op] = "succeeded"
            case StepSkipped() | ValueRecorded(kind="when"):
                found[event.op] = "skipped"
            case StepFailed():
                found[event.op] = "unknown" if event.unknown else "failed"
            case ChildFinished():
                found[event.op] = "succeeded" if event.error is None else "failed"
            case ValueRecorded(kind="route"):
                found[event.op] = "succeeded"
            case _:
                pass
    return found
