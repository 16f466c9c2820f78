"""The file store: a directory that a person can read, for prototypes. One machine, any number of processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from perdure.errors import Corrupt
from perdure.kernel.policies.durability import Durability
from perdure.ports.queues import Queues
from perdure.ports.runs import Runs
from perdure.ports.store import Survives
from perdure.ports.timers import Timers
from perdure.ports.upkeep import Upkeep
from perdure.stores.file.blobs import FileBlobs
from perdure.stores.file.config import FileConfig
from perdure.stores.file.folder import Folder
from perdure.stores.file.journal import FileJournal, FileRuns
from perdure.stores.file.leases import FileLeases
from perdure.stores.file.upkeep import FileUpkeep
from perdure.stores.memory.store import MemoryTimers
from perdure.stores.users import Users
from perdure.stores.witness import WitnessedLeases


class FileStore:
    """All ports on one directory."""

    survives: Survives = "power_loss"

    def __init__(self, path: str, config: FileConfig = FileConfig()) -> None:  # noqa: B008 - frozen
        self.url = f"file:///{path}"
        self._users = Users(self.url, one_loop=False)
        self._folder = Folder(path, self.url, config)
        self.journal = FileJournal(self._folder)
        self.runs = cast(Runs, _Fresh(FileRuns(self.journal), self.journal))
        self.timers = cast(Timers, _Fresh(MemoryTimers(self.journal), self.journal))
        self.queues = cast(Queues, _Fresh(self.journal.queues, self.journal))
        self._leases = FileLeases(self._folder)
        self.leases = WitnessedLeases(self._leases, self.url, self._folder.name("owners"))
        self.blobs = FileBlobs(self._folder)
        self.upkeep = cast(Upkeep, _Fresh(FileUpkeep(self._folder, self.journal, self.blobs), self.journal))

    async def open(self, *, migrate: bool) -> None:
        """Create the directory if it does not exist, and read all of it."""
        async with self._users.opening() as first:
            if not first:
                return
            self._folder.open(create=migrate)
            try:
                self.journal.refresh()
            except BaseException:
                self._folder.close()
                raise

    async def close(self) -> None:
        """Disconnect when the last user of the store closes it."""
        async with self._users.closing() as last:
            if last:
                self.leases.close()
                self._folder.close()

    def check_durability(self, durability: Durability) -> None:
        """Accept every durability: a commit is on the disk before it is acknowledged."""

    def version(self) -> object:
        """Changes when any process commits, and when a lease changes hands."""
        try:
            changes = self._leases.changes
        except (Corrupt, OSError):
            changes = -1  # the next call for a lease raises the error
        return self._folder.version(), changes

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each call that reads or writes."""
        self.journal.callback = callback


class _Fresh:
    """A port in memory that first reads the commits of other processes."""

    def __init__(self, port: Any, journal: FileJournal) -> None:
        self._port, self._journal = port, journal

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def fresh(*args: Any, **kwargs: Any) -> Any:
            self._journal.refresh()
            return await method(*args, **kwargs)

        return fresh
