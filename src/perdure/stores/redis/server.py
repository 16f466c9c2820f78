"""Connections to one Redis server: sending scripts, and translating its errors. Knows no key but the prefix."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from redis.asyncio.connection import Connection, SSLConnection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    NoScriptError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from perdure.errors import Corrupt, InvalidStoreUrl, StoreError, StoreUnavailable
from perdure.logs import log
from perdure.stores.redis.address import Address
from perdure.stores.redis.config import RedisConfig
from perdure.stores.redis.scripts import Script

# Refusals of a server, which come before it has done anything, and what to do about them.
_REFUSALS: Final = {
    "READONLY": "the server is a read-only replica; give the address of its primary",
    "OOM": "the server has reached its maxmemory, and takes no more; raise it, or prune runs that have ended. Runs "
    "that wait go on by themselves",
    "MISCONF": "the server cannot write to its disk, and takes nothing until it can; make room there, and see its log",
    "NOREPLICAS": "the server has too few replicas in sync, and takes nothing until it has enough "
    "(min-replicas-to-write)",
    "MASTERDOWN": "the server has lost its primary; give the address of the primary, or wait for it",
    "CLUSTERDOWN": "the cluster is down; runs continue when it is back",
    "MOVED": "the server is part of a cluster, and our keys are on another of its nodes; give the address of that one",
    "ASK": "the cluster is moving our keys to another node; give the address of that one",
    "TRYAGAIN": "the cluster is moving our keys to another node; try again when that is done",
    "CROSSSLOT": "the server is part of a cluster, and our keys must share a slot; give them a prefix with braces, "
    "such as ?prefix={perdure}:",
    "BUSY": "the server is busy with a script that takes long; try again when it is done",
    "LOADING": "the server is still reading its data from disk; try again when it has",
    "NOPERM": "the user lacks a right; give it all commands on the keys and channels that begin with our prefix, but "
    "for the dangerous ones (ACL SETUSER ... ~{prefix}* &{prefix}* +@all -@dangerous +info)",
}
# Refusals of a server that is no longer the primary.
_ELSEWHERE: Final = ("READONLY", "MASTERDOWN", "CLUSTERDOWN", "MOVED")
LOGIN = "the server refuses the user and password; check both, and that the user is switched on"
NEEDS_LOGIN = "the server asks for a password; write it into the URL, as in redis://user:password@host:6379/0"


@functools.cache
def _driver() -> dict[str, Any]:
    """How connections introduce themselves; by default, redis-py 7.1 and newer read their version for each of them."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:
        return {}
    return {"driver_info": DriverInfo()}


class Texts:
    """Texts and bytes that follow the arguments of a script, which refers to them by number."""

    __slots__ = ("all",)

    def __init__(self) -> None:
        self.all: list[bytes] = []

    def put(self, text: bytes) -> int:
        """Add one; returns its number."""
        self.all.append(text)
        return len(self.all) + 3


class LostReply(Exception):
    """A command was sent and no answer came: it may have been carried out or not."""


class Server:
    """A few connections to one server, made when they are needed."""

    def __init__(self, address: Address, config: RedisConfig) -> None:
        self.address, self.url, self.config = address, address.url, config
        self._meta = f"{address.prefix}meta".encode()
        self._prefix = address.prefix.encode()
        # Channels are the same for all databases of a server.
        self.channel = f"{address.prefix}{address.db}:".encode()
        self._idle: list[Connection] = []
        # The connections with a command under way, and when it was sent.
        self._used: dict[Connection, float] = {}
        self._look: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        # Called when connections have proved dead: the listening connection is as old.
        self.on_dead: Callable[[], None] = lambda: None
        self._free = asyncio.Semaphore(address.pool)
        self._open = False
        # Whether the server has accepted us once: later refusals may be temporary.
        self.known = False
        self.callback: Callable[[str], None] | None = None

    # --- connections ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Allow connections, in the running loop."""
        self._free = asyncio.Semaphore(self.address.pool)
        self._open = True

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._open

    async def close(self) -> None:
        """Close all connections; commands under way raise."""
        self._open = False
        if self._look is not None:
            self._look.cancel()
            self._look = None
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        for connection in (*self._idle, *self._used):
            await connection.disconnect(nowait=True)
        self._idle.clear()

    async def connect(self) -> Connection:
        """A new connection. The caller sets the timeout of its answers."""
        address = self.address
        options: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "db": address.db,
            "username": address.username,
            "password": address.password,
            # Not by the library: its timeouts lose a cancellation that comes at the same time.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "socket_keepalive": True,
            "protocol": 2,
            **_driver(),
        }
        connection = SSLConnection(**options, **address.tls_options) if address.tls else Connection(**options)
        self.traced("CONNECT")
        try:
            async with asyncio.timeout(address.timeout):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    async def _connection(self) -> Connection:
        if not self._open:
            raise StoreUnavailable(self.url, "it is closed")
        if self._idle:
            return self._idle.pop()
        try:
            connection = await self.connect()
        except (RedisError, OSError) as error:
            raise self.explain(error) from error
        if not self._open:  # it has been closed
            await connection.disconnect(nowait=True)
            raise StoreUnavailable(self.url, "it is closed")
        return connection

    # --- commands -------------------------------------------------------------------------------------------------

    async def send(self, *command: bytes | str | int, label: str = "") -> Any:
        """Send one command; raises LostReply when it may have been carried out, StoreError when it was not."""
        async with self._free:
            connection = await self._connection()
            self._used[connection] = asyncio.get_running_loop().time()
            if self._look is None:
                self._look = asyncio.get_running_loop().call_later(self.config.silent, self._looked)
            try:
                self.traced(label or str(command[0]))
                async with asyncio.timeout(self.address.timeout):
                    await connection.send_command(*command, check_health=False)
                    answer = await connection.read_response()
            except ResponseError as error:
                if self._is(error, *_ELSEWHERE):
                    # The name may resolve to another server now: only a new connection finds out.
                    await self._drop(connection, *self._idle)
                    self._idle.clear()
                else:
                    self._idle.append(connection)
                raise
            except (BusyLoadingError, AuthenticationError) as error:
                await connection.disconnect(nowait=True)
                raise self.explain(error) from error
            except (ConnectionError, TimeoutError, OSError, AttributeError) as error:
                if isinstance(error, AttributeError) and not _is_closed(connection):
                    await connection.disconnect(nowait=True)
                    raise
                # The idle connections are as old: if the server went away, all of them are dead.
                await self._drop(connection, *self._idle)
                self._idle.clear()
                raise LostReply(str(error) or self._silence()) from error
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            finally:
                self._used.pop(connection, None)
            if self._open:
                self._idle.append(connection)
            else:
                await connection.disconnect(nowait=True)
            return answer

    # --- connections that are dead and look alive -----------------------------------------------------------------

    def _looked(self) -> None:
        # One periodic check, rather than a timer for every command.
        self._look = None
        if not self._used or not self._open:
            return
        loop, silent = asyncio.get_running_loop(), self.config.silent
        self._look = loop.call_later(silent, self._looked)
        if min(self._used.values()) + silent <= loop.time() and (self._asking is None or self._asking.done()):
            self._asking = loop.create_task(self._probe_silent())

    async def _probe_silent(self) -> None:
        """Drop connections with an overdue answer if the server answers a later command.

        Redis runs one command after the other: a slow one would delay that answer too.
        """
        before = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self.config.probe):
                fresh = await self.connect()
        except (RedisError, OSError):
            return  # the server does not answer at all: the connections may be fine
        try:
            async with asyncio.timeout(self.config.probe):
                await fresh.send_command("PING", check_health=False)
                await fresh.read_response()
        except (RedisError, OSError):
            return
        finally:
            await fresh.disconnect(nowait=True)
        silent = {one: sent for one, sent in self._used.items() if sent + self.config.silent <= before}
        if silent:
            await asyncio.sleep(self.config.grace)  # the answer may be under way
        dead = [one for one, sent in silent.items() if self._used.get(one) == sent]
        if dead:
            log.warning("%s: dropped connections that the server had closed without a reply; reconnecting", self.url)
            await self._drop(*dead, *self._idle)
            self._idle.clear()
            self.on_dead()

    async def once(self, script: Script, arguments: Any, *more: bytes) -> Any:
        """Run a script once; raises LostReply when it is unknown whether it ran."""
        packed = (self._meta, self._prefix, self.channel, msgspec.msgpack.encode(arguments), *more)
        try:
            try:
                return await self._run(script, packed)
            except NoScriptError:
                # A restarted server knows no scripts. It has not run this one, so it may be sent again.
                await self.send("SCRIPT", "LOAD", script.text, label=f"SCRIPT LOAD {script.name}")
                return await self._run(script, packed)
        except ResponseError as error:
            raise self.explain(error) from error

    async def _run(self, script: Script, packed: tuple[bytes, ...]) -> Any:
        return await self.send("EVALSHA", script.sha, 1, *packed, label=f"EVALSHA {script.name}")

    async def call(self, script: Script, arguments: Any, *more: bytes) -> Any:
        """Run an idempotent script, and retry it when its reply is lost."""
        try:
            return await self.once(script, arguments, *more)
        except LostReply:
            pass
        try:
            return await self.once(script, arguments, *more)
        except LostReply as lost:
            raise self.unreachable(lost) from lost

    async def query(self, *command: bytes | str | int) -> Any:
        """Send a command that only reads."""
        try:
            try:
                return await self.send(*command)
            except LostReply:
                return await self.send(*command)
        except LostReply as lost:
            raise self.unreachable(lost) from lost
        except ResponseError as error:
            raise self.explain(error) from error

    async def _drop(self, *connections: Connection) -> None:
        for connection in connections:
            await connection.disconnect(nowait=True)

    def traced(self, command: str) -> None:
        """Report a command to the tracer."""
        if self.callback is not None:
            self.callback(command)

    # --- errors ---------------------------------------------------------------------------------------------------

    def _silence(self) -> str:
        return f"no response within {self.address.timeout:g} s"

    def unreachable(self, error: BaseException) -> StoreUnavailable:
        """The error for a server that does not answer."""
        return StoreUnavailable(
            self.url,
            f"no server responds at {self.address.place} ({str(error) or self._silence()}); check that it runs and can "
            "be reached from here. Runs continue when it is back",
        )

    def explain(self, error: BaseException) -> StoreError | InvalidStoreUrl:
        """Translate an error of the server. All of these come before anything was written."""
        said = str(error)
        kind, _, _ = said.partition(" ")
        if isinstance(error, BusyLoadingError):
            return StoreUnavailable(self.url, _REFUSALS["LOADING"])
        if kind == "NOAUTH" or "Authentication required" in said or "HELLO must be called" in said:
            return self._refused_login(NEEDS_LOGIN)
        if isinstance(error, AuthenticationError) or kind == "WRONGPASS" or "invalid password" in said:
            return self._refused_login(LOGIN)
        if "DB index is out of range" in said:
            return InvalidStoreUrl(self.url, f"the server has no database {self.address.db}; take a lower number")
        if "CERTIFICATE_VERIFY_FAILED" in said:
            reason = (
                f"the certificate of {self.address.place} is not trusted ({said}); name the authority that signed it"
            )
            return self._refused_login(f"{reason}: ?ssl_ca_certs=/path/to/ca.pem")
        if isinstance(error, ConnectionError | TimeoutError | OSError):
            return self.unreachable(error)
        if "WRONGTYPE" in said:
            return Corrupt(self.url, "some keys under the prefix are not perdure's; does another application use it?")
        for code, reason in _REFUSALS.items():
            if self._is(error, code):
                return StoreUnavailable(self.url, reason.replace("{prefix}", self.address.prefix))
        return StoreUnavailable(self.url, f"the server reports {said[:300]!r}")

    def _is(self, error: BaseException, *codes: str) -> bool:
        # An error of a command in a script has its code in front, or in the text.
        own = _CLASSES.get(type(error).__name__)
        return own in codes or any(re.search(rf"(^|[ -]){code} ", str(error)) for code in codes)

    def _refused_login(self, reason: str) -> StoreError | InvalidStoreUrl:
        return StoreUnavailable(self.url, reason) if self.known else InvalidStoreUrl(self.url, reason)


# Errors whose code the library removes.
_CLASSES: Final = {
    "ReadOnlyError": "READONLY",
    "OutOfMemoryError": "OOM",
    "NoPermissionError": "NOPERM",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "TryAgainError": "TRYAGAIN",
    "ClusterCrossSlotError": "CROSSSLOT",
}


def _is_closed(connection: Connection) -> bool:
    """Whether a connection has ended. Python 3.12 and later raise if it does so while asyncio writes to it."""
    writer = connection._writer
    return writer is None or writer.is_closing()
