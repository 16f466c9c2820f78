"""Replay by reference: an execution that takes outcomes without their values gets those that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from perdure.kernel.commands import UNDECODED, Command, Finish, LoadValue, RunStep, StepSpec
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    OutcomeKept,
    RunClaimed,
    RunStarted,
    RunStatus,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.program import Execution
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from perdure.kernel.values.arguments import ALL, digest_alone, loaded_call, may_be_long, recorded_values

SPEC = StepSpec("take", lambda *values: None)
BIG = b'"' + b"x" * 100 + b'"'


class Reader(Execution):
    """Makes two values, looks into the first, and hands the second on."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    def advance(self, event: AnyEvent, at: float, decoded: Any = UNDECODED) -> Sequence[Command]:
        if isinstance(event, RunClaimed):
            return [RunStep(op, SPEC, b"[]", "[]") for op in ("first:0", "second:0")]
        if isinstance(event, StepSucceeded) and event.op == "first:0":
            return [LoadValue(event.op, event.blob)]
        if isinstance(event, StepSucceeded) and event.op == "second:0":
            return [RunStep("take:0", SPEC, b"[1,null]", "", 2, references=((1, event.blob),))]
        return [Finish(RunStatus.COMPLETED)]

    def loaded(self, blob: str, value: Raw, at: float) -> Sequence[Command]:
        self.got.append(bytes(value))
        return [RunStep("then:0", SPEC, bytes(value), "")]

    def close(self) -> None: ...


EVENTS: list[AnyEvent] = [
    RunStarted("r", "p", "1", Raw(b"{}")),
    RunClaimed("host-1", 1),
    StepStarted("first:0", inputs="[]"),
    StepStarted("second:0", inputs="[]"),
    StepSucceeded("first:0", NULL, blob="b1"),
    StepStarted("then:0"),
    StepSucceeded("second:0", NULL, blob="b2"),
    StepStarted("take:0"),
]


def test_what_the_program_asks_for_and_what_open_steps_take_is_needed() -> None:
    reader = Reader()
    replay = Replay(RunState("r1"), reader)
    steps = replay.fold_by_reference([Batch(0, 1.0, [*EVENTS, OutcomeKept("take:1", "succeeded", blob="b3")])])
    assert next(steps) == {"b1"}
    assert steps.send({"b1": Raw(b"[7]")}) == {"b2"}
    assert list(steps) == []
    assert reader.got == [b"[7]"]
    assert replay.open_steps["then:0"].inputs == b"[7]"


def test_a_step_that_has_not_begun_gets_its_arguments_before_it_does() -> None:
    replay = Replay(RunState("r1"), Reader())
    replay.fold_all([Batch(0, 1.0, EVENTS[:4])])
    replay.fold(EVENTS[6], 1.0)
    assert replay.referring
    replay.commands_within(5)  # it waits for a limit now
    replay.resolve("take:0", {"b2": Raw(BIG)})
    assert replay.held["take:0"].inputs == b"[1,%b]" % BIG
    replay.fold(StepStarted("take:0"), 1.0)
    assert replay.open_steps["take:0"].references == ()


def test_a_call_is_recorded_alike_with_a_value_and_with_its_digest() -> None:
    digest = digest_alone(BIG)
    assert recorded_values({"a": (b"1", None), "b": (BIG, None)}) == recorded_values(
        {"a": (b"1", None), "b": (b"", digest)}
    )
    # Of these the record shows more than a digest, or less.
    assert (digest_alone(b'"short"'), digest_alone(b'{"$version":2,"x":' + BIG + b"}")) == ("", "")
    names = [f"argument_{number}" for number in range(80)]
    assert recorded_values(dict.fromkeys(names, (BIG, None))).startswith(f"{ALL}#")
    assert (may_be_long(names), may_be_long(names[:5])) == (True, False)


def test_the_arguments_of_a_call_are_put_where_they_belong() -> None:
    command = RunStep("take:0", SPEC, b'[null,2,null,"null"]', "", 4, references=((0, "b"), (2, "a")))
    loaded = loaded_call(command, {"a": Raw(b"[1]"), "b": Raw(b'{"x":1}')})
    assert (loaded.inputs, loaded.references) == (b'[{"x":1},2,[1],"null"]', ())
