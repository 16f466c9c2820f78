"""One call of a client, from a command: connect, do it, disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from perdure.client.reader import Reader
from perdure.ports.store import Store

if TYPE_CHECKING:
    from perdure.client.client import Client

C = TypeVar("C", bound=Reader)
T = TypeVar("T")


def with_reader(store: Store, work: Callable[[Reader], Awaitable[T]]) -> T:
    """What a reader of the store returns. Imports nothing but what reading takes."""
    return asyncio.run(_call(Reader(store), work))


def with_client(store: Store, work: Callable[[Client], Awaitable[T]]) -> T:
    """What a client of the store returns."""
    from perdure.client.client import Client

    return asyncio.run(_call(Client(store), work))


async def _call(client: C, work: Callable[[C], Awaitable[T]]) -> T:
    async with client:
        return await work(client)
