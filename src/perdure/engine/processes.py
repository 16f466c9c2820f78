"""The process pool for `cpu=True` steps, one call per process at a time. Decides nothing about retries.

One thread waits for each process, so when a process dies, it is known which step was in it: that step fails, the others
do not notice, and the next call gets a new process. Processes are spawned, not forked: forking a process with threads
and an open database is not safe.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from perdure.engine.executor_call import Job, RemoteError, follow_parent
from perdure.engine.threads import Outcome, Threads
from perdure.errors import NotSerializable, ProcessDied, UsageError
from perdure.inherited import CPU_PROCESS, GUARD, UNGUARDED
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import brief

# How long a process may take to end.
LAST_SECONDS = 5.0
_READY, _BEGUN, _RETURNED, _UNSENT, _RAISED = "ready", "begun", "returned", "unsent", "raised"


class Processes:
    """Makes calls in other processes, at most one for each CPU at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = Threads(loop, os.cpu_count() or 1, CPU_PROCESS, "the number of CPUs")
        self._here = threading.local()
        self._lock = threading.Lock()
        self._children: set[_Child] = set()
        self._closed = False
        # Before multiprocessing joins its processes at exit: ours ignore signals, and must be killed.
        atexit.register(self.close)

    def submit(self, job: Job, label: object, kept: bool = False) -> asyncio.Future[Outcome]:
        """Make a call as soon as there is a process for it."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        call = _Call(job, label)
        made = self._threads.submit(lambda: self._call(call), label, kept)
        made.add_done_callback(lambda done: _pass_on(done, future))
        # A cancelled call is killed: nothing else reaches code in another process.
        future.add_done_callback(lambda done: call.give_up(made) if done.cancelled() else None)
        return future

    def withdraw(self) -> None:
        """Drop calls that have not begun, except for those to be kept."""
        self._threads.withdraw()

    def close(self) -> None:
        """End all processes."""
        atexit.unregister(self.close)
        self._threads.close()
        with self._lock:
            self._closed = True
            children = list(self._children)
            self._children.clear()
        for child in children:
            child.end()

    def _call(self, call: _Call) -> Any:
        """In a thread: make a call in the process that belongs to it."""
        child: _Child | None = getattr(self._here, "child", None)
        if child is None or not child.alive:
            child = self._here.child = self._spawn(call)
        try:
            return call.made_in(child)
        finally:
            if not child.alive:
                with self._lock:
                    self._children.discard(child)

    def _spawn(self, call: _Call) -> _Child:
        child = _Child()
        with self._lock:
            if not self._closed:
                self._children.add(child)
        if self._closed:
            child.end()
        child.wait_until_ready(call.label)
        return child


class _Call:
    """One call, and the process that executes it."""

    def __init__(self, job: Job, label: object) -> None:
        self._job, self.label = job, label
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._given_up = False

    def made_in(self, child: _Child) -> Any:
        with self._lock:
            if self._given_up:
                raise asyncio.CancelledError
            self._child = child
        try:
            return child.call(self._job, self.label)
        finally:
            with self._lock:
                self._child = None

    def give_up(self, made: asyncio.Future[Outcome]) -> None:
        made.cancel()
        with self._lock:
            self._given_up = True
            if self._child is not None:
                self._child.end()


class _Child:
    """One process."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Not daemonic: such a process could not have children.
        self._process = context.Process(target=serve, args=(theirs,), name=CPU_PROCESS)
        try:
            self._process.start()
        finally:
            theirs.close()
        self.alive = True

    def wait_until_ready(self, label: object) -> None:
        """Wait until it has imported the main module."""
        if self._receive() is not None:
            return
        status = self._died()
        if status == UNGUARDED:
            raise UsageError(f"{label} cannot start: its process {GUARD}. Then retry the run: `perdure runs retry ID`")
        main = getattr(sys.modules["__main__"], "__file__", None) or "the main module"
        raise ProcessDied(
            str(label),
            f"{_how_it_ended(status)} while it imported {main}; its stderr says why. A script that starts runs does "
            'so under `if __name__ == "__main__":`',
        )

    def call(self, job: Job, label: object) -> Any:
        """The result of the call; raises its exception."""
        try:
            self._connection.send(job)
        except OSError:
            pass  # it has died: handled below
        while (message := self._receive()) is not None:
            kind, value = message
            if kind == _RETURNED:
                return value
            if kind == _RAISED:
                raise RemoteError(value)
            if kind == _UNSENT:
                raise NotSerializable(f"the result of {label}", *value)
            if job.begun is not None:
                job.begun()
        raise ProcessDied(str(label), _how_it_ended(self._died()))

    def end(self) -> None:
        """Kill it: it ignores other signals."""
        self.alive = False
        self._process.kill()

    def _receive(self) -> Any:
        """Its next message; None if it has died."""
        # A process that it started may hold the other end of the pipe open.
        if self._connection not in wait([self._connection, self._process.sentinel]):
            return None
        try:
            return self._connection.recv()
        except (ConnectionError, EOFError):
            return None

    def _died(self) -> int:
        self.alive = False
        self._process.join(LAST_SECONDS)
        if self._process.exitcode is None:  # it has closed its end of the pipe, but still runs
            self._process.kill()
            self._process.join()
        self._connection.close()
        return self._process.exitcode or 0


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
    return f"was killed by {name}" + (" (by the system, if memory ran out)" if name == "SIGKILL" else "")


def _pass_on(made: asyncio.Future[Outcome], future: asyncio.Future[Outcome]) -> None:
    if made.cancelled():
        future.cancel()
    elif not future.done():
        future.set_result(made.result())


# --- in the process -------------------------------------------------------------------------------------------------


def serve(connection: Connection) -> None:
    """Make the calls that come through the connection, until it is closed."""
    # Signals to the process group (Ctrl-C, a service manager) are for the engine, which decides about its steps. A
    # handler, not SIG_IGN, which subprocesses of a step would inherit.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore_signal)
    follow_parent()
    connection.send(_READY)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        except Exception as error:  # its arguments cannot be unpickled here
            connection.send((_RAISED, RemoteError.of(error).data))
            continue
        try:
            call: Callable[[], Any] = job.found()
            connection.send((_BEGUN, None))
            value = call()
            try:
                connection.send((_RETURNED, value))
            except OSError:
                raise
            except BaseException as error:
                connection.send((_UNSENT, _why_unsent(value, error)))
        except RemoteError as remote:
            connection.send((_RAISED, remote.data))
        except BaseException as error:
            connection.send((_RAISED, RemoteError.of(error).data))


def _why_unsent(value: object, error: BaseException) -> tuple[str, str]:
    """The path of the part of a value that cannot be pickled, and the reason."""
    try:
        Codec().encode(value, "")
    except NotSerializable as refused:
        return refused.path, refused.reason
    return "$", f"cannot be sent from the process of the step ({brief(error)})"


def _ignore_signal(number: int, frame: object) -> None:
    pass
