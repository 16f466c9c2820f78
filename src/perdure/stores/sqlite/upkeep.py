"""Upkeep in an SQLite file: pruning, blob collection, and rows rebuilt from their journals."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from perdure.errors import Corrupt
from perdure.kernel.events import references
from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.journal import INSERT_RUN, NOTE_USES
from perdure.stores.sqlite.spelling import SpelledDatabase, as_json
from perdure.stores.sqlshared.entries import one_batch
from perdure.stores.sqlshared.rows import run_bindings
from perdure.stores.sqlshared.upkeep import SharedUpkeep

T = TypeVar("T")

# An earlier incarnation that is removed in the same call does not keep a later one.
_REMOVABLE = """
    select r.run_id from perdure_runs r
    where r.run_id in (select value from json_each(?1)) and r.root = '' and r.finished_at is not null
      and not exists (
          select 1 from perdure_runs o where o.id = r.id and o.root = '' and o.incarnation < r.incarnation
            and o.run_id not in (select value from json_each(?1)))
"""
_REMOVE_JOURNAL = "delete from perdure_journal where run_id = ?"
_REMOVE_HEAD = "delete from perdure_heads where run_id = ?"
_REMOVE_USES = "delete from perdure_blob_uses where run_id = ?"
_REMOVE_ROW = "delete from perdure_runs where run_id = ?"
# A child's run_id is its root's, '/' and its op path; '0' is the character after '/'.
_REMOVE_CHILDREN = "delete from perdure_runs where run_id > ?1 || '/' and run_id < ?1 || '0' and root = ?1"
_UNNOTED = """
    select run_id, position, seq, at, checksum, cast(events as blob)
    from perdure_journal indexed by perdure_journal_unnoted
    where writer < 2 and instr(events, 'blob":"') > 0 limit 100
"""
_NOTED = "update perdure_journal set writer = 2 where position = ?"
_SAY_PUT = "insert into perdure_blob_puts (blob_id, put_at) values (?, ?) on conflict (blob_id) do nothing"
_UNUSED = """
    select p.blob_id, length(b.data) from perdure_blob_puts p join perdure_blobs b on b.id = p.blob_id
    where p.put_at <= ?1 and not exists (select 1 from perdure_blob_uses u where u.blob_id = p.blob_id) limit ?2
"""
_REMOVE_BLOB = "delete from perdure_blobs where id = ?"
_REMOVE_PUT = "delete from perdure_blob_puts where blob_id = ?"
_NEXT = "select next_seq from perdure_heads where run_id = ?"


class SqlUpkeep(SharedUpkeep):
    """The upkeep of one database file."""

    def __init__(self, database: Database) -> None:
        super().__init__(SpelledDatabase(database))
        self._database = database

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with everything that belongs to them."""
        return await self._write(lambda db: _remove(db, run_ids))

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to and that were last put over `age` seconds ago."""
        # Some entries per commit, so that other processes get the write lock in between.
        while await self._write(_note_some):
            pass
        before = time.time() - age
        if dry_run:
            found = await self._database.read(_UNUSED, (before, limit))
            return Collected(len(found), sum(size for _, size in found))
        return await self._write(lambda db: _collect(db, before, limit))

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        await self._write(lambda db: db.execute(NOTE_USES, (blob_id, "")).fetchall())

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        try:
            return await self._write(lambda db: _reproject(db, run_id, expected_next, rows))
        except apsw.ConstraintError as error:
            raise Corrupt(f"the row of run_id {run_id}", f"another run has its id: {error}", run_id) from error

    async def _write(self, transaction: Callable[[apsw.Connection], T]) -> T:
        answer = await self._database.commit(transaction)
        self._database.checkpoint_log()
        return answer


def _remove(db: apsw.Connection, run_ids: Sequence[str]) -> Sequence[str]:
    gone = [(run_id,) for (run_id,) in db.execute(_REMOVABLE, (as_json(run_ids),))]
    for statement in (
        _REMOVE_JOURNAL,
        _REMOVE_HEAD,
        _REMOVE_USES,
        _REMOVE_CHILDREN,
        _REMOVE_ROW,
    ):
        db.executemany(statement, gone)
    return [run_id for (run_id,) in gone]


def _note_some(db: apsw.Connection) -> bool:
    """Note the references of some entries that older code wrote; False when none are left."""
    rows: list[tuple[Any, ...]] = db.execute(_UNNOTED).fetchall()
    for run_id, position, *entry in rows:
        # What a damaged entry refers to is unknown, so this raises, and nothing is collected.
        for blob in references(one_batch(run_id, *entry).events):
            db.execute(NOTE_USES, (blob, run_id))
            db.execute(_SAY_PUT, (blob, time.time()))
        db.execute(_NOTED, (position,))
    return bool(rows)


def _collect(db: apsw.Connection, before: float, limit: int) -> Collected:
    if db.execute(_UNNOTED).fetchone() is not None:
        return Collected(0, 0)  # older code has written in between: collect another time
    found: list[tuple[Any, ...]] = db.execute(_UNUSED, (before, limit)).fetchall()
    gone = [(blob,) for blob, _ in found]
    db.executemany(_REMOVE_BLOB, gone)
    db.executemany(_REMOVE_PUT, gone)
    return Collected(len(found), sum(size for _, size in found))


def _reproject(db: apsw.Connection, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
    head = db.execute(_NEXT, (run_id,)).fetchone()
    if head is None or head[0] != expected_next:
        return False
    db.execute(_REMOVE_CHILDREN, (run_id,))
    db.execute(_REMOVE_ROW, (run_id,))
    db.executemany(INSERT_RUN, map(run_bindings, rows))
    return True
