"""Queues as settings, and which runs begin next. Counts nothing itself: a store says what is running and queued."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from perdure.errors import UsageError
from perdure.kernel.ids import check_name, flaw_of, plain
from perdure.kernel.policies.durations import ENDLESS, duration

MAX_KEY = 255
MAX_PRIORITY = 1 << 31


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in any `per` seconds."""

    count: int
    per: float | timedelta = 1.0

    def __post_init__(self) -> None:
        if not _is_int(self.count) or self.count < 1:
            raise UsageError(f"Rate({self.count!r}): the number of starts must be an integer of at least 1")
        per = duration(self.per)
        if per is None or not 0 < per < ENDLESS:
            raise UsageError(f"Rate({self.count}, per={self.per!r}) must be more than 0: seconds or a timedelta")

    @property
    def seconds(self) -> float:
        """The length of the window."""
        return duration(self.per) or 0.0


@dataclass(frozen=True, slots=True)
class Queue:
    """The limits of a queue. A run that has begun and not finished counts, even if its engine is gone."""

    name: str
    concurrency: int | None = None
    """How many of its runs may be under way at once, on all engines together."""
    per_key: int | None = None
    """How many of those may have the same key."""
    rate: Rate | None = None
    """How many may begin in a while."""

    def __post_init__(self) -> None:
        check_queue(self.name)
        for what in ("concurrency", "per_key"):
            value = getattr(self, what)
            if value is not None and (not _is_int(value) or value < 1):
                raise UsageError(f"Queue({self.name!r}, {what}={value!r}) must be an integer of at least 1, or None")
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise UsageError(f"Queue({self.name!r}, rate={self.rate!r}) must be a Rate, such as Rate(100, per=1.0)")

    def __str__(self) -> str:
        """The limits in words."""
        limits = (("at once", self.concurrency), ("per key", self.per_key))
        parts = [f"{value} {what}" for what, value in limits if value is not None]
        if self.rate is not None:
            parts.append(f"{self.rate.count} in {self.rate.seconds:g} s")
        return ", ".join(parts) or "no limits"


class Line(msgspec.Struct, frozen=True):
    """The runs of one key that may begin now, first come first; `served`: when one of that key began last."""

    key: str
    served: float | None
    runs: Sequence[str]
    running: int = 0


class _Turns:
    """Picks the runs that begin next: by priority, and within one priority the key served least recently goes first."""

    def __init__(self, room: int, per_key: int | None) -> None:
        self.room, self._per_key = room, per_key
        self.picked: list[str] = []
        # How many of each key were picked, and the place of the last of them.
        self._taken: dict[str, int] = {}
        self._last: dict[str, int] = {}

    @property
    def left(self) -> int:
        """How many more there is room for."""
        return self.room - len(self.picked)

    @property
    def keys(self) -> int:
        """How many keys have had a turn."""
        return len(self._taken)

    def serve(self, lines: Sequence[Line]) -> None:
        """Go round the lines of one priority until there is no room, or no run is left. Called from the highest on."""
        # A key that had a turn at a higher priority was served after all others.
        waiting = sorted(lines, key=lambda line: (self._last.get(line.key, -1), line.served or 0.0, line.key))
        turn = 0
        while waiting and self.left > 0:
            waiting = [line for line in waiting if turn < len(line.runs)]
            for line in waiting:
                if self.left > 0 and self._may(line):
                    self._last[line.key] = len(self.picked)
                    self.picked.append(line.runs[turn])
                    self._taken[line.key] = self._taken.get(line.key, 0) + 1
            turn += 1

    def _may(self, line: Line) -> bool:
        return self._per_key is None or line.running + self._taken.get(line.key, 0) < self._per_key


class QueueReader(Protocol):
    """The questions of `pick` to a store, about one queue at one moment. Counting may stop at a limit."""

    def running(self, limit: int) -> Awaitable[int]:
        """How many runs have begun and not finished."""

    def started(self, rate: Rate) -> Awaitable[tuple[int, float | None]]:
        """How many runs began in the window around now; and, if it is full, the start that must leave it first."""

    def next_priority(self, below: int | None) -> Awaitable[int | None]:
        """The highest priority of queued runs, below the one that was served last."""

    def lines(self, priority: int, left: int, served: int) -> Awaitable[Sequence[Line]]:
        """The keys of a priority that may have a turn, with as many of their runs as `left` may need.

        `served` keys had a turn at a higher priority: they come last now, whenever the store served them last. With
        enough other keys, the first run of each is enough.
        """

    def next_ready(self) -> Awaitable[float | None]:
        """When the first of the runs may begin whose time has not come yet."""


def pick(reader: QueueReader, queue: Queue, room: int) -> Generator[Any, Any, tuple[Sequence[str], float | None]]:
    """The runs that begin next, at most `room`; and when to look again even if nothing happens.

    Yields the awaitables of the reader, and is sent their results: `ports.queues.picks` awaits them.
    """
    if queue.concurrency is not None:
        running: int = yield reader.running(queue.concurrency)
        room = min(room, queue.concurrency - running)
    if queue.rate is not None and room > 0:
        window: tuple[int, float | None] = yield reader.started(queue.rate)
        started, first = window
        if first is not None:
            return (), first + queue.rate.seconds
        room = min(room, queue.rate.count - started)
    if room <= 0:
        return (), None
    turns = _Turns(room, queue.per_key)
    priority: int | None = yield reader.next_priority(None)
    while priority is not None:
        lines: Sequence[Line] = yield reader.lines(priority, turns.left, turns.keys)
        turns.serve(lines)
        if turns.left == 0:
            break
        priority = yield reader.next_priority(priority)
    ready: float | None = yield reader.next_ready()
    return turns.picked, ready


def check_queue(name: str) -> str:
    """Return the name of a queue, or raise UsageError."""
    try:
        return check_name(name, "the name of a queue")
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_key(key: str) -> str:
    """Return the key of a run in its queue, or raise UsageError."""
    flaw = flaw_of(key, MAX_KEY)
    if flaw is not None:
        raise UsageError(f"key={key!r:.80} {flaw}; give a short text, such as the tenant: key='acme'")
    return plain(key)


def check_priority(priority: int) -> int:
    """Return a priority, or raise UsageError."""
    if not _is_int(priority) or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise UsageError(f"priority={priority!r} must be an integer between -2**31 and 2**31; a higher one goes first")
    return int(priority)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
