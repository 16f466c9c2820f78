"""Finish spans outside of the event loop, so that an exporter that blocks costs spans and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from perdure.kernel.values.raised import brief, contained
from perdure.logs import log


@dataclass(frozen=True, slots=True)
class SpanQueueConfig:
    """Durations are in seconds."""

    most: int = 4096
    """How many spans may wait for an exporter."""
    closing: float = 2.0
    """How long an engine that closes waits for them."""


class SpanQueue:
    """A bounded queue, and a thread that empties it. Spans for which there is no room are dropped and counted."""

    def __init__(self, config: SpanQueueConfig = SpanQueueConfig()) -> None:  # noqa: B008 - frozen
        self._most, self._closing = config.most, config.closing
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._ending = False
        self.dropped = 0
        self.failed = 0

    def put(self, work: Callable[[], None]) -> None:
        """Have a call made soon, in the thread."""
        with self._changed:
            if len(self._waiting) >= self._most:
                self.dropped += 1
                if self.dropped == 1:
                    log.warning(
                        "telemetry: %d spans wait for an exporter that does not keep up; more of them are dropped. "
                        "Runs are not affected",
                        self._most,
                    )
                return
            self._waiting.append(work)
            if self._thread is None:
                # A daemon: a process that ends does not wait for an exporter that never returns.
                self._thread = threading.Thread(target=self._run, name="perdure-spans", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._waiting:
                    if self._ending:
                        self._thread = None
                        return
                    self._changed.wait()
                work = self._waiting.popleft()
                self._busy = True
            try:
                work()
            except BaseException as error:
                error = contained(error)
                self.failed += 1
                if self.failed == 1:
                    log.warning(
                        "telemetry: a span could not be made or exported (%s); this is logged once. Runs are not "
                        "affected",
                        brief(error),
                    )
            del work

    @property
    def waiting(self) -> int:
        """How many spans are not made yet."""
        return len(self._waiting) + self._busy

    async def close(self) -> None:
        """Give the waiting calls a moment to be made; the thread ends after the last of them."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            if self._thread is None:
                return
        await asyncio.get_running_loop().run_in_executor(None, self._wait, self._closing)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        with self._changed:
            while self._thread is not None and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            lost = self.waiting
            if self._thread is not None and lost:
                self._waiting.clear()
                self.dropped += lost
                log.warning("telemetry: an exporter did not take %d spans within %g s; they are lost", lost, seconds)

    def open(self) -> None:
        """Accept spans again, after a close."""
        with self._changed:
            self._ending = False
