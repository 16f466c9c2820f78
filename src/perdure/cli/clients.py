"""Clients in commands: one call (connect, do it, disconnect), or following a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from perdure.cli.options import is_remote
from perdure.cli.output import note
from perdure.client.reader import Reader
from perdure.client.views import RunView
from perdure.errors import NoSuchRun, StoreUnavailable
from perdure.kernel.structures import Structures
from perdure.ports.store import Store
from perdure.stored import StoredPrograms

if TYPE_CHECKING:
    from perdure.client.client import Client

C = TypeVar("C", bound=Reader)
T = TypeVar("T")

# How long to wait before the next try when a store is unavailable.
RECONNECT_SECONDS = 0.5


def with_reader(store: Store, work: Callable[[Reader], Awaitable[T]]) -> T:
    """What a reader of the store returns. Imports nothing but what reading takes."""
    return asyncio.run(_call(reader_of(store), work))


def with_client(store: Store, work: Callable[[Client], Awaitable[T]], structures: Structures | None = None) -> T:
    """What a client of the store returns."""
    return asyncio.run(_call(client_of(store, structures), work))


def reader_of(store: Store) -> Reader:
    """A reader of a store, which may be behind a server."""
    return client_of(store) if is_remote(store.url) else Reader(store, structures=StoredPrograms())


def client_of(store: Store, structures: Structures | None = None) -> Client:
    """A client of a store, which may be behind a server."""
    if is_remote(store.url):
        from perdure.cli.remote.client import RemoteClient

        return RemoteClient(store)  # type: ignore[arg-type]
    from perdure.client.client import Client

    return Client(store, structures=structures or StoredPrograms())


async def _call(client: C, work: Callable[[C], Awaitable[T]]) -> T:
    async with client:
        return await work(client)


async def view_of(client: Reader, id: str) -> RunView:
    """The run of an id; raises NoSuchRun."""
    view = await client.get(id)
    if view is None:
        raise NoSuchRun(id)
    return view


class Follower:
    """Follows a run by number: nothing is missed or repeated if the store is unavailable for a while."""

    def __init__(self, id: str, start: int, store: str, json: bool, what: str) -> None:
        self._id, self._next, self._store, self._json, self._what = id, start, store, json, what
        # The run that is followed, once it is known: its later incarnations belong to it, and another run under the
        # same id does not.
        self._run_id: str | None = None

    async def until_end(self) -> int:
        """The exit code at the end of what is followed."""
        while True:
            try:
                return await self._follow()
            except StoreUnavailable as error:
                if self._run_id is None:
                    raise
                note(f"{error}; trying again, from {self._what} {self._next}")
                await asyncio.sleep(RECONNECT_SECONDS)

    async def _follow(self) -> int:
        raise NotImplementedError
