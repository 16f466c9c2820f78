"""Connections to one database: their uses, how they are replaced, and how their errors are translated. Knows no table.

One connection writes journals, one statement after the other. One listens for notifications, and sends heartbeats, so
that its death is noticed. Others, as many as are needed at once up to `pool`, read, and make small writes.
Of those that an application's pool lends, only one is kept while it is idle: other stores may share the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from perdure.errors import StoreUnavailable
from perdure.logs import log
from perdure.stores.postgres.address import Address
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.connection import WRITING, Connection, Row, connect, require_driver
from perdure.stores.postgres.errors import Lost, is_collision, is_driver_error, is_lost, translate
from perdure.stores.postgres.notifications import Notifications

T = TypeVar("T")


# The state of the backends of some connections, and of the connection that asks.
_BACKENDS = "select pid, state from pg_stat_activity where pid = any($1::int[]) or pid = pg_backend_pid()"


class Database:
    """Connections, opened with `open` and closed with `close`."""

    def __init__(self, address: Address, config: PostgresConfig, pool: Any = None) -> None:
        require_driver(address.shown)
        self.config = config
        # The application's pool, if connections are borrowed from one.
        self._lender = pool
        self.address, self.url = address, address.shown
        self.fill = address.names.fill
        self.notifications = Notifications(config)
        # The names of the orchestrators in this process.
        self.names_held: set[str] = set()
        self.channel = ""
        self.closed = True
        self._writer: Connection | None = None
        self._idle: list[Connection] = []
        # How many of those are kept, and the tasks that end the others.
        self._most_idle = address.pool if pool is None else 1
        self._ending: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(address.pool)
        self._listener: Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._callback: Callable[[str], None] | None = None
        # Every connection that may be usable, and the probe of those that are silent.
        self._connections: WeakSet[Connection] = WeakSet()
        self._asking: asyncio.Task[None] | None = None

    # --- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> Connection:
        """Connect for the first time, or raise what is wrong. The writing connection is made at the first write."""
        connection = await self.connect()
        self._idle.append(connection)
        self.closed = False
        return connection

    async def listen(self, channel: str) -> None:
        """Begin to listen."""
        self.channel = channel
        await self._listen()
        self._listening = asyncio.get_running_loop().create_task(self._keep_listening())

    async def close(self) -> None:
        """Disconnect."""
        self.closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        connections = [self._writer, self._listener, *self._idle]
        self._writer = self._listener = None
        self._idle.clear()
        self.notifications.listening = False
        await asyncio.gather(*(one.close() for one in connections if one is not None), *self._ending)

    async def connect(self, settings: dict[str, str] | None = None) -> Connection:
        """A new connection; raises an error of perdure if that fails."""
        try:
            connection = await connect(self.address, self.config, self._trace, settings, self._silent, self._lender)
        except Exception as error:
            if not is_driver_error(error) and not isinstance(error, ValueError):
                raise
            raise translate(error, self.url) from None
        self._connections.add(connection)
        return connection

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement of every connection."""
        self._callback = callback

    def _trace(self, sql: str) -> None:
        if self._callback is not None:
            self._callback(sql)

    # --- connections that are dead and look alive -----------------------------------------------------------------

    def _silent(self) -> None:
        """A statement waits for its answer: the server may be slow or gone, or the connection dead. Find out."""
        if not self.closed and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._probe_silent())

    async def _probe_silent(self) -> None:
        """Drop connections whose backend is gone, or is idle though we have sent it a statement."""
        try:
            fresh = await self.connect()
        except StoreUnavailable:
            return  # the server does not answer at all: the connections may be fine
        try:
            silent = [one for one in self._connections if one.silent]
            rows = await fresh.fetch(_BACKENDS, [one.backend for one in silent], seconds=self.config.probe)
            states: dict[int, str | None] = dict(rows)
            # Behind a pooler backends have other process ids: nothing is known.
            dead = [(one, one.sent) for one in silent if self._is_dead(one, states)] if fresh.backend in states else []
            if dead:
                # The answer may be under way.
                await asyncio.sleep(self.config.grace)
        except Exception as error:
            fresh.drop()
            if not is_driver_error(error):
                raise
            return
        except BaseException:
            fresh.drop()
            raise
        proved = [one for one, sent in dead if one.silent and one.sent == sent]
        if proved:
            log.warning("%s: dropped connections that the server had closed without a reply; reconnecting", self.url)
            # Idle connections are as old, and likely dead too. Busy ones are probed once they are silent.
            for one in proved + [one for one in self._connections if not one.busy and one is not fresh]:
                one.drop()
        self._put_back(fresh)

    def _is_dead(self, connection: Connection, states: dict[int, str | None]) -> bool:
        state = states.get(connection.backend, "gone")
        return state is not None and (state == "gone" or state.startswith("idle"))

    # --- writing journals -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """The writing connection, which only the journal uses. Raises Lost if it ends while it is used.

        Raises StoreUnavailable when there is none, and nothing was sent.
        """
        connection = await self._writing()
        try:
            yield connection
        except BaseException as error:
            if not isinstance(error, Exception) or is_lost(error):
                # A cancelled caller left it in the middle of a statement.
                connection.drop()
            if is_lost(error):
                raise Lost from error
            raise

    async def prepare_to_write(self, *statements: str) -> None:
        """Make the writing connection and prepare these statements, before the first append."""
        connection = await self._writing()
        for sql in statements:
            await connection.keep(self.fill(sql))
        # The driver leaves the transaction open in which it prepared a statement; this ends it.
        await connection.script("select 1")

    @property
    def writer(self) -> Connection | None:
        """The writing connection, if there is one."""
        return None if self.closed else self._writer

    async def _writing(self) -> Connection:
        if self.closed:
            raise StoreUnavailable(self.url, "it is closed")
        if self._writer is None or self._writer.closed:
            self._writer = None
            self._writer = await self.connect(WRITING)
        return self._writer

    async def transact(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run several statements in one transaction."""
        await connection.script("begin")
        try:
            result = await work(connection)
        except Exception:
            if not connection.closed:
                await connection.script("rollback")
            raise
        await connection.script("commit")
        return result

    # --- small questions and answers ------------------------------------------------------------------------------

    async def query(self, sql: str, *arguments: Any, patience: float | None = None) -> list[Row]:
        """Run an idempotent statement, over any free connection, and retry it when the connection ends."""
        rows, _ = await self.query_reporting(sql, *arguments, patience=patience)
        return rows

    async def read(self, sql: str, *arguments: Any) -> list[Row]:
        """As `query`: a large query needs no thread here."""
        return await self.query(sql, *arguments)

    async def query_reporting(
        self, sql: str, *arguments: Any, patience: float | None = None, by: Connection | None = None
    ) -> tuple[list[Row], bool]:
        """As `query`; also returns whether an earlier try may have taken effect before the one that was answered."""
        config = self.config
        patience = config.patience if patience is None else patience
        deadline = time.monotonic() + patience
        pause, again, collisions = config.first_pause, False, 0
        # Even if the first answer took all the time there was, try one new connection.
        chance = True
        while True:
            try:
                if by is not None and not by.closed and not by.busy:
                    return await self._send(by, sql, arguments, patience), again
                async with self._place() as connection:
                    return await self._send(connection, sql, arguments, patience), again
            except Lost as error:
                again, problem = True, translate(error, self.url)
                if chance and not self.closed:
                    chance = False
                    continue
            except StoreUnavailable as error:
                problem = error
            except Exception as error:
                if not is_driver_error(error):
                    raise
                if not is_collision(error) or collisions >= config.collisions:
                    raise translate(error, self.url) from error
                collisions += 1
                continue
            if self.closed or time.monotonic() + pause > deadline:
                raise problem
            await asyncio.sleep(pause)
            pause = min(pause * 2, config.longest_pause)

    async def _send(self, connection: Connection, sql: str, arguments: tuple[Any, ...], patience: float) -> list[Row]:
        # A caller with less patience than the default waits no longer than that for the answer.
        seconds = patience if patience < self.config.patience else None
        try:
            return await connection.fetch(self.fill(sql), *arguments, seconds=seconds)
        except BaseException as error:
            if is_lost(error):
                connection.drop()
                # The idle connections are as old, and likely dead too.
                while self._idle:
                    self._idle.pop().drop()
                raise Lost from error
            if not isinstance(error, Exception):
                connection.drop()
            raise

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[Connection]:
        if self.closed:
            raise StoreUnavailable(self.url, "it is closed")
        async with self._places:
            connection = self._idle.pop() if self._idle else None
            if connection is None or connection.closed:
                connection = await self.connect()
            try:
                yield connection
            finally:
                self._put_back(connection)

    def _put_back(self, connection: Connection) -> None:
        """Keep a connection for the next query, or end it."""
        if connection.closed:
            return
        if self.closed:
            connection.drop()
        elif len(self._idle) < self._most_idle:
            self._idle.append(connection)
        else:
            # No query waits for it, and a query that was cancelled must not keep it out of the pool.
            ending = asyncio.get_running_loop().create_task(connection.close())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def retry_transaction(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run an idempotent transaction, over any free connection, and retry it when the connection ends."""
        chance = True
        for _ in range(self.config.collisions):
            try:
                async with self._place() as connection:
                    try:
                        return await self.transact(connection, work)
                    except BaseException:
                        connection.drop()
                        raise
            except Exception as error:
                if not is_driver_error(error):
                    raise
                if is_lost(error) and chance:
                    chance = False  # over a new connection
                    while self._idle:
                        self._idle.pop().drop()
                elif not is_collision(error):
                    raise translate(error, self.url) from error
        raise StoreUnavailable(self.url, f"gave up after {self.config.collisions} serialization failures; retry")

    # --- listening ------------------------------------------------------------------------------------------------

    @property
    def listener(self) -> Connection | None:
        """The listening connection, if there is one."""
        return self._listener if self._listener is not None and not self._listener.closed else None

    async def _listen(self) -> None:
        connection = await self.connect()
        ended = asyncio.Event()
        self._silence = ended

        def end() -> None:
            self.notifications.listening = False
            ended.set()

        try:
            await connection.listen(self.channel, self.notifications.received, end)
        except BaseException as error:
            connection.drop()
            if isinstance(error, Exception) and is_driver_error(error):
                raise translate(error, self.url) from error
            raise
        self._listener = connection
        self.notifications.listening = not ended.is_set()

    async def _keep_listening(self) -> None:
        """Connect and listen again whenever the connection ends, until the store is closed."""
        config = self.config
        pause = config.first_pause
        while True:
            await self._silence.wait()
            try:
                await self._listen()
                pause = config.first_pause
            except Exception as error:
                if pause == config.longest_pause:
                    log.debug("%s: cannot listen for notifications, polling instead; trying again: %s", self.url, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, config.longest_pause)
            finally:
                # Notifications may have been missed.
                self.notifications.changed()
