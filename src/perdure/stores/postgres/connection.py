"""One connection to the server. The only module that touches asyncpg's objects, which have no types."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from perdure.errors import InvalidStoreUrl, StoreUnavailable
from perdure.stores.postgres.address import Address
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.names import quoted
from perdure.stores.postgres.taskless import run_without_task

try:
    import asyncpg  # type: ignore[import-untyped]
except ImportError:
    asyncpg = None

T = TypeVar("T")

# A record of the driver, which can be read as one.
Row = tuple[Any, ...]

_SETTINGS = {
    "application_name": "perdure",
    "client_encoding": "utf-8",
    "jit": "off",
    # Everything is found by an index. A sequential scan may be a little faster for one query, but it loads rows that
    # were not in the cache, and the planner's statistics may be out of date.
    "enable_seqscan": "off",
    # The session of a process that vanished must not keep its locks for as long as TCP waits by default.
    "idle_in_transaction_session_timeout": "15s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
# Every statement of the writing connection looks up a list of keys: one plan is right for all, and planning takes
# longer than the statement.
WRITING = {"plan_cache_mode": "force_generic_plan", "enable_hashjoin": "off", "enable_mergejoin": "off"}


class Connection:
    """A connection and the statements prepared on it."""

    def __init__(
        self,
        raw: Any,
        config: PostgresConfig,
        trace: Callable[[str], None],
        silent: Callable[[], None],
        pool: Any = None,
    ) -> None:
        self._raw, self.config, self._trace, self._silent = raw, config, trace, silent
        # The application's pool that it was taken from and goes back to; None for a connection of our own.
        self._pool = pool
        # A pool takes back a connection that has ended, and then its proxy raises: ask the connection itself.
        self._inner = raw if pool is None else raw._con
        self._given_back = False
        self._stop_listening: Callable[[], Awaitable[None]] | None = None
        # The process id of the server's backend; behind a pooler it belongs to none.
        self.backend: int = raw.get_server_pid()
        self._kept: dict[str, Any] = {}
        # Whether a statement is under way: the driver takes one at a time.
        self.busy = False
        self._loop = asyncio.get_running_loop()
        # When the last statement was sent, and the timer that checks whether it was answered.
        self.sent = 0.0
        self._look: asyncio.TimerHandle | None = None

    @property
    def closed(self) -> bool:
        """Whether it is known to be unusable."""
        # A connection that went back to its pool belongs to other code.
        return self._given_back or bool(self._inner.is_closed())

    @property
    def silent(self) -> bool:
        """Whether an answer is overdue, so that something may be wrong."""
        return self.busy and not self.closed and self._loop.time() - self.sent >= self.config.silent

    async def fetch(self, sql: str, *arguments: Any, seconds: float | None = None) -> list[Row]:
        """Run one statement, which commits by itself outside a transaction: one round trip."""
        return await self._answer(sql, self._raw.fetch(sql, *arguments, timeout=seconds or self.config.answer))

    async def write(self, sql: str, *arguments: Any) -> list[Row]:
        """As `fetch`, for the few statements that every step sends: prepared once, and kept."""
        return await self._answer(sql, self._send_kept(sql, arguments))

    def write_soon(self, sql: str, arguments: tuple[Any, ...], done: Callable[[list[Row] | Exception], None]) -> bool:
        """As `write`, with a callback and no task; False if the statement is not prepared, or this is busy."""
        kept = self._kept.get(sql)
        if kept is None or self.busy or self.closed:
            return False
        self._trace(sql)
        self._begin()

        def finished(result: list[Row] | Exception) -> None:
            self.busy = False
            done(self.meant(result) if isinstance(result, Exception) else result)

        run_without_task(self._fetch(kept, arguments), finished)
        return True

    async def keep(self, sql: str) -> Any:
        """Prepare a statement for `write`: a round trip of its own, the first time."""
        kept = self._kept.get(sql)
        if kept is None:
            kept = self._kept[sql] = await self._raw.prepare(sql, timeout=self.config.answer)
        return kept

    async def _send_kept(self, sql: str, arguments: tuple[Any, ...]) -> list[Row]:
        return await self._fetch(self._kept.get(sql) or await self.keep(sql), arguments)

    def _fetch(self, kept: Any, arguments: tuple[Any, ...]) -> Coroutine[Any, None, list[Row]]:
        fetching: Coroutine[Any, None, list[Row]] = kept.fetch(*arguments)
        return fetching

    def _begin(self) -> None:
        # One periodic check, rather than a timer for each of thousands of statements.
        self.busy = True
        self.sent = self._loop.time()
        if self._look is None:
            self._look = self._loop.call_later(min(self.config.silent, self.config.answer), self._looked)

    def _looked(self) -> None:
        self._look = None
        if not self.busy or self.closed:
            return
        silent, answer = self.config.silent, self.config.answer
        waited = self._loop.time() - self.sent
        if waited >= answer:
            self.drop()
            return
        if waited >= silent:
            self._silent()
        pause = silent - waited if waited < silent else silent
        self._look = self._loop.call_later(min(pause, answer - waited), self._looked)

    async def _answer(self, sql: str, sending: Awaitable[T]) -> T:
        self._trace(sql)
        self._begin()
        try:
            return await sending
        except AttributeError as error:
            raise self.meant(error) from error
        finally:
            self.busy = False

    def meant(self, error: Exception) -> Exception:
        """The error to report: the driver raises AttributeError if the connection ends during a statement."""
        if isinstance(error, AttributeError) and self.closed:
            return ConnectionResetError(0, "the connection ended while a statement was sent")
        return error

    async def script(self, sql: str, seconds: float | None = None) -> None:
        """Several statements without arguments."""
        await self._answer(sql, self._raw.execute(sql, timeout=seconds or self.config.answer))

    async def listen(self, channel: str, received: Callable[[str], None], ended: Callable[[], None]) -> None:
        """Call `received` with each notification on the channel, and `ended` when the connection ends."""
        self._trace("listen")

        def over(_: Any) -> None:
            ended()

        def notified(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
            received(payload)

        async def stop() -> None:
            self._raw.remove_termination_listener(over)
            await self._raw.remove_listener(channel, notified)

        self._raw.add_termination_listener(over)
        self._stop_listening = stop
        async with asyncio.timeout(self.config.connect):
            await self._raw.add_listener(channel, notified)

    def drop(self) -> None:
        """Drop the connection at once, even if it is busy."""
        self._forget()
        if self._given_back:
            return
        self._given_back = self._pool is not None
        self._inner.terminate()

    async def close(self) -> None:
        """End it."""
        self._forget()
        if self._given_back:
            return
        try:
            if self._pool is None:
                await self._raw.close(timeout=self.config.close)
                return
            self._given_back = True
            if self._stop_listening is not None:
                async with asyncio.timeout(self.config.close):
                    await self._stop_listening()
            await self._pool.release(self._raw, timeout=self.config.close)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._inner.terminate()

    def _forget(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None


async def connect(
    address: Address,
    config: PostgresConfig,
    trace: Callable[[str], None],
    settings: dict[str, str] | None = None,
    silent: Callable[[], None] = lambda: None,
    pool: Any = None,
) -> Connection:
    """Connect, or raise what the driver raises."""
    wanted = {name: value for name, value in (_SETTINGS | (settings or {})).items() if name not in address.given}
    if address.schema is not None:
        wanted["search_path"] = quoted(address.schema)
    if pool is not None:
        return await _borrow(pool, address, config, wanted, trace, silent)
    # Not wait_for, which in Python 3.11 loses a cancellation that comes together with the connection.
    async with asyncio.timeout(config.connect + 1.0):
        try:
            raw = await asyncpg.connect(
                address.dsn,
                server_settings=wanted,
                timeout=config.connect,
                # Statements are constants: those prepared once stay.
                max_cached_statement_lifetime=0,
            )
        except BaseException as error:
            _abandon_answer(error)
            raise
    _keep_alive(raw, config.answer)
    return Connection(raw, config, trace, silent)


def _abandon_answer(error: BaseException | None) -> None:
    """Cancel the future for the server's answer about TLS, which nothing awaits once connecting is cancelled.

    The driver would set an exception on it, and asyncio would report that it was never retrieved. Only the frames of
    the error's traceback know the future.
    """
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            answer = getattr(trace.tb_frame.f_locals.get("protocol"), "on_data", None)
            if isinstance(answer, asyncio.Future) and not answer.cancel() and not answer.cancelled():
                answer.exception()
            trace = trace.tb_next
        error = error.__context__


# The values last until the connection goes back to its pool, which resets them.
_SET = "select set_config(name, value, false) from unnest($1::text[], $2::text[]) as wanted (name, value)"


async def _borrow(
    pool: Any,
    address: Address,
    config: PostgresConfig,
    wanted: dict[str, str],
    trace: Callable[[str], None],
    silent: Callable[[], None],
) -> Connection:
    try:
        async with asyncio.timeout(config.connect):
            raw = await pool.acquire()
    except TimeoutError as error:
        reason = f"the application's pool has had no free connection for {config.connect:g} s; raise its max_size"
        raise StoreUnavailable(address.shown, reason) from error
    try:
        # The driver sets the encoding itself.
        mine = {name: value for name, value in wanted.items() if name != "client_encoding"}
        await raw.fetch(_SET, list(mine), list(mine.values()), timeout=config.answer)
    except BaseException:
        raw.terminate()
        raise
    return Connection(raw, config, trace, silent, pool)


def _keep_alive(raw: Any, seconds: float) -> None:
    """Let the operating system detect a dead peer while nothing is sent."""
    sock = raw._transport.get_extra_info("socket")
    if sock is None or sock.family == getattr(socket, "AF_UNIX", None):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The last is how many milliseconds sent data may stay unacknowledged.
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", int(seconds * 1000)),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def require_driver(url: str) -> None:
    """Raise InvalidStoreUrl when the driver is not installed."""
    if asyncpg is None:
        raise InvalidStoreUrl(url, "asyncpg is not installed; pip install 'perdure[postgres]'")
