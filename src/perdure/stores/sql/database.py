"""A SQLite file through apsw: connections, transactions and what their errors mean. Knows no table but the migrations'.

One connection writes and belongs to whoever holds the turn: the event loop while commits are fast, a thread otherwise.
One connection answers small questions on the loop; one, in a thread, reads in bulk. WAL lets all of them work at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

import apsw

from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch, StoreError, StoreUnavailable
from perdure.stores.sql import migrating
from perdure.stores.sql.migrating import APPLICATION_ID
from perdure.stores.sql.schema import pending

T = TypeVar("T")

BUSY_SECONDS = 10.0
# Below this a commit costs less than the hop to a thread and back; see docs/decisions/0003-*.md.
INLINE_SECONDS = 0.001
# After so long without a commit the write-ahead log is folded back into the file.
QUIET_SECONDS = 0.25
# Pages of the write-ahead log after which SQLite folds it: a small log stays in the cache and small on disk, and
# folding it this often costs nothing that can be measured.
LOG_PAGES = 120
# The times of files advance in steps of some milliseconds; within one such step two commits may look the same.
SETTLED_SECONDS = 0.04
HEADER = 108
MAGIC = b"SQLite format 3\x00"


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
        self._hop: Future[Any] | None = None  # the last work handed to the thread; once it is done, all of it is
        self._commit_seconds = 0.0  # a moving average
        self._quiet: asyncio.TimerHandle | None = None
        self._last_write = 0.0
        self._trace: Callable[[str], None] | None = None
        # What a sign of life left, and what `version` was before it.
        self._routine: tuple[tuple[int, int] | None, object] = None, None
        # What changes with the commits of others, as of the last sign of life.
        self._others: object = None

    # --- opening --------------------------------------------------------------------------------------------------

    def open(self, *, migrate: bool) -> None:
        """Connect and check that the file is ours and of our schema; create or migrate it when allowed."""
        if not self.exists() and not migrate:
            raise InvalidStoreUrl(self.url, "there is no such file; start a run with an Engine to create it")
        opened: list[apsw.Connection] = []
        with self._refusing(opened):
            opened.append(self._connect())
            self._prepare(opened[0], migrate)
            opened += (self._connect(), self._connect())
            self._others = opened[0].pragma("data_version")
        self._writer, self._reader, self._bulk = opened
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-write")
        self._read_thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-read")

    def exists(self) -> bool:
        """Whether there is a file, which may be ours; raises when it is not, or when there could be none."""
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise InvalidStoreUrl(self.url, f"the directory {folder} does not exist; create it first")
        if os.path.isdir(self.path):
            raise NotAStore(self.url, "it is a directory")
        if not os.path.exists(self.path):
            return False
        self._check_header()
        return True

    @contextmanager
    def connection(self) -> Iterator[apsw.Connection]:
        """One more connection, for as long as it takes: to a file that need not be open, nor of our schema."""
        self.exists()
        opened: list[apsw.Connection] = []
        with self._refusing(opened):
            opened.append(self._connect())
            yield opened[0]
        opened[0].close()

    @contextmanager
    def _refusing(self, opened: list[apsw.Connection]) -> Iterator[None]:
        """Close what was opened when something goes wrong, and say what that means."""
        logged = self._has_log()
        try:
            yield
        except BaseException as error:
            for db in opened:
                # Refused: whatever lies in the write-ahead log stays where its application left it.
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(logged))
                db.close()
            self._reraise(error)

    def _check_header(self) -> None:
        """Refuse a file that is not ours before SQLite works on it, so that it stays as it is."""
        # Through SQLite's file layer: closing a file of Python's would drop the locks this process holds on it.
        try:
            file = apsw.VFSFile(self._vfs or "", os.path.abspath(self.path), [_LOOK, 0])
        except apsw.Error as error:
            self._reraise(error)
        try:
            head = file.xRead(HEADER, 0)
        except apsw.Error as error:
            self._reraise(error)
        finally:
            file.xClose()
        if not head.strip(b"\0"):
            return  # nothing was written yet
        if head[:16] != MAGIC:
            raise NotAStore(self.url, "it is not an SQLite database")
        if int.from_bytes(head[68:72]) == APPLICATION_ID:
            return
        # Commits that are not in the file yet may say otherwise, and a database without tables may become ours.
        if not self._has_log() and int.from_bytes(head[103:105]):
            raise NotAStore(self.url, "it is an SQLite database of another application")

    def _has_log(self) -> bool:
        return any(_size(self.path + suffix) for suffix in ("-wal", "-journal"))

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
        found = migrating.applied(db, self.url)
        needed = pending(self.url, found, migrating.MIGRATIONS)
        if needed and not migrate:
            raise SchemaMismatch(self.url, len(found), len(migrating.MIGRATIONS))
        if db.readonly("main"):
            if migrate:
                raise StoreUnavailable(self.url, READ_ONLY)
            return  # enough to look at it
        self.use_log(db)
        db.pragma("synchronous", "full")
        if needed:
            migrating.migrate(db, self.url)

    def use_log(self, db: apsw.Connection) -> None:
        """Switch a new file to write-ahead logging. SQLite does not wait for others here, so wait for it."""
        deadline = time.monotonic() + BUSY_SECONDS
        while db.pragma("journal_mode") != "wal":
            try:
                db.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

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
        if self._commit_seconds < INLINE_SECONDS and (self._hop is None or self._hop.done()):
            try:
                return self._transact(transaction, fsync, wait=False)
            except apsw.BusyError:
                pass  # another process writes: wait for it in the thread, not on the loop
            except apsw.Error as error:
                self._reraise(error)
        # Handed over now: what is written next must not overtake it.
        hop = self._submit(self._transact, transaction, fsync)
        return asyncio.ensure_future(self._answer(hop))

    async def execute(self, sql: str, bindings: Sequence[Any], *, routine: bool = False) -> list[tuple[Any, ...]]:
        """Run one statement that commits by itself, in the thread. With `routine` it leaves `version` as it is.

        Such a statement returns the file's data_version as its last column: to ask for it would be one more.
        """
        return await self._answer(self._submit(self._execute_routine if routine else self._execute, sql, bindings))

    def _execute(self, sql: str, bindings: Sequence[Any]) -> list[tuple[Any, ...]]:
        if self._writer is None:
            raise StoreUnavailable(self.url, "it is closed")
        return self._writer.execute(sql, bindings).fetchall()

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        if self._write_thread is None:
            raise StoreUnavailable(self.url, "it is closed")
        hop = self._write_thread.submit(function, *arguments)
        self._hop = hop
        return hop

    async def _answer(self, hop: Future[T]) -> T:
        # Shielded: a caller that no longer waits must not look like a connection that is free again.
        try:
            return await asyncio.shield(asyncio.wrap_future(hop))
        except apsw.Error as error:
            self._reraise(error)

    def _transact(self, transaction: Callable[[apsw.Connection], T], fsync: bool, wait: bool = True) -> T:
        db = self._writer
        if db is None:
            raise StoreUnavailable(self.url, "it is closed")
        if fsync is not self._fsync:
            db.execute("pragma synchronous=full" if fsync else "pragma synchronous=normal")
            self._fsync = fsync
        if wait:
            return self._commit(db, transaction, fsync)
        db.set_busy_timeout(0)
        try:
            return self._commit(db, transaction, fsync)
        finally:
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))

    def _commit(self, db: apsw.Connection, transaction: Callable[[apsw.Connection], T], fsync: bool) -> T:
        db.execute("begin immediate")
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
            self._reraise(error)

    async def read(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """A large question, answered in a thread."""
        bulk = self._bulk
        if bulk is None or self._read_thread is None:
            raise StoreUnavailable(self.url, "it is closed")
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._read_thread, lambda: bulk.execute(sql, bindings).fetchall())
        except (apsw.Error, UnicodeDecodeError) as error:
            self._reraise(error)

    # --- watching -------------------------------------------------------------------------------------------------

    def version(self) -> object:
        """Changes when any process commits: read from the file system, without a statement."""
        try:
            wal = os.stat(self.path + "-wal")
        except FileNotFoundError:
            return None
        stamp = (wal.st_mtime_ns, wal.st_size)
        written, before = self._routine
        if stamp == written:
            return before
        # A commit in the same step of the file system's clock leaves no trace: look once more when that is over.
        return *stamp, abs(time.time() - wal.st_mtime) > SETTLED_SECONDS

    def _execute_routine(self, sql: str, bindings: Sequence[Any]) -> list[tuple[Any, ...]]:
        # Being idle is to show life now and then, and that is no reason to look what is new.
        before = self.version()
        rows = self._execute(sql, bindings)
        others, self._others = self._others, rows[0][-1] if rows else None
        with suppress(FileNotFoundError):
            wal = os.stat(self.path + "-wal")
            # What another process wrote since the last time is news; what it writes at this moment is so the next time.
            if rows and self._others == others:
                settled = (*before[:-1], True) if isinstance(before, tuple) else before
                self._routine = (wal.st_mtime_ns, wal.st_size), settled
        return rows

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
            self._submit(self._checkpoint)

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

    def _reraise(self, error: BaseException) -> NoReturn:
        meaning = self.translate(error)
        if meaning is error:
            raise error
        raise meaning from error

    def translate(self, error: BaseException) -> BaseException:
        """What an error of the backend means to a caller."""
        if isinstance(error, StoreError) or not isinstance(error, apsw.Error | UnicodeDecodeError):
            return error
        if isinstance(error, apsw.NotADBError):
            return NotAStore(self.url, "it is not an SQLite database")
        if isinstance(error, apsw.CorruptError | apsw.SQLError | UnicodeDecodeError):
            return Corrupt(self.url, str(error))
        reasons = {
            apsw.BusyError: f"another process has held the write lock for more than {BUSY_SECONDS:g} s; "
            "close it, or try again when it is done",
            apsw.LockedError: "another connection holds a lock on it; try again when it is done",
            apsw.FullError: "the disk is full; make room, and waiting runs go on by themselves",
            apsw.ReadOnlyError: READ_ONLY,
            apsw.CantOpenError: "it cannot be opened; check that it is a file you may read and write, in a directory "
            "where you may create files",
            apsw.IOError: f"the disk reports an error ({error}); check its space and health",
        }
        for kind, reason in reasons.items():
            if isinstance(error, kind):
                return StoreUnavailable(self.url, reason)
        return StoreUnavailable(self.url, f"SQLite reports {type(error).__name__}: {error}")


READ_ONLY = "the file or its directory is read-only; make both writable, or name another file"
_LOOK = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
