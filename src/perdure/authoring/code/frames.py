"""Where a suspended body waits: its lines, and the variables there; at any point of its journal. Performs nothing."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import msgspec

from perdure.authoring.code.body import Body
from perdure.authoring.code.loop import BodyTask, OpFuture, source_of, waiting_frames
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    RunFinished,
    RunStarted,
    StepStarted,
    StepSucceeded,
    WaitResolved,
)
from perdure.kernel.history.ops import find, ops
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.step_records import Missed, NotRun, within
from perdure.kernel.values.arguments import by_name, names_of
from perdure.kernel.values.codec import Codec


class Frame(msgspec.Struct, frozen=True):
    """A function of the user's code that has not returned: its line, and its local variables."""

    function: str
    line: str
    locals: dict[str, Any]


class FrameText(msgspec.Struct, frozen=True):
    """As Frame, with its variables as text."""

    function: str
    source: str
    variables: dict[str, str]


class SuspendedTask(msgspec.Struct, frozen=True):
    """A task of a body that is not done: what it waits for, and its functions, the innermost last.

    Or a graph or a flow, with its values; and each of its nodes that has begun and not ended, with what it was given.
    `task` is the op path that its ops begin with; none for the body itself.
    """

    program: str
    task: str
    waits_for: str
    frames: tuple[FrameText, ...]


def waiting_at(body: Body, op: str = "") -> list[Frame]:
    """The frames of the task that waits for an op, or of the body itself, from the outermost to the innermost."""
    tasks = [task for task in body.loop.tasks() if op.startswith(task.scope.prefix)]
    task = max(tasks, key=lambda task: len(task.scope.prefix), default=None)
    frames = waiting_frames(task.body) if task is not None else []
    return [Frame(frame.f_code.co_qualname, source_of(frame), dict(frame.f_locals)) for frame in frames]


def values_at(replay: Replay, op: str, before: Sequence[AnyEvent]) -> list[Frame]:
    """A graph or a flow as the op's frames: its values after the events `before`, and a node that is under way.

    That is the op's node, or the first where the op is not under way; none once nothing is.
    """
    path = replay.state.child_of(op)
    execution = replay.children[path] if path else replay.execution
    nodes: dict[str, Any] = getattr(execution, "under_way", dict)()
    if not nodes:
        return []
    started = replay.state.children[path].started if path else replay.state.started
    assert started is not None
    prefix = f"{path}/" if path else ""
    own = op.removeprefix(prefix)
    chosen = own if own in nodes else next(iter(nodes))
    began = replay.state.ops.get(prefix + chosen)
    where = began.source if began is not None and began.source else nodes[chosen].where
    return [
        Frame(started.program, "", _values(path, replay, before)),
        Frame(nodes[chosen].name, where, _given(prefix + chosen, replay)),
    ]


def inspect(
    programs: Programs,
    codec: Codec,
    run_id: str,
    started: RunStarted,
    batches: Sequence[Batch],
    at: str | int | None = None,
    width: int = 200,
) -> list[SuspendedTask]:
    """Replay a journal up to an op, or to an event, and list the tasks of its bodies that wait there, the root's first.

    Up to an op is: until right before its outcome, where the body waits for it. Drives bodies, so call it from no task.
    """
    end, before = end_of(batches, at), list[AnyEvent]()
    replay = open_replay(programs, run_id, started, codec, batches)
    try:
        for batch in batches:
            for seq, event in enumerate(batch.events, batch.seq):
                if seq < end:
                    replay.fold(event, batch.at)
                    before.append(event)
        found = _suspended(started.program, "", replay, replay.execution, before, width)
        for path, child in replay.children.items():
            found += _suspended(replay.state.children[path].started.program, path, replay, child, before, width)
        return found
    finally:
        replay.close()


class _Noting(Replay):
    """A replay that notes which nodes did not run, by the op path of their execution."""

    __slots__ = ("notes",)
    notes: dict[str, list[NotRun]]

    def _opened(self, child: Execution, path: str) -> None:
        self.note(child, path)

    def note(self, execution: Execution, path: str) -> None:
        if hasattr(execution, "noted"):
            execution.noted = self.notes.setdefault(path, [])


def arguments(
    programs: Programs,
    codec: Codec,
    run_id: str,
    started: RunStarted,
    batches: Sequence[Batch],
    missed: Missed | None = None,
) -> dict[str, dict[str, Any]]:
    """The arguments of every step by op path, as far as the code fits the journal. Drives bodies: call it from no task.

    `missed` gets the nodes of graphs that did not run. Raises UnknownProgram or UnknownVersion where no program fits.
    """
    found: dict[str, dict[str, Any]] = {}
    whole = False
    replay = open_replay(programs, run_id, started, codec, batches, kind=_Noting)
    assert isinstance(replay, _Noting)
    replay.notes = {}
    replay.note(replay.execution, "")
    try:
        for batch in batches:
            for event in batch.events:
                replay.fold(event, batch.at)
                if isinstance(event, StepStarted) and event.op in replay.open_steps and event.op not in found:
                    command = replay.open_steps[event.op]
                    found[event.op] = by_name(names_of(command), command.inputs)
        whole = True
    except Exception:
        pass
    finally:
        replay.close()
    if missed is not None:
        missed.whole = whole
        for path, notes in replay.notes.items():
            missed.turns += [within(path, one) for one in notes]
    return found


def end_of(batches: Sequence[Batch], at: str | int | None) -> int:
    """The number of the first event that is left out: those after a place, and the end of the run."""
    last = batches[-1]
    end = last.seq + len(last.events)
    if isinstance(last.events[-1], RunFinished):
        end -= 1
    if isinstance(at, int):
        return min(max(at, 1), end)  # the first event says what is executed
    if at is None:
        return end
    ended = find(ops(batches), at).ended
    return end if ended is None else min(ended, end)


def _suspended(
    program: str, path: str, replay: Replay, execution: Execution, before: Sequence[AnyEvent], width: int
) -> list[SuspendedTask]:
    prefix = f"{path}/" if path else ""
    found = []
    if not isinstance(execution, Body):
        nodes: dict[str, Any] = getattr(execution, "under_way", dict)()
        values = {name: _text(value, width) for name, value in _values(path, replay, before).items()}
        found.append(SuspendedTask(program, path, "", (FrameText(program, "", values),)))
        for op, node in nodes.items():
            given = {name: _text(value, width) for name, value in _given(prefix + op, replay).items()}
            began = replay.state.ops.get(prefix + op)
            where = began.source if began is not None and began.source else node.where
            found.append(SuspendedTask(program, path, prefix + op, (FrameText(node.name, where, given),)))
        return found if nodes else []
    for task in execution.loop.tasks():
        waits_for = _waits_for(task)
        frames = tuple(_frame_text(frame, width) for frame in waiting_frames(task.body))
        name = task.scope.prefix.rstrip("/")
        found.append(
            SuspendedTask(program, (prefix + name).rstrip("/"), prefix + waits_for if waits_for else "", frames)
        )
    return found


def _values(path: str, replay: Replay, before: Sequence[AnyEvent]) -> dict[str, Any]:
    """The inputs of a program whose ops are nodes, and the values that those have made; of a map by item."""
    started = replay.state.children[path].started if path else replay.state.started
    assert started is not None
    found: dict[str, Any] = {}
    with suppress(msgspec.MsgspecError):
        found |= msgspec.json.decode(started.input, type=dict[str, Any])
    prefix = f"{path}/" if path else ""
    for event in before:
        if not isinstance(event, StepSucceeded | WaitResolved | ChildFinished) or not event.op.startswith(prefix):
            continue
        if isinstance(event, WaitResolved) and not event.brings_value:
            continue
        name, _, turn = event.op.removeprefix(prefix).partition(":")
        if "/" not in turn and "/" not in name and event.value:
            found[name + turn[turn.find("[") :] if "[" in turn else name] = msgspec.json.decode(event.value)
    return found


def _given(op: str, replay: Replay) -> dict[str, Any]:
    """What an op that is under way was given: arguments, or the request of a question."""
    if op in replay.open_steps:
        command = replay.open_steps[op]
        return by_name(names_of(command), command.inputs)
    if op in replay.state.children:
        started = replay.state.children[op].started
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(started.input, type=dict[str, Any])
    opened = replay.state.ops[op].opened if op in replay.state.ops else None
    return {} if opened is None or opened.request == NULL else {"request": msgspec.json.decode(opened.request)}


def _waits_for(task: BodyTask) -> str:
    waited = getattr(task, "_fut_waiter", None)
    if isinstance(waited, OpFuture):
        return waited._op or ""
    return waited.scope.prefix.rstrip("/") if isinstance(waited, BodyTask) else ""


def _frame_text(frame: FrameType, width: int) -> FrameText:
    variables = {name: _text(value, width) for name, value in frame.f_locals.items() if not name.startswith("__")}
    return FrameText(frame.f_code.co_qualname, source_of(frame), variables)


def _text(value: Any, width: int) -> str:
    """A value as one line, and never an error: what it takes to show it is the user's code."""
    shortener = reprlib.Repr()
    shortener.maxstring = shortener.maxother = shortener.maxlong = width
    shortener.maxlist = shortener.maxdict = shortener.maxtuple = shortener.maxset = 20
    try:
        text = " ".join(shortener.repr(value).split())
    except Exception as error:
        text = f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"
    return text if len(text) <= width else text[: width - 1] + "…"
