"""The schema of a PostgreSQL store: which migrations it has, and the ones it needs. In one transaction each time.

An advisory lock lets one process at a time do this; the next one finds everything done.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import resources
from string import Template

from perdure.errors import SchemaMismatch, StoreUnavailable
from perdure.stores.postgres.connection import Connection
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.errors import is_driver_error, is_taken, is_there_already, translate
from perdure.stores.postgres.names import quoted
from perdure.stores.sqlshared.schema import BEGINS, ENDS, Applied, Migration, load_migrations, pending

MIGRATIONS = load_migrations(resources.files(__package__) / "migrations")

# From the catalogue: a query by name could be answered from the connection's cached plan.
_HAS = """
    select exists (select 1 from pg_catalog.pg_tables where schemaname = any(current_schemas(false)) and tablename = $1)
"""
_HAS_SCHEMA = "select exists (select 1 from pg_namespace where nspname = $1)"
_APPLIED = "select number, name, checksum, works_with, applied_at from perdure_migrations order by number"
_LOCK = "select pg_advisory_xact_lock(hashtextextended('perdure migrations', 0))"
_NOTE = "insert into perdure_migrations (number, name, checksum, works_with, applied_at) values ($1, $2, $3, $4, $5)"
# The same for people, who have no parameters to bind. Without the one before it a migration has no name: refused.
_SCRIPT = Template("""insert into perdure_migrations (number, name, checksum, works_with, applied_at) values (
    $number, (select '$name' where (select count(*) from perdure_migrations) = $number - 1),
    '$checksum', $works_with, extract(epoch from clock_timestamp()));""")
_FILE = Template("""-- To be applied by `perdure migrate`, or by hand:
-- PGOPTIONS='-c search_path=SCHEMA' psql -f $name.sql DATABASE
begin;
$lock;
$begins$sql$ends$note
commit;
""")


def file_of(one: Migration) -> str:
    """The file of a migration: with what `psql -f` needs around it."""
    values = {field: str(getattr(one, field)) for field in one.__struct_fields__}
    note = _SCRIPT.substitute(values)
    return _FILE.substitute(values, lock=_LOCK, begins=BEGINS, ends=ENDS, note=note)


class PostgresMigrations:
    """The migrations of one store, which need not be open."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.url = database.url

    async def applied(self) -> Sequence[Applied]:
        """The migrations that the database has."""
        connection = await self._database.connect()
        try:
            return await self.applied_by(connection)
        except Exception as error:
            raise self._meaning(error) from error
        finally:
            await connection.close()

    async def pending(self) -> Sequence[Migration]:
        """The migrations that the database needs."""
        return pending(self.url, await self.applied(), MIGRATIONS)

    async def sql(self) -> str:
        """The migrations that `apply` would make, as a script for psql."""
        needed = await self.pending()
        if not needed:
            return ""
        schema, lines = self._database.address.schema, ["begin;"]
        if schema is not None:
            name = quoted(schema) + ";"
            lines += ["create schema if not exists " + name, "set local search_path to " + name]
        lines.append(_LOCK + ";")
        for one in needed:
            values = {field: str(getattr(one, field)) for field in one.__struct_fields__}
            note = self._database.fill(_SCRIPT.substitute(values))
            lines += [f"\n-- {one.name}", self._database.fill(one.sql).strip(), note]
        return "\n".join([*lines, "commit;"]) + "\n"

    async def apply(self, *, dry_run: bool = False) -> Sequence[Migration]:
        """Set the store up or bring it up to date, all or nothing; with `dry_run` only try."""
        connection = await self._database.connect()
        try:
            return await self.apply_by(connection, dry_run=dry_run)
        finally:
            await connection.close()

    async def applied_by(self, connection: Connection) -> list[Applied]:
        """The migrations that the database has, asked over this connection."""
        [(there,)] = await connection.fetch(_HAS, self._database.address.names.prefix + "migrations")
        if not there:
            return []
        return [Applied(*row) for row in await connection.fetch(self._database.fill(_APPLIED))]

    async def apply_by(self, connection: Connection, *, dry_run: bool = False) -> Sequence[Migration]:
        """As `apply`, over this connection."""
        try:
            await connection.script("begin")
            try:
                needed = await self._migrate(connection)
            except BaseException:
                if not connection.closed:
                    await connection.script("rollback")
                raise
            await connection.script("rollback" if dry_run else "commit")
        except Exception as error:
            raise self._meaning(error) from error
        return needed

    async def _migrate(self, connection: Connection) -> list[Migration]:
        await connection.fetch(_LOCK)
        schema = self._database.address.schema
        if schema is not None:
            # Check first: only some roles may create a schema, and most need not.
            [(exists,)] = await connection.fetch(_HAS_SCHEMA, schema)
            if not exists:
                await connection.script("create schema " + quoted(schema))
        needed = pending(self.url, await self.applied_by(connection), MIGRATIONS)
        for one in needed:
            await connection.script(self._database.fill(one.sql), self._database.config.migration)
            note = (one.number, one.name, one.checksum, one.works_with, time.time())
            await connection.fetch(self._database.fill(_NOTE), *note)
        return needed

    def _meaning(self, error: Exception) -> Exception:
        if is_taken(error):
            return StoreUnavailable(self.url, "another process is setting it up; try again when it is done")
        if is_there_already(error):
            return SchemaMismatch(
                self.url,
                0,
                len(MIGRATIONS),
                f"{error}, and no recorded migration created it: it was created by hand, or by another application. "
                "Use another schema or table_prefix; or, if the tables are empty, drop them and migrate again",
            )
        return translate(error, self.url) if is_driver_error(error) else error

    def missing(self, schema: str | None) -> SchemaMismatch:
        """The error for a store without tables."""
        what = "the schema {} does not exist" if schema is None else "the schema {} has no tables of perdure"
        named = self._database.address.schema or schema or "of the search path"
        return SchemaMismatch(
            self.url,
            0,
            len(MIGRATIONS),
            f"{what.format(named)}; set the store up with `perdure migrate --store {self.url}`, "
            "as a role that may create tables there",
        )

    def older(self, found: int) -> SchemaMismatch:
        """The error for a store that lacks migrations."""
        cure = f"bring it up to date with `perdure migrate --store {self.url}`"
        return SchemaMismatch(self.url, found, len(MIGRATIONS), cure)
