"""Replay a journal a second time and record every command of the code, to explain why the journal does not fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import Diverged, NotDecodable, PerdureError
from perdure.kernel.commands import CancelOp, Command, Finish
from perdure.kernel.divergence.explain import Evidence, explain, recorded_op, wished_op
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source_map import NO_SOURCE
from perdure.kernel.events import Batch, ChildStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.replay import Replay, Resolve
from perdure.kernel.values.failures import rebuild, type_name

_UNDECODABLE = type_name(NotDecodable)


class Recorder(Replay):
    """A replay that records the program's commands, and the evidence where it diverges."""

    __slots__ = ("asked", "found")

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.asked: list[OpView] = []
        self.found: Evidence | None = None

    def _add_commands(self, commands: Sequence[Command], path: str, rules: Resolve | None, at: float) -> None:
        for command in commands:
            if not isinstance(command, CancelOp):
                op = wished_op(command)
                self.asked.append(msgspec.structs.replace(op, path=f"{path}/{op.path}") if path else op)
        super()._add_commands(commands, path, rules, at)

    def evidence(self, recorded: OpView) -> Evidence:
        """As in Replay, with the recorded commands."""
        self.found = msgspec.structs.replace(super().evidence(recorded), asked=self.asked)
        return self.found


def follow(replay: Replay, batches: Sequence[Batch]) -> None:
    """Fold a whole journal. Raises Diverged if the program does not fit it, NotDecodable if a value does not."""
    replay.fold_all(batches)
    replay.finish()
    unread = undecodable(replay)
    if unread is not None:
        raise unread


def explained(error: Diverged, trace: Replay, batches: Sequence[Batch], programs: Programs) -> PerdureError:
    """The same divergence, explained with the rest of the journal and the source map of the program.

    `trace` is an unused Recorder of the same run. Returns NotDecodable instead if the code took another path because it
    could not decode a recorded value.
    """
    assert isinstance(trace, Recorder)
    try:
        trace.fold_all(batches)
        trace.finish()
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
    before: list[OpView] = []
    after: list[OpView] = []
    started = trace.state.started
    # The program and version of each execution in the journal, by its op path.
    children = {"": (started.program, started.version) if started is not None else ("", "")}
    seq = 0
    for batch in batches:
        for event in batch.events:
            op = recorded_op(event)
            if op is not None and seq != error.seq:
                (before if seq < error.seq else after).append(op)
            if isinstance(event, ChildStarted) and not event.detached:
                children[event.op] = event.program, event.version
            seq += 1
    asker = max((path for path in children if not path or error.op.startswith(path + "/")), key=len)
    program = _program(programs, *children[asker])
    source_map = NO_SOURCE if program is None else program.source_map()
    evidence = msgspec.structs.replace(evidence, before=before, after=after, source_map=source_map)
    return Diverged(error.seq, explain(evidence))


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
