"""Replay recorded runs against the current code: event by event, to an op, or to the end. Executes no step.

    for stop in replay(data, fulfil):
        print(stop.seq, stop.op, stop.line, stop.locals)

The body runs in the thread of the caller, so that a `breakpoint()` in it opens the debugger.
"""

from __future__ import annotations

import os
from asyncio import events
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from perdure.authoring.code.body import Body
from perdure.authoring.code.frames import Frame, values_at, waiting_at
from perdure.errors import UnknownProgram, UsageError
from perdure.kernel.commands import FINISH, Finish
from perdure.kernel.divergence.lost_steps import check_steps
from perdure.kernel.events import AnyEvent, Batch, InputReplaced, RunClaimed, RunFinished, RunStarted, moment
from perdure.kernel.history.capsule import Capsule, decode_capsule, inflated
from perdure.kernel.patches import patch_history
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution, Program
from perdure.kernel.replay import ChildContext, Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.codec import Codec, TypeCodec
from perdure.testing.simulation.checks import check_end

Recorded = bytes | str | os.PathLike[str] | Capsule


@dataclass(frozen=True, slots=True)
class Stop:
    """A recorded event that was applied to the body, and where the body waits after it."""

    seq: int
    at: datetime
    op: str
    event: AnyEvent
    frames: tuple[Frame, ...] = ()
    """Frames of the workflow's code, from the outermost to the innermost; none once the body has ended. Of a graph or a
    flow: its values, and the node that is under way with its arguments."""

    @property
    def line(self) -> str:
        """`file:line` that the body waits on; empty once it has ended."""
        return self.frames[-1].line if self.frames else ""

    @property
    def locals(self) -> dict[str, Any]:
        """The local variables of the innermost frame."""
        return self.frames[-1].locals if self.frames else {}


@dataclass
class Replaying:
    """A recorded run under replay. Iterating applies one event at a time; `until` replays up to the start of an op."""

    capsule: Capsule
    programs: tuple[Program, ...]
    codec: Codec = field(default_factory=Codec)
    stop: Stop | None = None
    """The last applied event."""

    def __post_init__(self) -> None:
        if events._get_running_loop() is not None:
            raise UsageError("a replay drives bodies itself: call it from a plain function, not inside an event loop")
        self._events = list(inflated(self.capsule))
        started = _as_begun([event for _, _, event in self._events])
        program = pick(self.programs, started.program, started.version)
        programs = Programs([program, *(other for other in self.programs if other is not program)])
        state = RunState(self.capsule.run_id)
        whole = [Batch(0, 0.0, [event for _, _, event in self._events])]
        check_steps(programs, program, whole)
        past = patch_history(state, whole, decides=program.decides)
        execution = program.open(self.capsule.run_id, started, self.codec, past)
        self._replay = Replay(state, execution, child_context=ChildContext(programs, self.codec, past=past))
        self._next = 0
        self._finish: Finish | None = None

    @property
    def state(self) -> RunState:
        """The journal, folded as far as it has been replayed."""
        return self._replay.state

    def __iter__(self) -> Iterator[Stop]:
        while self._next < len(self._events):
            yield self.step()
        self.close()

    def step(self) -> Stop:
        """Apply the next event. Raises Diverged when it does not fit the code."""
        self._apply()
        return self._stopped()

    def _apply(self) -> str:
        """Apply the next event, and return the op that it is about."""
        _, at, event = self._events[self._next]
        self._next += 1
        command = self._replay.pending.get(FINISH)
        self._finish = command if isinstance(command, Finish) else self._finish
        self._replay.fold(event, at)
        return getattr(event, "op", "")

    def _stopped(self) -> Stop:
        seq, at, event = self._events[self._next - 1]
        op = getattr(event, "op", "")
        self.stop = Stop(seq, moment(at), op, event, tuple(self._frames(op)))
        return self.stop

    def until(self, op: str) -> Stop:
        """Replay until the body waits for this op, before it gets the outcome."""
        while self._next < len(self._events):
            if self._apply() == op:
                return self._stopped()
        self.close()
        begun = dict.fromkeys(event.op for _, _, event in self._events if getattr(event, "op", ""))  # type: ignore[union-attr]
        raise UsageError(f"run {self.capsule.id!r} has no op {op!r} ahead; it has {', '.join([*begun][:20]) or 'none'}")

    def check(self) -> None:
        """Replay to the end. Raises Diverged or AssertionError unless the code repeats the journal."""
        # Without the frames at each event: those of a graph have all its values.
        while self._next < len(self._events):
            self._apply()
        self._stopped()
        self.close()
        end = self._events[-1][2]
        if isinstance(end, RunFinished) and not self.capsule.redacted:
            problems = check_end(f"run {self.capsule.id!r}", end, self._finish, self.capsule.blobs)
            if problems:
                raise AssertionError("; ".join(problems))

    def close(self) -> None:
        """Close the body."""
        self._replay.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _frames(self, op: str) -> list[Frame]:
        execution: Execution = self._replay.execution
        whole = op
        path = self._replay.state.child_of(op)
        if path:
            execution, op = self._replay.children[path], op[len(path) + 1 :]
        if isinstance(execution, Body):
            return waiting_at(execution, op)
        return values_at(self._replay, whole, [event for _, _, event in self._events[: self._next]])


def replay(
    recorded: Recorded, *programs: Program, until: str | None = None, codecs: Iterable[TypeCodec[Any]] = ()
) -> Replaying:
    """Replay a capsule, its bytes or its file, against programs; with `until`, up to the beginning of that op."""
    replaying = Replaying(capsule_from(recorded), programs, Codec(codecs))
    if until is not None:
        try:
            replaying.until(until)
        except BaseException:
            replaying.close()
            raise
    return replaying


def capsule_from(recorded: Recorded) -> Capsule:
    """A capsule, its bytes, or its file, as a Capsule."""
    if isinstance(recorded, Capsule):
        return recorded
    return decode_capsule(recorded if isinstance(recorded, bytes) else Path(recorded).read_bytes())


def pick(programs: Iterable[Program], name: str, version: str) -> Program:
    """The program of that name: of that version, else one that accepts it, else any."""
    named = [program for program in programs if program.name == name]
    for fits in (lambda p: p.version == version, lambda p: version in p.accepts, lambda p: True):
        for program in named:
            if fits(program):
                return program
    raise UnknownProgram(
        name, tuple(program.name for program in programs), f"give it to the replay: replay(capsule, {name})"
    )


def _as_begun(recorded: list[AnyEvent]) -> RunStarted:
    """The RunStarted of a run, with its input if that was replaced before it began."""
    started = recorded[0]
    assert isinstance(started, RunStarted)
    for event in recorded:
        if isinstance(event, RunClaimed):
            break
        if isinstance(event, InputReplaced):
            started = event.of(started)
    return started
