"""An SQLite file through apsw: connections, transactions, errors translated. Knows no table but that of migrations.

One connection writes: on the event loop while commits are fast, in a thread otherwise. One answers small queries on the
loop; others, in threads, read in bulk. WAL lets all of them work at once.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import apsw

from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch, StoreError, StoreUnavailable
from perdure.logs import log
from perdure.stores.sqlite import guard, migrating
from perdure.stores.sqlite.config import SqliteConfig
from perdure.stores.sqlite.forks import Threads
from perdure.stores.sqlite.guard import Guard
from perdure.stores.sqlite.migrating import APPLICATION_ID
from perdure.stores.sqlite.pool import Pool
from perdure.stores.sqlshared.schema import pending

T = TypeVar("T")


# Pages of the write-ahead log after which SQLite checkpoints it: a small log stays in the cache, and checkpoints this
# frequent have no measurable cost.
LOG_PAGES = 120
HEADER = 108
MAGIC = b"SQLite format 3\x00"


class Database:
    """Connections to one file, opened with `open` and closed with `close`."""

    def __init__(self, path: str, url: str, config: SqliteConfig, vfs: str | None = None, pool: int = 1) -> None:
        self.path, self.url, self.config, self._vfs, self._pool = path, url, config, vfs, pool
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._bulk: SimpleQueue[apsw.Connection] | None = None
        # None for a read-only file, which has nothing to lose.
        self._guard: Guard | None = None
        # The log that the writer has open, and that of the readers.
        self._log: tuple[int, int] = (0, 0)
        self._read_log: tuple[int, int] = (0, 0)
        self._write_thread: Pool | None = None
        self._read_thread: Pool | None = None
        self._threads: Threads | None = None
        self._fsync = True
        self._hop: Future[Any] | None = None  # the last job of the writer thread; once it is done, all are
        self._commit_seconds = 0.0  # a moving average
        self._quiet: asyncio.TimerHandle | None = None
        self._last_write = 0.0
        self._trace: Callable[[str], None] | None = None
        # The file's state after a heartbeat, and what `version` was before it.
        self._routine: tuple[tuple[int, int] | None, object] = None, None
        # The data_version at the last heartbeat, which changes with the commits of other connections.
        self._others: object = None

    # --- opening --------------------------------------------------------------------------------------------------

    def open(self, *, migrate: bool) -> None:
        """Connect, and check that the file is a store of our schema; create or migrate it when allowed."""
        if not self.exists() and not migrate:
            raise InvalidStoreUrl(self.url, "there is no such file; start a run with an Engine to create it")
        opened: list[apsw.Connection] = []
        with self._refusing(opened):
            opened.append(self._connect())
            self._prepare(opened[0], migrate)
            opened += self._readers()
            self._others = opened[0].pragma("data_version")
            self._protect(opened[0])
            if migrate:  # an engine, which will write
                self._arm_soon(opened[0])
        self._use(*opened)
        self._write_thread = Pool(1, thread_name_prefix="perdure-write")
        self._read_thread = Pool(self._pool, thread_name_prefix="perdure-read")
        self._threads = Threads((self._write_thread, 1), (self._read_thread, self._pool))

    def exists(self) -> bool:
        """Whether the file exists; raises when it is not a store, or when it could not be created."""
        # Before any call of SQLite: a thread of the parent may have been inside the library when it forked.
        guard.refuse_in_a_fork(self.path)
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
        """A temporary connection, to a file that need not be open, nor of our schema."""
        self.exists()
        opened: list[apsw.Connection] = []
        with self._refusing(opened):
            opened.append(self._connect())
            yield opened[0]
        opened[0].close()

    @contextmanager
    def _refusing(self, opened: list[apsw.Connection]) -> Iterator[None]:
        """On an error, close what was opened and raise the translated error."""
        logged = self._has_log()
        try:
            yield
        except BaseException as error:
            for db in opened:
                # Refused: leave the write-ahead log as its application left it.
                db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(logged))
                db.close()
            self._reraise(error)

    def _check_header(self) -> None:
        """Refuse a file of another application before SQLite opens it, so that it stays unchanged."""
        # Through SQLite's VFS: closing a file opened by Python would drop the locks that this process holds on it.
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
        # Commits in the log may say otherwise, and a database without tables may become a store.
        if not self._has_log() and int.from_bytes(head[103:105]):
            raise NotAStore(self.url, "it is an SQLite database of another application")

    def _has_log(self) -> bool:
        return any(_size(self.path + suffix) for suffix in ("-wal", "-journal"))

    def _connect(self) -> apsw.Connection:
        db = apsw.Connection(self.path, vfs=self._vfs)
        db.set_busy_timeout(int(self.config.busy * 1000))
        # Plans that do not depend on bound values: otherwise SQLite prepares a statement again for every new value.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
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
        # Each belongs to one thread at a time; the previous ones close when their threads release them.
        self._reader, self._bulk = reader, SimpleQueue()
        for db in bulk:
            self._bulk.put(db)

    def _readers(self) -> list[apsw.Connection]:
        readers = [self._connect() for _ in range(1 + self._pool)]
        for db in readers:
            # The writer checkpoints the log when it closes, so it closes last.
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return readers

    def _protect(self, db: apsw.Connection) -> None:
        if db.readonly("main"):
            return
        db.execute("select count(*) from sqlite_schema").fetchall()  # now its log and its shared memory exist
        self._guard = guard.enter(self.path, self.config)
        self._log = self._read_log = self._guard.log

    def _prepare(self, db: apsw.Connection, migrate: bool) -> None:
        found = migrating.applied(db, self.url)
        needed = pending(self.url, found, migrating.MIGRATIONS)
        if needed and not migrate:
            raise SchemaMismatch(self.url, len(found), len(migrating.MIGRATIONS))
        if db.readonly("main"):
            if migrate:
                raise StoreUnavailable(self.url, READ_ONLY)
            return  # enough to read it
        self.use_log(db)
        db.pragma("synchronous", "full")
        if needed:
            migrating.migrate(db, self.url)

    def use_log(self, db: apsw.Connection) -> None:
        """Switch a new file to write-ahead logging. SQLite does not wait for other connections here, so retry."""
        deadline = time.monotonic() + self.config.busy
        while db.pragma("journal_mode") != "wal":
            try:
                db.pragma("journal_mode", "wal")
            except apsw.BusyError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def close(self) -> None:
        """Disconnect. The last connection to close checkpoints the write-ahead log."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if self._threads is not None:
            self._threads.close()
        for thread in (self._write_thread, self._read_thread):
            if thread is not None:
                thread.shutdown(wait=True)
        self._disconnect()
        self._write_thread = self._read_thread = None

    def _disconnect(self) -> None:
        opened, held = [self._reader, self._writer], self._guard
        while self._bulk is not None and not self._bulk.empty():
            opened.insert(0, self._bulk.get())
        self._writer = self._reader = self._bulk = self._guard = None
        last = held is not None and guard.leave(held)
        if opened[-1] is not None:
            opened[-1].config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        for db in opened:
            if db is not None:
                db.close()
        if held is not None and last:
            held.close()

    # --- working --------------------------------------------------------------------------------------------------

    def write(self, transaction: Callable[[apsw.Connection], T], *, fsync: bool = True) -> T | asyncio.Future[T]:
        """Run a transaction and commit it: at once when that is cheaper than a thread, else return a future."""
        if self._commit_seconds < self.config.inline and (self._hop is None or self._hop.done()):
            try:
                return self._transact(transaction, fsync, wait=False)
            except apsw.BusyError:
                pass  # another process is writing: wait in the thread, not on the loop
            except apsw.Error as error:
                self._reraise(error)
        # Handed over now: the next write must not overtake it.
        hop = self._submit(self._transact, transaction, fsync)
        return asyncio.ensure_future(self._answer(hop))

    async def commit(self, transaction: Callable[[apsw.Connection], T]) -> T:
        """As `write`, for callers that wait anyway."""
        result = self.write(transaction)
        return await result if isinstance(result, asyncio.Future) else result

    async def execute(self, sql: str, bindings: Sequence[Any], *, routine: bool = False) -> list[tuple[Any, ...]]:
        """Run one statement that commits by itself, in the thread. With `routine` it does not change `version`.

        Such a statement returns the file's data_version as its last column, which saves a query.
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
        # Shielded: a cancelled caller must not make the connection look free.
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
            db.set_busy_timeout(int(self.config.busy * 1000))

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
            # Checked right before the commit: no other process would find a commit to a file that was removed.
            missing = held is not None and held.missing()
            committing = time.perf_counter()
            db.execute("rollback" if missing else "commit")
        except BaseException as error:
            # A failed commit may have ended the transaction.
            if db.in_transaction:
                db.execute("rollback")
            if isinstance(error, apsw.IOError) and held is not None and held.missing():
                # SQLite notices first that another process has begun a new log.
                return self._commit_anew(db, transaction, fsync, wait)
            raise
        if missing:
            return self._commit_anew(db, transaction, fsync, wait)
        ended = time.perf_counter()
        if fsync:
            # One slow commit moves the next ones to the thread; it takes several fast ones to come back.
            took = ended - committing
            self._commit_seconds += (took - self._commit_seconds) * (0.5 if took > self._commit_seconds else 0.1)
        self._last_write = ended
        return result

    def _arm_soon(self, db: apsw.Connection) -> None:
        """Arm the guard now, unless another process holds a lock: then the first transaction does it."""
        if self._guard is None or self._guard.armed:
            return
        db.set_busy_timeout(0)
        try:
            self._arm(db, self._guard, wait=False)
        except apsw.BusyError:
            pass
        finally:
            db.set_busy_timeout(int(self.config.busy * 1000))

    def _arm(self, db: apsw.Connection, held: Guard, wait: bool) -> None:
        began = time.monotonic()
        deadline = began + self.config.busy
        while True:
            db.execute("pragma wal_checkpoint(passive)")
            db.execute("begin immediate")
            try:
                # A long read of another process prevents the checkpoint; then arm it without.
                if held.checkpointed() or (wait and time.monotonic() - began > self.config.checkpoint):
                    return held.arm()
                if not wait:
                    raise apsw.BusyError("another process is reading its log")
            except apsw.BusyError as error:
                if not wait:
                    raise
                if time.monotonic() > deadline:
                    raise StoreUnavailable(self.url, OTHER_WRITES.format(self.config.busy)) from error
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
        """Connect again when our files were removed or replaced; returns the new writer."""
        held = self._guard
        assert held is not None
        if held.missing() == held.path:
            said = "the file was removed or replaced while the store was open"
            if not (os.path.exists(self.path) and self.exists()):
                raise StoreUnavailable(self.url, f"{said}; put it back, and runs continue by themselves")
            opened = [self._connect()]
            with self._refusing(opened):
                self._prepare(opened[0], migrate=False)
                opened += self._readers()
            held = None
        else:
            said = "its write-ahead log was removed or replaced while the store was open; never delete it"
            self._renew_log(db, held)
            opened = [self._connect(), *self._readers()]
        log.error("%s: %s. It was opened again, and runs continue; no acknowledged commit is lost", self.url, said)
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
        """Checkpoint a log that was removed, and begin another; raises StoreUnavailable when it cannot.

        No connection may be made before: it would look for the content of the old log in the new one.
        """
        with held.renewing:
            if not held.missing():
                return  # another store of this process has done it
            if self._log is not held.log:
                db = held.log_connection
            assert db is not None
            if not _size(self.path + "-wal"):
                # Every process that has the file open still has this log, and no process can have begun another.
                deadline = time.monotonic() + self.config.busy
                while db.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]:
                    # A connection is checkpointing, for which SQLite does not wait, or reads.
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(self.url, LOG_IN_USE.format(self.config.busy))
                    time.sleep(0.01)
            elif not held.begun_anew():
                raise StoreUnavailable(
                    self.url,
                    "its write-ahead log was replaced by another file while the store was open, and nothing is written "
                    "to it any more; stop every process that uses the store, then check it with `perdure doctor`",
                )
            held.use_log(self._connect())

    def query(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run a small query on the loop: a few rows by index."""
        if self._reader is None:
            raise StoreUnavailable(self.url, "it is closed")
        try:
            if self._guard is not None and self._read_log is not self._guard.log:
                self._read_anew(self._guard)
            db = self._reader
            if self._writer is not None and self._log is self._read_log and (self._hop is None or self._hop.done()):
                db = self._writer  # its cache outlives its own commits
            return db.execute(sql, bindings).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            if self._moved():
                return self.query(sql, bindings)
            self._reraise(error)

    async def read(self, sql: str, bindings: Sequence[Any] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        """Run a large query in a thread."""
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
        """Whether another process has begun a new log that SQLite has not noticed yet."""
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
        # A second commit in the same step of the file system's clock is not visible: check once more after that step.
        return *stamp, abs(time.time() - wal.st_mtime) > self.config.clock_step

    def _execute_routine(self, sql: str, bindings: Sequence[Any]) -> list[tuple[Any, ...]]:
        # A lease renewal must not change `version()`, or idle engines would poll.
        before = self.version()
        rows = self._execute(sql, bindings)
        others, self._others = self._others, rows[0][-1] if rows else None
        with suppress(FileNotFoundError):
            wal = os.stat(self.path + "-wal")
            # Commits of other processes since the last heartbeat do change it; those at this very moment change it at
            # the next call.
            if rows and self._others == others:
                settled = (*before[:-1], True) if isinstance(before, tuple) else before
                self._routine = (wal.st_mtime_ns, wal.st_size), settled
        return rows

    def checkpoint_log(self) -> None:
        """Checkpoint the write-ahead log after a time without commits, in the thread; cheap to call often."""
        if self._quiet is None and self._write_thread is not None:
            loop = asyncio.get_running_loop()
            self._quiet = loop.call_later(self.config.quiet, self._fold_if_quiet)

    def _fold_if_quiet(self) -> None:
        self._quiet = None
        if self._write_thread is None:
            return
        if time.perf_counter() - self._last_write < self.config.quiet:
            self.checkpoint_log()
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
            pass  # a connection is busy: SQLite checkpoints by itself, and this one can wait
        finally:
            db.set_busy_timeout(int(self.config.busy * 1000))

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each statement of every connection."""
        self._trace = callback
        for db in (self._writer, self._reader):
            if db is not None:
                self._watch(db)
        if self._bulk is not None:
            # For each connection, once its current statement is done.
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
        """Translate an error of SQLite into one of perdure."""
        if isinstance(error, StoreError) or not isinstance(error, apsw.Error | UnicodeDecodeError):
            return error
        if isinstance(error, apsw.NotADBError):
            return NotAStore(self.url, "it is not an SQLite database")
        if isinstance(error, apsw.CorruptError | apsw.SQLError | UnicodeDecodeError):
            return Corrupt(self.url, str(error))
        reasons = {
            apsw.BusyError: f"another process has held the write lock for more than {self.config.busy:g} s; "
            "close it, or try again when it is done",
            apsw.LockedError: "another connection holds a lock on it; try again when it is done",
            apsw.FullError: "the disk is full; free some space, and runs continue by themselves",
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
LOG_IN_USE = (
    "its write-ahead log was removed while the store was open, and cannot be saved while a connection reads or "
    "checkpoints it, for over {:g} s by now; runs continue by themselves once that has ended"
)
OTHER_WRITES = (
    "other code of this process has written to it for over {:g} s with the standard library's sqlite3, "
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
