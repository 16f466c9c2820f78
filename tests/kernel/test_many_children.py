"""Many children of one run: each costs the same, however many others there are."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pytest
from msgspec import Raw

from perdure.kernel.commands import UNDECODED, CancelOp, Command, Finish, OpenWait, RunStep, StartChild, StepSpec
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    CancelRequested,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunStarted,
    RunStatus,
    SignalReceived,
    StepFailed,
    StepStarted,
    StepSucceeded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.inbound import final_status
from perdure.kernel.misfits import check_inbox
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.plan import deliver, plan, wake
from perdure.kernel.policies.versions import Programs
from perdure.kernel.program import Execution, Program
from perdure.kernel.projection import child_rows
from perdure.kernel.replay import ChildContext, Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.codec import Codec

CODEC = Codec()
SPEC = StepSpec("work", lambda: None)
DONE = RunStatus.COMPLETED


class Parent(Program):
    """Starts children at these op paths at once, and ends with the last of them, or with the first if `first`."""

    def __init__(self, *paths: str, child: Program | None = None, first: bool = False, deadline: float | None = None):
        self.name, self.paths, self.first, self.deadline = "parent", paths, first, deadline
        self.child = child or Worker()

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Execution:
        return Waiting(self)


class Waiting(Execution):
    def __init__(self, of: Parent) -> None:
        self.of, self.open, self.over = of, dict.fromkeys(of.paths), False

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        if isinstance(event, RunClaimed):
            start = [
                StartChild(op, "", "1", b"[]", "", own=self.of.child, embedded=True, deadline=self.of.deadline)
                for op in self.of.paths
            ]
            return start or [Finish(DONE)]
        if isinstance(event, CancelRequested):
            return [CancelOp(op) for op in self.open] or [Finish(RunStatus.CANCELLED)]
        if not isinstance(event, ChildFinished):
            return []
        del self.open[event.op]
        if self.over or (self.open and not self.of.first):
            return []
        self.over = True
        return [*(CancelOp(op) for op in self.open), Finish(DONE)]

    def close(self) -> None: ...


class Worker(Program):
    """Calls a step, opens a wait, and ends with the step."""

    def __init__(self) -> None:
        self.name = "worker"

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Execution:
        return Working()


class Working(Execution):
    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        if isinstance(event, RunClaimed):
            return [RunStep("work:0", SPEC, b"[]", ""), OpenWait("signal:0", "signal", "stop")]
        return [Finish(RunStatus.CANCELLED if isinstance(event, CancelRequested) else DONE, b"1")]

    def close(self) -> None: ...


class Seen(OrderedDict[Any, Any]):
    """A dict that counts how many of its entries are looked at one after the other."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            Seen.looked_at += 1
            yield key

    def values(self) -> Any:
        Seen.looked_at += len(self)
        return super().values()

    def items(self) -> Any:
        for item in super().items():
            Seen.looked_at += 1
            yield item


class Driven:
    """A run as its driver advances it: what is planned is folded at once."""

    def __init__(self, program: Program, *, seen: bool = False) -> None:
        self.replay = Replay(RunState("r1"), self._open(program), None, ChildContext(Programs(), CODEC))
        if seen:
            state, replay = self.replay.state, self.replay
            state.ops, state.children, replay.pending, replay.held = Seen(), Seen(), Seen(), Seen()
            replay.open_steps, replay.bulky, replay._children = Seen(), Seen(), Seen()
        self.journal: list[AnyEvent] = []
        self.program = program
        self.passes = 0
        self.fold(RunStarted("r", "parent", "1", Raw(b"[]")), RunClaimed("host-1", 1))

    @staticmethod
    def _open(program: Program) -> Execution:
        return program.open("r1", RunStarted("r", "parent", "1", Raw(b"[]")), CODEC, NO_HISTORY)

    def fold(self, *events: AnyEvent) -> None:
        for event in events:
            self.journal.append(event)
            self.replay.fold(event, 1.0)
        while self.replay.pending:
            self.passes += 1
            for event in plan(self.replay.state, list(self.replay.pending.values()), 1.0).events:
                self.journal.append(event)
                self.replay.fold(event, 1.0)

    def replayed(self) -> Replay:
        """A replay of the journal so far."""
        replay = Replay(RunState("r1"), self._open(self.program), None, ChildContext(Programs(), CODEC))
        replay.fold_whole([Batch(0, 1.0, self.journal)])
        return replay


def paths(count: int) -> list[str]:
    return [f"kid:{number}" for number in range(count)]


def calls(work: Any) -> int:
    """How many functions are called, in Python and in C."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def one_by_one(count: int, *, seen: bool = False) -> Driven:
    """Children that run at once and end one by one."""
    run = Driven(Parent(*paths(count)), seen=seen)
    for path in paths(count):
        run.fold(StepSucceeded(f"{path}/work:0", Raw(b"1")))
    assert run.replay.state.finished is not None
    return run


def expire(count: int, *, seen: bool = False) -> Driven:
    """Children that are too late, all at the same moment."""
    run = Driven(Parent(*paths(count), deadline=5.0), seen=seen)
    run.fold(*wake(run.replay.state, run.replay.open_steps, 9.0, 1000).events)
    assert run.replay.state.finished is not None
    return run


def given_up(count: int, *, seen: bool = False) -> Driven:
    """Children that are cancelled when the first of them has ended."""
    run = Driven(Parent(*paths(count), first=True), seen=seen)
    run.fold(StepSucceeded("kid:0/work:0", Raw(b"1")))
    assert run.replay.state.finished is not None
    return run


def signalled(count: int, *, seen: bool = False) -> Driven:
    """Children that get a signal each, before any of them is delivered."""
    run = Driven(Parent(*paths(count)), seen=seen)
    state = run.replay.state
    if seen:
        state.inbox, state.waits = Seen(state.inbox), Seen(state.waits)
    for path in paths(count):
        run.fold(SignalReceived("stop", Raw(b"1"), child=path))
    while (delivery := deliver(state)) is not None:
        check_inbox(state, run.replay.pending)
        run.fold(delivery)
    assert state.finished is not None
    assert (state.inbox, state.waits) == ({}, {})
    return run


@pytest.mark.parametrize("story", [one_by_one, expire, given_up, signalled])
def test_a_child_costs_the_same_among_ten_and_among_hundreds(story: Any) -> None:
    few, many = 20, 200
    assert calls(lambda: story(many)) / many <= 1.15 * calls(lambda: story(few)) / few
    Seen.looked_at = 0
    story(few, seen=True)
    before, Seen.looked_at = Seen.looked_at, 0
    story(many, seen=True)
    assert Seen.looked_at / many <= 1.15 * before / few


def test_replay_of_a_child_costs_the_same_among_ten_and_among_hundreds() -> None:
    few, many = one_by_one(20), one_by_one(200)
    assert calls(many.replayed) / 200 <= 1.15 * calls(few.replayed) / 20


def test_children_that_are_ready_to_end_end_in_one_pass() -> None:
    run = Driven(Parent(*paths(50), child=Parent()))
    assert run.replay.state.finished is not None
    # They begin, end, and the parent ends.
    assert run.passes == 3
    assert run.replayed().state.finished is not None


def test_what_is_open_in_a_child_that_ends_is_given_up_the_innermost_first() -> None:
    inner = Parent("low:0", "low:1", child=Worker(), first=False)
    run = Driven(Parent("mid:0", "mid:1", child=inner, first=True))
    ended = run.replay.state.open_within("mid:0")
    assert ended[:4] == ["mid:0/low:0/work:0", "mid:0/low:0/signal:0", "mid:0/low:1/work:0", "mid:0/low:1/signal:0"]
    assert sorted(ended[4:]) == ["mid:0/low:0", "mid:0/low:1"]
    run.fold(StepSucceeded("mid:0/low:0/work:0", Raw(b"1")), StepSucceeded("mid:0/low:1/work:0", Raw(b"1")))
    state = run.replay.state
    assert state.finished is not None
    assert (run.replay.children, run.replay.open_steps, dict(run.replay.held)) == ({}, {}, {})
    given_up = [event.op for event in run.journal if isinstance(event, StepFailed) and event.cancelled]
    assert given_up == ["mid:1/low:0/work:0", "mid:1/low:1/work:0"]
    assert run.replayed().state.finished is not None


def test_children_in_one_another_that_are_late_together_end_once() -> None:
    inner = Parent("low:0", deadline=5.0)
    run = Driven(Parent("mid:0", child=inner, deadline=5.0))
    run.fold(*wake(run.replay.state, run.replay.open_steps, 9.0, 1000).events)
    ends = [(event.op, event.status) for event in run.journal if isinstance(event, ChildFinished)]
    assert ends == [("mid:0/low:0", RunStatus.CANCELLED), ("mid:0", RunStatus.FAILED)]
    assert run.replayed().state.finished is not None


def test_an_open_child_knows_the_ops_that_are_open_in_it() -> None:
    run = Driven(Parent("kid:0", "kid:1"))
    children = run.replay.state.children
    assert {path: list(child.ops) for path, child in children.items()} == {
        path: [f"{path}/work:0", f"{path}/signal:0"] for path in paths(2)
    }
    run.replay.fold(WaitResolved("kid:0/signal:0", "timeout"), 1.0)
    assert list(children["kid:0"].ops) == ["kid:0/work:0"]


def test_an_item_of_a_map_has_no_row_and_leaves_nothing_behind() -> None:
    state = RunState("r1")
    events: list[AnyEvent] = [
        RunStarted("r", "p", "1", Raw(b"[]")),
        RunClaimed("host-1", 1),
        ChildStarted("kid:0", "worker"),
        ChildStarted("each:0[7]", "worker"),
        ChildStarted("each:0[7]/in:0", "worker"),
        StepStarted("each:0[7]/in:0/work:0"),
        WaitOpened("kid:0/signal:0", "signal", name="stop"),
        ChildFinished("each:0[7]/in:0", DONE),
        ChildFinished("each:0[7]", DONE),
        ChildFinished("kid:0", DONE),
    ]
    for event in events:
        state.fold(event, 1.0)
    assert [row.run_id for row in child_rows(state)] == ["r1/kid:0"]
    assert (state.ended, state.children) == ({}, {})
    assert final_status(state, "each:0[7]") is final_status(state, "kid:0") is DONE
