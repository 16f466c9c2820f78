"""Compare two runs op by op. Reads journals, decides nothing.

Ops are matched by path. They differ when their inputs, status, value or error differ; duration and attempts are
reported, but are not a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw

from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    ChildStarted,
    InputReplaced,
    RunFinished,
    RunStarted,
    RunStatus,
    StateSet,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.ids import inputs_hash
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import Failure

# The input and the result of the runs are compared like ops, under these paths.
INPUT, RESULT = "input", "result"


class OpOutcome(msgspec.Struct):
    """The outcome of an op in one run."""

    path: str
    kind: str
    began: float
    status: str = "open"
    inputs: str = ""
    value: Raw = NULL
    blob: str = ""
    error: Failure | None = None
    attempts: int = 0
    ended: float | None = None
    source: str = ""

    @property
    def took(self) -> float | None:
        """Seconds from its start to its outcome."""
        return None if self.ended is None else self.ended - self.began


class OpDiff(msgspec.Struct):
    """An op in two runs. `changes` are the fields that differ; empty when the op is the same in both."""

    path: str
    a: OpOutcome | None
    b: OpOutcome | None
    changes: tuple[str, ...]


class Diff(msgspec.Struct):
    """Every op of two runs, in the order they began."""

    ops: list[OpDiff]

    @property
    def first(self) -> OpDiff | None:
        """The first op that differs, or None when the runs are the same. In a child, the op that made it differ."""
        found = next((op for op in self.ops if op.changes), None)
        while found is not None:
            inside = f"{found.path}/"
            inner = next((op for op in self.ops if op.changes and op.path.startswith(inside)), None)
            if inner is None:
                break
            found = inner
        return found

    @property
    def added(self) -> list[str]:
        """Ops that only the second run has."""
        return [op.path for op in self.ops if op.a is None]

    @property
    def removed(self) -> list[str]:
        """Ops that only the first run has."""
        return [op.path for op in self.ops if op.b is None]


def diff(a: Sequence[Batch], b: Sequence[Batch]) -> Diff:
    """Compare two journals op by op."""
    first, second = outcomes(a), outcomes(b)
    return Diff([_compare(path, first.get(path), second.get(path)) for path in _merged(first, second)])


def _compare(path: str, a: OpOutcome | None, b: OpOutcome | None) -> OpDiff:
    if a is None or b is None:
        return OpDiff(path, a, b, ("added" if a is None else "removed",))
    changes = [name for name in ("kind", "inputs", "status") if getattr(a, name) != getattr(b, name)]
    if (bytes(a.value), a.blob) != (bytes(b.value), b.blob):
        changes.append("value")
    if _without_traceback(a.error) != _without_traceback(b.error):
        changes.append("error")
    return OpDiff(path, a, b, tuple(changes))


def _without_traceback(error: Failure | None) -> tuple[str, str] | None:
    # Lines in a traceback change with every edit of a file.
    return None if error is None else (error.type, error.message)


def _merged(a: Iterable[str], b: Iterable[str]) -> list[str]:
    """The paths of both, in the order of `a`; paths only in `b` come after their predecessor in `b`."""
    merged = list(a)
    known = set(merged)
    place = 0
    for path in b:
        if path in known:
            place = merged.index(path) + 1
        else:
            merged.insert(place, path)
            place += 1
    if RESULT in merged:
        merged.remove(RESULT)
        merged.append(RESULT)
    return merged


def outcomes(batches: Sequence[Batch]) -> dict[str, OpOutcome]:
    """The outcomes of the ops of a journal by path, in the order they began."""
    found: dict[str, OpOutcome] = {}
    state = RunState("")
    for batch in batches:
        for event in batch.events:
            _begin(found, event, batch.at)
            if isinstance(event, WaitResolved) and event.by == "signal":
                signal = state.next_signal(event.op)
                value = signal.payload if signal is not None else NULL
                _set(found, event.op, batch.at, "signal", value)
            state.fold(event, batch.at)
            _end(found, event, batch.at)
    return found


def _begin(found: dict[str, OpOutcome], event: AnyEvent, at: float) -> None:
    if isinstance(event, StepStarted):
        op = found.get(event.op)
        if op is None:
            op = OpOutcome(event.op, "step", at, inputs=event.inputs, source=event.source)
            found[event.op] = op
        op.attempts += 1
    elif isinstance(event, WaitOpened):
        found[event.op] = OpOutcome(event.op, event.kind, at, source=event.source)
    elif isinstance(event, ChildStarted):
        found[event.op] = OpOutcome(event.op, "child", at, inputs=event.inputs, source=event.source)
        if event.detached:
            found[event.op].status = "detached"
    elif isinstance(event, RunStarted | InputReplaced):
        given = _hash(event.input, event.input_blob)
        found[INPUT] = OpOutcome(INPUT, "run", at, "given", given, event.input, event.input_blob)


def _end(found: dict[str, OpOutcome], event: AnyEvent, at: float) -> None:
    if isinstance(event, StepSucceeded):
        _set(found, event.op, at, "succeeded", event.value, event.blob)
    elif isinstance(event, StepFailed):
        _set(found, event.op, at, "cancelled" if event.cancelled else "failed", error=event.error)
    elif isinstance(event, StepSkipped):
        _set(found, event.op, at, "skipped", error=event.error)
    elif isinstance(event, WaitResolved) and event.by != "signal":
        _set(found, event.op, at, event.by.partition(":")[0], event.value)
    elif isinstance(event, ChildFinished):
        _set(found, event.op, at, event.status.value, event.value, event.blob, event.error)
    elif isinstance(event, RunFinished):
        status = event.status.value if not event.continued_as else "continued"
        found[RESULT] = OpOutcome(RESULT, "run", at, status, "", event.value, event.blob, event.error, 0, at)
        if event.status is RunStatus.CANCELLED:
            found[RESULT].value = NULL
    elif isinstance(event, ValueRecorded | StateSet) and event.op not in found:
        kind = event.kind if isinstance(event, ValueRecorded) else "state"
        found[event.op] = OpOutcome(event.op, kind, at, "recorded", "", event.value, ended=at)


def _set(
    found: dict[str, OpOutcome],
    path: str,
    at: float,
    status: str,
    value: Raw = NULL,
    blob: str = "",
    error: Failure | None = None,
) -> None:
    op = found.get(path)
    if op is not None:
        op.status, op.value, op.blob, op.error, op.ended = status, value, blob, error, at


def _hash(input: Raw, blob: str) -> str:
    return blob or inputs_hash(bytes(input))
