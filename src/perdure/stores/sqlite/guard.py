"""Protect an SQLite file while other code of this process uses the same file. Runs no transaction of the store.

POSIX locks belong to a process, not to the library that took them. A second SQLite library in the process (the standard
library's `sqlite3`, beside the one of apsw) does not see our locks, and any `close()` of the file drops them: that
library, or another process, then concludes that it is the last user, and removes the write-ahead log that we use.

Three things prevent that, one set per process and file:

- locks of open file descriptions (Linux), which no other `close()` drops and which every SQLite library respects. While
  they are held, the log is not removed, and the shared memory is not reset.
- an idle connection of the standard library's `sqlite3`. While it is open, that library keeps the files open that its
  other connections close, and so the locks of our transactions too. From our first transaction on it also holds two
  locks that only its own library sees, those for writing and for checkpoints: two libraries that do either at once
  would overwrite each other.
- `missing`, a check of the files' names, as often as their directory changes: a file that was removed or replaced by
  hand is noticed before a commit.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import apsw

from perdure.errors import UsageError
from perdure.stores.sqlite.config import SqliteConfig

if TYPE_CHECKING:
    import sqlite3

try:
    import fcntl

    OPEN_FILE_LOCKS = hasattr(fcntl, "F_OFD_SETLK") and os.uname().sysname == "Linux"
except ImportError:  # Windows: locks belong to a handle there
    fcntl = None  # type: ignore[assignment]
    OPEN_FILE_LOCKS = False


def guarded() -> bool:
    """Whether the standard library's `sqlite3` is harmless in the process of a store, on this system."""
    # Without fcntl locks belong to a handle; and one library sees its own locks.
    return OPEN_FILE_LOCKS or fcntl is None or not apsw.using_amalgamation


# Where SQLite's locks are: every connection reads the first in the file, and the second in the shared memory.
_SHARED = 0x40000002, 510
_ATTACHED = 128, 1
_READ_MARKS = 123, 5
_FLOCK = "hhqqi4x"
# In a log and in the shared memory: two numbers that change when a new log begins.
_SALT_IN_LOG, _SALT_IN_MEMORY = 16, 32
# In the shared memory: how many frames the log has, and how many of them are in the file.
_FRAMES, _FOLDED = 16, 96

_entering = threading.Lock()
_guards: dict[tuple[int, int], Guard] = {}
# Descriptors that cannot be closed yet, because other code of this process holds locks on their files.
_kept: list[int] = []


class Guard:
    """Protects one file in this process, for all stores that have it open."""

    def __init__(self, path: str, identity: tuple[int, int], clock_step: float) -> None:
        self.path, self.identity, self._clock_step = path, identity, clock_step
        self.stores = 0
        # The log that the connections of this process write to.
        self.log = _identity(f"{path}-wal")
        # A connection to that log, once it differs from that of the first store: not every store has it open then.
        self.log_connection: apsw.Connection | None = None
        self.renewing = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._locks: list[tuple[int, tuple[int, int]]] = []
        # Descriptors of the file and its log, which only name them; where the system says their names; the names.
        self._names: list[tuple[int, str, str]] = []
        # Their directory: while it is as it was when the names were checked, so are the names.
        self._folder = ""
        self._unchanged: tuple[int, int, int] | None = None
        self._follow_names()
        if OPEN_FILE_LOCKS:
            for name, place in ((path, _SHARED), (f"{path}-shm", _ATTACHED)):
                self._locks.append((os.open(name, os.O_RDWR | os.O_CLOEXEC), place))
                _lock(self._locks[-1][0], fcntl.F_OFD_SETLK, fcntl.F_RDLCK, place)
            # Where apsw uses the library of the system, both are one, and see each other's locks.
            if apsw.using_amalgamation:
                self._connection = _standard(path)
        # Whether the other library is kept from writing.
        self.armed = self._connection is None

    def checkpointed(self) -> bool:
        """Whether the whole log is checkpointed, according to the shared memory."""
        if not self._locks:
            return True
        memory = self._locks[-1][0]
        return os.pread(memory, 4, _FRAMES) == os.pread(memory, 4, _FOLDED)

    def arm(self) -> None:
        """Keep the other library from writing and from checkpoints; raises BusyError while it is writing.

        Called inside a transaction, so that no other process writes meanwhile. Roll that transaction back: it may have
        begun before the last commit of the other library. A connection that begins to read while the log is fully
        checkpointed holds the lock that a checkpoint needs.
        """
        import sqlite3

        if self.armed:
            return  # another store of this process has done it
        assert self._connection is not None
        try:
            self._connection.execute("begin immediate")
        except sqlite3.OperationalError as error:
            raise apsw.BusyError(f"the standard library's sqlite3 writes to it: {error}") from error
        # Its own library sees the connection reading for ever from now on; other processes must not wait for that.
        _lock(self._locks[-1][0], fcntl.F_SETLK, fcntl.F_UNLCK, _READ_MARKS)
        self.armed = True

    def _follow_names(self) -> None:
        """Note under which names the system knows the file and its log; under none where it cannot say."""
        for file, _, _ in self._names:
            os.close(file)
        self._names, self._unchanged = [], None
        if not OPEN_FILE_LOCKS:
            return
        # Closing a descriptor of this kind drops no locks.
        for path, identity in ((self.path, self.identity), (f"{self.path}-wal", self.log)):
            with suppress(OSError):
                file = os.open(path, os.O_PATH | os.O_CLOEXEC)
                found = os.fstat(file)
                place, same = f"/proc/self/fd/{file}", (found.st_dev, found.st_ino) == identity
                self._names.append((file, place, os.readlink(place) if same else ""))
        self._folder = os.path.dirname(self._names[0][2]) if self._names else ""

    def missing(self) -> str | None:
        """The path whose file was removed or replaced; None when all is well."""
        # The names first: a stat of a log makes the next commit slower, which has to store the log's time of change.
        try:
            if len(self._names) == 2:
                # No name changes without its directory. Its ctime cannot be set by hand, its mtime can.
                found = os.stat(self._folder)
                folder = found.st_dev, found.st_ino, found.st_ctime_ns
                if folder == self._unchanged:
                    return None
                (_, file_at, file_name), (_, log_at, log_name) = self._names
                # A file that was removed or replaced has another name.
                if os.readlink(file_at) == file_name and os.readlink(log_at) == log_name:
                    # Not if either is mounted there from another directory, nor right after a change.
                    alone = found.st_dev == self.identity[0] and log_name == f"{file_name}-wal"
                    if alone and time.time() - found.st_ctime > self._clock_step:
                        self._unchanged = folder
                    return None
        except OSError:
            pass  # without /proc
        try:
            log = os.stat(f"{self.path}-wal")
            if (log.st_dev, log.st_ino) == self.log:
                file = os.stat(self.path)
                return None if (file.st_dev, file.st_ino) == self.identity else self.path
        except FileNotFoundError:
            pass
        return self.path if _identity(self.path) != self.identity else f"{self.path}-wal"

    def use_log(self, connection: apsw.Connection) -> None:
        """Write to the log at this path from now on; the connection has it open."""
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.execute("select count(*) from sqlite_schema").fetchall()
        self.log, self.log_connection = _identity(f"{self.path}-wal"), connection
        self._follow_names()

    def begun_anew(self) -> bool:
        """Whether the log at its path belongs to the shared memory, and was not made by another application."""
        if not self._locks:
            return False
        with suppress(OSError), open(f"{self.path}-wal", "rb") as log:
            salt = log.read(_SALT_IN_LOG + 8)[_SALT_IN_LOG:]
            return bool(salt) and salt == os.pread(self._locks[-1][0], 8, _SALT_IN_MEMORY)
        return False

    def release_locks(self) -> None:
        """Release the locks, so that the last connections of our library can close the file cleanly."""
        connection, self._connection, self.log_connection = self._connection, None, None
        if connection is not None:
            # Closed while the locks are held, it does not act as the last user. Its close drops the process's POSIX
            # locks.
            connection.close()
        for file, place in self._locks:
            _lock(file, fcntl.F_SETLK, fcntl.F_RDLCK, place)
            _lock(file, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, place)

    def close(self) -> None:
        """Close our descriptors, as soon as that drops no locks of other code of this process."""
        with _entering:
            _kept.extend(file for file, _ in self._locks)
            _tidy()
        for file, _, _ in self._names:
            os.close(file)
        self._names = []

    def forked(self) -> None:
        """In a forked child: close the inherited descriptors, or the parent's locks would outlive it here."""
        for file in (*(file for file, _ in self._locks), *(file for file, _, _ in self._names)):
            with suppress(OSError):
                os.close(file)


def enter(path: str, config: SqliteConfig) -> Guard:
    """The guard of a file that our library has open."""
    path = os.path.abspath(path)
    with _entering:
        _tidy()
        identity = _identity(path)
        found = _guards.get(identity)
        if found is None:
            found = _guards[identity] = Guard(path, identity, config.clock_step)
        found.stores += 1
        return found


def refuse_in_a_fork(path: str) -> None:
    """Raise where this process was forked while its parent had the file open.

    SQLite's record of locks was copied from the parent, but the locks were not: a connection made here would rely on
    locks that it does not have, and another process would remove its log.
    """
    if _inherited and _identity(os.path.abspath(path)) in {guard.identity for guard in _inherited}:
        raise UsageError(
            f"this process was forked from one that has {path} open, and SQLite must not be used on it here: let the "
            "parent close its engine before it forks, open it in the children alone, or start them with 'spawn'"
        )


def leave(guard: Guard) -> bool:
    """Count one store less. True for the last one: then close its connections, and the guard after them."""
    with _entering:
        guard.stores -= 1
        if guard.stores:
            return False
        if _guards.get(guard.identity) is guard:
            del _guards[guard.identity]
        guard.release_locks()
        return True


def _standard(path: str) -> sqlite3.Connection | None:
    """An idle connection of the standard library, which has the file and its shared memory open."""
    try:
        import sqlite3
    except ImportError:  # a Python without sqlite3: no code of this process uses it
        return None
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    connection.execute("select count(*) from sqlite_schema").fetchall()
    connection.execute("pragma busy_timeout=0")
    return connection


def _identity(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return found.st_dev, found.st_ino


def _lock(file: int, how: int, kind: int, place: tuple[int, int]) -> None:
    fcntl.fcntl(file, how, struct.pack(_FLOCK, kind, os.SEEK_SET, *place, 0))


def _tidy() -> None:
    """Close the kept descriptors, unless a lock is held on their file: it may belong to other code of this process."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0) if _kept else b""
    for file in list(_kept):
        if struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK:
            continue
        _kept.remove(file)
        os.close(file)


def _forked() -> None:
    global _entering
    _entering = threading.Lock()
    for guard in _guards.values():
        guard.forked()
        # Never closed here: a child must not use the parent's SQLite connections, not even to close them.
        _inherited.append(guard)
    for file in _kept:
        with suppress(OSError):
            os.close(file)
    _guards.clear()
    _kept.clear()


_inherited: list[Guard] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
