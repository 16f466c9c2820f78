"""Replay a journal a second time and record every command of the code, to explain why the journal does not fit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure.errors import (
    ApprovalRejected,
    Diverged,
    LockTimeout,
    NotDecodable,
    PerdureError,
    RunCancelled,
    RunFailed,
    SignalTimeout,
    StepError,
)
from perdure.kernel.commands import UNDECODED, CancelOp, Command
from perdure.kernel.divergence.explain import Evidence, commanded_op, explain, recorded_op
from perdure.kernel.divergence.model import OpView, Raised
from perdure.kernel.divergence.source_map import NO_SOURCE
from perdure.kernel.divergence.undecodable import at_path, explain_undecodable
from perdure.kernel.events import AnyEvent, Batch, ChildFinished, ChildStarted, WaitResolved
from perdure.kernel.misfits import check_inbox
from perdure.kernel.parts import result_of
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution, Program, Watchable
from perdure.kernel.replay import OfOp, Replay, Resolve
from perdure.kernel.values.failures import type_name

# After how many events of a journal there is a pause.
PART = 50
# Opens a replay of the given kind.
Open: TypeAlias = Callable[[type[Replay]], Replay]


class Recorder(Replay):
    """A replay that records the program's commands, and the evidence where it diverges."""

    __slots__ = ("_delivered", "_handed", "_watches", "asked", "found", "raised", "rounds")

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.asked: list[OpView] = []
        self.found: Evidence | None = None
        # The exceptions of the code, each with the number of events before it and the path of its execution.
        self.raised: list[tuple[int, str, Raised]] = []
        # By the path of an execution, how many events there were before it was advanced last.
        self.rounds: dict[str, int] = {}
        self._watches: dict[str, Iterable[Raised]] = {}
        # The exceptions that the event being folded raises in the code, by type.
        self._delivered: frozenset[str] = frozenset()
        # Exceptions that came from events, by path and number: the code may raise them again later.
        self._handed: set[tuple[str, int]] = set()
        self._opened(self.execution, "")

    def _opened(self, child: Execution, path: str) -> None:
        if isinstance(child, Watchable):
            self._watches[path] = child.watch()

    def _advance(self, event: OfOp, at: float, decoded: Any = UNDECODED) -> None:
        self._delivered = _errors_of(event)
        super()._advance(event, at, decoded)
        self._delivered = frozenset()

    def _add_commands(self, commands: Sequence[Command], path: str, rules: Resolve | None, at: float) -> None:
        for command in commands:
            if not isinstance(command, CancelOp):
                op = commanded_op(command)
                self.asked.append(msgspec.structs.replace(op, path=f"{path}/{op.path}") if path else op)
        self.rounds[path] = self.state.next_seq
        for one in self._watches.get(path, ()):
            if one.type in self._delivered:
                self._handed.add((path, one.number))
            elif (path, one.number) not in self._handed:
                self.raised.append((self.state.next_seq, path, one))
        super()._add_commands(commands, path, rules, at)

    def evidence(self, recorded: OpView, inserted: OpView | None = None) -> Evidence:
        """As in Replay, with the recorded commands."""
        self.found = msgspec.structs.replace(super().evidence(recorded, inserted), asked=self.asked)
        return self.found


def follow(opened: Open, batches: Sequence[Batch], programs: Programs, *, other_code: bool = False) -> Replay:
    """A replay of a whole journal. Raises an explained Diverged if the program does not fit it.

    `opened` opens a replay of the given kind. Raises NotDecodable, explained too, if the program cannot decode a value
    that is recorded, or that it gets next; `other_code`: see `check_inbox`.
    """
    try:
        return result_of(follow_parts(opened, batches, other_code=other_code))
    except (Diverged, NotDecodable) as error:
        misfit = error
    raise explained(misfit, opened, batches, programs) from None


def follow_parts(opened: Open, batches: Sequence[Batch], *, other_code: bool) -> Generator[None, None, Replay]:
    """As `follow`, with a pause after each part of the journal. Raises what it finds as it is: see `explain_parts`."""
    replay = opened(Replay)
    try:
        yield
        yield from replay.fold_parts(_parts(batches))
        check_inbox(replay.state, replay.pending, other_code=other_code)
        yield from replay.check_ahead()
        replay.check_open_steps(other_code=other_code)
    except BaseException:
        replay.close()
        raise
    return replay


def _parts(batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
    """A journal in parts of some events each."""
    start = events = 0
    for end, batch in enumerate(batches, 1):
        events += len(batch.events)
        if events >= PART:
            yield batches[start:end]
            start, events = end, 0
    yield batches[start:]


def explained(
    error: Diverged | NotDecodable, opened: Open, batches: Sequence[Batch], programs: Programs
) -> PerdureError:
    """The same error, explained with the rest of the journal and the source map of the program."""
    return result_of(explain_parts(error, opened, batches, programs))


def explain_parts(
    error: Diverged | NotDecodable, opened: Open, batches: Sequence[Batch], programs: Programs
) -> Generator[None, None, PerdureError]:
    """As `explained`, with a pause after each part of the journal."""
    try:
        trace = opened(Recorder)
    except (Diverged, NotDecodable) as found:
        return found  # it was found before the body began, and says what it is
    assert isinstance(trace, Recorder)
    try:
        yield
        yield from trace.fold_parts(_parts(batches))
    except Diverged as again:
        if isinstance(error, NotDecodable) or again.seq != error.seq:
            return error  # the program is not deterministic
    except NotDecodable as again:
        if not isinstance(error, NotDecodable):
            return error
        again.op = again.op or getattr(_event_at(batches, trace.state.next_seq - 1), "op", "")
        error = again
    except Exception:
        return error
    finally:
        trace.close()
    if isinstance(error, NotDecodable):
        return _undecodable(error, trace, batches, programs)
    evidence = trace.found
    if evidence is None:
        return error
    recorded = evidence.recorded
    before: list[OpView] = []
    after: list[OpView] = []
    # The last event before the divergence that began an op in the same task, or else in the run.
    numbers: dict[str, int] = {}
    for batch in batches:
        for number, event in enumerate(batch.events, batch.seq):
            op = recorded_op(event)
            if evidence.inserted is not None and op is not None and op.path == recorded.path:
                recorded = op
                continue
            if op is not None and number < error.seq:
                before.append(op)
                numbers[op.path.rpartition("/")[0]] = number
            elif op is not None and number > error.seq:
                after.append(op)
    asker, program = _asker(error.op, trace, batches, programs)
    source_map = NO_SOURCE if program is None else program.source_map()
    scope = recorded.path.rpartition("/")[0]
    last = numbers.get(scope, max(numbers.values(), default=-1))
    # What was asked for in the same round as the exception is recorded after it.
    last = min(last, trace.rounds.get(asker, 0) - 1)
    raised: tuple[list[Raised], list[Raised]] = ([], [])
    for number, path, one in trace.raised:
        if path == asker:
            raised[number <= last].append(one)
    evidence = msgspec.structs.replace(
        evidence,
        recorded=recorded,
        before=before,
        after=after,
        source_map=source_map,
        raised=raised[0],
        raised_before=raised[1],
    )
    return Diverged(error.seq, explain(evidence))


def _undecodable(error: NotDecodable, trace: Recorder, batches: Sequence[Batch], programs: Programs) -> NotDecodable:
    program = _asker(error.op, trace, batches, programs)[1]
    source_map = NO_SOURCE if program is None else program.source_map()
    if not error.op and error.taker is None and program is not None:
        source = program.defined.source if program.defined is not None else ""
        current: OpView | None = OpView("input", program.name, program.name, source=source)
    else:
        current = error.taker or at_path(trace.asked, error.op)
    for event in (event for batch in batches for event in batch.events):
        recorded = recorded_op(event)
        if recorded is not None and recorded.path == error.op:
            return explain_undecodable(error, recorded, event, current, source_map)
    return explain_undecodable(error, None, None, current, source_map)


def _asker(op: str, trace: Replay, batches: Sequence[Batch], programs: Programs) -> tuple[str, Program | None]:
    """The path of the execution that asked for an op, and its program, if that is here."""
    started = trace.state.started
    # The program and version of each execution in the journal, by its op path.
    children = {"": (started.program, started.version) if started is not None else ("", "")}
    for event in (event for batch in batches for event in batch.events):
        if isinstance(event, ChildStarted) and not event.detached:
            children[event.op] = event.program, event.version
    asker = max((path for path in children if not path or op.startswith(path + "/")), key=len)
    return asker, _program(programs, *children[asker])


def _event_at(batches: Sequence[Batch], seq: int) -> AnyEvent | None:
    return next((b.events[seq - b.seq] for b in batches if b.seq <= seq < b.seq + len(b.events)), None)


def _errors_of(event: OfOp) -> frozenset[str]:
    """The types of the exceptions that an event raises in the code."""
    error = getattr(event, "error", None)
    if error is not None:
        return frozenset({error.type, type_name(StepError), type_name(RunFailed)})
    return _OF_WAITS if isinstance(event, WaitResolved | ChildFinished) else frozenset()


_OF_WAITS = frozenset(
    map(type_name, (SignalTimeout, LockTimeout, ApprovalRejected, RunCancelled, TimeoutError, NotDecodable))
)


def _program(programs: Programs, name: str, version: str) -> Program | None:
    """The program that continues a run of this version, if there is one."""
    return programs.find(name, version) if programs.serves(name, version) else None
