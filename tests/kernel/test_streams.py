"""Streams read from journals: numbered without gaps, from any number on, however the journal is batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChunkAppended,
    RunClaimed,
    RunFinished,
    RunStarted,
    RunStatus,
    StepProgressed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
    decode_events,
    encode_events,
    weight,
)
from perdure.kernel.state import RunState
from perdure.kernel.streams import IMMEDIATE, ON_COMPLETE, Numbered, Reading, batched, stream_mode
from perdure.kernel.values.failures import Failure

OPS = ("a:0", "a:1", "x:0/b:0")


@st.composite
def journals(draw: st.DrawFn) -> list[AnyEvent]:
    """What an owner may write about steps that stream, with restarts, attempts and progress."""
    events: list[AnyEvent] = [RunStarted("it", "flow", "", NULL), RunClaimed("me", 1)]
    count = dict.fromkeys(OPS, 0)
    attempt = dict.fromkeys(OPS, 0)
    ended: set[str] = set()
    for _ in range(draw(st.integers(0, 30))):
        op = draw(st.sampled_from(OPS))
        kind = draw(st.sampled_from(["start", "chunks", "chunks", "chunks", "restart", "progress", "end"]))
        if op in ended:
            continue
        if kind == "start" or not attempt[op]:
            attempt[op] += 1
            events.append(StepStarted(op, attempt[op]))
        elif kind in ("chunks", "restart"):
            chunks = tuple(Raw(str(draw(st.integers(0, 9))).encode()) for _ in range(draw(st.integers(1, 3))))
            event = ChunkAppended(op, attempt[op], count[op], chunks, kind == "restart")
            count[op] = event.end
            events.append(event)
        elif kind == "progress":
            events.append(StepProgressed(op, attempt[op], Raw(b"1")))
        else:
            ended.add(op)
            events.append(StepSucceeded(op, NULL, attempt[op]))
    if draw(st.booleans()):
        events.append(RunFinished(RunStatus.COMPLETED))
    return events


def cut(events: Sequence[AnyEvent], at: Iterable[int]) -> list[Batch]:
    places = sorted({0, *(place % (len(events) + 1) for place in at), len(events)})
    return [Batch(a, 0.0, events[a:b]) for a, b in pairwise(places) if b > a]


def told(events: Sequence[AnyEvent], step: str | None, start: int = 0) -> list[Numbered]:
    return list(Reading(step, start).feed([Batch(0, 0.0, events)]))


@given(journals(), st.sampled_from([None, "a", "b", *OPS]), st.lists(st.integers(0, 100)), st.integers(0, 40))
def test_any_cut_of_a_journal_and_any_start_give_the_same_stream(
    events: list[AnyEvent], step: str | None, places: list[int], start: int
) -> None:
    whole = told(events, step)
    assert [chunk.index for chunk in whole] == list(range(len(whole)))
    reading, piecemeal = Reading(step, start), []
    for batch in cut(events, places):
        piecemeal += list(reading.feed([batch]))
    assert piecemeal == whole[start:]
    assert reading.next_seq == len(events)


@given(journals())
def test_the_stream_of_a_step_has_the_numbers_that_its_events_have(events: list[AnyEvent]) -> None:
    for op in OPS:
        numbers: list[int] = []
        for event in events:
            if isinstance(event, ChunkAppended) and event.op == op:
                numbers += range(event.start, event.end)
        assert [chunk.index for chunk in told(events, op)] == numbers


@given(journals())
def test_what_a_state_knows_is_what_is_valid_in_the_stream(events: list[AnyEvent]) -> None:
    state = RunState("r")
    for event in events:
        state.fold(event, 0.0)
    for op, open_op in state.ops.items():
        valid: list[Raw] = []
        for chunk in told(events, op):
            if chunk.restart:
                valid.clear()
            else:
                valid.append(chunk.value)
        assert (open_op.emitted.chunks if open_op.emitted is not None else []) == valid


@given(journals())
def test_events_of_streams_come_back_from_the_store(events: list[AnyEvent]) -> None:
    assert encode_events(decode_events(encode_events(events))) == encode_events(events)


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("a:0", StepSucceeded("a:0", NULL)),
        ("a", StepSucceeded("a:0", NULL)),
        ("a", StepSkipped("a:0", 1, Failure("ValueError", "no"))),
        (None, RunFinished(RunStatus.FAILED)),
        ("a:2", RunFinished(RunStatus.FAILED)),
        ("never", RunFinished(RunStatus.FAILED)),
    ],
)
def test_a_reading_ends_with_the_step_or_with_the_run(step: str | None, end: AnyEvent) -> None:
    begun: list[AnyEvent] = [RunStarted("it", "flow", "", NULL), *(StepStarted(f"a:{i}") for i in range(3))]
    reading = Reading(step, 0)
    list(reading.feed([Batch(0, 0.0, [*begun, StepSucceeded("a:1", NULL)])]))
    assert not reading.ended
    list(reading.feed([Batch(5, 0.0, [end])]))
    assert reading.ended
    assert reading.found == (step != "never")
    if not reading.found:
        assert reading.begun == ["a:0", "a:1", "a:2"]


def test_the_chunks_count_towards_the_size_of_a_journal() -> None:
    small, large = (weight(ChunkAppended("a:0", 1, 0, (Raw(b"1" * n),))) for n in (1, 1001))
    assert large - small == 1000


def test_modes_have_names() -> None:
    assert stream_mode("immediate") is IMMEDIATE
    assert stream_mode("on_complete") is ON_COMPLETE
    assert stream_mode(batched(20, 0.5)) == batched(20, 0.5)
    assert [str(mode) for mode in (IMMEDIATE, ON_COMPLETE, batched(20, 0.5))] == [
        "immediate",
        "on_complete",
        "batched(20, 0.5)",
    ]


def test_a_small_event_takes_few_bytes() -> None:
    event = ChunkAppended("tokens:0", 1, 7, (Raw(b'"word"'),))
    assert msgspec.json.decode(msgspec.json.encode(event)) == {
        "type": "ChunkAppended",
        "op": "tokens:0",
        "attempt": 1,
        "start": 7,
        "chunks": ["word"],
    }
