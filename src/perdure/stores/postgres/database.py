"""Connections to one database: who uses which, how they come back, and what their errors mean. Knows no table.

One connection writes journals, one statement after the other. One listens, and carries the signs of life, so that a
dead one is noticed. Others, as many as are needed at once up to `pool`, read, and write what is small.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from perdure.errors import StoreUnavailable
from perdure.stores.postgres.address import Address
from perdure.stores.postgres.connection import WRITING, Connection, Row, connect, require_driver
from perdure.stores.postgres.errors import Lost, is_collision, is_driver_error, is_lost, means
from perdure.stores.postgres.notifications import Wakes

T = TypeVar("T")

log = logging.getLogger("perdure")

# How long reading goes on trying over connections that end; then whoever asked is told.
PATIENCE_SECONDS = 8.0
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
# How often others may be in the way of a statement before it is given up for now.
COLLISIONS = 10
# How long the question whether a connection is dead may take, and how long an answer may be on its way.
PROBE_SECONDS, GRACE_SECONDS = 3.0, 0.5
# What the server's processes at the other end of connections are at, with that of the connection which asks.
_BACKENDS = "select pid, state from pg_stat_activity where pid = any($1::int[]) or pid = pg_backend_pid()"


class Database:
    """Connections, opened with `open` and closed with `close`."""

    def __init__(self, address: Address, pool: Any = None) -> None:
        require_driver(address.shown)
        # Whose connections are used, if they are not our own.
        self._lender = pool
        self.address, self.url = address, address.shown
        self.fill = address.names.fill
        self.wakes = Wakes()
        # The names of the orchestrators that this process is.
        self.names_held: set[str] = set()
        self.channel = ""
        self.closed = True
        self._writer: Connection | None = None
        self._idle: list[Connection] = []
        self._places = asyncio.Semaphore(address.pool)
        self._listener: Connection | None = None
        self._listening: asyncio.Task[None] | None = None
        self._callback: Callable[[str], None] | None = None
        # Every connection that may still be of use, and the question whether those that are silent are dead.
        self._connections: WeakSet[Connection] = WeakSet()
        self._asking: asyncio.Task[None] | None = None

    # --- opening and closing --------------------------------------------------------------------------------------

    async def open(self) -> Connection:
        """Connect for the first time, or raise what is wrong. Who only reads never has a connection that writes."""
        connection = await self.connect()
        self._idle.append(connection)
        self.closed = False
        return connection

    async def listen(self, channel: str) -> None:
        """Begin to listen."""
        self.channel = channel
        await self._hear()
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
        self.wakes.listening = False
        await asyncio.gather(*(one.close() for one in connections if one is not None))

    async def connect(self, settings: dict[str, str] | None = None) -> Connection:
        """A new connection, or an error of perdure that says why there is none."""
        try:
            connection = await connect(self.address, self._trace, settings, self._silent, self._lender)
        except Exception as error:
            if not is_driver_error(error) and not isinstance(error, ValueError):
                raise
            raise means(error, self.url) from None
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
        """A statement has waited long for its answer. The server may be slow, or gone, or the connection dead."""
        if not self.closed and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask_after_the_silent())

    async def _ask_after_the_silent(self) -> None:
        """End connections whose process at the server is gone, or waits for a statement that we have sent."""
        try:
            fresh = await self.connect()
        except StoreUnavailable:
            return  # then it is not the connections
        try:
            silent = [one for one in self._connections if one.silent]
            rows = await fresh.fetch(_BACKENDS, [one.backend for one in silent], seconds=PROBE_SECONDS)
            states: dict[int, str | None] = dict(rows)
            # Behind a pooler processes have other numbers: nothing is known.
            dead = [(one, one.sent) for one in silent if self._is_dead(one, states)] if fresh.backend in states else []
            if dead:
                # The answer may be on its way.
                await asyncio.sleep(GRACE_SECONDS)
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
            log.warning("connections to %s were dead without a word; they are made again", self.url)
            # Those that are at rest are as old. The others are asked after when they have been silent for long.
            for one in proved + [one for one in self._connections if not one.busy and one is not fresh]:
                one.drop()
        if self.closed or len(self._idle) >= self.address.pool:
            await fresh.close()
        else:
            self._idle.append(fresh)

    def _is_dead(self, connection: Connection, states: dict[int, str | None]) -> bool:
        state = states.get(connection.backend, "gone")
        return state is not None and (state == "gone" or state.startswith("idle"))

    # --- writing journals -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """The connection that writes, which belongs to the journal. Raises Lost when it ends meanwhile.

        Raises StoreUnavailable when there is none, and nothing was sent.
        """
        connection = await self._writing()
        try:
            yield connection
        except BaseException as error:
            if not isinstance(error, Exception) or is_lost(error):
                # Whoever was cancelled left it in the middle of something.
                connection.drop()
            if is_lost(error):
                raise Lost from error
            raise

    async def prepare_to_write(self, *statements: str) -> None:
        """Have the connection that writes, and the statements that are always needed, before the first append."""
        connection = await self._writing()
        for sql in statements:
            await connection.keep(self.fill(sql))
        # The driver leaves the transaction that a statement is prepared in open for the statement itself.
        await connection.script("select 1")

    @property
    def writer(self) -> Connection | None:
        """The connection that writes, if there is one now."""
        return None if self.closed else self._writer

    async def _writing(self) -> Connection:
        if self.closed:
            raise StoreUnavailable(self.url, "it is closed")
        if self._writer is None or self._writer.closed:
            self._writer = None
            self._writer = await self.connect(WRITING)
        return self._writer

    async def transact(self, connection: Connection, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Several statements as one; all of them or none."""
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

    async def ask(self, sql: str, *arguments: Any, patience: float = PATIENCE_SECONDS) -> list[Row]:
        """One statement that may be sent again without harm, over a connection of its own."""
        rows, _ = await self.insist(sql, *arguments, patience=patience)
        return rows

    async def insist(
        self, sql: str, *arguments: Any, patience: float = PATIENCE_SECONDS, by: Connection | None = None
    ) -> tuple[list[Row], bool]:
        """As `ask`; says too whether the statement may have taken effect before the time that it was answered."""
        deadline = time.monotonic() + patience
        pause, again, collisions = FIRST_PAUSE, False, 0
        # However long the last answer was waited for, a new connection gets a chance.
        chance = True
        while True:
            try:
                if by is not None and not by.closed and not by.busy:
                    return await self._send(by, sql, arguments, patience), again
                async with self._place() as connection:
                    return await self._send(connection, sql, arguments, patience), again
            except Lost as error:
                again, problem = True, means(error, self.url)
                if chance and not self.closed:
                    chance = False
                    continue
            except StoreUnavailable as error:
                problem = error
            except Exception as error:
                if not is_driver_error(error):
                    raise
                if not is_collision(error) or collisions >= COLLISIONS:
                    raise means(error, self.url) from error
                collisions += 1
                continue
            if self.closed or time.monotonic() + pause > deadline:
                raise problem
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_PAUSE)

    async def _send(self, connection: Connection, sql: str, arguments: tuple[Any, ...], patience: float) -> list[Row]:
        # Who has little patience does not wait for long either.
        seconds = patience if patience < PATIENCE_SECONDS else None
        try:
            return await connection.fetch(self.fill(sql), *arguments, seconds=seconds)
        except BaseException as error:
            if is_lost(error):
                connection.drop()
                # The others are as old as this one.
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
                if not connection.closed:
                    if self.closed:
                        connection.drop()
                    else:
                        self._idle.append(connection)

    async def several(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """A transaction that may be done again without harm, over a connection of its own."""
        chance = True
        for _ in range(COLLISIONS):
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
                    raise means(error, self.url) from error
        raise StoreUnavailable(self.url, "others were in the way again and again; try again when they are done")

    # --- listening ------------------------------------------------------------------------------------------------

    @property
    def listener(self) -> Connection | None:
        """The connection that listens, if there is one now."""
        return self._listener if self._listener is not None and not self._listener.closed else None

    async def _hear(self) -> None:
        connection = await self.connect()
        ended = asyncio.Event()
        self._silence = ended

        def end() -> None:
            self.wakes.listening = False
            ended.set()

        try:
            await connection.listen(self.channel, self.wakes.heard, end)
        except BaseException as error:
            connection.drop()
            if isinstance(error, Exception) and is_driver_error(error):
                raise means(error, self.url) from error
            raise
        self._listener = connection
        self.wakes.listening = not ended.is_set()

    async def _keep_listening(self) -> None:
        """Listen again whenever the connection ends, for as long as the store is open."""
        pause = FIRST_PAUSE
        while True:
            await self._silence.wait()
            try:
                await self._hear()
                pause = FIRST_PAUSE
            except Exception as error:
                if pause == LAST_PAUSE:
                    log.debug("not listening to %s: %s", self.url, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LAST_PAUSE)
            finally:
                # What was told meanwhile, nobody here has heard.
                self.wakes.move()
