"""The PostgreSQL store: one database, any number of machines."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Self

from perdure.errors import StoreUnavailable, UsageError
from perdure.kernel.policies.durability import Durability
from perdure.ports.store import Survives
from perdure.stores.postgres.address import POOL, Address, parse
from perdure.stores.postgres.appends import GROUP, STEP
from perdure.stores.postgres.blobs import PostgresBlobs
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.connection import Connection
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.errors import is_driver_error, translate
from perdure.stores.postgres.journal import PostgresJournal
from perdure.stores.postgres.leases import PostgresLeases
from perdure.stores.postgres.migrating import MIGRATIONS, PostgresMigrations
from perdure.stores.postgres.names import PREFIX, Names, check_prefix, check_schema
from perdure.stores.postgres.offers import Offers
from perdure.stores.postgres.queues import PostgresQueues
from perdure.stores.postgres.runs import PostgresRuns, PostgresTimers
from perdure.stores.postgres.upkeep import PostgresUpkeep
from perdure.stores.sqlshared.schema import Migration, pending
from perdure.stores.users import Users
from perdure.stores.witness import WitnessedLeases

# The oldest server version that supports all statements.
OLDEST = 12
# How many connections of a pool the store needs.
LEAST = 4
_ABOUT = """
    select current_schema(), current_setting('server_version_num')::int, current_setting('server_encoding'),
        current_setting('fsync'), current_setting('synchronous_commit')
"""


class PostgresStore:
    """All ports on one database, in one schema, under one table prefix."""

    def __init__(self, url: str, config: PostgresConfig = PostgresConfig()) -> None:  # noqa: B008 - frozen
        self._set_up(parse(url), config)

    @classmethod
    def from_pool(
        cls, pool: Any, *, schema: str | None = None, table_prefix: str = PREFIX, migrate: bool | None = None
    ) -> Self:
        """A store on connections of a pool that the application has made with `asyncpg.create_pool`.

        It keeps three of them while it is open (one writes, one listens, one reads), borrows up to three more for as
        long as it reads more at once, and releases all when it closes. The pool stays open. The other options are those
        of the URL.
        """
        problem = (check_schema(schema) if schema is not None else None) or check_prefix(table_prefix)
        if problem is not None:
            raise UsageError(f"PostgresStore.from_pool(...): {problem}")
        if not hasattr(pool, "acquire") or not hasattr(pool, "get_max_size"):
            raise UsageError(f"PostgresStore.from_pool({pool!r:.60}): give the pool that asyncpg.create_pool() returns")
        most = pool.get_max_size()
        if most < LEAST:
            raise UsageError(
                f"PostgresStore.from_pool(...): the pool has max_size={most}, and perdure needs {LEAST} connections: "
                "one writes, one listens, one reads, and one more probes whether they are dead"
            )
        store = cls.__new__(cls)
        address = Address(
            "", "postgresql://(a pool)", Names(table_prefix), schema, min(POOL, most - LEAST + 1), migrate
        )
        store._set_up(address, PostgresConfig(), pool)
        return store

    def _set_up(self, address: Address, config: PostgresConfig, pool: Any = None) -> None:
        # Without its password: it is shown in messages.
        self.url = address.shown
        self._pool = pool
        self._users = Users(self.url, one_loop=True)
        self._database = Database(address, config, pool)
        self.journal = PostgresJournal(self._database)
        self._offers = Offers(self._database)
        self.runs = PostgresRuns(self._database, self._offers)
        self.timers = PostgresTimers(self._database, self._offers)
        self.queues = PostgresQueues(self._database, self._offers)
        self.leases = WitnessedLeases(PostgresLeases(self._database), self.url)
        self.blobs = PostgresBlobs(self._database)
        self.upkeep = PostgresUpkeep(self._database)
        self.migrations = PostgresMigrations(self._database)
        # Settings of the server that make a commit less durable than promised.
        self._unsafe: list[str] = []

    async def open(self, *, migrate: bool) -> None:
        """Connect. With `migrate`, set up a store that has no table yet; one of an older schema is left alone.

        `migrate=true` in the URL lets an engine bring it up to date too, `migrate=false` lets it do neither.
        """
        pool = self._pool
        if pool is not None and (not getattr(pool, "_initialized", True) or pool.is_closing()):
            raise UsageError(
                "the pool that PostgresStore.from_pool() was given is not open; write `async with "
                "asyncpg.create_pool(...) as pool:`, and open the engine or the client in that block"
            )
        async with self._users.opening() as first:
            try:
                if first:
                    schema = await self._check(await self._database.open(), migrate)
                    prefix = self._database.address.names.prefix
                    await self._database.listen(f"{prefix}{zlib.crc32(schema.encode()):08x}")
                if migrate:  # an engine, which will write
                    await self._database.prepare_to_write(GROUP, STEP)
            except BaseException as error:
                if first:
                    await self._database.close()
                if isinstance(error, Exception) and is_driver_error(error):
                    raise translate(error, self.url) from error
                raise

    async def _check(self, connection: Connection, migrate: bool) -> str:
        [(schema, version, encoding, fsync, commit)] = await connection.fetch(_ABOUT)
        if version < OLDEST * 10_000:
            raise StoreUnavailable(
                self.url, f"the server is PostgreSQL {version // 10_000}; perdure needs {OLDEST} or later"
            )
        if encoding != "UTF8":
            raise StoreUnavailable(
                self.url,
                f"the database has the encoding {encoding}, which cannot hold every text; create one with "
                "`createdb --encoding UTF8 --template template0`",
            )
        self._unsafe = [
            f"{name}=off" for name, value in (("fsync", fsync), ("synchronous_commit", commit)) if value == "off"
        ]
        if schema is None:
            raise self.migrations.missing(schema)
        applied = await self.migrations.applied_by(connection)
        needed = pending(self.url, applied, MIGRATIONS)
        allowed = self._database.address.migrate
        if needed and applied and not (migrate and allowed):
            raise self.migrations.older(len(applied))
        if needed and (not migrate or allowed is False):
            raise self.migrations.missing(schema)
        if needed:
            await self.migrations.apply_by(connection)
        return str(schema)

    async def ensure_schema(self) -> Sequence[Migration]:
        """Bring the schema up to date from within a program, for demos and tests; returns the applied migrations."""
        return await self.migrations.apply()

    async def close(self) -> None:
        """Disconnect when the last user of the store closes it."""
        async with self._users.closing() as last:
            if last:
                self._offers.close()
                self.leases.close()
                await self._database.close()

    @property
    def survives(self) -> Survives:
        """The failures that a commit survives, by the settings of the server."""
        return "kill" if self._unsafe else "power_loss"

    def check_durability(self, durability: Durability) -> None:
        """Raise UsageError when commits should survive power loss and the server does not wait for its disk."""
        if durability.fsync and self._unsafe:
            unsafe = " and ".join(self._unsafe)
            raise UsageError(
                f"durability={str(durability)!r} promises that a commit survives power loss, and the server of "
                f"{self.url} has {unsafe}; set {'it' if len(self._unsafe) == 1 else 'them'} to on for this "
                'database or role, or use Engine(durability="relaxed"), which promises less'
            )

    def version(self) -> object:
        """Changes when another process notifies of a change, or this one makes it."""
        return self._database.notifications.version()

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement."""
        self._database.trace(callback)
