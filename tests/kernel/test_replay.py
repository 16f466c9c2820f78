"""Replay: the program repeats its commands, or diverges before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.errors import Diverged
from perdure.kernel.commands import (
    UNDECODED,
    CancelKey,
    CancelOp,
    Checkpoint,
    Command,
    Finish,
    RecordValue,
    RunStep,
    StartTimer,
    StepSpec,
)
from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    CancelRequested,
    RunClaimed,
    RunFinished,
    RunParked,
    RunReleased,
    RunResumed,
    RunStarted,
    RunStatus,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.program import Execution
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from tests.kernel.table import BOOM, CODEC, Machine, Story, Table, batches, facts, step_row, stories, timer_row, total

STARTED = RunStarted("order-1", "table", "1", Raw(b"[]"))
CLAIMED = RunClaimed("host-1", 1)


class Script(Execution):
    """An execution that answers the n-th event it is fed with the n-th list of commands."""

    def __init__(self, *answers: Sequence[Command]) -> None:
        self._answers = list(answers)
        self.fed: list[AnyEvent] = []

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        self.fed.append(event)
        return self._answers.pop(0) if self._answers else []

    def close(self) -> None: ...


def follow(script: Script, *events: AnyEvent) -> Replay:
    """A replay that has seen these events."""
    replay = Replay(RunState("r1"), script)
    replay.fold_all([Batch(0, 1.0, [STARTED, CLAIMED]), Batch(2, 2.0, list(events))])
    return replay


SPEC = StepSpec("charge", total)


def charge(inputs: str = "hash", op: str = "charge:0") -> RunStep:
    return RunStep(op, SPEC, b"[]", inputs, source="shop.py:12")


# --- matching -------------------------------------------------------------------------------------------------------


def test_the_program_begins_with_the_first_claim_and_sees_no_later_one() -> None:
    script = Script()
    follow(script, RunReleased("host-1"), RunClaimed("host-2", 2), RunClaimed("host-3", 3))
    assert script.fed == [CLAIMED]


def test_a_command_is_pending_until_its_event_is_recorded() -> None:
    replay = follow(Script([charge()]))
    assert list(replay.pending.values()) == [charge()]
    assert list(replay.pending.values()) == [charge()]
    replay.fold(StepStarted("charge:0", 1, "hash"), 3.0)
    assert (replay.pending, replay.open_steps) == ({}, {"charge:0": charge()})


def test_an_open_step_keeps_its_command_for_later_attempts() -> None:
    started, again = StepStarted("charge:0", 1, "hash"), StepStarted("charge:0", 2)
    replay = follow(Script([charge()]), started, AttemptFailed("charge:0", 1, BOOM, 9.0), again)
    assert replay.open_steps == {"charge:0": charge()}
    replay.fold(StepSucceeded("charge:0", Raw(b"1"), 2), 3.0)
    assert replay.open_steps == {}


def test_the_program_sees_facts_and_nothing_else() -> None:
    script = Script([charge(), StartTimer("sleep:0", 9.0)])
    events: list[AnyEvent] = [
        StepStarted("charge:0", 1, "hash"),
        WaitOpened("sleep:0", "timer", 9.0),
        AttemptFailed("charge:0", 1, BOOM, 5.0),
        CancelRequested("later"),
        RunParked("why"),
        RunResumed(),
        RunReleased("host-1"),
        RunClaimed("host-2", 2),
        StepStarted("charge:0", 2),
        StepSucceeded("charge:0", Raw(b"1"), 2),
        WaitResolved("sleep:0", "timer"),
    ]
    follow(script, *events)
    assert script.fed == [CLAIMED, events[3], events[-2], events[-1]]


def test_commands_may_be_recorded_in_another_order_than_they_were_given() -> None:
    other = charge(op="mail:0")
    replay = follow(Script([charge(), other]), StepStarted("mail:0", 1, "hash"), StepStarted("charge:0", 1, "hash"))
    assert set(replay.open_steps) == {"charge:0", "mail:0"}


def test_recorded_values_and_checkpoints_go_back_to_the_program() -> None:
    script = Script([RecordValue("now:0", "now"), Checkpoint("checkpoint:0")])
    now, mark = ValueRecorded("now:0", "now", Raw(b"7")), ValueRecorded("checkpoint:0", "checkpoint")
    replay = follow(script, now, mark)
    assert script.fed == [CLAIMED, now, mark]
    assert replay.pending == {}


def test_after_the_end_nothing_is_pending() -> None:
    replay = follow(Script([charge(), Finish(RunStatus.COMPLETED)]), RunFinished(RunStatus.COMPLETED))
    assert (replay.pending, replay.open_steps) == ({}, {})


# --- giving up ------------------------------------------------------------------------------------------------------


def test_a_step_that_was_given_up_is_not_news_to_the_program() -> None:
    # charge succeeds, and the program no longer cares for mail: its end is recorded, and the program knows already.
    mail = charge(op="mail:0")
    script = Script([charge(), mail], [CancelOp("mail:0")])
    begun = [StepStarted("charge:0", 1, "hash"), StepStarted("mail:0", 1, "hash")]
    done = StepSucceeded("charge:0", Raw(b"1"))
    replay = follow(script, *begun, done)
    assert list(replay.pending.values()) == [CancelOp("mail:0")]
    replay.fold(StepFailed("mail:0", 1, BOOM), 3.0)
    assert script.fed == [CLAIMED, done]
    assert (replay.pending, replay.open_steps) == ({}, {})


def test_a_timer_that_was_given_up_is_not_news_to_the_program() -> None:
    script = Script([charge(), StartTimer("sleep:0", 9.0)], [CancelOp("sleep:0")])
    events: list[AnyEvent] = [StepStarted("charge:0", 1, "hash"), WaitOpened("sleep:0", "timer", 9.0)]
    replay = follow(script, *events, StepSucceeded("charge:0", Raw(b"1")), WaitResolved("sleep:0", "cancelled"))
    assert len(script.fed) == 2
    assert replay.pending == {}


def test_what_is_commanded_and_cancelled_at_once_never_happened() -> None:
    replay = follow(Script([charge(), CancelOp("charge:0"), StartTimer("sleep:0", 9.0)]))
    assert list(replay.pending.values()) == [StartTimer("sleep:0", 9.0)]


def test_cancelling_what_has_an_outcome_is_no_command() -> None:
    events: list[AnyEvent] = [StepStarted("charge:0", 1, "hash"), StepSucceeded("charge:0", Raw(b"1"))]
    replay = follow(Script([charge()], [CancelOp("charge:0"), CancelOp("never:0")]), *events)
    assert replay.pending == {}


def test_cancelling_twice_is_one_command() -> None:
    script = Script([charge(), charge(op="mail:0")], [CancelOp("mail:0"), CancelOp("mail:0")])
    begun = [StepStarted("charge:0", 1, "hash"), StepStarted("mail:0", 1, "hash")]
    replay = follow(script, *begun, StepSucceeded("charge:0", Raw(b"1")))
    assert list(replay.pending.values()) == [CancelOp("mail:0")]


# --- divergence -----------------------------------------------------------------------------------------------------

RECORDED = StepStarted("charge:0", 1, "hash", "shop.py:10")


@pytest.mark.parametrize(
    ("commands", "change", "current"),
    [
        ([], "fewer", None),
        ([charge(op="mail:0")], "renamed", ("step", "mail:0", "shop.py:12")),
        ([StartTimer("charge:0", 9.0, "shop.py:3")], "type", ("timer", "charge:0", "shop.py:3")),
        ([Finish(RunStatus.COMPLETED)], "removed", ("end", "<finish>", "")),
        ([charge("other")], "inputs", ("step", "charge:0", "shop.py:12")),
    ],
)
def test_a_step_the_program_does_not_ask_for_is_divergence(
    commands: list[Command], change: str, current: tuple[str, str, str] | None
) -> None:
    with pytest.raises(Diverged) as caught:
        follow(Script(commands), RECORDED)
    assert (caught.value.seq, caught.value.op, caught.value.change) == (2, "charge:0", change)
    found = caught.value.divergence
    assert (found.recorded.kind, found.recorded.path, found.recorded.source) == ("step", "charge:0", "shop.py:10")
    now = found.current
    assert (None if now is None else (now.kind, now.path, now.source)) == current
    assert "shop.py:10" in str(caught.value)


@pytest.mark.parametrize(
    "event",
    [
        WaitOpened("charge:0", "timer", 9.0, "shop.py:10"),
        ValueRecorded("charge:0", "now"),
        ValueRecorded("charge:0", "checkpoint"),
        WaitOpened("sleep:7", "timer", 9.0),
        ValueRecorded("uuid:0", "uuid"),
    ],
)
def test_a_timer_or_value_the_program_does_not_ask_for_is_divergence(event: AnyEvent) -> None:
    with pytest.raises(Diverged):
        follow(Script([charge()]), event)


@pytest.mark.parametrize(
    "event",
    [
        RECORDED,
        WaitOpened("sleep:0", "timer", 9.0),
        ValueRecorded("now:0", "now"),
        ValueRecorded("mark:0", "checkpoint"),
    ],
)
def test_divergence_is_found_before_the_program_learns_anything_more(event: AnyEvent) -> None:
    script = Script([])
    with pytest.raises(Diverged):
        follow(script, event, StepSucceeded("charge:0", Raw(b"1")))
    assert script.fed == [CLAIMED]


def test_a_divergence_is_found_at_its_entry_in_a_longer_journal() -> None:
    machine = Machine(Table((step_row("a:0"), step_row("b:0", "a:0"), step_row("c:0", "b:0"))))
    machine.begin()
    machine.finish()
    changed = Table((step_row("a:0"), step_row("x:0", "a:0"), step_row("c:0", "x:0")))
    replay = Replay(RunState("r1"), changed.open("r1", machine.started, CODEC))
    with pytest.raises(Diverged) as caught:
        replay.fold_all(batches(machine.journal))
    assert caught.value.op == "b:0"
    assert replay.state.next_seq == caught.value.seq + 1


def test_inputs_that_changed_are_divergence() -> None:
    machine = Machine(Table((step_row("a:0"), step_row("b:0"), step_row("c:0", "a:0", "b:0"))))
    machine.begin()
    machine.finish()
    fewer = Table((step_row("a:0"), step_row("b:0"), step_row("c:0", "a:0")))
    replay = Replay(RunState("r1"), fewer.open("r1", machine.started, CODEC))
    with pytest.raises(Diverged, match="inputs of the step c have changed") as caught:
        replay.fold_all(batches(machine.journal))
    assert caught.value.op == "c:0"


# --- any program ----------------------------------------------------------------------------------------------------


def replayed(story: Story, journal: list[tuple[AnyEvent, float]], cuts: Sequence[int] = ()) -> Replay:
    """A fresh replay of a journal, with the table's own code."""
    machine = Machine(story.table, story.deadline)
    replay = Replay(RunState("r1"), story.table.open("r1", machine.started, CODEC))
    replay.fold_all(batches(journal, cuts))
    return replay


@given(stories())
def test_replaying_a_journal_leads_to_where_the_run_was(story: Story) -> None:
    machine = story.run()
    replay = replayed(story, machine.journal)
    assert facts(replay.state) == facts(machine.state)
    assert replay.pending == machine.replay.pending == {}
    assert {op: c.inputs_hash for op, c in replay.open_steps.items()} == {
        op: c.inputs_hash for op, c in machine.replay.open_steps.items()
    }


@given(stories(), st.data())
def test_any_split_of_a_journal_leads_to_the_same_commands(story: Story, data: st.DataObject) -> None:
    journal = story.run().journal
    end = data.draw(st.integers(0, len(journal)))
    cuts = data.draw(st.lists(st.integers(0, len(journal))))
    whole, split = replayed(story, journal[:end]), replayed(story, journal[:end], cuts)
    assert list(whole.pending) == list(split.pending)
    assert list(whole.open_steps) == list(split.open_steps)


@given(stories(), st.data())
def test_what_is_commanded_at_any_point_is_what_was_recorded_next(story: Story, data: st.DataObject) -> None:
    machine = story.run()
    end = data.draw(st.integers(2, len(machine.journal)))
    wishes = set(replayed(story, machine.journal[:end]).pending)
    later = {event.op for event, _ in machine.journal[end:] if isinstance(event, StepStarted | WaitOpened)}
    ended = {event.op for event, _ in machine.journal[end:] if isinstance(event, StepFailed | WaitResolved)}
    finished = any(isinstance(event, RunFinished) for event, _ in machine.journal[end:])
    ever = {getattr(event, "op", "") for event, _ in machine.journal}
    for wish in wishes - {"<finish>"}:
        given_up = wish.op if isinstance(wish, CancelKey) else wish
        # Commanded and cancelled before it was planned, or with the end of the run: it has no event.
        withdrawn = finished or any(given_up in row.gives_up for row in story.table.rows)
        assert given_up in (ended if wish != given_up else later) or (given_up not in ever and withdrawn)
    assert "<finish>" not in wishes or finished


def test_a_table_is_replayed_without_a_coroutine() -> None:
    table = Table(
        (
            step_row("a:0"),
            timer_row("sleep:0", 60.0, "a:0"),
            step_row("b:0", "a:0", gives_up=("sleep:0",)),
            step_row("c:0", "b:0", "sleep:0"),
        )
    )
    machine = Machine(table)
    machine.begin()
    machine.finish()
    kinds = [type(event).__name__ for event, _ in machine.journal]
    assert kinds == [
        "RunStarted",
        "RunClaimed",
        "StepStarted",
        "StepSucceeded",
        "WaitOpened",
        "StepStarted",
        "StepSucceeded",
        "WaitResolved",
        "StepStarted",
        "StepSucceeded",
        "RunFinished",
    ]
    end = machine.journal[-1][0]
    assert isinstance(end, RunFinished)
    assert bytes(end.value) == b'{"a:0":1,"b:0":2,"sleep:0":0,"c:0":3}'
