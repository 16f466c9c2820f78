"""Replay once more, with an eye on everything the code asks for, to explain why a journal does not fit it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.errors import Diverged, NotDecodable, PerdureError
from perdure.kernel.commands import CancelOp, Command, Finish
from perdure.kernel.divergence.explain import Evidence, explain, recorded_op, wished_op
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source_map import NOTHING
from perdure.kernel.events import Batch, ChildStarted
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Program
from perdure.kernel.replay import Replay, Resolve
from perdure.kernel.values.failures import rebuild, type_name

_UNDECODABLE = type_name(NotDecodable)


class Tracing(Replay):
    """A replay that remembers what the program has asked for, and keeps the evidence when it diverges."""

    __slots__ = ("asked", "found")

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.asked: list[OpView] = []
        self.found: Evidence | None = None

    def _take(self, commands: Sequence[Command], path: str, rules: Resolve | None, at: float) -> None:
        for command in commands:
            if not isinstance(command, CancelOp):
                op = wished_op(command)
                self.asked.append(msgspec.structs.replace(op, path=f"{path}/{op.path}") if path else op)
        super()._take(commands, path, rules, at)

    def evidence(self, recorded: OpView) -> Evidence:
        """As in Replay, with what was asked for."""
        self.found = msgspec.structs.replace(super().evidence(recorded), asked=self.asked)
        return self.found


def follow(replay: Replay, batches: Sequence[Batch]) -> None:
    """Take a whole journal in. Raises Diverged where the program does not fit, NotDecodable where a value does not."""
    replay.fold_all(batches)
    replay.settle()
    unread = undecodable(replay)
    if unread is not None:
        raise unread


def explained(error: Diverged, trace: Replay, batches: Sequence[Batch], programs: Programs) -> PerdureError:
    """A divergence with all that can be said of it: from the journal to its end, and from what the code mentions.

    `trace` is a Tracing of the same run that has seen nothing yet. Where the code goes elsewhere because it cannot read
    a value, it is that value which is the matter.
    """
    assert isinstance(trace, Tracing)
    try:
        trace.fold_all(batches)
        trace.settle()
    except Diverged as again:
        if again.seq != error.seq:
            return error  # the program does not do the same thing twice
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
    # Which program of which version each execution in the journal is one of, by its path.
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
    mentions = NOTHING if program is None else program.mentions()
    evidence = msgspec.structs.replace(evidence, before=before, after=after, mentions=mentions)
    return Diverged(error.seq, explain(evidence))


def _program(programs: Programs, name: str, version: str) -> Program | None:
    """The program that a run of this version goes on with, where there is one."""
    return programs.find(name, version) if programs.serves(name, version) else None


def undecodable(replay: Replay) -> NotDecodable | None:
    """Whether the program is about to fail because it cannot read a value that the journal has long held.

    What came from outside and nobody has answered yet is no such value: its fate is the program's to decide.
    """
    if replay.state.stirred or replay.state.finished is not None:
        return None
    for wish in replay.wishes.values():
        if isinstance(wish, Finish) and wish.error is not None and wish.error.type == _UNDECODABLE:
            error = rebuild(wish.error)
            return error if isinstance(error, NotDecodable) else None
    return None
