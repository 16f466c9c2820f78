"""Programs in several versions: which one executes a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import UnknownProgram, UnknownVersion, UsageError, workflow
from perdure.kernel.events import NULL as NOTHING
from perdure.kernel.events import AnyEvent, Batch, RunClaimed, SignalReceived, StepStarted, StepSucceeded, ValueRecorded
from perdure.kernel.ids import version_order
from perdure.kernel.patches import patch_history
from perdure.kernel.policies.versions import Programs
from perdure.kernel.state import RunState


@workflow(name="fulfil", version="1")
async def first() -> int:
    return 1


@workflow(name="fulfil", version="2")
async def second() -> int:
    return 2


@workflow(name="fulfil", version="10", accepts=("2", "3"))
async def tenth() -> int:
    return 10


def test_a_run_gets_the_program_of_its_version_or_one_that_accepts_it() -> None:
    programs = Programs([first, tenth])
    assert programs.find("fulfil", "1") is first
    assert programs.find("fulfil", "10") is tenth
    assert programs.find("fulfil", "2") is tenth
    # Its own program comes before one that would take over.
    assert Programs([tenth, second]).find("fulfil", "2") is second


def test_a_run_without_a_version_gets_the_newest_by_number() -> None:
    programs = Programs([tenth, second])
    assert programs.find("fulfil", "") is tenth
    assert programs["fulfil"] is tenth
    assert list(programs) == ["fulfil"]
    assert programs.every() == [tenth, second]


def test_a_missing_version_says_what_to_do() -> None:
    with pytest.raises(UnknownVersion) as caught:
        Programs([second]).find("fulfil", "1")
    assert str(caught.value) == (
        "version 1 of fulfil is not registered here: register it beside version 2, or let version 2 take over with "
        "accepts=('1',)"
    )
    assert not Programs([second]).serves("fulfil", "1")
    with pytest.raises(UnknownProgram):
        Programs([second]).find("refund", "1")


def test_two_programs_of_one_name_and_version_are_refused() -> None:
    @workflow(name="fulfil", version="1")
    async def impostor() -> int:
        return 0

    with pytest.raises(UsageError, match="two programs are version '1' of 'fulfil'"):
        Programs([first, impostor])
    assert Programs([first, first]).every() == [first]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"version": ""}, "is empty"),
        ({"version": None}, "must be a text"),
        ({"version": "x" * 101}, "101 characters"),
        ({"version": "2", "accepts": "1"}, r"accepts=\('1',\)"),
        ({"version": "2", "accepts": ("2",)}, "it is version '2' itself"),
        ({"version": "2", "accepts": (None,)}, "must be a text"),
    ],
)
def test_versions_that_make_no_sense_are_refused_at_the_decorator(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):

        @workflow(name="fulfil", **options)  # type: ignore[arg-type, call-overload, misc, unused-ignore]
        async def wrong() -> None: ...


@given(st.lists(st.integers(0, 10**6), min_size=1))
def test_versions_sort_by_their_numbers(numbers: list[int]) -> None:
    found = sorted((f"v{n}" for n in numbers), key=version_order)
    assert found == [f"v{n}" for n in sorted(numbers)]


@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_texts_can_be_sorted(versions: list[str]) -> None:
    assert (
        sorted(sorted(versions, key=version_order, reverse=True), key=version_order)[:1]
        == sorted(versions, key=version_order)[:1]
    )


def test_a_run_is_replaying_while_the_journal_holds_later_commands() -> None:
    state = RunState("r")
    events: list[AnyEvent] = [
        RunClaimed("o", 1),
        StepStarted("a:0"),
        ValueRecorded("patch:x", "patch"),
        StepSucceeded("a:0", NOTHING),
        # From outside, and no command of the program's.
        SignalReceived("s"),
    ]
    past = patch_history(state, [Batch(0, 0.0, events[:3]), Batch(3, 0.0, events[3:])])
    replaying = []
    for event in events:
        state.fold(event, 0.0)
        replaying.append(past.replaying)
    assert replaying == [True, True, False, False, False]
    assert past.marked("patch:x")
    assert not past.marked("patch:y")
    # A child has marks of its own.
    assert not past.within("c:0").marked("patch:x")
