"""The journal in PostgreSQL: compare-and-swap on the head, and outcomes that are right even if a reply is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import msgspec

from perdure.errors import StoreUnavailable
from perdure.kernel.events import Batch
from perdure.ports.journal import Append, Appended, Conflict, Head, Outcome, PendingOutcomes
from perdure.stores.postgres.admission import admit, lock_queues
from perdure.stores.postgres.appends import Prepared, prepare, statement, step_statement
from perdure.stores.postgres.connection import Connection, Row
from perdure.stores.postgres.database import Database
from perdure.stores.postgres.errors import Lost, is_collision, is_driver_error, is_lost, is_taken, translate
from perdure.stores.postgres.rows import by_column
from perdure.stores.sqlshared.entries import batches, cut, journals

APPENDED = Appended()
Outcomes = dict[int, Outcome]
# About how many journals one commit of several callers covers.
MOST = 500

# A batch holds at least one event, and the first may begin before `start`: one more than the limit is enough. One with
# thousands of events fills many pages: none is read that begins behind the page.
_READ = """
    select j.seq, j.at, j.checksum, j.events, (select next_seq from perdure_heads where run_id = $1)
    from perdure_journal j
    where j.run_id = $1 and j.seq >= coalesce(
        (select max(seq) from perdure_journal where run_id = $1 and seq <= $2), 0)
        and ($3::bigint is null or j.seq < $2 + $3::bigint)
    order by j.seq limit $3::bigint + 1
"""
_READ_MANY = """
    select j.run_id, j.seq, j.at, j.checksum, j.events, h.next_seq
    from perdure_journal j left join perdure_heads h on h.run_id = j.run_id and h.run_id = any($1::text[])
    where j.run_id = any($1::text[]) order by j.run_id, j.seq
"""
_HEADS = "select run_id, next_seq from perdure_heads where run_id = any($1::text[])"
_HEAD = "select next_seq, at, size from perdure_heads where run_id = $1"
# The entries at the places where an append would have written.
_ENTRIES = """
    select j.run_id, j.seq, j.checksum, j.events from unnest($1::text[], $2::bigint[]) as w (run_id, seq)
    join perdure_journal j on j.run_id = w.run_id and j.seq = w.seq
"""
_REWRITE = """
    with head as (
        update perdure_heads set next_seq = $3, at = $4, size = $5 where run_id = $1 and next_seq = $2 returning run_id
    ), gone as (
        delete from perdure_journal where run_id in (select run_id from head) and not seq = any($6::bigint[])
    ), entries as (
        insert into perdure_journal (run_id, seq, at, checksum, events)
        select h.run_id, e.* from head h, unnest($6::bigint[], $7::float8[], $8::bigint[], $9::text[])
            as e (seq, at, checksum, events)
        on conflict (run_id, seq) do update set at = excluded.at, checksum = excluded.checksum, events = excluded.events
    ), forgotten as (
        delete from perdure_blob_uses where run_id in (select run_id from head) and blob_id <> all($12::text[])
    ), noted as (
        insert into perdure_blob_uses (blob_id, run_id) select u.blob_id, h.run_id
        from head h, unnest($12::text[]) as u (blob_id) on conflict do nothing
    )
    select run_id, pg_notify($10, $11) from head
"""


class _Waiting(msgspec.Struct, eq=False):
    """Appends of one caller that wait for their turn."""

    prepared: list[Prepared]
    outcomes: asyncio.Future[Sequence[Outcome]]

    def resolve(self, outcomes: Sequence[Outcome]) -> None:
        if not self.outcomes.done():
            self.outcomes.set_result(outcomes)

    def fail(self, error: Exception) -> None:
        if not self.outcomes.done():
            self.outcomes.set_exception(error)


class PostgresJournal:
    """Journals in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Appends that came while a commit was under way; the next commit writes them together.
        self._waiting: list[_Waiting] = []
        self._busy = False
        self._next: asyncio.Task[None] | None = None

    def append(self, appends: Sequence[Append]) -> Awaitable[Sequence[Outcome]]:
        """Write each append wholly or not at all, in one commit."""
        prepared = [prepare(append) for append in appends]
        if len(prepared) == 1 and not self._busy and (quick := self._quickly(prepared[0])) is not None:
            return quick
        return self._append(prepared)

    def _quickly(self, one: Prepared) -> PendingOutcomes | None:
        """Send the commonest kind of append before this returns; None for any other kind, or if it cannot be sent now.

        A sequence of steps waits for each of these, so it costs no task and as few turns of the loop as possible.
        """
        writer = self._database.writer
        if writer is None or not one.single or self._database.notifications.for_appends((one.append,)):
            return None
        answer = PendingOutcomes()

        def answered(rows: list[Row] | Exception) -> None:
            if isinstance(rows, list) and rows:
                self._pass_on()
                answer.resolve((APPENDED,))
                return
            # Refused, or unknown: the slow path finds out.
            lost = isinstance(rows, Exception) and is_lost(rows)
            if lost:
                writer.drop()
            self._next = asyncio.get_running_loop().create_task(self._at_leisure(one, lost, answer))

        sql, arguments = step_statement(one, one.append.fsync)
        self._busy = writer.write_soon(self._database.fill(sql), arguments, answered)
        return answer if self._busy else None

    async def _at_leisure(self, one: Prepared, uncertain: bool, answer: PendingOutcomes) -> None:
        try:
            said: Sequence[Outcome] | Exception = await self._outcomes_of([one], uncertain)
        except asyncio.CancelledError:
            said = StoreUnavailable(self._database.url, "the write was cancelled")
        except Exception as error:
            said = error
        self._pass_on()
        answer.resolve(said)

    async def _append(self, prepared: list[Prepared]) -> Sequence[Outcome]:
        if not prepared:
            return []
        if self._busy:
            waiting = _Waiting(prepared, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            return await waiting.outcomes
        self._busy = True
        try:
            return await self._outcomes_of(prepared)
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """The commit is over: begin the next one, if appends wait for it."""
        group: list[_Waiting] = []
        left: list[_Waiting] = []
        journals: set[str] = set()
        for waiting in self._waiting:
            if waiting.outcomes.done():
                continue  # its caller was cancelled, and nothing was sent
            wanted = {one.append.run_id for one in waiting.prepared}
            # Appends to one journal follow each other.
            (left if journals & wanted or len(journals) >= MOST else group).append(waiting)
            journals |= wanted
        self._waiting, self._busy = left, bool(group)
        if group:
            self._next = asyncio.get_running_loop().create_task(self._together(group))

    async def _together(self, group: list[_Waiting]) -> None:
        try:
            outcomes = iter(await self._outcomes_of([one for waiting in group for one in waiting.prepared]))
            for waiting in group:
                waiting.resolve([next(outcomes) for _ in waiting.prepared])
        except StoreUnavailable as error:
            for waiting in group:
                waiting.fail(error)
        except Exception:
            # One append cannot be written; it must not fail the others.
            for waiting in group:
                try:
                    waiting.resolve(await self._outcomes_of(waiting.prepared))
                except Exception as error:
                    waiting.fail(error)
        finally:
            for waiting in group:
                waiting.outcomes.cancel()  # no effect on those that are set
            self._pass_on()

    async def _outcomes_of(self, prepared: list[Prepared], uncertain: bool = False) -> list[Outcome]:
        """Write over as many connections as it takes. Once a try may have been written, find out whether it was."""
        notice = self._database.notifications.for_appends([one.append for one in prepared])
        config = self._database.config
        pause, collisions = config.first_pause, 0
        while True:
            try:
                async with self._database.writing() as connection:
                    outcomes = await self._write(connection, prepared, notice)
                    if uncertain:
                        await self._recognise(connection, prepared, outcomes)
                if notice:
                    self._database.notifications.changed()
                return [outcomes[i] for i in range(len(prepared))]
            except Lost as error:
                uncertain, problem = True, translate(error, self._database.url)
            except StoreUnavailable as error:
                # Not connected, so nothing was sent this time.
                problem = error
            except Exception as error:
                if not is_driver_error(error):
                    raise
                if is_collision(error) and collisions < config.collisions:
                    collisions += 1
                    continue
                problem = translate(error, self._database.url)
                if uncertain and not await self._landed(prepared):
                    raise problem from error
            if not uncertain:
                raise problem
            if self._database.closed:
                raise StoreUnavailable(
                    self._database.url, "the connection ended before the server said whether the last write took effect"
                ) from problem
            await asyncio.sleep(pause)
            pause = min(pause * 2, config.longest_pause)

    async def _write(self, connection: Connection, prepared: list[Prepared], notice: str) -> Outcomes:
        simple = len({one.append.run_id for one in prepared}) == len(prepared) and not any(
            one.admit is not None or one.starts for one in prepared
        )
        places = dict(enumerate(prepared))
        fsync = any(one.append.fsync for one in prepared)
        if simple:
            try:
                return await self._send(connection, places, fsync, notice)
            except Exception as error:
                if not is_taken(error):
                    raise
        return await self._database.transact(connection, lambda c: self._one_by_one(c, prepared, fsync, notice))

    async def _send(self, connection: Connection, places: dict[int, Prepared], fsync: bool, notice: str) -> Outcomes:
        """Write appends to different journals in one statement; read the heads of those that are refused."""
        sql, arguments = statement(list(places.values()), fsync, self._database.channel, notice)
        rows = await connection.write(self._database.fill(sql), *arguments)
        if len(rows) == len(places):
            return dict.fromkeys(places, APPENDED)
        written = {row[0] for row in rows}
        outcomes: Outcomes = {i: APPENDED for i, one in places.items() if one.append.run_id in written}
        refused = {i: one for i, one in places.items() if i not in outcomes}
        again: dict[int, Prepared] = {}
        heads = await self._heads(connection, [one.append.run_id for one in refused.values()]) if refused else {}
        for i, one in refused.items():
            next_seq, expected = heads.get(one.append.run_id, 0), one.append.expected_next
            if next_seq == expected > 0:
                again[i] = one  # the journal has reached that number between the two statements
            else:
                # The number is right and it was refused: another run has its id.
                outcomes[i] = Conflict(None if next_seq == expected else next_seq)
        return outcomes | await self._send(connection, again, fsync, notice) if again else outcomes

    async def _heads(self, connection: Connection, run_ids: list[str]) -> dict[str, int]:
        rows = await connection.fetch(self._database.fill(_HEADS), run_ids)
        return dict(rows)

    # --- what one statement cannot do -----------------------------------------------------------------------------

    async def _one_by_one(self, connection: Connection, prepared: list[Prepared], fsync: bool, notice: str) -> Outcomes:
        """Write appends that depend on each other, or on queue limits, in one transaction.

        They are written in groups of one statement each, with at most one append for each journal.
        """
        outcomes: Outcomes = {}
        waiting = dict(enumerate(prepared))
        if any(one.admit is not None for one in prepared):
            await lock_queues(connection, self._database.address, prepared)
        while waiting:
            group: dict[int, Prepared] = {}
            journals: set[str] = set()
            for i, one in waiting.items():
                # The second append to a journal waits for the first.
                if one.append.run_id not in journals:
                    group[i] = one
                journals.add(one.append.run_id)
            for i in group:
                del waiting[i]
            await self._one_group(connection, group, outcomes, fsync, notice)
        return outcomes

    async def _one_group(
        self, connection: Connection, group: dict[int, Prepared], outcomes: Outcomes, fsync: bool, notice: str
    ) -> None:
        admitted = [one for one in group.values() if one.admit is not None and one.append.row is not None]
        if admitted:
            # Check conflicts before limits: a stale append must not take a place in the queue.
            heads = await self._heads(connection, [one.append.run_id for one in admitted])
            current = [one for one in admitted if heads.get(one.append.run_id, 0) == one.append.expected_next]
            full = await admit(connection, self._database.fill, current)
            for i, one in list(group.items()):
                if one.append.run_id in full:
                    outcomes[i] = full[one.append.run_id]
                    del group[i]
        if group:
            outcomes |= await self._saved(connection, group, fsync, notice)
        starts = [start for i, one in group.items() if outcomes[i] is APPENDED for start in one.starts]
        if starts:
            # Runs that exist were started before, and stay as they are.
            await self._one_by_one(connection, starts, fsync, notice)

    async def _saved(self, connection: Connection, group: dict[int, Prepared], fsync: bool, notice: str) -> Outcomes:
        """Write a group; if a row of one append exists already, write them one by one."""
        await connection.script("savepoint perdure")
        try:
            return await self._send(connection, group, fsync, notice)
        except Exception as error:
            if not is_taken(error):
                raise
            await connection.script("rollback to savepoint perdure")
            if len(group) == 1:
                return dict.fromkeys(group, Conflict(None))
            found: Outcomes = {}
            for i, one in group.items():
                found |= await self._saved(connection, {i: one}, fsync, notice)
            return found

    # --- lost replies ---------------------------------------------------------------------------------------------

    async def _recognise(self, connection: Connection, prepared: list[Prepared], outcomes: Outcomes) -> None:
        """Correct conflicts with our own earlier try, whose reply was lost: those appends were written."""
        refused = {i: prepared[i] for i, outcome in outcomes.items() if isinstance(outcome, Conflict)}
        if not refused:
            return
        wanted = by_column(((one.events[-1][0], one.events[-1][1]) for one in refused.values()), 2)
        rows = await connection.fetch(self._database.fill(_ENTRIES), *wanted)
        there = {(run_id, seq): (check, events) for run_id, seq, check, events in rows}
        for i, one in refused.items():
            run_id, seq, _, check, events = one.events[-1]
            # The checksum covers the time of the entry as well.
            if there.get((run_id, seq)) == (check, events):
                outcomes[i] = APPENDED

    async def _landed(self, prepared: list[Prepared]) -> bool:
        """Whether an earlier try was written, now that the server refuses this one."""
        wanted = by_column(((one.events[-1][0], one.events[-1][1]) for one in prepared), 2)
        rows = await self._database.query(_ENTRIES, *wanted)
        ours = {(one.events[-1][0], *one.events[-1][1:2], *one.events[-1][3:]) for one in prepared}
        return any(tuple(row) in ours for row in rows)

    # --- the rest -------------------------------------------------------------------------------------------------

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal by these batches."""
        one = prepare(Append(run_id, expected_next, batches))
        entries = by_column((entry[1:] for entry in one.events), 4)
        database = self._database
        more = (database.channel, database.notifications.for_work(), [blob for blob, _ in one.uses])
        rows, again = await database.query_reporting(
            _REWRITE, run_id, expected_next, one.next_seq, one.at, one.size, *entries, *more
        )
        if rows:
            database.notifications.changed()
            return APPENDED
        head = await self.head(run_id)
        if again and head == Head(one.next_seq, one.at, one.size):
            return APPENDED  # by the try whose reply was lost
        return Conflict(head.next_seq if head is not None else 0)

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them."""
        rows = await self._database.query(_READ, run_id, start, limit)
        entries = ((*row[:3], row[3].encode(), row[4]) for row in rows)
        return cut(batches(run_id, entries, start, limit is None), start, limit)

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals; a damaged journal is returned as its error."""
        rows = await self._database.query(_READ_MANY, list(run_ids)) if run_ids else []
        return journals((*row[:4], row[4].encode(), row[5]) for row in rows)

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        self._database.notifications.follow(run_ids)
        rows = await self._database.query(_HEADS, list(run_ids))
        return dict(rows)

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal."""
        rows = await self._database.query(_HEAD, run_id)
        return Head(*rows[0]) if rows else None
