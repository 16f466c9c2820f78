"""Numbered migrations: which there are, which a database has, and which it needs. Touches no database.

A migration is a file `NNNN_name.sql` that never changes once it was released; its checksum is recorded where it was
applied. The migration is what lies between two marks; what is around it lets a shell apply the file by hand, in one
transaction and with the same record. A line `-- works with: 3` in it says that code which knows migrations only up to 3
can share the database with code that knows this one: the two versions of a rolling upgrade. Without the line, older
code is shut out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Protocol

import msgspec

from perdure.errors import SchemaMismatch

BEGINS, ENDS = "-- >>> migration\n", "-- <<< migration\n"
_FILE = re.compile(r"([0-9]{4})_[a-z0-9_]+\.sql")
_WORKS_WITH = re.compile(r"^-- works with: ([0-9]+)$", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    """One step from a schema to the next. `works_with` is the lowest schema whose code can share the database."""

    number: int
    name: str
    sql: str
    checksum: str
    works_with: int


class Applied(msgspec.Struct, frozen=True):
    """A migration that a database says it has."""

    number: int
    name: str
    checksum: str
    works_with: int
    applied_at: float = 0.0


class Migrations(Protocol):
    """The migrations of one database, which a store with a schema has as `store.migrations`.

    None of it needs an open store: a store with a wrong schema cannot be opened.
    """

    async def applied(self) -> Sequence[Applied]:
        """The migrations that the database has, in order."""

    async def pending(self) -> Sequence[Migration]:
        """The migrations that it needs; raises SchemaMismatch as the function `pending` does."""

    async def sql(self) -> str:
        """The migrations that `apply` would make, as a script for people; empty if there are none."""

    async def apply(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Apply what the database needs, all or nothing, and return that; with `dry_run`, roll it back.

        Of several processes that do this at once, one applies, and the others find it done.
        """


def migrations_of(store: object) -> Migrations | None:
    """The migrations of a store; None for one that has no schema."""
    return getattr(store, "migrations", None)


def load_migrations(folder: Traversable) -> list[Migration]:
    """The migrations in a folder, in order."""
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    migrations = [migration(name, (folder / name).read_text("utf-8")) for name in names]
    assert [one.number for one in migrations] == list(range(1, len(migrations) + 1)), names
    return migrations


def migration(file: str, sql: str) -> Migration:
    """The migration in a file of that name and content."""
    if BEGINS in sql:
        sql = sql.partition(BEGINS)[2].partition(ENDS)[0]
    named = _FILE.fullmatch(file)
    assert named is not None, file
    number, says = int(named[1]), _WORKS_WITH.search(sql)
    works_with = int(says[1]) if says is not None else number
    return Migration(number, file.removesuffix(".sql"), sql, sha256(sql.encode()).hexdigest(), works_with)


def pending(url: str, applied: Sequence[Applied], known: Sequence[Migration]) -> list[Migration]:
    """The migrations that a database still needs for this code; none when it has them, or newer ones that allow it.

    Raises SchemaMismatch when a newer one shuts this code out, or when one was not applied as this code knows it.
    """
    found, needed = len(applied), len(known)
    if [one.number for one in applied] != list(range(1, found + 1)):
        raise SchemaMismatch(url, found, needed, "its list of migrations has gaps; restore it from a backup")
    for have, mine in zip(applied, known, strict=False):
        if have.checksum != mine.checksum:
            raise SchemaMismatch(
                url,
                found,
                needed,
                f"its migration {have.name} is not the one that this version of perdure has under that number "
                f"({mine.name}); use the version that migrated the store",
            )
    if any(one.works_with > needed for one in applied[needed:]):
        raise SchemaMismatch(url, found, needed)
    return list(known[found:])
