"""The Redis store: one server, any number of machines; as durable as the server is set up to be."""

from __future__ import annotations

from collections.abc import Callable

from perdure.errors import InvalidStoreUrl, SchemaMismatch
from perdure.kernel.policies.durability import Durability
from perdure.logs import log
from perdure.ports.store import Survives
from perdure.stores.redis.address import parse
from perdure.stores.redis.blobs import RedisBlobs
from perdure.stores.redis.config import RedisConfig
from perdure.stores.redis.journal import RedisJournal
from perdure.stores.redis.leases import RedisLeases
from perdure.stores.redis.notifications import Notifications
from perdure.stores.redis.queues import RedisQueues
from perdure.stores.redis.runs import RedisRuns, RedisTimers
from perdure.stores.redis.scripts import OPEN
from perdure.stores.redis.server import Server
from perdure.stores.redis.setup import Setup, check, read_setup
from perdure.stores.redis.upkeep import RedisUpkeep
from perdure.stores.users import Users
from perdure.stores.witness import WitnessedLeases

# The layout of keys. It changes when older code could not read what newer code writes.
FORMAT = 1


class RedisStore:
    """All ports on one server, under one prefix of keys."""

    def __init__(self, url: str, config: RedisConfig = RedisConfig()) -> None:  # noqa: B008 - frozen
        address = parse(url)
        self.url = address.url
        self._server = Server(address, config)
        self._notifications = Notifications(self._server)
        self._setup: Setup | None = None
        self._users = Users(self.url, one_loop=True)
        self.journal = RedisJournal(self._server, self._notifications)
        self.runs = RedisRuns(self._server)
        self.timers = RedisTimers(self._server, self._notifications)
        self.queues = RedisQueues(self._server)
        self.leases = WitnessedLeases(RedisLeases(self._server, self._notifications), self.url)
        self.blobs = RedisBlobs(self._server)
        self.upkeep = RedisUpkeep(self._server, self._notifications)

    async def open(self, *, migrate: bool) -> None:
        """Connect; with `migrate`, create the store under the prefix if there is none."""
        async with self._users.opening() as first:
            if first:
                self._server.open()
            try:
                hints, commits = await self._begin(migrate)
            except BaseException:
                if first:
                    await self._server.close()
                raise
            self._server.known = True
            if first:
                self._notifications.start(commits)
        for hint in hints if migrate else ():
            log.warning("the store %s: %s", self.url, hint)

    async def _begin(self, migrate: bool) -> tuple[list[str], int]:
        setup = await read_setup(self._server)
        hints = check(self._server, setup, write=migrate)
        found, commits = await self._server.call(OPEN, (migrate, FORMAT))
        if not found:
            reason = "there is no store under that prefix; start a run with an Engine to create it"
            raise InvalidStoreUrl(self.url, reason)
        if found > FORMAT:
            raise SchemaMismatch(self.url, found, FORMAT)
        self._setup = setup
        return hints if setup.survives_power_loss else [setup.promise, *hints], commits

    async def close(self) -> None:
        """Disconnect when the last user of the store closes it."""
        async with self._users.closing() as last:
            if last:
                self.leases.close()
                await self._notifications.stop()
                await self._server.close()

    @property
    def survives(self) -> Survives:
        """The failures that an append survives: the end of this process, and of the server if it logs to its disk."""
        return "power_loss" if self._setup is not None and self._setup.survives_power_loss else "kill"

    def check_durability(self, durability: Durability) -> None:
        """Accept every durability: opening the store logs what the server does not promise."""

    def version(self) -> object:
        """Changes with every commit: by notifications, and by the counter in answers."""
        return self._notifications.version()

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each command."""
        self._server.callback = callback
