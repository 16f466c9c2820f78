"""Counts the users of a store object. Engines and clients may share it: the first connects, the last disconnects."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from perdure.errors import UsageError


class Users:
    """Counts the engines and clients of this process that have the store open.

    `one_loop`: its connections belong to the event loop in which they were made. Otherwise threads may share the store,
    which connects and disconnects without awaiting.
    """

    def __init__(self, url: str, *, one_loop: bool) -> None:
        self._url, self._one_loop = url, one_loop
        self._count = self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._turns()

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[bool]:
        """Count one more, unless the block raises. True: it is the first, and the block connects."""
        if self._one_loop:
            self._check_loop()
        if self._pid != os.getpid():
            # The connections of a parent process are of no use in a fork.
            self._count, self._pid = 0, os.getpid()
            self._turns()
        async with self._turn():
            yield self._count == 0
            self._count += 1

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[bool]:
        """Count one less. True: it was the last, and the block disconnects."""
        async with self._turn():
            self._count = max(0, self._count - 1)
            yield self._count == 0

    def _turns(self) -> None:
        self._in_loop, self._in_thread = asyncio.Lock(), threading.Lock()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        if self._one_loop:
            async with self._in_loop:
                yield
        else:
            with self._in_thread:
                yield

    def _check_loop(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and self._count and not self._loop.is_closed() and self._pid == os.getpid():
            raise UsageError(
                f"this store object of {self._url} is open in another event loop; give each loop its own, by the URL"
            )
        # Nor are those of an event loop that ended without closing the store.
        self._loop, self._count = loop, 0
        self._turns()
