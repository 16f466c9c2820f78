"""Retry a failed or cancelled run: which outcomes it keeps, and which ops run again. Decides, never writes.

The retry is a new incarnation whose journal begins with the outcomes it keeps (`kept_outcomes.py`). Failures are not
among them, so those ops run again when the program asks for them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import itemgetter

import msgspec
from msgspec import Raw

from perdure.errors import CannotRetry, UsageError
from perdure.kernel.chunks import CHUNK, chunk_range
from perdure.kernel.commands import FINISH, Finish, OpenWait, RunStep
from perdure.kernel.divergence.recorded_source import last_code
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    ChunkAppended,
    OutcomeKept,
    RunFinished,
    RunForked,
    RunStarted,
    RunStatus,
    SignalReceived,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    numbered,
)
from perdure.kernel.history.fork import USED, Value, context_of, end_of, recorded_value
from perdure.kernel.history.kept_outcomes import AGAIN, BAILED, LOCKED, PATCHED, KeptOutcomes, wait_of
from perdure.kernel.history.ops import Op, ops
from perdure.kernel.ids import enclosing, numberless, op_name
from perdure.kernel.patches import PATCH
from perdure.kernel.plan import keep, plan
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure

# Ops that show that a body continued after a failure.
_GOES_ON = ("step", "child", "signal", "approval")
_WENT_WELL = (RunStatus.COMPLETED, RunStatus.BAILED)
# Ops that can fail without waiting for a person.
_CALLED = ("step", "child", "timer")


class Withdrawn(msgspec.Struct, frozen=True):
    """The outcomes that the retry does not keep: those of `ops`, and all from event `seq` on."""

    seq: int
    ops: frozenset[str] = frozenset()


def withdrawals(batches: Sequence[Batch]) -> list[Withdrawn]:
    """The candidates for what to withdraw from a failed or cancelled run, the likeliest first.

    The failure that became that of the run, and other failures that the body did not handle.
    """
    found, end = ops(batches), end_of(batches)
    last = {event.op for _, _, event in numbered(batches) if isinstance(event, ChildStarted) and event.last}
    if last:
        found = {path: op for path, op in found.items() if not _is_within(path, last)}
    finished = batches[-1].events[-1]
    assert isinstance(finished, RunFinished)
    if finished.status is RunStatus.CANCELLED:
        asked = [s for s, _, e in numbered(batches) if isinstance(e, CancelRequested) and not e.child]
        candidates = [Withdrawn(asked[0] if asked else end)]
        culprits: list[Op] = []
    else:
        failures = [op for op in found.values() if op.failed is not None and op.ended is not None and op.ended < end]
        failures += _struck(batches, found, finished, end)
        culprits = _culprits(failures, finished.error, found, end)
        likely = _unhandled(failures, culprits, found)
        every = {op.path for op in failures if op.kind in _CALLED and not op.unknown} | likely
        candidates = [Withdrawn(end, frozenset(likely))]
        if every != likely:
            candidates.append(Withdrawn(end, frozenset(every)))
    point = min([candidates[0].seq, *map(_end_number, culprits)])
    _refuse(found, culprits, point)
    return candidates


def _refuse(found: Mapping[str, Op], culprits: Iterable[Op], point: int) -> None:
    unknown = next((op.path for op in culprits if op.unknown), None)
    if unknown is not None:
        raise UsageError(
            f"{unknown} runs at most once, and its outcome is unknown; find out whether it ran, and fork the run: with "
            f"values={{{unknown!r}: ...}} to say what came of it, or at={unknown!r} to have it called again"
        )
    undone = next((op.path for op in found.values() if "compensate:" in op.path and op.began >= point), None)
    if undone is not None:
        raise UsageError(
            f"what it had done before it failed was undone ({undone}), so it cannot go on from there; start it "
            'again, with reuse="allow_if_failed", or fork it where you want it to go on'
        )


def _struck(batches: Sequence[Batch], found: Mapping[str, Op], finished: RunFinished, end: int) -> list[Op]:
    """Timers after which the body cancelled something, as asyncio.timeout() does."""
    struck: list[Op] = []
    # Open ops are also cancelled when the run ends, for whatever reason.
    late = finished.error is not None and finished.error.type.endswith("TimeoutError")
    for batch in batches:
        last: Op | None = None
        for seq, event in enumerate(batch.events, batch.seq):
            if isinstance(event, WaitResolved) and event.by == "timer" and seq < end:
                last = found[event.op]
            elif last is not None and isinstance(event, StepFailed | WaitResolved | CancelRequested):
                if _gives_up(event) and (seq < end or late):
                    struck.append(last)
                last = None
    return struck


def _gives_up(event: StepFailed | WaitResolved | CancelRequested) -> bool:
    if isinstance(event, WaitResolved):
        return event.by == "cancelled"
    return event.given_up if isinstance(event, CancelRequested) else event.cancelled


def _unhandled(failures: Sequence[Op], culprits: Sequence[Op], found: Mapping[str, Op]) -> set[str]:
    """The failed ops to run again: the culprits, and failures that the body did not handle."""
    ways = _Ways(found.values())
    chosen = {op.path for op in culprits}
    blamed = {_call_of(op) for op in culprits}
    for op in failures:
        # A body that called the step again and succeeded has handled the failure.
        handled = ways.went_on(op) or (ways.recovered(op) and _call_of(op) not in blamed)
        if op.kind in _CALLED and not op.unknown and not handled:
            chosen.add(op.path)
    around = tuple(f"{op.path}/" for op in failures if op.kind == "child" and op.path not in chosen)
    # If the failure of a child is kept, so are the failures inside it.
    return {path for path in chosen if not path.startswith(around)}


class _Ways:
    """How each scope of a body continued after a failure: the run itself, its tasks and its children."""

    def __init__(self, found: Iterable[Op]) -> None:
        self._began: dict[str, list[tuple[int, str]]] = {}
        self._first: dict[tuple[str, str], int] = {}
        self._compensated: dict[str, int] = {}
        # When the last successful call of a step began, by scope, name and inputs.
        self._succeeded: dict[tuple[str, str, str], int] = {}
        for op in found:
            if op.kind == "step" and op.ended is not None and op.failed is None and not op.given_up:
                self._succeeded[_call_of(op)] = op.began
            scope, _, last = op.path.rpartition("/")
            if op.kind in _GOES_ON:
                self._began.setdefault(scope, []).append((op.began, op_name(last)))
                self._first.setdefault((scope, op_name(last)), op.began)
            if scope.rpartition("/")[2].startswith("compensate:"):
                self._compensated[scope.rpartition("/")[0]] = op.began

    def went_on(self, failed: Op) -> bool:
        """Whether the scope of a failure continued with an op that it had not used before.

        An op that it had used before does not count: a loop continues with the next item.
        """
        scope, ended = failed.path.rpartition("/")[0], _end_number(failed)
        if self._compensated.get(scope, -1) > ended:
            return True
        began = self._began.get(scope, [])
        at = bisect_right(began, (ended, ""))
        return at < len(began) and self._first[scope, began[at][1]] > ended

    def recovered(self, failed: Op) -> bool:
        """Whether a later call of the same step, in the same scope and with the same inputs, succeeded."""
        return failed.kind == "step" and self._succeeded.get(_call_of(failed), -1) > _end_number(failed)


def _call_of(op: Op) -> tuple[str, str, str]:
    """The scope, name and inputs of a call."""
    scope, _, last = op.path.rpartition("/")
    return scope, op_name(last), op.inputs


def _culprits(failures: list[Op], error: Failure | None, found: Mapping[str, Op], end: int) -> list[Op]:
    """The ops whose failure became that of the run."""
    if error is None or error.type.endswith(".DeadlineExceeded"):
        return []
    same = [op for op in failures if op.failed is not None and _alike(op.failed, error)]
    if same:
        last = max(same, key=_end_number)
        if last.kind != "child":
            return [last]
        inner = [op for op in failures if op.path.startswith(f"{last.path}/")]
        return [last, *_culprits(inner, last.failed, found, last.ended or end)]
    members = [culprit for one in error.errors for culprit in _culprits(failures, one, found, end)]
    if members:
        return members
    if error.cause is not None and (causes := _culprits(failures, error.cause, found, end)):
        return causes
    # Otherwise the last outcome before the end, if it was a failure.
    latest = max(
        (op for op in found.values() if op.ended is not None and op.ended < end), key=_end_number, default=None
    )
    return [latest] if latest is not None and latest in failures else []


def _is_within(op: str, children: Iterable[str]) -> bool:
    """Whether an op is one of these children, or in one of them."""
    return any(op == child or op.startswith(f"{child}/") for child in children)


def _alike(failure: Failure, error: Failure) -> bool:
    return (failure.type, failure.message) == (error.type, error.message)


def _end_number(op: Op) -> int:
    return -1 if op.ended is None else op.ended


# --- the journal of the retry ---------------------------------------------------------------------------------------


def retried(batches: Sequence[Batch], without: Withdrawn, started: RunStarted, now: float) -> list[Batch]:
    """The first batch of the retry's journal."""
    past = _Outcomes(started)
    for seq, at, event in numbered(batches):
        past.fold(event, at, kept=seq < without.seq, withdrawn=getattr(event, "op", "") in without.ops)
    seen = tuple(key.id for key in past.state.signal_ids if not key.child)[-1000:]
    begin = msgspec.structs.replace(started, recorded=past.recorded() or None, seen=seen)
    context, code = context_of(batches, started.forked_from), last_code(batches)
    forked = RunForked(started.forked_from, without.seq, run=context, code=code, children=past.children or None)
    return [Batch(0, now, [begin, *past.outcomes(), *past.unread(), forked])]


def rerun(
    batches: Sequence[Batch],
    again: Collection[str],
    values: Mapping[str, Value],
    started: RunStarted,
    now: float,
    *,
    end: int | None = None,
    inputs: dict[str, dict[str, Raw]] | None = None,
    items: Mapping[str, str] | None = None,
    inside: dict[str, Raw] | None = None,
) -> list[Batch]:
    """The first batch of a run that keeps the outcomes of another, except for the ops `again`, which run again.

    `values` are other outcomes for some ops; `inputs` other arguments; nothing from event `end` on is kept. What failed
    runs again, too, but not in a child that completed. `items` are the items that run again in chunks, by the op of the
    chunk; empty for those that failed. `inside` are other outcomes for ops in chunks.
    """
    past, found = _Outcomes(started), ops(batches)
    end = end_of(batches) if end is None else end
    completed = {
        event.op
        for seq, _, event in numbered(batches)
        if isinstance(event, ChildFinished) and event.status in _WENT_WELL and event.op not in again and seq < end
    }
    for seq, at, event in numbered(batches):
        op = getattr(event, "op", "")
        failed = isinstance(event, StepFailed) or (isinstance(event, WaitResolved) and event.by == "timeout")
        withdrawn = failed and not enclosing(op, completed)
        past.fold(event, at, kept=seq < end and op not in again, withdrawn=withdrawn)
    for op in again:
        past.used.pop(op, None)
    for op, item in (items or {}).items():
        past.run_item(op, found[op].inputs, item)
    for op, value in values.items():
        past.replace(op, found[op].kind, value)
    seen = tuple(key.id for key in past.state.signal_ids if not key.child)[-1000:]
    begin = msgspec.structs.replace(started, recorded=past.recorded() or None, seen=seen)
    context, code = context_of(batches, started.forked_from), last_code(batches)
    forked = RunForked(
        started.forked_from, end, inputs=inputs, run=context, values=inside, code=code, children=past.children or None
    )
    return [Batch(0, now, [begin, *past.outcomes(), *past.unread(), forked])]


def memoized(batches: Sequence[Batch], started: RunStarted, now: float) -> list[Batch]:
    """The first batch of a run that starts again, with results that its steps reuse if their arguments are the same."""
    past = _Outcomes(started)
    for _, at, event in numbered(batches):
        past.fold(event, at, kept=not isinstance(event, WaitResolved), withdrawn=True)
    return [Batch(0, now, [started, *(one for one in past.outcomes() if one.kind == "succeeded")])]


class _Outcomes:
    """Collects the outcomes of a journal that its retry keeps."""

    def __init__(self, started: RunStarted) -> None:
        self.state = RunState("")
        # Values that the body has computed with, by op.
        self.used: dict[str, Raw] = {}
        self._started = started
        self._kept: dict[str, OutcomeKept] = {}
        self._inputs: dict[str, str] = {}
        self._versions: dict[str, str] = {}
        self._functions: dict[str, str] = {}
        # The functions of children, by their paths without numbers.
        self.children: dict[str, str] = {}
        self._chunks: dict[str, list[Raw]] = {}
        self._sent: dict[int, SignalReceived] = {}
        # What ran in the end of this run, and of children that did not complete: it runs again.
        self._last: set[str] = set()

    def fold(self, event: AnyEvent, at: float, *, kept: bool, withdrawn: bool) -> None:
        """Fold one event, and collect the outcome that it holds if it is `kept`."""
        state, taken = self.state, None
        if isinstance(event, SignalReceived):
            self._sent[id(event)] = event
        elif isinstance(event, WaitResolved) and event.by == "signal":
            taken = state.inbox[state.ops[event.op].name][0]
        elif isinstance(event, RunStarted):
            self.used.update(event.recorded or {})
        elif isinstance(event, ChildStarted) and not event.detached:
            if "[" not in event.op:
                self.children[numberless(event.op)] = event.function
            if event.last:
                self._last.add(event.op)
        elif isinstance(event, ChildFinished) and event.status is RunStatus.COMPLETED:
            self._last = {op for op in self._last if op.rpartition("/")[0] != event.op}
        state.fold(event, at)
        if not kept:
            return
        outcome = self._outcome(event, withdrawn, taken)
        if outcome is not None:
            if outcome.op in self._functions:
                outcome = msgspec.structs.replace(outcome, function=self._functions[outcome.op])
            self._kept[outcome.op] = outcome
            if taken is not None:
                self._sent.pop(id(taken), None)

    def _outcome(self, event: AnyEvent, withdrawn: bool, taken: SignalReceived | None) -> OutcomeKept | None:
        if isinstance(event, StepStarted):
            if event.attempt == 1:
                self._inputs[event.op] = event.inputs
                self._versions[event.op] = event.version
                if event.function:
                    self._functions[event.op] = event.function
                if event.queue == CHUNK:
                    # Until it has ended: its run goes on with the items that this one lacks.
                    return OutcomeKept(event.op, AGAIN, event.inputs)
        elif isinstance(event, ChunkAppended):
            chunks = self._chunks.setdefault(event.op, [])
            if event.restart:
                chunks.clear()
            chunks += event.chunks
        elif isinstance(event, WaitOpened):
            self._inputs[event.op] = wait_of(event)
        elif isinstance(event, StepSucceeded | StepSkipped | StepFailed):
            return self._step(event, withdrawn)
        elif isinstance(event, WaitResolved):
            return self._wait(event, taken) if not withdrawn and event.by != "cancelled" else None
        elif isinstance(event, ChildStarted) and event.detached:
            return OutcomeKept(event.op, "started", event.inputs, by=event.detached, function=event.function)
        elif isinstance(event, ValueRecorded) and event.kind in USED:
            self.used[event.op] = event.value
        elif isinstance(event, ValueRecorded) and event.kind == PATCH:
            return OutcomeKept(event.op, PATCHED)
        return None

    def _step(self, event: StepSucceeded | StepSkipped | StepFailed, withdrawn: bool) -> OutcomeKept | None:
        op, inputs = event.op, self._inputs.get(event.op, "")
        chunks = tuple(self._chunks.get(op, ()))
        if isinstance(event, StepSucceeded) and withdrawn and chunk_range(op) is not None:
            return OutcomeKept(op, AGAIN, inputs)  # too many of its items have failed
        if isinstance(event, StepSucceeded):
            # Only where results are reused by their arguments does the version of a node count.
            version = self._versions.get(op, "") if self._started.memo else ""
            kept = OutcomeKept(op, "succeeded", inputs, event.value, event.blob, chunks=chunks, version=version)
            return msgspec.structs.replace(kept, digest=event.digest) if event.digest else kept
        if isinstance(event, StepSkipped):
            return OutcomeKept(op, "skipped", inputs, error=event.error, chunks=chunks)
        if event.cancelled:
            return None  # a chunk goes on with the items that it lacks, as one that has not ended
        if event.bailed:  # bail() is not a failure, and is not retried
            return OutcomeKept(op, "failed", inputs, event.output, by=BAILED, error=event.error, chunks=chunks)
        if withdrawn:
            return OutcomeKept(op, AGAIN, inputs, error=event.error)
        return OutcomeKept(op, "failed", inputs, error=event.error, unknown=event.unknown, chunks=chunks)

    def run_item(self, op: str, inputs: str, item: str) -> None:
        """Have an item of a chunk run again, and the chunk keep the others."""
        self._kept[op] = OutcomeKept(op, AGAIN, inputs, by=item)

    def replace(self, op: str, kind: str, value: Value) -> None:
        """Give an op another outcome, regardless of its arguments."""
        if kind == "step":
            self._kept[op] = OutcomeKept(op, "succeeded", "", value.kept, value.blob)
        elif kind == "approval":
            answer = WaitResolved.answered(op, "", value.data)
            self._kept[op] = OutcomeKept(op, "waited", "", value.data, by=answer.by)
        elif kind in USED:
            self.used[op] = recorded_value(kind, value.data)
        else:
            check_replaceable(op, kind)

    def _wait(self, event: WaitResolved, taken: SignalReceived | None) -> OutcomeKept:
        inputs = self._inputs.get(event.op, "")
        if event.by == "lock":
            return OutcomeKept(event.op, LOCKED, inputs, event.value)
        value = taken.payload if taken is not None else event.value
        by = "signal" if event.by == "kept" else event.by
        return OutcomeKept(event.op, "waited", inputs, value, by=by, answer_id=event.answer_id)

    def recorded(self) -> dict[str, Raw]:
        """The values that the body computes with again."""
        return {op: value for op, value in self.used.items() if not _is_within(op, self._last)}

    def outcomes(self) -> list[OutcomeKept]:
        """The outcomes in their order; then those that this run had itself kept and not asked for."""
        if self._last:
            self._kept = {op: one for op, one in self._kept.items() if not _is_within(op, self._last)}
        before = self.state.kept.entries if self.state.kept is not None else {}
        # Another task may have made the failed call since, and succeeded: then it need not run again.
        had = {(op_name(one.op), one.inputs) for one in self._kept.values() if one.kind == "succeeded"}
        left = [one for op, one in before.items() if op not in self._kept]
        left = [one for one in left if one.kind != AGAIN or (op_name(one.op), one.inputs) not in had]
        return [*self._kept.values(), *left]

    def unread(self) -> list[SignalReceived]:
        """The signals that no kept wait consumed."""
        return list(self._sent.values())


def check_replaceable(op: str, kind: str) -> None:
    """Raise UsageError for an op that can be given no other outcome."""
    if kind not in ("step", "approval", *USED):
        raise UsageError(f"{op} is a {kind}, whose outcome cannot be replaced; replace one in it, as in {op}/step:0")


# --- whether the retry would get further ----------------------------------------------------------------------------


def check_retry(replay: Replay, id: str, status: str, at: float) -> None:
    """Replay the program with the kept outcomes, then as if every op that runs again failed again. Executes nothing.

    Raises CannotRetry if the run would fail before any op runs again, or if its code would not ask again for a step
    that it has done.
    """
    state, kept = replay.state, replay.state.kept
    assert kept is not None
    called: list[str] = []
    failed: list[int] = []
    while FINISH not in replay.pending:
        planned = keep(state, replay.pending, at)
        events: Sequence[AnyEvent]
        events = planned.events if planned is not None else _predict(replay, kept, called, failed, at)
        if not events:
            return  # it waits for an outcome that cannot be predicted
        for event in events:
            replay.fold(event, at)
    finish = replay.pending[FINISH]
    assert isinstance(finish, Finish)
    if finish.status is RunStatus.FAILED and not called:
        why = f"{finish.error.type}: {finish.error.message}" if finish.error is not None else "an error"
        hint = "deploy code that does not raise it, or fork the run at an op of your choice"
        raise CannotRetry(id, status, hint, f"nothing would be called again, and it would fail the same way ({why})")
    # Outcomes after the first of those failures stay kept: the code may ask for them once the op succeeds.
    done = [one for one in kept.entries.values() if one.kind in ("succeeded", "started")]
    left = [one.op for one in done if not failed or kept.number(one) < min(failed)]
    if left and finish.status is not RunStatus.COMPLETED:
        shown = ", ".join(left[:5]) + (", ..." if len(left) > 5 else "")
        hint = "its steps would be run a second time; fork it at an op of your choice"
        raise CannotRetry(id, status, hint, f"its code would not ask again for what it has done ({shown})")


def _predict(replay: Replay, kept: KeptOutcomes, called: list[str], failed: list[int], at: float) -> Sequence[AnyEvent]:
    """Begin the next pending command without a kept outcome, and fail it if it had failed before.

    Ops that had failed fail last, in their previous order: a failure may cancel concurrent ops that had got further.
    """
    failing: list[tuple[int, RunStep, Failure]] = []
    for command in list(replay.pending.values()):
        if isinstance(command, RunStep):
            before = kept.find(command.op, StepStarted, command.inputs_hash, command)
            if before is not None and before.kind == AGAIN and before.error is not None:
                failing.append((kept.number(before), command, before.error))
                continue
        begun = plan(replay.state, [command], at).events
        if isinstance(command, RunStep):
            called.append(command.op)
            return begun[:1]
        if isinstance(command, OpenWait) and command.kind == "lock":
            return [*begun, WaitResolved(command.op, "lock", kept.token(command.op) or Raw(b"1"))]
        if begun:
            if isinstance(command, OpenWait):
                called.append(command.op)
            return begun
    if not failing:
        return ()
    number, first, error = min(failing, key=itemgetter(0))
    called.append(first.op)
    failed.append(number)
    return [*plan(replay.state, [first], at).events[:1], StepFailed(first.op, 1, error)]
