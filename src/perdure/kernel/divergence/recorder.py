"""Replay a journal a second time and record every command of the code, to explain why the journal does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

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
from perdure.kernel.commands import UNDECODED, CancelOp, Command, Finish
from perdure.kernel.divergence.explain import Evidence, explain, recorded_op, wished_op
from perdure.kernel.divergence.model import OpView, Raised
from perdure.kernel.divergence.source_map import NO_SOURCE
from perdure.kernel.events import Batch, ChildFinished, ChildStarted, WaitResolved
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution, Program, Watchable
from perdure.kernel.replay import OfOp, Replay, Resolve
from perdure.kernel.values.failures import rebuild, type_name

_UNDECODABLE = type_name(NotDecodable)


class Recorder(Replay):
    """A replay that records the program's commands, and the evidence where it diverges."""

    __slots__ = ("_delivered", "_watches", "asked", "found", "raised")

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.asked: list[OpView] = []
        self.found: Evidence | None = None
        # The exceptions of the code, each with the number of events before it and the path of its execution.
        self.raised: list[tuple[int, str, Raised]] = []
        self._watches: dict[str, Iterable[Raised]] = {}
        # The exceptions that the event being folded raises in the code, by type.
        self._delivered: frozenset[str] = frozenset()
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
                op = wished_op(command)
                self.asked.append(msgspec.structs.replace(op, path=f"{path}/{op.path}") if path else op)
        self.raised += [
            (self.state.next_seq, path, one) for one in self._watches.get(path, ()) if one.type not in self._delivered
        ]
        super()._add_commands(commands, path, rules, at)

    def evidence(self, recorded: OpView, inserted: OpView | None = None) -> Evidence:
        """As in Replay, with the recorded commands."""
        self.found = msgspec.structs.replace(super().evidence(recorded, inserted), asked=self.asked)
        return self.found


def follow(opened: Callable[[type[Replay]], Replay], batches: Sequence[Batch], programs: Programs) -> Replay:
    """A replay of a whole journal. Raises an explained Diverged if the program does not fit it.

    `opened` opens a replay of the given kind. Raises NotDecodable if the program cannot decode a recorded value.
    """
    replay = opened(Replay)
    try:
        replay.fold_whole(batches)
        unread = undecodable(replay)
        if unread is not None:
            raise unread
        replay.check_open_steps()
    except Diverged as error:
        replay.close()
        trace = opened(Recorder)
        assert isinstance(trace, Recorder)
        raise _explained(error, trace, batches, programs) from None
    except BaseException:
        replay.close()
        raise
    return replay


def _explained(error: Diverged, trace: Recorder, batches: Sequence[Batch], programs: Programs) -> PerdureError:
    """The same divergence, explained with the rest of the journal and the source map of the program.

    `trace` is an unused Recorder of the same run. Returns NotDecodable instead if the code took another path because it
    could not decode a recorded value.
    """
    try:
        trace.fold_whole(batches)
    except Diverged as again:
        if again.seq != error.seq:
            return error  # the program is not deterministic
    except Exception:
        return error
    finally:
        trace.close()
    evidence = trace.found
    if evidence is None:
        return error
    unread = undecodable(trace)
    if unread is not None:
        return unread
    recorded = evidence.recorded
    before: list[OpView] = []
    after: list[OpView] = []
    # The last event before the divergence that began an op in the same task, or else in the run.
    numbers: dict[str, int] = {}
    started = trace.state.started
    # The program and version of each execution in the journal, by its op path.
    children = {"": (started.program, started.version) if started is not None else ("", "")}
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
            if isinstance(event, ChildStarted) and not event.detached:
                children[event.op] = event.program, event.version
    asker = max((path for path in children if not path or error.op.startswith(path + "/")), key=len)
    program = _program(programs, *children[asker])
    source_map = NO_SOURCE if program is None else program.source_map()
    scope = recorded.path.rpartition("/")[0]
    last = numbers.get(scope, max(numbers.values(), default=-1))
    raised = [one for number, path, one in trace.raised if number > last and path == asker]
    evidence = msgspec.structs.replace(
        evidence, recorded=recorded, before=before, after=after, source_map=source_map, raised=raised
    )
    return Diverged(error.seq, explain(evidence))


def _errors_of(event: OfOp) -> frozenset[str]:
    """The types of the exceptions that an event raises in the code."""
    error = getattr(event, "error", None)
    if error is not None:
        return frozenset({error.type, type_name(StepError), type_name(RunFailed)})
    return _OF_WAITS if isinstance(event, WaitResolved | ChildFinished) else frozenset()


_OF_WAITS = frozenset(map(type_name, (SignalTimeout, LockTimeout, ApprovalRejected, RunCancelled, TimeoutError)))


def _program(programs: Programs, name: str, version: str) -> Program | None:
    """The program that continues a run of this version, if there is one."""
    return programs.find(name, version) if programs.serves(name, version) else None


def undecodable(replay: Replay) -> NotDecodable | None:
    """The error with which the program is about to fail because it cannot decode a recorded value.

    None while an external event is unprocessed: how the program handles its value is not a divergence.
    """
    if replay.state.has_external_event or replay.state.finished is not None:
        return None
    for wish in replay.wishes.values():
        if isinstance(wish, Finish) and wish.error is not None and wish.error.type == _UNDECODABLE:
            error = rebuild(wish.error)
            return error if isinstance(error, NotDecodable) else None
    return None
