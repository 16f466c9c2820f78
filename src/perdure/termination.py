"""SIGTERM for a process that runs one workflow: its steps get the same grace period as with Ctrl-C.

Never used by an Engine: the signals of a service belong to the application that opens it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# How long a process may take to end after the engine has been closed.
LEAVE_SECONDS = 5.0
TERMINATED = 128 + signal.SIGTERM


class Exit:
    """Ends the process at a given time if it is still running: a step may block the loop, a thread may hang."""

    def __init__(self) -> None:
        # SimpleQueue: its `put` is reentrant, and so may be called in a signal handler.
        self._ends: queue.SimpleQueue[tuple[float, int] | None] = queue.SimpleQueue()
        threading.Thread(target=self._watch, name="perdure-exit", daemon=True).start()

    def within(self, seconds: float, code: int) -> None:
        """End the process at that time."""
        self._ends.put((time.monotonic() + seconds, code))

    def call_off(self) -> None:
        """Cancel: do not end the process."""
        self._ends.put(None)

    def _watch(self) -> None:
        first = self._ends.get()
        if first is None:
            return
        end, code = first
        while True:
            try:
                sooner = self._ends.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            if sooner is None:
                return
            if sooner[0] < end:
                end, code = sooner
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class Termination:
    """The first SIGTERM cancels a task, which closes its engine; the second ends the grace, the third the process."""

    def __init__(self) -> None:
        self._grace = 0.0
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[object] | None = None
        self._exit: Exit | None = None
        self._count = 0

    @property
    def came(self) -> bool:
        return self._count > 0

    @contextmanager
    def heeded(self, grace: float) -> Iterator[None]:
        """Cancel the current task on SIGTERM, unless it is ignored or the application has a handler of its own."""
        if threading.current_thread() is not threading.main_thread() or (
            signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        ):
            yield
            return
        self._grace = grace
        self._loop, self._task, self._exit = asyncio.get_running_loop(), asyncio.current_task(), Exit()
        # Not loop.add_signal_handler: it would not run while a step blocks the loop.
        signal.signal(signal.SIGTERM, self._heed)
        try:
            yield
        finally:
            if self.came:
                # asyncio.run still joins its threads, and one of them may hang.
                self._exit.within(LEAVE_SECONDS, TERMINATED)
            else:
                self._exit.call_off()
                if signal.getsignal(signal.SIGTERM) == self._heed:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def end(self) -> None:
        """If SIGTERM was received, end the process as SIGTERM does by default."""
        if self.came:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            _end_by_sigterm()

    def _heed(self, number: int, frame: object) -> None:
        self._count += 1
        if os.getpid() != self._pid or self._count > 2:
            _end_by_sigterm()  # a forked child of a step has no engine to close
        assert self._loop is not None
        assert self._task is not None
        assert self._exit is not None
        with suppress(RuntimeError):  # the loop is closed: the process is about to end
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._exit.within(LEAVE_SECONDS if self._count == 2 else self._grace + 3 * LEAVE_SECONDS, TERMINATED)


def _end_by_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
