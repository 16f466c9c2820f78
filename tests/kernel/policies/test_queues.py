"""Limits of queues as settings, and turns: the key served least recently goes first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.kernel.policies.queues import Line, Queue, Rate, pick

lines = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.one_of(st.none(), st.floats(1, 99)), st.integers(0, 5), st.integers(0, 2))
)


class Waiting:
    """A queue that waits in lists, the highest priority first, and what was asked of it. It answers at once."""

    def __init__(self, priorities: Sequence[list[Line]], under_way: int = 0, starts: Sequence[float] = ()) -> None:
        self._priorities, self._under_way, self._starts = priorities, under_way, starts
        self.asked: list[str] = []

    def running(self, limit: int) -> Any:
        self.asked.append("running")
        return self._under_way

    def started(self, rate: Rate) -> Any:
        self.asked.append("started")
        return len(self._starts), self._starts[-rate.count] if len(self._starts) >= rate.count else None

    def next_priority(self, below: int | None) -> Any:
        self.asked.append("next_priority")
        return next((p for p in range(0, -len(self._priorities), -1) if below is None or p < below), None)

    def lines(self, priority: int, left: int, served: int) -> Any:
        self.asked.append("lines")
        return self._priorities[-priority]

    def next_ready(self) -> Any:
        self.asked.append("next_ready")
        return 77.0


def picked(waiting: Waiting, queue: Queue, room: int) -> tuple[Sequence[str], float | None]:
    picking, answer = pick(waiting, queue, room), None
    while True:
        try:
            answer = picking.send(answer)
        except StopIteration as done:
            run_ids, until = done.value
            return run_ids, until


def serve(priorities: list[list[Line]], room: int, per_key: int | None = None) -> list[str]:
    return list(picked(Waiting(priorities), Queue("q", per_key=per_key), room)[0])


def one_by_one(priorities: list[list[Line]], room: int, per_key: int | None) -> list[str]:
    """The same, said plainly: pick one, note when its key was served, and look again."""
    served: dict[str, float] = {}
    running: dict[str, int] = {}
    left = [{line.key: list(line.runs) for line in found} for found in priorities]
    for found in priorities:
        for line in found:
            served.setdefault(line.key, line.served or 0.0)
            running.setdefault(line.key, line.running)
    picked: list[str] = []
    while len(picked) < room:
        for waiting in left:
            able = [k for k, runs in waiting.items() if runs and (per_key is None or running[k] < per_key)]
            if able:
                key = min(able, key=lambda k: (served[k], k))
                picked.append(waiting[key].pop(0))
                served[key] = 1000.0 + len(picked)
                running[key] += 1
                break
        else:
            break
    return picked


@given(st.lists(lines, max_size=3), st.integers(0, 20), st.one_of(st.none(), st.integers(1, 3)))
def test_turns_are_those_of_picking_one_by_one(
    drawn: list[dict[str, tuple[float | None, int, int]]], room: int, per_key: int | None
) -> None:
    known: dict[str, tuple[float | None, int]] = {}
    priorities = []
    for number, found in enumerate(drawn):
        at_this = []
        for key, (served, runs, running) in found.items():
            served, running = known.setdefault(key, (served, running))
            at_this.append(Line(key, served, [f"{number}{key}{i}" for i in range(runs)], running))
        priorities.append(at_this)
    assert serve(priorities, room, per_key) == one_by_one(priorities, room, per_key)


def test_one_key_with_thousands_of_runs_waits_for_its_turn() -> None:
    big = Line("big", None, [f"b{i}" for i in range(10_000)])
    small = Line("small", 5.0, ["s"])
    assert serve([[big, small]], 4) == ["b0", "s", "b1", "b2"]


LINES = [[Line("a", None, ["a0", "a1", "a2"])], [Line("b", None, ["b0"])]]


@pytest.mark.parametrize(
    ("queue", "under_way", "starts", "room", "expected"),
    [
        (Queue("q"), 9, [1.0], 9, (["a0", "a1", "a2", "b0"], 77.0)),
        (Queue("q", concurrency=4), 2, [], 9, (["a0", "a1"], 77.0)),
        (Queue("q", concurrency=4), 4, [], 9, ((), None)),
        (Queue("q", rate=Rate(3, 10)), 0, [1.0, 2.0], 9, (["a0"], 77.0)),
        # It is tried again when the start that fills the window has left it.
        (Queue("q", rate=Rate(2, 10)), 0, [1.0, 2.0, 3.0], 9, ((), 12.0)),
        (Queue("q", concurrency=1, rate=Rate(2, 10)), 1, [1.0, 2.0], 9, ((), None)),
        (Queue("q"), 0, [], 0, ((), None)),
    ],
)
def test_limits_leave_so_much_room(
    queue: Queue, under_way: int, starts: list[float], room: int, expected: tuple[Sequence[str], float | None]
) -> None:
    assert picked(Waiting(LINES, under_way, starts), queue, room) == expected


def test_a_store_is_asked_no_more_than_is_needed() -> None:
    full, unlimited = Waiting(LINES, 4), Waiting(LINES)
    picked(full, Queue("q", concurrency=4, rate=Rate(1)), 9)
    assert full.asked == ["running"]
    picked(unlimited, Queue("q"), 2)
    assert unlimited.asked == ["next_priority", "lines", "next_ready"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Queue(""), "name of a queue"),
        (lambda: Queue("a/b"), "name of a queue"),
        (lambda: Queue(7), "name of a queue"),  # type: ignore[arg-type]
        (lambda: Queue("q", concurrency=0), "concurrency=0"),
        (lambda: Queue("q", concurrency=True), "concurrency=True"),
        (lambda: Queue("q", concurrency=2.5), "concurrency=2.5"),  # type: ignore[arg-type]
        (lambda: Queue("q", per_key=-1), "per_key=-1"),
        (lambda: Queue("q", rate=100), "Rate"),  # type: ignore[arg-type]
        (lambda: Rate(0), "at least 1"),
        (lambda: Rate(1.5), "at least 1"),  # type: ignore[arg-type]
        (lambda: Rate(5, per=0), "more than 0"),
        (lambda: Rate(5, per=-1.0), "more than 0"),
        (lambda: Rate(5, per=float("nan")), "more than 0"),
        (lambda: Rate(5, per=timedelta(0)), "more than 0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_a_rate_takes_seconds_or_a_timedelta() -> None:
    assert Rate(5, per=timedelta(minutes=1)).seconds == 60.0 == Rate(5, per=60).seconds
    assert str(Queue("q", concurrency=5, per_key=1, rate=Rate(100))) == "5 at once, 1 per key, 100 in 1 s"
