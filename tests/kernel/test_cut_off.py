"""A journal may end between what one event led to: unchanged code goes on from there, and is not taken for changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from perdure.errors import Diverged
from perdure.kernel.commands import UNDECODED, Command, OpenWait, RecordValue, RunStep, StartChild, StepSpec
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildStarted,
    RunClaimed,
    RunStarted,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
)
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution, Program
from perdure.kernel.replay import ChildContext, Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.codec import Codec

NEAR, FAR = StepSpec("near", lambda: None), StepSpec("far", lambda: None, queue="machines")


def near(op: str) -> RunStep:
    return RunStep(op, NEAR, b"[]", "")


def far(op: str) -> RunStep:
    return RunStep(op, FAR, b"[]", "")


class Script(Program):
    """A program that answers its n-th event with the n-th list of commands."""

    def __init__(self, *answers: Sequence[Command]) -> None:
        self.name, self.answers = "script", answers

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Execution:
        return Scripted(self.answers)


class Scripted(Execution):
    def __init__(self, answers: Sequence[Sequence[Command]]) -> None:
        self._answers = list(answers)

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        return self._answers.pop(0) if self._answers else []

    def close(self) -> None: ...


def child(op: str, *answers: Sequence[Command]) -> StartChild:
    return StartChild(op, "", "1", b"[]", "", own=Script(*answers), embedded=True)


def detached(op: str) -> StartChild:
    return StartChild(op, "other", "1", b"[]", "", detached=True)


def replayed(program: Script, *events: AnyEvent, counts: bool = True) -> Replay:
    """A replay of a journal with these events."""
    started = RunStarted("r", "script", "1", Raw(b"[]"))
    replay = Replay(RunState("r1"), program.open("r1", started, Codec()), None, ChildContext(Programs(), Codec()))
    replay.fold_whole([Batch(0, 1.0, [started, RunClaimed("host-1", 1, counts=counts), *events])])
    return replay


BEGAN, BESIDE = ChildStarted("kid:0", "", "1"), StepStarted("beside:0")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize(
    "first",
    [
        far("far:0"),
        child("inner:0"),
        detached("other:0"),
        OpenWait("wait:0", "signal", "go"),
    ],
    ids=["remote step", "child", "detached child", "wait"],
)
def test_the_first_op_of_a_child_may_be_recorded_after_what_was_asked_for_beside_the_child(
    first: Command, counts: bool
) -> None:
    program = Script([child("kid:0", [first]), near("beside:0"), far("beside:1")])
    events: list[AnyEvent] = [BEGAN, BESIDE, StepStarted("beside:1", queue="machines")]
    assert list(replayed(program, *events, counts=counts).pending) == [f"kid:0/{first.op}"]


def test_it_may_be_recorded_after_what_was_asked_for_beside_a_child_around_it() -> None:
    kid = child("mid:0", [child("kid:0", [far("far:0")]), near("beside:0")])
    program = Script([kid, near("beside:0")])
    events: list[AnyEvent] = [
        ChildStarted("mid:0", "", "1"),
        BESIDE,
        ChildStarted("mid:0/kid:0", "", "1"),
        StepStarted("mid:0/beside:0"),
    ]
    assert list(replayed(program, *events).pending) == ["mid:0/kid:0/far:0"]


def test_what_follows_the_start_of_a_detached_run_may_be_recorded_after_what_was_asked_for_beside_it() -> None:
    program = Script([detached("other:0"), near("beside:0")], [far("far:0")])
    events: list[AnyEvent] = [ChildStarted("other:0", "other", "1", detached="r2"), BESIDE]
    assert list(replayed(program, *events).pending) == ["far:0"]


def test_what_follows_a_recorded_value_may_be_recorded_after_what_was_asked_for_beside_it() -> None:
    program = Script([RecordValue("now:0", "now"), near("beside:0")], [far("far:0")])
    assert list(replayed(program, ValueRecorded("now:0", "now"), BESIDE).pending) == ["far:0"]


def test_a_new_op_beside_the_first_ones_of_a_child_is_found() -> None:
    program = Script([child("kid:0", [near("near:0"), far("far:0")]), near("beside:0")])
    with pytest.raises(Diverged):
        replayed(program, BEGAN, BESIDE, StepStarted("kid:0/near:0"))


def test_a_new_first_op_of_a_child_is_found_when_anything_has_begun_that_was_asked_for_later() -> None:
    program = Script([child("kid:0", [far("far:0")]), near("beside:0")], [near("later:0")])
    outcome = StepSucceeded("beside:0", Raw(b"1"))
    with pytest.raises(Diverged):
        replayed(program, BEGAN, BESIDE, outcome, StepStarted("later:0"))
