"""The journal in SQLite: compare-and-swap on the head, one row per append, one commit for all runs that are ready."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import apsw
import msgspec

from perdure.errors import Corrupt
from perdure.kernel.events import BLOB_MARK, Batch, InputReplaced, encode_events, references
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Append, Appended, Conflict, Head, Outcome
from perdure.stores.sqlite.database import Database
from perdure.stores.sqlite.queues import refusal
from perdure.stores.sqlite.spelling import as_json
from perdure.stores.sqlshared.entries import batches, checksum, cut, journals
from perdure.stores.sqlshared.rows import (
    CHANGED_IN_CHILD,
    CHANGED_IN_RUN,
    CHANGED_WITH_INPUT,
    TABLE,
    WIDTH,
    compose,
    position,
    run_bindings,
)

APPENDED = Appended()
# Up to so many journals, of so many bytes in all, are read on the loop.
FEW, SMALL = 8, 32_768

_CREATE_HEAD = "insert into perdure_heads (run_id, next_seq, at, size) values (?, ?, ?, ?)"
_SWAP_HEAD = "update perdure_heads set next_seq = ?, at = ?, size = size + ? where run_id = ? and next_seq = ?"
# The last column says that references are noted with the entry; see migration 0002.
_INSERT_EVENTS = "insert into perdure_journal (run_id, seq, at, checksum, events, writer) values (?, ?, ?, ?, ?, 2)"
NOTE_USES = "insert into perdure_blob_uses (blob_id, run_id) values (?, ?) on conflict do nothing"
_FORGET_USES = "delete from perdure_blob_uses where run_id = ?"
_DELETE_EVENTS = "delete from perdure_journal where run_id = ?"
_REPLACE_HEAD = "update perdure_heads set next_seq = ?, at = ?, size = ? where run_id = ?"


def _assign(names: Sequence[str]) -> str:
    return ", ".join(f"{name} = ?{position(name) + 1}" for name in names)


INSERT_RUN = compose(
    "insert into perdure_runs (<columns>) values (<values>)",
    columns=", ".join(TABLE),
    values=", ".join(f"?{number}" for number in range(1, WIDTH + 1)),
)
_UPDATE_RUN = compose("update perdure_runs set <changes> where run_id = ?1", changes=_assign(CHANGED_IN_RUN))
_REPLACE_INPUT = compose("update perdure_runs set <changes> where run_id = ?1", changes=_assign(CHANGED_WITH_INPUT))
_PUT_CHILD = compose(INSERT_RUN + " on conflict (run_id) do update set <changes>", changes=_assign(CHANGED_IN_CHILD))
# A batch holds at least one event, and the first may begin before `start`: one more than the limit is enough. With a
# size as their last parameter, both statements find nothing that is larger; of one journal only what is asked for
# counts, since a follower reads the end of a long one again and again. The size is in the limit: as a condition it
# would be evaluated for each row.
_READ = """
    select seq, at, checksum, cast(events as blob),
        (select next_seq from perdure_heads where run_id = ?1) from perdure_journal
    where run_id = ?1 and seq >= coalesce(
        (select max(seq) from perdure_journal where run_id = ?1 and seq <= ?2), 0)
        and (?3 is null or seq < ?2 + ?3)
    order by seq
    limit case when ?4 is null or coalesce((
        select size * min(max(0, next_seq - ?2), coalesce(?3, next_seq)) <= ?4 * next_seq
        from perdure_heads where run_id = ?1), true) then coalesce(?3 + 1, -1) else 0 end
"""
_READ_MANY = """
    select j.run_id, j.seq, j.at, j.checksum, cast(j.events as blob), h.next_seq
    from perdure_journal j left join perdure_heads h using (run_id)
    where j.run_id in (select value from json_each(?1)) and (?2 is null or coalesce(
        (select sum(size) from perdure_heads where run_id in (select value from json_each(?1))), 0) <= ?2)
    order by j.run_id, j.seq
"""
_HEADS = "select run_id, next_seq from perdure_heads where run_id in (select value from json_each(?))"
_HEAD = "select next_seq, at, size from perdure_heads where run_id = ?"


class SqlJournal:
    """Journals in one database file."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        """Write each append wholly or not at all, in one commit."""
        # Encoded before the transaction: the write lock is held for the disk's time, not for Python's.
        prepared, fsync, write = [], False, _write_plain
        for append in appends:
            prepared.append(_prepare(append))
            fsync = fsync or append.fsync
            if append.admit is not None:
                write = _write_and_admit
        result = self._database.write(partial(write, prepared), fsync=fsync)
        self._database.checkpoint_log()
        return result

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal by these batches."""
        prepared = _prepare(Append(run_id, expected_next, batches))
        return await self._database.commit(lambda db: _rewrite(db, prepared))

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them."""
        rows = await self._rows(_READ, (run_id, start, limit), 1)
        return cut(batches(run_id, rows, start, limit is None), start, limit)

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals; a damaged journal is returned as its error."""
        try:
            return journals(await self._rows(_READ_MANY, (as_json(run_ids),), len(run_ids)))
        except Corrupt:
            # A page that SQLite cannot read fails the statement; read one by one, only the run it belongs to fails.
            found: dict[str, list[Batch] | Exception] = {}
            for run_id in run_ids:
                try:
                    found[run_id] = await self.read(run_id)
                except Corrupt as error:
                    found[run_id] = error
            return found

    async def _rows(self, sql: str, bindings: tuple[Any, ...], journals: int) -> list[tuple[Any, ...]]:
        """Read small journals on the loop: handing the query to a thread takes longer, at times far longer."""
        if journals <= FEW and (found := self._database.query(sql, (*bindings, SMALL))):
            return found
        return await self._database.read(sql, (*bindings, None))

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        wanted = as_json(run_ids)
        return dict(self._database.query(_HEADS, (wanted,)))

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal."""
        rows = self._database.query(_HEAD, (run_id,))
        return Head(*rows[0]) if rows else None


class _Prepared(msgspec.Struct, gc=False):
    """The bindings of one append."""

    append: Append
    next_seq: int
    at: float
    size: int
    events: list[tuple[Any, ...]]
    starts: list[_Prepared]
    # The blobs that the events refer to, with the run: most have none.
    uses: Sequence[tuple[str, str]] = ()


def _prepare(append: Append) -> _Prepared:
    run_id, size, rows = append.run_id, 0, []
    uses: Sequence[tuple[str, str]] = ()
    for batch in append.batches:
        data = encode_events(batch.events)
        size += len(data)
        if BLOB_MARK in data:
            uses = [*uses, *((blob, run_id) for blob in references(batch.events))]
        rows.append((run_id, batch.seq, batch.at, checksum(run_id, batch.seq, batch.at, data), data.decode()))
    starts = [_prepare(start) for start in append.starts] if append.starts else []
    return _Prepared(append, batch.seq + len(batch.events), batch.at, size, rows, starts, uses)


def _write_and_admit(prepared: list[_Prepared], db: apsw.Connection) -> list[Outcome]:
    """Write everything; runs of queues come last, one by one, so that each counts those before it."""
    done = iter(_write_plain([one for one in prepared if one.append.admit is None], db))
    return [next(done) if one.append.admit is None else _write_one(db, one) for one in prepared]


def _write_plain(prepared: list[_Prepared], db: apsw.Connection) -> list[Outcome]:
    """Write all at once, or else one by one, to find the appends whose compare-and-swap fails."""
    everything = list(prepared)
    for one in prepared:
        if one.starts:
            everything += one.starts
    try:
        if _write_fast(db, everything):
            return [APPENDED] * len(prepared)
    except apsw.ConstraintError:
        pass
    db.execute("rollback")
    db.execute("begin immediate")
    return [_write_one(db, one) for one in prepared]


def _write_fast(db: apsw.Connection, prepared: list[_Prepared]) -> bool:
    creates, swaps, events, inserts, updates = [], [], [], [], []
    children: list[RunRow] = []
    replaced: list[tuple[Any, ...]] = []
    uses: list[tuple[str, str]] = []
    for one in prepared:
        append = one.append
        if append.children:
            children += append.children
        if append.expected_next == 0:
            creates.append((append.run_id, one.next_seq, one.at, one.size))
            if append.row is not None:
                inserts.append(run_bindings(append.row))
        else:
            swaps.append((one.next_seq, one.at, one.size, append.run_id, append.expected_next))
            if append.row is not None:
                updates.append(run_bindings(append.row))
                if isinstance(append.batches[0].events[0], InputReplaced):
                    replaced.append(updates[-1])
        events += one.events
        if one.uses:
            uses.extend(one.uses)
    if swaps:
        before = db.total_changes()
        db.executemany(_SWAP_HEAD, swaps)
        if db.total_changes() - before != len(swaps):
            return False
    if creates:
        db.executemany(_CREATE_HEAD, creates)
        db.executemany(INSERT_RUN, inserts)
    db.executemany(_INSERT_EVENTS, events)
    if updates:
        db.executemany(_UPDATE_RUN, updates)
    if replaced:
        db.executemany(_REPLACE_INPUT, replaced)
    if children:
        db.executemany(_PUT_CHILD, map(run_bindings, children))
    if uses:
        db.executemany(NOTE_USES, uses)
    return True


def _write_one(db: apsw.Connection, one: _Prepared) -> Outcome:
    append = one.append
    head = db.execute(_HEAD, (append.run_id,)).fetchone()
    next_seq = head[0] if head is not None else 0
    if next_seq != append.expected_next:
        return Conflict(next_seq)
    if append.admit is not None and append.row is not None:
        full = refusal(db, append.admit, append.row)
        if full is not None:
            return full
    db.execute("savepoint one")
    try:
        _write_fast(db, [one])
    except apsw.ConstraintError:
        db.execute("rollback to one")
        return Conflict(None)
    finally:
        db.execute("release one")
    for start in one.starts:
        _write_one(db, start)  # a run that exists was started before: skip it
    return APPENDED


def _rewrite(db: apsw.Connection, one: _Prepared) -> Outcome:
    append = one.append
    head = db.execute(_HEAD, (append.run_id,)).fetchone()
    if head is None or head[0] != append.expected_next:
        return Conflict(head[0] if head is not None else 0)
    db.execute(_DELETE_EVENTS, (append.run_id,))
    db.executemany(_INSERT_EVENTS, one.events)
    db.execute(_FORGET_USES, (append.run_id,))
    db.executemany(NOTE_USES, one.uses)
    db.execute(_REPLACE_HEAD, (append.next_seq, one.at, one.size, append.run_id))
    return APPENDED
