"""Hearing that somebody wrote: messages that scripts publish, and a look at the counter when none has come for long."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from redis.exceptions import RedisError, ResponseError

from perdure.errors import PerdureError, StoreUnavailable
from perdure.stores.redis.server import Server

log = logging.getLogger("perdure")

# Without any word for so long, the counter is read. Whoever renews its lease hears it with that.
POLL_SECONDS = 15.0
FIRST_RETRY, LAST_RETRY = 0.05, 2.0
REFUSED_RETRY = 3600.0
# How long after its expiry a lease counts as ended: a heartbeat may be under way.
LATE_SECONDS = 0.2


class News:
    """The number of commits, as far as is known."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._count = 0
        self._losses = 0
        self._heard = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._watchers: dict[asyncio.Queue[str | None], str] = {}
        # When the leases end of those whose heartbeats were heard, by the clocks of callers.
        self._ends: dict[str, float] = {}
        self.listening = asyncio.Event()

    def version(self) -> object:
        """Changes when anyone has written. The second number counts the times when the server has lost data."""
        return self._count, self._losses

    def heard(self, commits: int) -> None:
        """Somebody has written, and that was commit number so-and-so."""
        self._heard = asyncio.get_running_loop().time()
        self._count = max(self._count, commits)

    def start(self, commits: int) -> None:
        """Begin to listen."""
        self._count = commits
        self.listening = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._heard = loop.time()
        self._tasks = [loop.create_task(self._listen()), loop.create_task(self._poll())]
        self._server.on_dead = self._listen_again

    async def stop(self) -> None:
        """Listen no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._give_up()

    async def look(self) -> None:
        """Read the counter. One that is lower than it was belongs to a server that has lost data."""
        before = self._count
        answer = await self._server.ask("HGET", f"{self._server.address.prefix}meta", "commits")
        commits = int(answer or 0)
        if commits < before:
            self._count, self._losses = commits, self._losses + 1
        self.heard(commits)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.05, self._heard + POLL_SECONDS - loop.time()))
            if loop.time() - self._heard < POLL_SECONDS:
                continue
            before = self._count
            try:
                await self.look()
            except PerdureError as error:
                log.debug("%s", error)
                self._heard = loop.time()
                continue
            if self._count != before:
                # Somebody wrote, and we were not told: the connection we listen on is dead without knowing it.
                self._listen_again()

    def _listen_again(self) -> None:
        if self._tasks:
            self._tasks[0].cancel()
            self._tasks[0] = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        delay = FIRST_RETRY
        while True:
            try:
                await self._listen_once()
            except ResponseError as error:
                # Not a matter of time: the user may not listen. The poll has to do.
                log.warning("cannot listen to %s, and hears of others late: %s", self._server.url, error)
                delay = REFUSED_RETRY
            except (PerdureError, RedisError, OSError) as error:
                log.debug("listening to %s: %s", self._server.url, error)
                if self.listening.is_set():
                    delay = FIRST_RETRY
            finally:
                self.listening.clear()
                self._give_up()
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY) if delay < REFUSED_RETRY else FIRST_RETRY

    async def _listen_once(self) -> None:
        news, ended, beat = (self._server.channel + name for name in (b"news", b"ended", b"beat"))
        connection = await self._server.connect()
        try:
            self._server.tell("SUBSCRIBE")
            await connection.send_command("SUBSCRIBE", news, ended, beat, check_health=False)
            for _ in range(3):
                async with asyncio.timeout(self._server.address.timeout):
                    await connection.read_response()
            # What was written before we listened.
            await self.look()
            self.listening.set()
            while True:
                _, channel, payload = await connection.read_response()
                if channel == news:
                    self.heard(int(payload))
                elif channel == beat:
                    expires, _, key = payload.decode().partition(" ")
                    self._beat(key, float(expires))
                else:
                    self._ended(payload.decode())
        finally:
            await connection.disconnect(nowait=True)

    # --- leases that end ------------------------------------------------------------------------------------------

    def _beat(self, key: str, expires: float) -> None:
        """Somebody lives until then, by the clocks of callers."""
        new = key not in self._ends
        self._ends[key] = expires
        if new:
            for queue in self._watchers:
                queue.put_nowait("")  # whoever watches has one more to wait for

    def _ended(self, key: str) -> None:
        self._ends.pop(key, None)
        for queue, prefix in self._watchers.items():
            if key.startswith(prefix):
                queue.put_nowait(key)

    def _give_up(self) -> None:
        for queue in self._watchers:
            queue.put_nowait(None)

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease was given back."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        self._watchers[queue] = prefix
        try:
            while True:
                ends = {key: at for key, at in self._ends.items() if key.startswith(prefix)}
                first = min(ends, key=ends.__getitem__, default=None)
                left = None if first is None else max(0.0, ends[first] + LATE_SECONDS - time.time())
                try:
                    async with asyncio.timeout(left):
                        key = await queue.get()
                except TimeoutError:
                    assert first is not None
                    key = first
                    # A heartbeat may have arrived meanwhile.
                    if self._ends.get(key, 0.0) + LATE_SECONDS > time.time():
                        continue
                    self._ends.pop(key, None)
                if key is None:
                    break
                if key:
                    yield key
        finally:
            del self._watchers[queue]
        raise StoreUnavailable(self._server.url, "the connection that says which leases have ended is lost")
