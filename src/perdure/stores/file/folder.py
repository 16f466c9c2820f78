"""The directory of a file store: one writer at a time, atomic commits, and what others have committed.

A commit is one line in `commits.jsonl`, a write-ahead log that is on the disk before anything else happens; then its
lines go to the files of the runs. The next process that finds them missing, because the writer died in between, writes
them again. When the log has grown, the files of the runs are synced and a new log begins, with the next generation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from perdure.errors import Corrupt, InvalidStoreUrl, NotAStore, SchemaMismatch, StoreUnavailable
from perdure.inherited import forget_private, keep_private
from perdure.logs import log
from perdure.stores.file.config import FileConfig
from perdure.stores.file.lines import Change, Commit, read_commit, sealed

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


FORMAT = 1
COMMITS, LOCK, RUNS, MARK = "commits.jsonl", "lock", "runs", "perdure.json"


class _Log:
    """The log of commits, and how far it has been read."""

    def __init__(self, file: int, generation: int, at: int) -> None:
        self.file, self.generation, self.at = file, generation, at


class Folder:
    """One directory, opened by one process."""

    def __init__(self, path: str, url: str, config: FileConfig) -> None:
        self.path, self.url, self.config = path, url, config
        self._lock = -1
        self._log: _Log | None = None
        self._wrote = False

    # --- opening --------------------------------------------------------------------------------------------------

    def open(self, *, create: bool) -> None:
        """Check that the directory is a file store, or create it, and open its lock file."""
        if fcntl is None:
            raise InvalidStoreUrl(self.url, "this system has no flock(), which it needs; use 'sqlite:///runs.db'")
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise NotAStore(self.url, "it is a file, and not a directory")
        with self._reported():
            if not os.path.exists(self.name(MARK)):
                self._make_room(create)
            self._lock = os.open(self.name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # A child that is forked during a write must not keep the lock when this process is done.
        keep_private(self._lock)
        try:
            if not os.path.exists(self.name(MARK)):
                self._mark()
            self._check()
        except BaseException:
            forget_private(self._lock)
            os.close(self._lock)
            self._lock = -1
            raise

    def _make_room(self, create: bool) -> None:
        if not create:
            raise InvalidStoreUrl(self.url, "there is no such store; start a run with an Engine to create it")
        parent = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(parent):
            raise InvalidStoreUrl(self.url, f"the directory {parent} does not exist; create it first")
        os.makedirs(self.path, exist_ok=True)
        # Look for the mark last: another process may just have created the store and begun to work.
        if set(os.listdir(self.path)) - {LOCK, RUNS, MARK + ".new"} and not os.path.exists(self.name(MARK)):
            raise NotAStore(self.url, "it is a directory with other things in it")
        sync_directory(parent)

    def _mark(self) -> None:
        """Mark the directory as a store, as the last step of creating it; several processes may do so at once."""
        with self.writing():
            if not os.path.exists(self.name(MARK)):
                os.makedirs(self.name(RUNS), exist_ok=True)
                self.replace(self.name(MARK), msgspec.json.encode({"perdure": "file store", "format": FORMAT}) + b"\n")

    def _check(self) -> None:
        try:
            with self._reported(), open(self.name(MARK), "rb") as file:
                found = int(msgspec.json.decode(file.read(), type=dict[str, Any])["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise NotAStore(self.url, f"its file {MARK} is not that of a store") from error
        if found != FORMAT:
            raise SchemaMismatch(self.url, found, FORMAT)

    def close(self) -> None:
        """Close the directory, after syncing the commits to the files of the runs."""
        if self._lock < 0:
            return
        try:
            if self._wrote:
                with self.writing():
                    self._begin_log_anew()
        except StoreUnavailable as error:
            log.warning("%s. Nothing is lost: the next process that opens the store reads %s", error, COMMITS)
        finally:
            forget_private(self._lock)
            os.close(self._lock)
            if self._log is not None:
                os.close(self._log.file)
            self._lock, self._log, self._wrote = -1, None, False

    # --- locking --------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the write lock of the directory. Short: nothing is awaited inside."""
        if self._lock < 0:
            raise StoreUnavailable(self.url, "it is not open")
        with self._reported():
            self._take_lock()
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _take_lock(self) -> None:
        deadline, seen, busy = 0.0, object(), self.config.busy
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    # The lock knows no order: where others have committed, this process was unlucky.
                    version = self.version()
                    if deadline and version == seen:
                        reason = f"another process has been writing for {busy:g} s; is one of them stopped?"
                        raise StoreUnavailable(self.url, reason) from None
                    deadline, seen = time.monotonic() + busy, version
                time.sleep(0.001)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            raise StoreUnavailable(self.url, f"{error.strerror or error}{place}") from error

    # --- what there is ----------------------------------------------------------------------------------------------

    def version(self) -> object:
        """Changes with every commit of any process."""
        try:
            found = os.stat(self.name(COMMITS))
        except OSError:
            return None
        return found.st_ino, found.st_size

    def read_commits(self) -> list[Change] | None:
        """The commits since the last call; None if they are unknown, and everything must be read again."""
        if self._log is None:
            return None
        changes: list[Change] = []
        while True:
            with self._reported():
                try:
                    found = os.stat(self.name(COMMITS))
                    moved = found.st_ino != os.fstat(self._log.file).st_ino
                    if not moved and found.st_size <= self._log.at:
                        return changes
                except FileNotFoundError:
                    moved = False
                # A log that was replaced no longer grows, so this is the rest of it.
                for commit in self._rest(self._log):
                    changes += commit.changes
                if not moved:
                    return changes
                before = self._log
                self._log = self._open_log()
                os.close(before.file)
                if self._log is None or self._log.generation != before.generation + 1:
                    return None

    def all(self) -> Iterator[tuple[str, bytes]]:
        """The runs and the contents of their files, completing the commit of a dead writer. Under the write lock."""
        with self._reported():
            if self._log is not None:
                os.close(self._log.file)
            self._log = self._open_log()
            if self._log is None:
                self._write_log(1)
                self._log = self._open_log()
            self._redo()
            self._cut_log()
            for name in sorted(os.listdir(self.name(RUNS))):
                if name.endswith(".jsonl"):
                    with open(self.name(RUNS, name), "rb") as file:
                        yield unquote(name.removesuffix(".jsonl")), file.read()

    def size(self, run: str) -> int:
        """How long the file of a run is."""
        try:
            return os.stat(self.run(run)).st_size
        except FileNotFoundError:
            return 0

    # --- writing ----------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, fsync: bool) -> None:
        """Make all of these changes or none. The caller holds the write lock and has read all commits."""
        with self._reported():
            assert self._log is not None
            self._cut_log()
            if any(change.kind == "append" and self.size(change.run) != change.offset for change in changes):
                self._redo()  # a writer died in the middle of its commit
            data, start = sealed(Commit(list(changes))) + b"\n", self._log.at
            try:
                write_all(self._log.file, data, start)
                if fsync:
                    os.fdatasync(self._log.file)
            except OSError:
                os.ftruncate(self._log.file, start)
                raise
            self._log.at, self._wrote = start + len(data), True
        try:
            for change in changes:
                self._apply(change)
            if self._log.at > self.config.longest_log:
                self._begin_log_anew()
        except OSError as error:
            # The commit holds: the next writer to that file, or the next process that opens the store, applies it
            # again.
            log.warning(
                "%s: %s. Nothing is lost: the commit is in %s, and is applied again later", self.url, error, COMMITS
            )

    def cut(self, run: str, size: int) -> None:
        """Cut off the torn end that power loss left of an append to a file."""
        with self._reported():
            os.truncate(self.run(run), size)

    def _apply(self, change: Change) -> None:
        path = self.run(change.run)
        if change.kind == "remove":
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        elif change.kind == "rewrite":
            self.replace(path, bytes(change.line) + b"\n")
        else:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_all(file, bytes(change.line) + b"\n", change.offset)
            finally:
                os.close(file)

    def _redo(self) -> None:
        """Apply what the log of commits says to the files of runs, where they lack it."""
        assert self._log is not None
        for commit in self._rest(_Log(self._log.file, 0, _header(self._log.file)[1])):
            for change in commit.changes:
                if not self._done(change):
                    self._apply(change)
        self._wrote = True

    def _done(self, change: Change) -> bool:
        if change.kind != "append":
            return False
        line = bytes(change.line) + b"\n"
        try:
            with open(self.run(change.run), "rb") as file:
                if os.fstat(file.fileno()).st_size < change.offset:
                    return True  # a later change replaced or removed the file, and is applied again too
                file.seek(change.offset)
                return file.read(len(line)) == line
        except FileNotFoundError:
            return change.offset > 0

    # --- the file of commits ------------------------------------------------------------------------------------------

    def _open_log(self) -> _Log | None:
        try:
            file = os.open(self.name(COMMITS), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        generation, at = _header(file)
        if not generation:
            os.close(file)
            raise Corrupt(
                self.name(COMMITS), "its first line is not that of a log of commits; restore the store from a backup"
            )
        return _Log(file, generation, at)

    def _rest(self, log: _Log) -> Iterator[Commit]:
        """The commits after what was read, without an incomplete one at the end."""
        size = os.fstat(log.file).st_size
        data = os.pread(log.file, size - log.at, log.at) if size > log.at else b""
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            try:
                commit = read_commit(line)
            except ValueError as error:
                raise Corrupt(self.name(COMMITS), f"the line at byte {log.at}: {error}") from error
            log.at += len(line) + 1
            yield commit

    def _cut_log(self) -> None:
        """Cut off the incomplete commit of a writer that died."""
        assert self._log is not None
        for _ in self._rest(self._log):
            pass  # read already, or about to be: the caller has read all commits
        if os.fstat(self._log.file).st_size > self._log.at:
            os.ftruncate(self._log.file, self._log.at)

    def _begin_log_anew(self) -> None:
        assert self._log is not None
        self._redo()
        runs: set[str] = set()
        for commit in self._rest(_Log(self._log.file, 0, _header(self._log.file)[1])):
            runs.update(change.run for change in commit.changes)
        for run in runs:
            sync_file(self.run(run))
        sync_directory(self.name(RUNS))
        self._write_log(self._log.generation + 1)
        os.close(self._log.file)
        self._log = self._open_log()
        self._wrote = False

    def _write_log(self, generation: int) -> None:
        self.replace(self.name(COMMITS), b'{"generation":%d}\n' % generation)

    def replace(self, path: str, data: bytes) -> None:
        """Replace a file atomically, and sync it to the disk."""
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(file, data, 0)
            os.fsync(file)
        finally:
            os.close(file)
        os.replace(path + ".new", path)
        sync_directory(os.path.dirname(path))

    def name(self, *parts: str) -> str:
        """A path in the directory."""
        return os.path.join(self.path, *parts)

    def run(self, run_id: str) -> str:
        """The path of the file of a run."""
        return self.name(RUNS, quote(run_id, safe="") + ".jsonl")


def _header(file: int) -> tuple[int, int]:
    """The generation of a log of commits, 0 when it has none, and where its first commit begins."""
    first = os.pread(file, 100, 0).partition(b"\n")[0]
    try:
        return int(msgspec.json.decode(first, type=dict[str, int])["generation"]), len(first) + 1
    except (ValueError, KeyError):
        return 0, 0


def write_all(file: int, data: bytes, at: int) -> None:
    """Write all bytes at an offset, however many calls it takes."""
    view = memoryview(data)
    while view:
        count = os.pwrite(file, view, at)
        view, at = view[count:], at + count


def sync_file(path: str) -> None:
    """Sync a file to the disk, if it still exists."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_directory(path: str) -> None:
    """Sync the entries of a directory to the disk."""
    file = os.open(path or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
