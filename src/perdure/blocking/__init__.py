"""The engine and the client for code that does not await: the same names, and no second implementation.

    from perdure.blocking import Engine

    with Engine("sqlite:///flows.db", [fulfil]) as engine:
        receipt = engine.start(fulfil(order), id="order-123").result()

Every method hands its coroutine to an event loop in a thread of its own and waits for it. So one Engine serves any
number of threads, plain `def` steps among them. A Ctrl-C while waiting gives up the wait, not the run; leaving the
`with` block then hands runs over as usual.

Called where another event loop runs (a notebook, an async server) these methods work, and hold that loop up for as
long as they take: fine in a notebook, wrong in a server, which awaits the classes of `perdure` itself. Called from the
engine's own loop (an `async def` step, a workflow body) they would wait for themselves, and raise UsageError.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from perdure import assembly
from perdure.assembly import run
from perdure.blocking.loop import Loop as _Loop
from perdure.blocking.mirror import Mirror as _Mirror
from perdure.blocking.mirror import like as _like
from perdure.blocking.mirror import mirrors as _mirrors
from perdure.client import client, handle, locks, schedules
from perdure.client.base import KeptBlobs as _KeptBlobs
from perdure.settings.load import load_settings as _load_settings

__all__ = ["Blobs", "Client", "Engine", "Locks", "RunHandle", "ScheduleHandle", "connect", "run"]

R = TypeVar("R")


@_mirrors(_KeptBlobs)
class Blobs(_Mirror):
    """Bytes that are stored once however often they are put, and verified when they are read."""


@_mirrors(locks.Locks)
class Locks(_Mirror):
    """The locks of a store."""


@_mirrors(handle.RunHandle)
class RunHandle(_Mirror, Generic[R]):
    """One run."""

    def __init__(self, handle, loop):
        super().__init__(handle, loop)
        self.id = handle.id


@_mirrors(schedules.ScheduleHandle)
class ScheduleHandle(_Mirror):
    """One schedule: pause it, trigger it, look ahead."""

    def __init__(self, handle, loop):
        super().__init__(handle, loop)
        self.id = handle.id


@_mirrors(client.Client)
class Client(_Mirror):
    """A connection to a store: starts runs for engines elsewhere to execute, and reads. Made by `connect`."""

    def __init__(self, client: client.Client) -> None:
        super().__init__(client, _Loop(type(self).__name__))

    def open(self) -> Self:
        """Connect. `with` does this too."""
        self._loop.start()
        try:
            _ = self._loop.wait(self._awaited.open())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def close(self) -> None:
        """Disconnect, and end the thread."""
        if self._loop.running:
            try:
                if not self._loop.forked:
                    self._loop.wait(self._awaited.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Engine(Client):
    """Executes runs, and does all that a client does.

    A context manager: entering it migrates an embedded store, recovers unfinished runs, and starts advancing runs;
    leaving it hands them over.
    """

    @_like(assembly.Engine.__init__)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        engine = assembly.Engine(*args, **kwargs)
        super().__init__(engine)
        self.name = engine.name
        self.resources = engine.resources

    @classmethod
    @_like(assembly.Engine.from_config.__func__)
    def from_config(cls, path=None, programs=(), **options):
        return cls(programs=programs, **(_load_settings(path).options() | options))

    @_like(assembly.Engine.serve_flow)
    def serve_flow(self, flow: Any) -> Any:
        return self._loop.wait(self._awaited.serve_flow(flow))

    @_like(assembly.Engine.sweep)
    def sweep(self, **options: Any) -> Any:
        opened = not self._loop.running
        if opened:
            self._loop.start()
        try:
            return self._loop.wait(self._awaited.sweep(**options))
        finally:
            if opened:
                self._loop.stop()


@_like(assembly.connect)
def connect(*args: Any, **kwargs: Any) -> Client:
    """A client of a store: `with connect(url) as client`, or `client = connect(url).open()`."""
    return Client(assembly.connect(*args, **kwargs))
