"""The comparison of two journals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.events import (
    AnyEvent,
    AttemptFailed,
    Batch,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunStarted,
    RunStatus,
    SignalReceived,
    StateSet,
    StepFailed,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.history.diff import diff, outcomes
from perdure.kernel.values.failures import Failure

BOOM = Failure("builtins.ValueError", "boom", traceback="line 1")


def run(*events: AnyEvent, input: bytes = b"{}", end: bytes | None = b"1") -> list[Batch]:
    every = [RunStarted("a", "shop", "1", Raw(input)), RunClaimed("a", 1), *events]
    if end is not None:
        every.append(RunFinished(RunStatus.COMPLETED, Raw(end)))
    return [Batch(seq, 100.0 + seq, [event]) for seq, event in enumerate(every)]


def done(op: str, value: bytes = b"1", inputs: str = "") -> list[AnyEvent]:
    return [StepStarted(op, 1, inputs), StepSucceeded(op, Raw(value))]


def test_the_same_run_differs_in_nothing() -> None:
    events = [
        *done("a:0"),
        WaitOpened("go:0", "signal", name="go"),
        SignalReceived("go"),
        WaitResolved("go:0", "signal"),
    ]
    found = diff(run(*events), run(*events))
    assert found.first is None
    assert [op.path for op in found.ops] == ["input", "a:0", "go:0", "result"]


def test_the_first_op_that_differs_is_shown_with_both_sides() -> None:
    found = diff(
        run(*done("a:0"), *done("b:0", b"1"), *done("c:0", b"5")),
        run(*done("a:0"), *done("b:0", b"2"), *done("c:0", b"6"), end=b"2"),
    )
    assert found.first is not None
    assert found.first.path == "b:0"
    assert found.first.changes == ("value",)
    assert found.first.a is not None
    assert found.first.b is not None
    assert (found.first.a.value, found.first.b.value) == (Raw(b"1"), Raw(b"2"))
    assert [op.path for op in found.ops if op.changes] == ["b:0", "c:0", "result"]


def test_the_first_difference_is_the_op_inside_a_child_that_made_it_differ() -> None:
    def paid(cents: bytes) -> list[Batch]:
        return run(
            ChildStarted("pay:0", "pay"),
            ChildStarted("pay:0/card:0", "card"),
            StepStarted("pay:0/card:0/check:0"),
            StepSucceeded("pay:0/card:0/check:0", Raw(b"true")),
            StepStarted("pay:0/card:0/charge:0"),
            StepSucceeded("pay:0/card:0/charge:0", Raw(cents)),
            ChildFinished("pay:0/card:0", RunStatus.COMPLETED, Raw(cents)),
            ChildFinished("pay:0", RunStatus.COMPLETED, Raw(cents)),
        )

    found = diff(paid(b"1"), paid(b"2"))
    assert {op.path for op in found.ops if op.changes} == {"pay:0", "pay:0/card:0", "pay:0/card:0/charge:0"}
    assert found.first is not None
    assert (found.first.path, found.first.changes) == ("pay:0/card:0/charge:0", ("value",))


def test_ops_that_one_run_has_alone_stand_where_they_belong() -> None:
    found = diff(run(*done("a:0"), *done("b:0"), *done("c:0")), run(*done("a:0"), *done("x:0"), *done("c:0")))
    assert [op.path for op in found.ops] == ["input", "a:0", "x:0", "b:0", "c:0", "result"]
    assert (found.added, found.removed) == (["x:0"], ["b:0"])


def test_inputs_status_and_errors_count_and_attempts_and_times_do_not() -> None:
    failed: list[AnyEvent] = [StepStarted("a:0"), StepFailed("a:0", 1, BOOM)]
    moved = Failure("builtins.ValueError", "boom", traceback="line 2")
    assert diff(run(*failed), run(StepStarted("a:0"), StepFailed("a:0", 1, moved))).first is None
    retried: list[AnyEvent] = [StepStarted("a:0"), AttemptFailed("a:0", 1, BOOM, 1.0), *done("a:0")]
    found = diff(run(*done("a:0")), run(*retried))
    assert found.first is None
    a_op = found.ops[1]
    assert a_op.a is not None
    assert a_op.b is not None
    assert (a_op.a.attempts, a_op.b.attempts, a_op.a.took, a_op.b.took) == (1, 2, 1.0, 3.0)
    changed = diff(run(*done("a:0", inputs="x")), run(*failed)).first
    assert changed is not None
    assert changed.changes == ("inputs", "status", "value", "error")


def test_what_a_run_was_given_and_came_to_is_compared_too() -> None:
    found = diff(run(input=b'{"n":1}'), run(input=b'{"n":2}', end=None))
    assert [(op.path, op.changes) for op in found.ops] == [("input", ("inputs", "value")), ("result", ("removed",))]


def test_every_kind_of_op_has_its_outcome() -> None:
    found = outcomes(
        run(
            WaitOpened("go:0", "signal", name="go"),
            SignalReceived("go", Raw(b"7")),
            WaitResolved("go:0", "signal"),
            ChildStarted("pack:0", "pack", inputs="h"),
            ChildFinished("pack:0", RunStatus.FAILED, error=BOOM),
            ChildStarted("pack:1", "pack", detached="r9"),
            ValueRecorded("now:0", "now", Raw(b'"x"')),
            StateSet("state:0", "phase", Raw(b'"y"')),
            WaitOpened("ask:0", "approval", name="ask"),
            WaitResolved("ask:0", "answer:ann", Raw(b"true")),
            StepStarted("open:0"),
        )
    )
    told = {path: (op.kind, op.status, bytes(op.value)) for path, op in found.items()}
    assert told == {
        "input": ("run", "given", b"{}"),
        "go:0": ("signal", "signal", b"7"),
        "pack:0": ("child", "failed", b"null"),
        "pack:1": ("child", "detached", b"null"),
        "now:0": ("now", "recorded", b'"x"'),
        "state:0": ("state", "recorded", b'"y"'),
        "ask:0": ("approval", "answer", b"true"),
        "open:0": ("step", "open", b"null"),
        "result": ("run", "completed", b"1"),
    }


steps = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3)), max_size=8, unique_by=lambda pair: pair[0])


@given(steps, steps)
def test_a_diff_holds_each_op_once_in_the_order_of_the_first(
    first: list[tuple[str, int]], second: list[tuple[str, int]]
) -> None:
    def made(ops: list[tuple[str, int]]) -> list[Batch]:
        return run(*(event for name, n in ops for event in done(f"{name}:0", str(n).encode())))

    found = diff(made(first), made(second))
    paths = [op.path for op in found.ops]
    assert len(paths) == len(set(paths))
    assert [p for p in paths if p.removesuffix(":0") in dict(first)] == [f"{name}:0" for name, _ in first]
    both = dict(first).keys() & dict(second).keys()
    assert {op.path for op in found.ops if op.changes == ("value",)} == {
        f"{name}:0" for name in both if dict(first)[name] != dict(second)[name]
    }
    back = diff(made(second), made(first))
    assert (found.added, found.removed) == (
        [p for p in paths if p in back.removed],
        [p for p in paths if p in back.added],
    )
