"""The schema of an SQLite file: which migrations it has, and the ones it needs. In one transaction each time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

import apsw

from perdure.errors import NotAStore, SchemaMismatch
from perdure.stores.sqlshared.schema import BEGINS, ENDS, Applied, Migration, load_migrations, pending

if TYPE_CHECKING:
    from perdure.stores.sqlite.database import Database

APPLICATION_ID = 0x70657264  # "perd"
MIGRATIONS = load_migrations(resources.files(__package__) / "migrations")

_APPLIED = "select number, name, checksum, works_with, applied_at from perdure_migrations order by number"
# The first schema has no column `works_with`.
_APPLIED_FIRST = "select number, name, checksum, 1, applied_at from perdure_migrations order by number"
_NOTE = "insert into perdure_migrations (number, name, checksum, applied_at) values (?, ?, ?, ?)"
_SAY_WORKS_WITH = "update perdure_migrations set works_with = ? where number = ?"
# The same for people, who have no parameters to bind.
# Without the one before it a migration has no name, and is refused.
_SCRIPT = Template("""insert into perdure_migrations (number, name, checksum, applied_at) values (
    $number, (select '$name' where (select count(*) from perdure_migrations) = $number - 1),
    '$checksum', (julianday('now') - 2440587.5) * 86400.0);
pragma user_version = $number;""")
_SCRIPT_WORKS_WITH = Template("update perdure_migrations set works_with = $works_with where number = $number;")


_FILE = Template("""-- To be applied by an engine, by `perdure migrate`, or by hand: sqlite3 FILE < $name.sql
.bail on
begin immediate;
$begins$sql$ends$note
pragma application_id = $ours;
commit;
""")


def file_of(one: Migration) -> str:
    """The file of a migration: with what SQLite's shell needs around it."""
    values = {field: str(getattr(one, field)) for field in one.__struct_fields__}
    return _FILE.substitute(values, begins=BEGINS, ends=ENDS, note=_note(one), ours=APPLICATION_ID)


def _note(one: Migration) -> str:
    values = {field: str(getattr(one, field)) for field in one.__struct_fields__}
    templates = [_SCRIPT, _SCRIPT_WORKS_WITH] if one.number > 1 else [_SCRIPT]
    return "\n".join(template.substitute(values) for template in templates)


def applied(db: apsw.Connection, url: str) -> list[Applied]:
    """The migrations that a database has; raises NotAStore when it belongs to another application."""
    # In one transaction: another process may be creating the store at this moment.
    with db:
        empty = not db.execute("select exists (select 1 from sqlite_schema)").get
        ours, found = db.pragma("application_id") == APPLICATION_ID, db.pragma("user_version")
        statement = _APPLIED if found > 1 else _APPLIED_FIRST
        listed = [Applied(*columns) for columns in db.execute(statement)] if ours and found else []
    if not ours and not empty:
        raise NotAStore(url, "it is an SQLite database of another application")
    if len(listed) != found:
        # A newer migration, unknown here: what it says about this code is unknown too.
        raise SchemaMismatch(url, found, len(MIGRATIONS))
    return listed


def migrate(db: apsw.Connection, url: str, *, dry_run: bool = False) -> list[Migration]:
    """Apply what the database needs, all or nothing, and return that; with `dry_run` roll it back at the end."""
    # Immediate: of two processes that do this at once, one migrates and the other finds it done.
    db.execute("begin immediate")
    try:
        needed = pending(url, applied(db, url), MIGRATIONS)
        for one in needed:
            db.execute(one.sql)
            db.execute(_NOTE, (one.number, one.name, one.checksum, time.time()))
            if one.number > 1:
                db.execute(_SAY_WORKS_WITH, (one.works_with, one.number))
            db.pragma("user_version", one.number)
        db.pragma("application_id", APPLICATION_ID)
        db.execute("rollback" if dry_run else "commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
    return needed


def script(migrations: Sequence[Migration]) -> str:
    """The migrations that `migrate` makes, for people who apply them by hand."""
    if not migrations:
        return ""
    lines = ["begin immediate;"]
    for one in migrations:
        lines += [f"\n-- {one.name}", one.sql.strip(), _note(one)]
    return "\n".join([*lines, f"\npragma application_id = {APPLICATION_ID};", "commit;"]) + "\n"


class SqliteMigrations:
    """The migrations of one file, which need not be open, nor exist yet."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url

    async def applied(self) -> Sequence[Applied]:
        """The migrations that the file has."""
        return await asyncio.to_thread(self._applied)

    async def pending(self) -> Sequence[Migration]:
        """The migrations that the file needs."""
        return pending(self.url, await self.applied(), MIGRATIONS)

    async def sql(self) -> str:
        """The migrations that `apply` would make, as a script for SQLite's shell."""
        return script(await self.pending())

    async def apply(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Create the file or bring it up to date; with `dry_run` only try."""
        return await asyncio.to_thread(self._apply, dry_run)

    def _applied(self) -> list[Applied]:
        if not self._database.exists():
            return []
        with self._database.connection() as db:
            return applied(db, self.url)

    def _apply(self, dry_run: bool) -> list[Migration]:
        if dry_run and not self._database.exists():
            db = apsw.Connection(":memory:")
            try:
                return migrate(db, self.url)
            finally:
                db.close()
        with self._database.connection() as db:
            needed = pending(self.url, applied(db, self.url), MIGRATIONS)
            if not needed:
                return []
            if not dry_run:
                self._database.use_log(db)
                db.pragma("synchronous", "full")
            return migrate(db, self.url, dry_run=dry_run)
