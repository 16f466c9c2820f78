"""A SQLite file through apsw: connections, transactions and what their errors mean. Knows no table but the migrations'.

One connection writes and belongs to whoever holds the turn: the event loop while commits are fast, a thread otherwise.
One connection answers small questions on the loop; one, in a thread, reads in bulk. WAL lets all of them work at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import apsw

from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch, StoreError, StoreUnavailable
from perdure.stores.sqlite import guard, migrating
from perdure.stores.sqlite.guard import Guard
from perdure.stores.sqlite.migrating import APPLICATION_ID
from perdure.stores.sqlshared.schema import pending

T = TypeVar("T")

log = logging.getLogger("perdure")

BUSY_SECONDS = 10.0
# Below this a commit costs less than the hop to a thread and back; see docs/decisions/0003-*.md.
INLINE_SECONDS = 0.001
# After so long without a commit the write-ahead log is folded back into the file.
QUIET_SECONDS = 0.25
# Pages of the write-ahead log after which SQLite folds it: a small log stays in the cache and small on disk, and
# folding it this often costs nothing that can be measured.
LOG_PAGES = 120
# How long the first transaction waits for others to let it fold the log.
FOLD_SECONDS = 1.0
# The times of files advance in steps of some milliseconds; within one such step two commits may look the same.
SETTLED_SECONDS = 0.04
HEADER = 108
MAGIC = b"SQLite format 3\x00"


class Database:
    """Connections to one file, opened with `open` and closed with `close`."""

    def __init__(self, path: str, url: str, vfs: str | None = None, pool: int = 1) -> None:
        self.path, self.url, self._vfs, self._pool = path, url, vfs, pool
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._bulk: SimpleQueue[apsw.Connection] | None = None
        # None for a file that cannot be written, which has nothing to lose.
        self._guard: Guard | None = None
        # The log that the writer has open, and the one of the readers.
        self._log: tuple[int, int] = (0, 0)
        self._read_log: tuple[int, int] = (0, 0)
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
            opened += self._readers()
            self._others = opened[0].pragma("data_version")
            self._protect(opened[0])
            if migrate:  # an engine, which is about to write
                self._arm_soon(opened[0])
        self._use(*opened)
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="perdure-write")
        self._read_thread = ThreadPoolExecutor(self._pool, thread_name_prefix="perdure-read")

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
        guard.refuse_in_a_fork(self.path)
        db = apsw.Connection(self.path, vfs=self._vfs)
        db.set_busy_timeout(int(BUSY_SECONDS * 1000))
        db.execute("pragma fullfsync=1")
        db.execute("pragma cache_size=-8000")
        db.execute("pragma temp_store=memory")
        db.pragma("wal_autocheckpoint", LOG_PAGES)
        if self._trace is not None:
            self._watch(db)
        return db

    def _use(self, writer: apsw.Connection, *readers: apsw.Connection) -> None:
        self._writer = writer
        self._read_with(*readers)

    def _read_with(self, reader: apsw.Connection, *bulk: apsw.Connection) -> None:
        # Each belongs to one thread at a time; those of before close when their threads let go of them.
        self._reader, self._bulk = reader, SimpleQueue()
        for db in bulk:
            self._bulk.put(db)

    def _readers(self) -> list[apsw.Connection]:
        readers = [self._connect() for _ in range(1 + self._pool)]
        for db in readers:
            # The writer folds the log when it closes, and it closes last.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return readers

    def _protect(self, db: apsw.Connection) -> None:
        if db.readonly("main"):
            return
        db.execute("select count(*) from sqlite_schema").fetchall()  # now its log and its shared memory are there
        self._guard = guard.enter(self.path)
        self._log = self._read_log = self._guard.log

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
        self._disconnect()
        self._write_thread = self._read_thread = None

    def _disconnect(self, *, fold: bool = True) -> None:
        opened, held = [self._reader, self._writer], self._guard
        while self._bulk is not None and not self._bulk.empty():
            opened.insert(0, self._bulk.get())
        self._writer = self._reader = self._bulk = self._guard = None
        last = held is not None and guard.leave(held)
        if opened[-1] is not None:
            opened[-1].config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(not fold))
        for db in opened:
            if db is not None:
                db.close()
        if held is not None and last:
            held.close()

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
        db = self._writer
        if db is None:
            raise StoreUnavailable(self.url, "it is closed")
        held = self._guard
        if held is not None:
            if not held.armed:
                self._arm(db, held, wait=True)
            if self._log is not held.log or held.missing():
                db = self._reopen(db)
        return db.execute(sql, bindings).fetchall()

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
            return self._commit(db, transaction, fsync, wait)
        finally:
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))

    def _commit(
        self, db: apsw.Connection, transaction: Callable[[apsw.Connection], T], fsync: bool, wait: bool = True
    ) -> T:
        held = self._guard
        if held is not None and self._log is not held.log:
            return self._commit_anew(db, transaction, fsync, wait)
        if held is not None and not held.armed:
            self._arm(db, held, wait)
        db.execute("begin immediate")
        try:
            result = transaction(db)
            # The last moment: what is committed to a file that has lost its name is found by no other process.
            missing = held is not None and held.missing()
            committing = time.perf_counter()
            db.execute("rollback" if missing else "commit")
        except BaseException as error:
            # A failed commit may have ended the transaction by itself.
            if db.in_transaction:
                db.execute("rollback")
            if isinstance(error, apsw.IOError) and held is not None and held.missing():
                # SQLite is the first to notice that another process has begun the log anew.
                return self._commit_anew(db, transaction, fsync, wait)
            raise
        if missing:
            return self._commit_anew(db, transaction, fsync, wait)
        ended = time.perf_counter()
        if fsync:
            # One slow commit sends the next ones to the thread at once; it takes several fast ones to come back.
            took = ended - committing
            self._commit_seconds += (took - self._commit_seconds) * (0.5 if took > self._commit_seconds else 0.1)
        self._last_write = ended
        return result

    def _arm_soon(self, db: apsw.Connection) -> None:
        """Arm the guard now, unless another process is in the way: then the first transaction does it."""
        if self._guard is None or self._guard.armed:
            return
        db.set_busy_timeout(0)
        try:
            self._arm(db, self._guard, wait=False)
        except apsw.BusyError:
            pass
        finally:
            db.set_busy_timeout(int(BUSY_SECONDS * 1000))

    def _arm(self, db: apsw.Connection, held: Guard, wait: bool) -> None:
        began = time.monotonic()
        deadline = began + BUSY_SECONDS
        while True:
            db.execute("pragma wal_checkpoint(passive)")
            db.execute("begin immediate")
            try:
                # A process that reads for long keeps the log from being folded; then the rest has to do.
                if held.folded() or (wait and time.monotonic() - began > FOLD_SECONDS):
                    return held.arm()
                if not wait:
                    raise apsw.BusyError("its log is being read")
            except apsw.BusyError as error:
                if not wait:
                    raise
                if time.monotonic() > deadline:
                    raise StoreUnavailable(self.url, OTHER_WRITES) from error
            finally:
                db.execute("rollback")
            time.sleep(0.01)

    def _commit_anew(
        self, db: apsw.Connection, transaction: Callable[[apsw.Connection], T], fsync: bool, wait: bool
    ) -> T:
        if not wait:
            raise apsw.BusyError("its files have to be opened again")  # in the thread
        return self._commit(self._reopen(db), transaction, fsync)

    def _reopen(self, db: apsw.Connection) -> apsw.Connection:
        """Connect to the files that have the names now, when ours were removed or replaced; returns the new writer."""
        held = self._guard
        assert held is not None
        if held.missing() == held.path:
            said = "the file was removed or replaced while the store was open"
            if not self.exists():
                raise StoreUnavailable(self.url, f"{said}; put it back, and runs go on by themselves")
            opened = [self._connect()]
            with self._refusing(opened):
                self._prepare(opened[0], migrate=False)
                opened += self._readers()
            held = None
        else:
            said = "its write-ahead log was removed or replaced while the store was open; never delete it"
            self._renew_log(db, held)
            opened = [self._connect(), *self._readers()]
        log.error("%s: %s. No commit was acknowledged since; it was opened again, and runs go on", self.url, said)
        before = self._guard
        opened[0].pragma("synchronous", "full" if self._fsync else "normal")
        self._use(*opened)
        self._others = opened[0].pragma("data_version")
        if held is None:
            self._protect(opened[0])
            if before is not None and guard.leave(before):
                before.close()
        else:
            self._log = self._read_log = held.log
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.close()
        return opened[0]

    def _renew_log(self, db: apsw.Connection | None, held: Guard) -> None:
        """Fold a log that has lost its name into the file, and begin another; raises StoreUnavailable when it cannot.

        Before that no connection may be made: it would look for the content of the old log in the new one.
        """
        with held.renewing:
            if not held.missing():
                return  # another store of this process has done it
            if self._log is not held.log:
                db = held.keeper
            assert db is not None
            if not _size(self.path + "-wal"):
                # Every process that has the file open still has this log, and none can have begun another.
                if db.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]:
                    raise apsw.BusyError("its log is being read")
            elif not held.begun_anew():
                raise StoreUnavailable(
                    self.url,
                    "its write-ahead log was replaced by another file while the store was open, and nothing is written "
                    "to it any more; stop every process that uses the store, then check it with `perdure doctor`",
                )
            held.use_log(self._connect())

    def ask(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """A small question, answered on the loop: a few rows by index."""
        if self._reader is None:
            raise StoreUnavailable(self.url, "it is closed")
        try:
            if self._guard is not None and self._read_log is not self._guard.log:
                self._read_anew(self._guard)
            return self._reader.execute(sql, bindings).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            if self._moved():
                return self.ask(sql, bindings)
            self._reraise(error)

    async def read(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """A large question, answered in a thread."""
        if self._bulk is None or self._read_thread is None:
            raise StoreUnavailable(self.url, "it is closed")
        loop = asyncio.get_running_loop()
        try:
            if self._guard is not None and self._read_log is not self._guard.log:
                self._read_anew(self._guard)
            return await loop.run_in_executor(self._read_thread, _read, self._bulk, sql, bindings)
        except (apsw.Error, UnicodeDecodeError) as error:
            if self._moved():
                return await self.read(sql, bindings)
            self._reraise(error)

    def _moved(self) -> bool:
        """Whether another process has begun the log anew, which this one has not noticed yet."""
        held = self._guard
        if held is None or not held.missing() or not held.begun_anew():
            return False
        held.use_log(self._connect())
        return True

    def _read_anew(self, held: Guard) -> None:
        self._renew_log(None, held)
        self._read_with(*self._readers())
        self._read_log = held.log

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
        for db in (self._writer, self._reader):
            if db is not None:
                self._watch(db)
        if self._bulk is not None:
            # Each of them, when what it is at is done.
            bulk = [self._bulk.get() for _ in range(self._pool)]
            for db in bulk:
                self._watch(db)
                self._bulk.put(db)

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
OTHER_WRITES = (
    f"other code of this process has written to it for over {BUSY_SECONDS:g} s with the standard library's sqlite3, "
    "whose locks ours does not see; let it commit, and give it a file of its own"
)
_LOOK = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB


def _read(free: SimpleQueue[apsw.Connection], sql: str, bindings: Any) -> list[tuple[Any, ...]]:
    db = free.get()
    try:
        return db.execute(sql, bindings).fetchall()
    finally:
        free.put(db)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
