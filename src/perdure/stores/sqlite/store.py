"""The SQLite store: one file, one machine, any number of processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from perdure.errors import InvalidStoreUrl
from perdure.kernel.policies.durability import Durability
from perdure.ports.store import Survives
from perdure.stores.sqlite.backup import Backup, back_up
from perdure.stores.sqlite.blobs import SqlBlobs
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.journal import SqlJournal
from perdure.stores.sqlite.leases import SqlLeases
from perdure.stores.sqlite.migrating import SqliteMigrations
from perdure.stores.sqlite.runs import SqlRuns
from perdure.stores.sqlite.spelling import SpelledDatabase
from perdure.stores.sqlite.upkeep import SqlUpkeep
from perdure.stores.sqlshared.queues import SharedQueues
from perdure.stores.sqlshared.runs import SharedTimers
from perdure.stores.users import Users
from perdure.stores.witness import WitnessedLeases


class SqliteStore:
    """All ports on one database file. `vfs` names an apsw VFS, for fault tests.

    `create` and `auto_migrate` say what an engine may do when it opens it, `pool` how many connections read in bulk.
    """

    survives: Survives = "power_loss"

    def __init__(
        self,
        path: str,
        *,
        vfs: str | None = None,
        create: bool = True,
        auto_migrate: bool = True,
        pool: int = 1,
        config: SqliteConfig = SqliteConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.url = f"sqlite:///{path}"
        self._create, self._auto_migrate = create, auto_migrate
        self._users = Users(self.url, one_loop=False)
        self._database = Database(path, self.url, config, vfs, pool)
        self.journal = SqlJournal(self._database)
        self.runs = SqlRuns(self._database)
        self.timers = SharedTimers(SpelledDatabase(self._database))
        self.queues = SharedQueues(SpelledDatabase(self._database))
        self.leases = WitnessedLeases(SqlLeases(self._database), self.url, f"{path}-owners")
        self.blobs = SqlBlobs(self._database)
        self.upkeep = SqlUpkeep(self._database)
        self.migrations = SqliteMigrations(self._database)

    async def open(self, *, migrate: bool) -> None:
        """Connect; with `migrate`, create the file or bring its schema up to date."""
        if migrate and not (self._create and self._auto_migrate) and not self._database.exists():
            why = "mode=rw" if self._auto_migrate else "migrate=false"
            cure = f"create it with `perdure migrate --store {self.url}`"
            raise InvalidStoreUrl(
                self.url, f"there is no such file, and {why} keeps an engine from creating it; {cure}"
            )
        async with self._users.opening() as first:
            if first:
                self._database.open(migrate=migrate and self._auto_migrate)

    async def close(self) -> None:
        """Disconnect when the last user of the store closes it."""
        async with self._users.closing() as last:
            if last:
                self.leases.close()
                self._database.close()

    async def backup(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> Backup:
        """Copy the store into another file, whole and checked, while engines work. It need not be open here."""
        return await asyncio.to_thread(back_up, self._database, target, overwrite=overwrite)

    def check_durability(self, durability: Durability) -> None:
        """Accept every durability: a commit with `fsync` waits for the disk."""

    def version(self) -> object:
        """Changes when any process commits."""
        return self._database.version()

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement."""
        self._database.trace(callback)
