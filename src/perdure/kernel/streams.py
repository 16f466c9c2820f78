"""The stream of a step, or of a whole run, read from a journal; and when a step's chunks are written. Writes nothing.

A chunk is numbered by its place in what is asked for, and the mark of a restart has a number too: so a reader who has
seen the numbers up to n continues with n + 1, and misses and repeats nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    ChildFinished,
    ChunkAppended,
    RunFinished,
    StepFailed,
    StepSkipped,
    StepStarted,
    StepSucceeded,
)
from perdure.kernel.ids import WrongValue, op_name


@dataclass(frozen=True, slots=True)
class StreamMode:
    """When the chunks of a step are written: after `count` chunks or `seconds`, whichever is first.

    `count=0`: with the outcome of the step, and not before.
    """

    count: int = 1
    seconds: float = 0.0

    def __str__(self) -> str:
        if self == IMMEDIATE:
            return "immediate"
        return "on_complete" if self == ON_COMPLETE else f"batched({self.count}, {self.seconds:g})"


IMMEDIATE = StreamMode()
ON_COMPLETE = StreamMode(0)


def batched(n: int, seconds: float) -> StreamMode:
    """Write chunks when there are `n` of them, or `seconds` after the first: `@step(stream=batched(20, 0.5))`."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise WrongValue(f"batched({n!r}, ...): give a number of chunks, at least 1")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise WrongValue(f"batched({n}, {seconds!r}): give a number of seconds, not negative")
    return StreamMode(n, float(seconds))


def stream_mode(mode: str | StreamMode) -> StreamMode:
    """The mode of a name or an object."""
    if isinstance(mode, StreamMode):
        return mode
    known = {"immediate": IMMEDIATE, "on_complete": ON_COMPLETE}
    if isinstance(mode, str) and (batch := re.fullmatch(r"batched\((\d+), *(\d+(?:\.\d+)?)\)", mode)):
        return batched(int(batch[1]), float(batch[2]))
    if not isinstance(mode, str) or mode not in known:
        raise WrongValue(f"stream={mode!r} is not a mode; write 'immediate', 'on_complete' or batched(20, 0.5)")
    return known[mode]


class Numbered(msgspec.Struct, frozen=True, gc=False):
    """One chunk of a stream, or a restart."""

    index: int
    path: str
    value: Raw
    attempt: int
    restart: bool


class Reading:
    """A stream as far as its journal has been read.

    `step` is an op path, or a name for the first step of that name; None is the whole run. `within` is the op path of a
    child in the journal of its root: only its contents are read, and `step` is relative to it. `index` is the number of
    the first chunk, if another journal came before.
    """

    __slots__ = ("_named", "_paths", "_start", "_step", "_within", "ended", "found", "index", "next_seq")

    def __init__(self, step: str | None, start: int, within: str = "", index: int = 0) -> None:
        self._within = within and f"{within}/"
        self._named = step is not None and ":" not in step
        if step is not None and not self._named and not step.startswith(self._within):
            step = self._within + step
        self._step, self._start = step, start
        self.index = index
        self._paths: list[str] = []
        self.next_seq = 0
        # Whether the stream has ended, and whether the step has begun.
        self.ended = False
        self.found = step is None

    def feed(self, batches: Iterable[Batch]) -> Iterator[Numbered]:
        """The chunks in the next batches of the journal, from `start` on."""
        for batch in batches:
            for event in batch.events:
                self.next_seq += 1
                if self.ended:
                    continue
                if isinstance(event, ChunkAppended):
                    if event.op == self._step or (self._step is None and event.op.startswith(self._within)):
                        yield from self._chunks(event)
                elif isinstance(event, StepStarted):
                    self._began(event.op)
                else:
                    self.ended = self._ends(event)

    def _began(self, op: str) -> None:
        if self.found or not op.startswith(self._within):
            return
        if self._named and op_name(op) == self._step:
            self._step = op
        self.found = op == self._step
        self._paths.append(op)

    def _ends(self, event: AnyEvent) -> bool:
        if isinstance(event, StepSucceeded | StepFailed | StepSkipped):
            return event.op == self._step
        if isinstance(event, ChildFinished):
            # The end of the child that is read, or of one that contains the step.
            inside = f"{event.op}/"
            return self._within.startswith(inside) or (self.found and (self._step or "").startswith(inside))
        return isinstance(event, RunFinished)

    @property
    def begun(self) -> list[str]:
        """The steps that have begun, while the requested one has not."""
        return self._paths

    def _chunks(self, event: ChunkAppended) -> Iterator[Numbered]:
        if event.restart:
            if self.index >= self._start:
                yield Numbered(self.index, event.op, NULL, event.attempt, True)
            self.index += 1
        for chunk in event.chunks:
            if self.index >= self._start:
                yield Numbered(self.index, event.op, chunk, event.attempt, False)
            self.index += 1
