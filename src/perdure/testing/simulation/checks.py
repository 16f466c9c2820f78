"""Check a finished journal against its program: the same events must lead to the same commands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import msgspec
from msgspec import Raw

from perdure.errors import DeadlineExceeded, StepCancelled
from perdure.kernel.chunks import ChunkInput
from perdure.kernel.commands import FINISH, CancelKey, Command, Finish, OpenWait, RunStep
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildFinished,
    InputReplaced,
    RunClaimed,
    RunFinished,
    RunResumed,
    RunStarted,
    RunStatus,
    StepFailed,
    WaitResolved,
)
from perdure.kernel.history.capsule import with_blobs
from perdure.kernel.policies.versions import Programs
from perdure.kernel.replay import open_replay
from perdure.kernel.state import OpenOp, RunState
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.failures import type_name
from perdure.kernel.values.items import whole


def check_journal(
    programs: Programs, run_id: str, batches: Sequence[Batch], codec: Codec, blobs: Mapping[str, bytes]
) -> list[str]:
    """Replay a journal twice from the start, and return the problems."""
    events = [(with_blobs(event, blobs), batch.at) for batch in batches for event in batch.events]
    try:
        commands, finish = _commands(programs, run_id, events, codec, blobs)
        again, _ = _commands(programs, run_id, events, codec, blobs)
    except Exception as error:
        return [f"the journal of {run_id} cannot be replayed: {error!r}"]
    if commands != again:
        return [f"two replays of the journal of {run_id} give different commands"]
    end = batches[-1].events[-1]
    return check_end(run_id, end, finish, blobs) if isinstance(end, RunFinished) else []


def _commands(
    programs: Programs,
    run_id: str,
    events: Sequence[tuple[AnyEvent, float]],
    codec: Codec,
    blobs: Mapping[str, bytes],
) -> tuple[list[str], Finish | None]:
    """The commands of the program after each event, and its Finish."""
    started = events[0][0]
    assert isinstance(started, RunStarted)
    for event, _ in events:
        if isinstance(event, InputReplaced):
            started = event.of(started)
    for event, _ in events:
        if isinstance(event, RunClaimed | RunResumed) and event.version:
            started = msgspec.structs.replace(started, version=event.version)
    started = _with_items(started, blobs)
    replay = open_replay(programs, run_id, started, codec, [Batch(0, 0.0, [event for event, _ in events])])
    seen: list[str] = []
    finish: Finish | None = None
    end = _own_end([event for event, _ in events])
    try:
        for number, (event, at) in enumerate(events):
            command = replay.pending.get(FINISH)
            finish = command if isinstance(command, Finish) else finish
            ending = number >= end or any(isinstance(command, Finish) for command in replay.pending.values())
            if _is_cancelled(event) and CancelKey(event.op) not in replay.pending and finish is None and not ending:
                raise AssertionError(f"{event.op} was recorded as cancelled, and the program did not ask for that")
            replay.fold(event, at)
            seen.append(" ".join(_describe(command) for command in replay.pending.values()))
    finally:
        replay.close()
    return seen, finish if end == len(events) else None


def _with_items(started: RunStarted, blobs: Mapping[str, bytes]) -> RunStarted:
    """The RunStarted of a chunk of a map, with its items in place."""
    if started.remote is None or started.remote.map is None:
        return started
    chunk = msgspec.json.decode(started.input, type=ChunkInput)
    over = {name: Raw(whole(bytes(of), blobs)) for name, of in chunk.over.items()}
    return msgspec.structs.replace(started, input=Raw(msgspec.json.encode(msgspec.structs.replace(chunk, over=over))))


def _own_end(events: Sequence[AnyEvent]) -> int:
    """The number at which the end by a deadline begins, which the program did not command."""
    last, number = events[-1], len(events) - 1
    if not isinstance(last, RunFinished) or last.error is None or last.error.type != type_name(DeadlineExceeded):
        return len(events)
    while isinstance(events[number - 1], StepFailed | WaitResolved | ChildFinished):
        number -= 1
    return number


def _is_cancelled(event: AnyEvent) -> TypeGuard[StepFailed]:
    return isinstance(event, StepFailed) and event.error.type == type_name(StepCancelled)


def _describe(command: Command) -> str:
    if isinstance(command, RunStep):
        return f"RunStep {command.op} {command.inputs.decode()}"
    if isinstance(command, OpenWait):
        command = msgspec.structs.replace(command, reads=None)  # an object, which is another one in each replay
    # Compare a program in a command by its name.
    return f"{type(command).__name__} {msgspec.json.encode(command, enc_hook=repr).decode()}"


def unfinished(states: Iterable[RunState]) -> str:
    """What the open runs wait for."""
    found = []
    for state in states:
        if state.finished is None and state.started is not None:
            waits = [_waits_for(path, op) for path, op in state.ops.items() if op.kind != "child"]
            found.append(f"{state.started.id} {' and '.join(waits[:3]) or f'is {state.status}'}")
    return "; ".join(found[:3]) or "no run was accepted"


def _waits_for(path: str, op: OpenOp) -> str:
    if op.kind == "signal":
        return f"waits for the signal {op.name.rpartition(chr(0))[2]!r}, which is never sent"
    if op.kind == "approval":
        return f"waits for the approval {op.name!r}, which is never answered"
    if op.kind == "timer":
        return f"sleeps at {path}"
    return f"is at {path}"


def check_end(run_id: str, end: RunFinished, finish: Finish | None, blobs: Mapping[str, bytes]) -> list[str]:
    """Compare the end of a replay with the recorded one."""
    if finish is None:
        # Ended by a cancellation or its deadline, not by its program.
        return [f"{run_id} completed, and its replay does not"] if end.status is RunStatus.COMPLETED else []
    if finish.status is not end.status:
        return [f"{run_id} is {end.status}, and its replay {finish.status}"]
    recorded = blobs[end.blob] if end.blob else bytes(end.value)
    if recorded != finish.value and not end.continued_as:
        return [f"{run_id} returned {recorded!r}, and its replay {finish.value!r}"]
    if end.error is not None and (finish.error is None or finish.error.type != end.error.type):
        return [f"{run_id} raised {end.error.type}, and its replay {finish.error}"]
    return []
