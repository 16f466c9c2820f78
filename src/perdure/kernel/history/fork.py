"""Fork a run: a new journal with the past of another up to a point, with values edited. Decides, never writes.

A fork copies the events of its origin before the point, except for what concerns the origin alone: its owners, its
pauses, its end. A step whose attempt has no outcome at the point starts again, because the attempt belongs to the
origin. Times are shifted so that the past ends now, and every wait has as long left as it had at the point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.chunks import MapShape
from perdure.kernel.context import RunContext, started_context, without_tags
from perdure.kernel.divergence.recorded_source import code_at
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    RunClaimed,
    RunFinished,
    RunForked,
    RunReleased,
    RunStarted,
    RunStatus,
    SignalReceived,
    StateSet,
    StepOutcome,
    StepSucceeded,
    Trait,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    events_in,
    events_with,
    numbered,
    started_in,
)
from perdure.kernel.history.ops import Op, find, is_given_up, ops
from perdure.kernel.ids import address
from perdure.kernel.patches import retried_as
from perdure.kernel.values.arguments import named_input

_SHARED = events_with(Trait.FORKED)
# Kinds of recorded values that the body has computed with, and that replay must return again.
USED = ("now", "uuid", "random", "route", "when", "map")


class Value(msgspec.Struct, frozen=True):
    """A value as JSON, and its blob if it is offloaded."""

    data: Raw
    blob: str = ""

    @property
    def kept(self) -> Raw:
        """The value as the event holds it: null if it is in a blob."""
        return NULL if self.blob else self.data


class Point(msgspec.Struct, frozen=True):
    """Where a fork leaves its origin: before event `seq`, and without the earlier ops `anew` and signals `unsent`."""

    seq: int
    anew: frozenset[str] = frozenset()
    unsent: frozenset[int] = frozenset()


# --- where ----------------------------------------------------------------------------------------------------------


def before(batches: Sequence[Batch], at: str | int) -> Point:
    """The point right before an op, or before the event with that number.

    The fork keeps everything until the op had its outcome, except the op itself, so the outcomes of concurrent ops
    stay. It drops a signal that the op consumed, if the signal arrived during the wait. If the program cancelled the
    op, the point is before the op began: what led to the cancellation may not happen again.
    """
    if isinstance(at, int):
        end = batches[-1].seq + len(batches[-1].events)
        if not 1 <= at <= end:
            raise UsageError(f"at={at}: the run has {end} events, and a fork keeps those before it: 1 to {end}")
        return Point(_before_end([*events_in(batches)], at))
    found = ops(batches)
    op = find(found, at)
    if op.given_up:
        return Point(op.began)
    unsent = frozenset({op.taken}) if op.taken is not None and op.taken > op.began else frozenset[int]()
    return Point(op.ended if op.ended is not None else end_of(batches), frozenset({op.path}), unsent)


def at_end(batches: Sequence[Batch]) -> Point:
    """The point after the last event, or before the end of the run."""
    return Point(end_of(batches))


def after(batches: Sequence[Batch], edited: Iterable[str]) -> Point:
    """The point right after the last outcome of these ops; `at_end` if one has no outcome."""
    found = ops(batches)
    ends = [find(found, path).ended for path in edited]
    end = end_of(batches)
    return Point(max((end if seq is None else seq + 1 for seq in ends), default=end))


def end_of(batches: Sequence[Batch]) -> int:
    """The number of the event at which the end of the run begins, or the next number if it has not ended."""
    last = batches[-1]
    if not isinstance(last.events[-1], RunFinished):
        return last.seq + len(last.events)
    end = len(last.events) - 1
    while end > 0 and is_given_up(last.events[end - 1]):
        end -= 1
    return last.seq + end


def _before_end(events: Sequence[AnyEvent], at: int) -> int:
    """`at`, or the start of the end of a run that `at` is inside of: cancellations of open ops precede the end."""
    end = at
    while end < len(events) and is_given_up(events[end]):
        end += 1
    if end < len(events) and isinstance(events[end], RunFinished | ChildFinished):
        while at > 1 and is_given_up(events[at - 1]):
            at -= 1
    return at


# --- what -----------------------------------------------------------------------------------------------------------


def fork(
    batches: Sequence[Batch],
    point: Point,
    started: RunStarted,
    now: float,
    *,
    values: Mapping[str, Value] | None = None,
    inputs: dict[str, dict[str, Raw]] | None = None,
    state: dict[str, Raw] | None = None,
    moved: float | None = None,
) -> list[Batch]:
    """The journal of a fork. `started` is its first event, `values` the edited outcomes by op path.

    `moved`: by how much its times are shifted; left out, so that the past ends now.
    """
    origin = started.forked_from
    found = ops(batches)
    values = {find(found, path).path: value for path, value in (values or {}).items()}
    edit = _Edit(found, point, values, _unconsumed(batches, found, point))
    if moved is None:
        moved = max(0.0, now - _time_before(batches, point.seq))
    result: list[Batch] = []
    recorded: dict[str, Raw] = {}
    owner: str | None = None
    first_code = started.structure
    seq = 0
    for batch in batches:
        events: list[AnyEvent] = []
        for number, event in enumerate(batch.events, batch.seq):
            if number >= point.seq:
                break
            if isinstance(event, RunStarted):
                events.append(started)
            elif isinstance(event, RunClaimed):
                if event.epoch == 1:
                    owner, first_code = event.owner, event.code or first_code
                    events.append(RunClaimed(owner, 1, names=event.names, code=event.code))
            elif type(event) in _SHARED and not edit.leaves_out(number, event):
                for kept in edit.made_of(number, event):
                    if isinstance(kept, ValueRecorded) and kept.kind in USED:
                        recorded[kept.op] = kept.value
                    events.append(_later(kept, moved))
        if events:
            result.append(Batch(seq, batch.at + moved, events))
            seq += len(events)
    at = max(now, result[-1].at)
    context = context_of(batches, origin)
    code = code_at(batches, point.seq)
    code = "" if code == first_code else code
    last: list[AnyEvent] = [*edit.given(), RunForked(origin, point.seq, moved, inputs, state, context, code=code)]
    if owner is not None:
        last.insert(-1, RunReleased(owner))
    result.append(Batch(seq, at, last))
    if recorded:
        first = result[0]
        begun = msgspec.structs.replace(started, recorded=recorded)
        result[0] = Batch(first.seq, first.at, [begun, *first.events[1:]])
    return result


def asked_by(past: list[Batch], by: str) -> list[Batch]:
    """The journal of a fork, with who asked for it."""
    if not by:
        return past
    last = past[-1]
    events = [msgspec.structs.replace(event, by=by) if isinstance(event, RunForked) else event for event in last.events]
    return [*past[:-1], Batch(last.seq, last.at, events)]


def context_of(batches: Sequence[Batch], run_id: str) -> RunContext:
    """The context that the code of a run sees; a retried run keeps that of its first incarnation."""
    retried = retried_as(batches)
    return without_tags(started_context(run_id, started_of(batches))) if retried is None else retried


def started_of(batches: Sequence[Batch]) -> RunStarted:
    """The RunStarted of a run, with its replaced input, by name if it was bound, and the version it is pinned to."""
    started = started_in(batches)
    assert started is not None
    return msgspec.structs.replace(started, input=named_input(started.input, claimed_names(batches)))


def claimed_names(batches: Sequence[Batch]) -> tuple[str, ...]:
    """The parameters to which positional arguments of a run were bound when it began."""
    return next((event.names for _, _, event in numbered(batches) if isinstance(event, RunClaimed)), ())


def beginning(batches: Sequence[Batch], run_id: str, now: float, **changes: Any) -> RunStarted:
    """The RunStarted of a fork of `run_id`: not a child, not queued, and with the whole time until its deadline.

    It keeps its key and priority, which its remote steps have in their queues.
    """
    started, created = started_of(batches), batches[0].at
    return msgspec.structs.replace(
        started,
        **{
            "forked_from": run_id,
            "recorded": None,
            "keys": "",
            "incarnation": 1,
            "parent": "",
            "queue": "",
            "continued_from": "",
            "not_before": None,
            "deadline": None if started.deadline is None else now + (started.deadline - created),
            **changes,
        },
    )


class _Edit:
    """Copies, edits or drops each event of the past."""

    def __init__(
        self, found: dict[str, Op], point: Point, values: Mapping[str, Value], unconsumed: Mapping[str, int]
    ) -> None:
        self._found, self._values, self._unsent = found, values, set(point.unsent)
        self._payloads: dict[int, Raw] = {}
        within = {path: op for path, op in found.items() if op.began < point.seq}
        self._open = {path for path, op in within.items() if op.ended is None or op.ended >= point.seq}
        # An attempt without an outcome belongs to the origin.
        self._anew = {path for path in self._open if within[path].kind == "step" and path not in values} | point.anew
        self._children = tuple(f"{path}/" for path in point.anew if path in found and found[path].kind == "child")
        for path, value in values.items():
            op = found[path]
            if path not in within or path in point.anew or (op.ended is not None and op.ended >= point.seq):
                raise UsageError(f"{path} is edited, and the fork begins before it has its value; leave out `at`")
            _check_editable(op)
            signal = op.taken
            if signal is None and op.kind == "signal" and path in self._open:
                # In place of the one that the wait would consume.
                signal = unconsumed.get(address(op.child, op.name))
                self._open -= set() if signal is None else {path}
            if signal is not None:
                self._payloads[signal] = value.data

    def leaves_out(self, seq: int, event: AnyEvent) -> bool:
        """Whether the fork drops an event."""
        if isinstance(event, SignalReceived):
            return seq in self._unsent
        op: str = getattr(event, "op", "") or getattr(event, "child", "")
        return op in self._anew or op.startswith(self._children)

    def made_of(self, seq: int, event: AnyEvent) -> list[AnyEvent]:
        """The events that the fork has in place of an event."""
        if isinstance(event, SignalReceived):
            payload = self._payloads.get(seq)
            return [event if payload is None else msgspec.structs.replace(event, payload=payload)]
        value = self._values.get(getattr(event, "op", ""))
        if value is None:
            return [event]
        if isinstance(event, StepOutcome):
            return [StepSucceeded(event.op, value.kept, event.attempt, value.blob)]
        if isinstance(event, ChildFinished):
            return [ChildFinished(event.op, RunStatus.COMPLETED, value.kept, value.blob)]
        if isinstance(event, ValueRecorded | StateSet):
            kind = event.kind if isinstance(event, ValueRecorded) else ""
            return [msgspec.structs.replace(event, value=recorded_value(kind, value.data))]
        if isinstance(event, WaitResolved):
            return self._resolved(self._found[event.op], event, value)
        if isinstance(event, WaitOpened):
            # The code decides whether the value fits, not the type of the code that opened the wait.
            return [msgspec.structs.replace(event, schema=NULL)]
        return [event]

    def _resolved(self, op: Op, event: WaitResolved, value: Value) -> list[AnyEvent]:
        if op.kind == "approval":
            person = event.person if event.is_answer else ""
            return [WaitResolved.answered(event.op, person, value.data, event.answer_id)]
        if op.taken is not None:
            return [msgspec.structs.replace(event, misfit=False)]
        # The wait timed out in the origin; in the fork the signal arrives.
        return [SignalReceived(op.name, value.data, child=op.child), WaitResolved(op.path, "signal")]

    def given(self) -> list[AnyEvent]:
        """Edited outcomes for ops that had none at the point."""
        events: list[AnyEvent] = []
        for path, value in self._values.items():
            op = self._found[path]
            if path not in self._open:
                continue
            if op.kind == "step":
                events.append(StepSucceeded(path, value.kept, op.attempt, value.blob))
            elif op.kind == "approval":
                events.append(WaitResolved.answered(path, "", value.data))
            else:
                events.append(SignalReceived(op.name, value.data, child=op.child))
        return events


def _unconsumed(batches: Sequence[Batch], found: Mapping[str, Op], point: Point) -> dict[str, int]:
    """The number of the oldest signal that no wait had consumed at the point, by `address`."""
    taken = {op.taken for op in found.values() if op.ended is not None and op.ended < point.seq}
    signals: dict[str, int] = {}
    for seq, _, event in numbered(batches):
        if isinstance(event, SignalReceived) and seq < point.seq and seq not in taken | point.unsent:
            signals.setdefault(address(event.child, event.name), seq)
    return signals


def recorded_value(kind: str, given: Raw) -> Raw:
    """What is recorded of an op that gets this value from a caller: the results of a map, the targets of a gate."""
    try:
        if kind == "map":
            count = len(msgspec.json.decode(given, type=list[Raw]))
            return Raw(msgspec.json.encode(MapShape(count, results=given)))
        if kind == "route":
            chosen = msgspec.json.decode(given, type=_Chosen | list[str | None] | str | None)
            if isinstance(chosen, _Chosen):
                return given
            return Raw(msgspec.json.encode(_Chosen(chosen if isinstance(chosen, list) else [chosen])))
    except msgspec.MsgspecError:
        shown = bytes(given)[:80].decode(errors="replace")
        wanted = (
            "the list of the results of its items"
            if kind == "map"
            else "the name of a target, None, or a list of names"
        )
        raise UsageError(f"the value of a {'map' if kind == 'map' else 'gate'} is {wanted}, and not {shown}") from None
    return given


class _Chosen(msgspec.Struct, frozen=True):
    """What a gate chose."""

    chose: list[str | None]


def _check_editable(op: Op) -> None:
    if op.kind == "child" and op.ended is None:
        raise UsageError(f"{op.path} is a child that has not ended; edit what is in it, such as {op.path}/step:0")
    if op.kind not in ("step", "child", "approval", "signal", "state", *USED):
        raise UsageError(f"{op.path} is a {op.kind}, which has no value to edit")


def _later(event: AnyEvent, moved: float) -> AnyEvent:
    """An event with its times shifted."""
    changes = {
        name: getattr(event, name) + moved
        for name in ("deadline", "retry_at", "escalate_at")
        if getattr(event, name, None) is not None
    }
    return msgspec.structs.replace(event, **changes) if changes else event


def _time_before(batches: Sequence[Batch], seq: int) -> float:
    return max(batch.at for batch in batches if batch.seq < seq)
