"""Notifications of commits, which scripts publish, and polls of the commit counter when none has come for long."""

from __future__ import annotations

import asyncio
import time

from redis.exceptions import RedisError, ResponseError

from perdure.errors import PerdureError, StoreUnavailable
from perdure.logs import log
from perdure.stores.lease_ends import LeaseEnds
from perdure.stores.redis.server import Server


class Notifications:
    """The number of commits that this process knows of."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._count = 0
        self._losses = 0
        self._last_notice = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.leases = LeaseEnds()
        self.listening = asyncio.Event()

    def version(self) -> object:
        """Changes with every commit. The second number counts how often the server has lost data."""
        return self._count, self._losses

    def committed(self, commits: int) -> None:
        """The server has had this many commits."""
        self._last_notice = asyncio.get_running_loop().time()
        self._count = max(self._count, commits)

    def start(self, commits: int) -> None:
        """Begin to listen."""
        self._count = commits
        self.listening = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._last_notice = loop.time()
        self._tasks = [loop.create_task(self._listen()), loop.create_task(self._poll())]
        self._server.on_dead = self._listen_again

    async def stop(self) -> None:
        """Stop listening."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        self._give_up()

    async def poll(self) -> None:
        """Read the counter. A lower number than before means that the server has lost data."""
        before = self._count
        answer = await self._server.query("HGET", f"{self._server.address.prefix}meta", "commits")
        commits = int(answer or 0)
        if commits < before:
            self._count, self._losses = commits, self._losses + 1
        self.committed(commits)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            interval = self._server.config.poll_interval
            await asyncio.sleep(max(0.05, self._last_notice + interval - loop.time()))
            if loop.time() - self._last_notice < interval:
                continue
            before = self._count
            try:
                await self.poll()
            except PerdureError as error:
                log.debug("%s", error)
                self._last_notice = loop.time()
                continue
            if self._count != before:
                # A commit without a notification: the listening connection is dead, though it looks alive.
                self._listen_again()

    def _listen_again(self) -> None:
        if self._tasks:
            self._tasks[0].cancel()
            self._tasks[0] = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        config = self._server.config
        delay = config.first_retry
        while True:
            try:
                await self._listen_once()
            except ResponseError as error:
                # Waiting does not help: the user may not subscribe. Polling has to do.
                log.warning(
                    "%s: the user may not subscribe to notifications (%s); polling every %g s. Grant its channels",
                    self._server.url,
                    error,
                    config.poll_interval,
                )
                delay = config.refused_retry
            except (PerdureError, RedisError, OSError) as error:
                log.debug("%s: the listening connection ended; listening again: %s", self._server.url, error)
                if self.listening.is_set():
                    delay = config.first_retry
            finally:
                self.listening.clear()
                self._give_up()
            await asyncio.sleep(delay)
            delay = min(2 * delay, config.longest_retry) if delay < config.refused_retry else config.first_retry

    async def _listen_once(self) -> None:
        commits, ended, beat = (self._server.channel + name for name in (b"commits", b"ended", b"beat"))
        connection = await self._server.connect()
        try:
            self._server.traced("SUBSCRIBE")
            await connection.send_command("SUBSCRIBE", commits, ended, beat, check_health=False)
            for _ in range(3):
                async with asyncio.timeout(self._server.address.timeout):
                    await connection.read_response()
            # Commits from before we listened.
            await self.poll()
            self.listening.set()
            while True:
                _, channel, payload = await connection.read_response()
                if channel == commits:
                    self.committed(int(payload))
                elif channel == beat:
                    expires, _, key = payload.decode().partition(" ")
                    # Until then, by the owner's clock.
                    self.leases.heartbeat(key, float(expires) - time.time())
                else:
                    self.leases.notify(payload.decode())
        finally:
            await connection.disconnect(nowait=True)

    def _give_up(self) -> None:
        reason = "the connection that says which leases have ended is lost"
        self.leases.fail(StoreUnavailable(self._server.url, reason))
