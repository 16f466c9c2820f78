"""A SQLite file through apsw: connections, transactions and what their errors mean. Knows no table but the migrations'.

One connection writes and belongs to whoever holds the turn: the event loop while commits are fast, a thread otherwise.
One connection answers small questions on the loop; one, in a thread, reads in bulk. WAL lets all of them work at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import apsw

from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch, StoreError, StoreUnavailable

T = TypeVar("T")

APPLICATION_ID = 0x70657264  # "perd"
BUSY_SECONDS = 10.0
# Below this a commit costs less than the hop to a thread and back; see docs/decisions/0003-*.md.
INLINE_SECONDS = 0.001
# After so long without a commit the write-ahead log is folded back into the file.
QUIET_SECONDS = 0.25
# Pages of the write-ahead log after which SQLite folds it: a small log stays in the cache and small on disk, and
# folding it this often costs nothing that can be measured.
LOG_PAGES = 120


class Database:
    """Connections to one file, opened with `open` and closed with `close`."""

    def __init__(self, path: str, url: str, vfs: str | None = None) -> None:
        self.path, self.url, self._vfs = path, url, vfs
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._bulk: apsw.Connection | None = None
        self._write_thread: ThreadPoolExecutor | None = None
        self._read_thread: ThreadPoolExecutor | None = None
        self._fsync = True
        self._hops = 0  # transactions handed to the thread and not back yet
        self._commit_seconds = 0.0  # a moving average
        self._quiet: asyncio.TimerHandle | None = None
        self._last_write = 0.0
        self._trace: Callable[[str], None] | None = None

    # --- opening --------------------------------------------------------------------------------------------------

    def open(self, *, migrate: bool) -> None:
        """Connect and check that the file is ours and of our schema; create or migrate it when allowed."""
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise InvalidStoreUrl(self.url, f"the directory {folder} does not exist; create it first")
        if not migrate and not os.path.exists(self.path):
            raise InvalidStoreUrl(self.url, "there is no such file; start a run with an Engine to create it")
        _check_magic(self.path, self.url)
        writer: apsw.Connection | None = None
        try:
            writer = self._connect()
            self._prepare(writer, migrate)
            self._reader, self._bulk = self._connect(), self._connect()
        except BaseException as error:
            if writer is not None:
                writer.close()
            raise self.translate(error) from error
        self._writer = writer
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-write")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-read")

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(self.path, vfs=self._vfs)
        db.set_busy_timeout(int(BUSY_SECONDS * 1000))
        db.execute("pragma fullfsync=1")
        db.execute("pragma cache_size=-8000")
        db.execute("pragma temp_store=memory")
        db.pragma("wal_autocheckpoint", LOG_PAGES)
        if self._trace is not None:
            self._watch(db)
        return db

    def _prepare(self, db: apsw.Connection, migrate: bool) -> None:
        application = db.pragma("application_id")
        found = db.pragma("user_version")
        empty = not db.execute("select exists (select 1 from sqlite_schema)").get
        if application != APPLICATION_ID and not empty:
            raise NotAStore(self.url, "it is an SQLite database of another application")
        if found > len(MIGRATIONS) or (found < len(MIGRATIONS) and not migrate):
            raise SchemaMismatch(self.url, found, len(MIGRATIONS))
        if db.pragma("journal_mode") != "wal":
            db.pragma("journal_mode", "wal")
        db.pragma("synchronous", "full")
        if found < len(MIGRATIONS):
            self._migrate(db)

    def _migrate(self, db: apsw.Connection) -> None:
        # Immediate: of two processes that meet here, one migrates and the other finds it done.
        db.execute("begin immediate")
        try:
            for number, (name, sql) in enumerate(MIGRATIONS, 1):
                if number <= db.pragma("user_version"):
                    continue
                db.execute(sql)
                checksum = hashlib.sha256(sql.encode()).hexdigest()
                db.execute("insert into perdure_migrations values (?, ?, ?, ?)", (number, name, checksum, time.time()))
                db.pragma("user_version", number)
            db.pragma("application_id", APPLICATION_ID)
            db.execute("commit")
        except BaseException:
            db.execute("rollback")
            raise

    def close(self) -> None:
        """Disconnect. The last connection to leave folds the write-ahead log into the file."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        for thread in (self._write_thread, self._read_thread):
            if thread is not None:
                thread.shutdown(wait=True)
        for db in (self._bulk, self._reader, self._writer):
            if db is not None:
                db.close()
        self._writer = self._reader = self._bulk = None
        self._write_thread = self._read_thread = None

    # --- working --------------------------------------------------------------------------------------------------

    def write(self, transaction: Callable[[apsw.Connection], T], *, fsync: bool = True) -> T | asyncio.Future[T]:
        """Run a transaction and commit it; answer at once when that is cheaper than a thread, else a future."""
        if self._hops == 0 and self._commit_seconds < INLINE_SECONDS:
            try:
                return self._transact(transaction, fsync, wait=False)
            except apsw.BusyError:
                pass  # another process writes: wait for it in the thread, not on the loop
            except apsw.Error as error:
                raise self.translate(error) from error
        return asyncio.ensure_future(self._write_in_thread(transaction, fsync))

    async def execute(self, sql: str, bindings: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run one statement that commits by itself, in the thread."""
        db = self._writer
        if db is None or self._write_thread is None:
            raise StoreUnavailable(self.url, "it is closed")
        self._hops += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._write_thread, lambda: db.execute(sql, bindings).fetchall())
        except apsw.Error as error:
            raise self.translate(error) from error
        finally:
            self._hops -= 1

    async def _write_in_thread(self, transaction: Callable[[apsw.Connection], T], fsync: bool) -> T:
        assert self._write_thread is not None
        self._hops += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._write_thread, self._transact, transaction, fsync)
        except apsw.Error as error:
            raise self.translate(error) from error
        finally:
            self._hops -= 1

    def _transact(self, transaction: Callable[[apsw.Connection], T], fsync: bool, wait: bool = True) -> T:
        db = self._writer
        if db is None:
            raise StoreUnavailable(self.url, "it is closed")
        if fsync is not self._fsync:
            db.execute("pragma synchronous=full" if fsync else "pragma synchronous=normal")
            self._fsync = fsync
        if not wait:
            db.set_busy_timeout(0)
        try:
            db.execute("begin immediate")
        finally:
            if not wait:
                db.set_busy_timeout(int(BUSY_SECONDS * 1000))
        try:
            result = transaction(db)
            committing = time.perf_counter()
            db.execute("commit")
        except BaseException:
            # A failed commit may have ended the transaction by itself.
            if db.in_transaction:
                db.execute("rollback")
            raise
        ended = time.perf_counter()
        if fsync:
            # One slow commit sends the next ones to the thread at once; it takes several fast ones to come back.
            took = ended - committing
            self._commit_seconds += (took - self._commit_seconds) * (0.5 if took > self._commit_seconds else 0.1)
        self._last_write = ended
        return result

    def ask(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """A small question, answered on the loop: a few rows by index."""
        if self._reader is None:
            raise StoreUnavailable(self.url, "it is closed")
        try:
            return self._reader.execute(sql, bindings).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error

    async def read(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """A large question, answered in a thread."""
        bulk = self._bulk
        if bulk is None or self._read_thread is None:
            raise StoreUnavailable(self.url, "it is closed")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._read_thread, lambda: bulk.execute(sql, bindings).fetchall())
        except (apsw.Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error

    # --- watching -------------------------------------------------------------------------------------------------

    def version(self) -> object:
        """Changes when any process commits: read from the file system, without a statement."""
        try:
            wal = os.stat(self.path + "-wal")
            return wal.st_mtime_ns, wal.st_size
        except FileNotFoundError:
            return None

    def fold_log(self) -> None:
        """Fold the write-ahead log into the file after a quiet while, in the thread; cheap to call often."""
        if self._quiet is None and self._write_thread is not None:
            loop = asyncio.get_running_loop()
            self._quiet = loop.call_later(QUIET_SECONDS, self._fold_if_quiet)

    def _fold_if_quiet(self) -> None:
        self._quiet = None
        if self._write_thread is None:
            return
        if time.perf_counter() - self._last_write < QUIET_SECONDS:
            self.fold_log()
        else:
            # Counted like a write: the connection must not be used on the loop meanwhile.
            self._hops += 1
            folding = asyncio.get_running_loop().run_in_executor(self._write_thread, self._checkpoint)
            folding.add_done_callback(self._folded)

    def _folded(self, _: asyncio.Future[None]) -> None:
        self._hops -= 1

    def _checkpoint(self) -> None:
        db = self._writer
        if db is None:
            return
        db.set_busy_timeout(0)
        try:
            db.execute("pragma wal_checkpoint(truncate)")
        except apsw.Error:
            pass  # somebody reads or writes: SQLite's own checkpoints go on, and this one can wait
        finally:
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement of every connection."""
        self._trace = callback
        for db in (self._writer, self._reader, self._bulk):
            if db is not None:
                self._watch(db)

    def _watch(self, db: apsw.Connection) -> None:
        callback = self._trace
        db.exec_trace = None if callback is None else lambda _cursor, sql, _bindings: callback(sql) or True

    def translate(self, error: BaseException) -> BaseException:
        """What an error of the backend means to a caller."""
        if isinstance(error, StoreError) or not isinstance(error, apsw.Error | UnicodeDecodeError):
            return error
        if isinstance(error, apsw.NotADBError):
            return NotAStore(self.url, "it is not an SQLite database")
        if isinstance(error, apsw.CorruptError | UnicodeDecodeError):
            return Corrupt(self.url, str(error))
        reasons = {
            apsw.BusyError: f"another process has held the write lock for more than {BUSY_SECONDS:g} s",
            apsw.LockedError: "another connection holds a lock on it",
            apsw.FullError: "the disk is full; make room, and waiting runs go on by themselves",
            apsw.ReadOnlyError: "the file or its directory is read-only",
            apsw.CantOpenError: "the file cannot be opened; check that it is a file you may read and write",
            apsw.IOError: f"the disk reports an error ({error}); check its space and health",
        }
        for kind, reason in reasons.items():
            if isinstance(error, kind):
                return StoreUnavailable(self.url, reason)
        return error


def _check_magic(path: str, url: str) -> None:
    """Refuse a file that is no database before SQLite touches it."""
    if os.path.isdir(path):
        raise NotAStore(url, "it is a directory")
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except FileNotFoundError:
        return
    except PermissionError:
        raise StoreUnavailable(url, "you may not read the file") from None
    if head and head != b"SQLite format 3\x00":
        raise NotAStore(url, "it is not an SQLite database")


def _load_migrations() -> list[tuple[str, str]]:
    folder = resources.files(__package__) / "migrations"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return [(Path(f.name).stem, f.read_text("utf-8")) for f in files]


MIGRATIONS = _load_migrations()
