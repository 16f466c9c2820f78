"""A copy of an SQLite store while engines work on it. It gets its name only once it is complete and checked."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import apsw
import msgspec

from perdure.errors import Corrupt, StoreUnavailable, UsageError
from perdure.stores.sqlite import migrating
from perdure.stores.sqlite.database import Database

# How many pages are copied between two checks whether the copy was cancelled.
PAGES = 1000


class Backup(msgspec.Struct, frozen=True):
    """A copy of the store at one moment: it has every run that was acknowledged before the copy began."""

    path: str
    bytes: int
    runs: int


def back_up(database: Database, target: str | os.PathLike[str], *, overwrite: bool = False) -> Backup:
    """Copy the store into a file of its own. Until it is whole and checked there is no file of that name."""
    path = Path(target)
    _check_target(database, path, overwrite)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with database.connection() as source:
            if not migrating.applied(source, database.url):
                raise UsageError(f"{database.url} has no tables yet: there is nothing to copy")
            runs = _copy(database, source, part)
        os.chmod(part, os.stat(database.path).st_mode & 0o777)
        _sync(part)
        _name(part, path, overwrite)
        _sync(path.parent)
    except OSError as error:
        raise UsageError(f"the copy cannot be written to {path}: {error.strerror or error}") from error
    finally:
        for left in (part, part.with_name(f"{part.name}-journal")):
            with suppress(FileNotFoundError):
                os.unlink(left)
    return Backup(str(path), path.stat().st_size, runs)


def _name(part: Path, path: Path, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(part, path)  # unlike a rename, it fails if the file exists
        except FileExistsError:
            raise _taken(path) from None
        except OSError:
            if path.exists():  # a file system without links
                raise _taken(path) from None
        else:
            return
    os.replace(part, path)


def _check_target(database: Database, path: Path, overwrite: bool) -> None:
    if not database.exists():
        raise UsageError(f"{database.url} does not exist: there is nothing to copy")
    if not path.parent.is_dir():
        raise UsageError(f"the directory {path.parent} does not exist; create it first")
    if path.is_dir():
        raise UsageError(f"{path} is a directory; name a file in it, such as {path / 'backup.db'}")
    if not path.exists():
        return
    if path.samefile(database.path):
        raise UsageError(f"{path} is the store itself; name another file")
    if not overwrite:
        raise _taken(path)
    if any(os.path.exists(f"{path}{suffix}") for suffix in ("-wal", "-journal")):
        raise UsageError(f"{path} is open, or was not closed cleanly; name another file")


def _taken(path: Path) -> UsageError:
    return UsageError(f"{path} exists already; name another file, or add --force to replace it")


def _copy(database: Database, source: apsw.Connection, part: Path) -> int:
    """Copy a consistent snapshot, and check it. Engines may keep writing."""
    # Opened by the default VFS: only the store may use another one.
    copy = apsw.Connection(str(part))
    try:
        with source:  # one transaction: later commits are not in the copy
            source.execute("select count(*) from sqlite_schema").fetchall()
            with copy.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(PAGES)
        # A single file, without a write-ahead log.
        copy.pragma("journal_mode", "delete")
        found = str(copy.pragma("integrity_check"))
        if found != "ok":
            raise Corrupt(database.url, found.splitlines()[0])
        return int(copy.execute("select count(*) from perdure_heads").get)
    except apsw.FullError as error:
        raise StoreUnavailable(str(part.parent), "the disk of the copy is full; make room, or name another") from error
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        raise UsageError(f"the copy cannot be written to {part.parent}: {error}") from error
    finally:
        copy.close()


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
