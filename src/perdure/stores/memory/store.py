"""A store in memory. Keeps encoded events, as a disk would, so that no object is shared with the writer."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from operator import itemgetter

import msgspec

from perdure.errors import Corrupt, NotOwner
from perdure.kernel.events import Batch, RunStarted, RunStatus, decode_events, encode_events
from perdure.kernel.policies.durability import Durability
from perdure.kernel.projection import RunRow
from perdure.kernel.values.limits import blob_id
from perdure.ports.blobs import verified
from perdure.ports.journal import Append, Appended, Conflict, Head, Outcome
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.ports.runs import RunFilter, Span, Tally, takes, tallies, without_values
from perdure.ports.store import Survives
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.lease_ends import LeaseEnds
from perdure.stores.memory.queues import MemoryQueues
from perdure.stores.memory.upkeep import MemoryUpkeep


class MemoryStore:
    """All ports over dictionaries."""

    url = "memory://"
    survives: Survives = "nothing"

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.runs = MemoryRuns(self.journal)
        self.timers = MemoryTimers(self.journal)
        self.queues = self.journal.queues
        self.leases = MemoryLeases()
        self.blobs = MemoryBlobs()
        self.upkeep = MemoryUpkeep(self.journal, self.blobs)

    async def open(self, *, migrate: bool) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Everything stays for as long as the store object does."""

    def check_durability(self, durability: Durability) -> None:
        """Accept every durability: a user of this store knows that it is gone with the process."""

    def version(self) -> object:
        """Changes with every append, and when a lease changes hands."""
        return self.journal.commits, self.leases.changes

    def trace(self, callback: Callable[[str], None] | None) -> None:
        """Report each call that reads or writes."""
        self.journal.callback = callback


class MemoryJournal:
    """Journals, heads and the rows they imply."""

    def __init__(self) -> None:
        self.batches: dict[str, list[tuple[int, float, bytes]]] = {}
        self.head_of: dict[str, Head] = {}
        self.rows: dict[str, RunRow] = {}
        self.latest: dict[str, str] = {}
        self.children: dict[str, str] = {}
        self.queues = MemoryQueues()
        self.commits = 0
        self.callback: Callable[[str], None] | None = None

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        """Write each append wholly or not at all."""
        self.count("append")
        return [self._append(append) for append in appends]

    def _append(self, append: Append) -> Outcome:
        head = self.head_of.get(append.run_id)
        if (head.next_seq if head else 0) != append.expected_next:
            return Conflict(head.next_seq if head else 0)
        row = append.row
        if append.expected_next == 0 and row is not None:
            latest = self.latest.get(row.id)
            if latest is not None and self.rows[latest].incarnation >= row.incarnation:
                return Conflict(None)
        if append.admit is not None and row is not None:
            full = self.queues.refusal(append.admit, row)
            if full is not None:
                return full
        encoded = [(batch.seq, batch.at, encode_events(batch.events)) for batch in append.batches]
        self.batches.setdefault(append.run_id, []).extend(encoded)
        size = sum(len(data) for _, _, data in encoded) + (head.size if head else 0)
        self.head_of[append.run_id] = Head(append.next_seq, append.batches[-1].at, size)
        for one in (*([row] if row is not None else ()), *append.children):
            self.put_row(one)
        for start in append.starts:
            self._append(start)  # a run that exists was started before: skip it
        self.commits += 1
        return Appended()

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal by these batches."""
        head = self.head_of.get(run_id)
        if head is None or head.next_seq != expected_next:
            return Conflict(head.next_seq if head else 0)
        encoded = [(batch.seq, batch.at, encode_events(batch.events)) for batch in batches]
        self.batches[run_id] = encoded
        next_seq = batches[-1].seq + len(batches[-1].events)
        self.head_of[run_id] = Head(next_seq, batches[-1].at, sum(len(data) for _, _, data in encoded))
        self.commits += 1
        return Appended()

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them."""
        self.count("read")
        result: list[Batch] = []
        left = limit
        batches = self.batches.get(run_id, [])
        for seq, at, data in islice(batches, max(0, bisect(batches, start, key=itemgetter(0)) - 1), None):
            if left is not None and left <= 0:
                break
            events = decode_events(data)
            wanted = events[max(0, start - seq) :][:left]
            if wanted:
                result.append(Batch(max(seq, start), at, wanted))
            if left is not None:
                left -= len(wanted)
        return result

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals."""
        return {run_id: await self.read(run_id) for run_id in run_ids if run_id in self.head_of}

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        return {run_id: self.head_of[run_id].next_seq for run_id in run_ids if run_id in self.head_of}

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal."""
        return self.head_of.get(run_id)

    def put_row(self, row: RunRow) -> None:
        """Set the row of a run."""
        self.rows[row.run_id] = row
        if row.root:
            self.children[row.id] = row.run_id
            return
        latest = self.rows.get(self.latest.get(row.id, ""))
        if latest is None or latest.incarnation <= row.incarnation:
            self.latest[row.id] = row.run_id
        if row.queue:
            self.queues.put(row)

    def forget_row(self, row: RunRow) -> None:
        """The row of a run is gone."""
        named = self.children if row.root else self.latest
        if named.get(row.id) == row.run_id:
            del named[row.id]
        if row.queue:
            self.queues.remove(row)
        del self.rows[row.run_id]

    def count(self, what: str) -> None:
        """Report a call to the tracer."""
        if self.callback is not None:
            self.callback(what)


class MemoryRuns:
    """The rows of runs."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        return self._journal.rows.get(run_id)

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        run_id = self._journal.latest.get(id) or self._journal.children.get(id)
        return self._with_head(self._journal.rows[run_id]) if run_id is not None else None

    def _with_head(self, row: RunRow) -> tuple[RunRow, Head]:
        return row, self._journal.head_of[row.root or row.run_id]

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """Runs that match, newest first."""
        self._journal.count("list")
        newest_first = sorted(self._journal.rows.values(), key=lambda row: row.run_id, reverse=True)
        found = [(row, head) for row, head in map(self._with_head, newest_first) if filter.fits(row, head)]
        return [(row if filter.values else without_values(row), head) for row, head in found[: filter.limit]]

    async def nth(self, count: int, cursor: str | None = None) -> str | None:
        """The run_id of the newest run but `count`, before the cursor."""
        before = sorted((run_id for run_id in self._journal.rows if cursor is None or run_id < cursor), reverse=True)
        return before[count] if count < len(before) else None

    async def counts(self, bound: int) -> Sequence[Tally]:
        """How many runs there are, by program and status."""
        return tallies(((row.program, row.status, 0) for row in self._journal.rows.values()), bound)

    async def count_ended(self, span: Span, program: str | None, bound: int) -> Sequence[Tally]:
        """How many runs ended in each bucket of a time."""
        rows = [row for row in self._journal.rows.values() if program in (None, row.program)]
        return tallies(((row.program, row.status, span.bucket(row.finished_at)) for row in rows), bound)

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and queues in this status, oldest first."""
        rows = [r for r in self._journal.rows.values() if r.owner in owners and r.status is status]
        rows = [r for r in rows if takes(programs, r.program, r.version) and (queues is None or r.queue in queues)]
        return sorted(r.run_id for r in rows)[:limit]

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        rows = self._journal.rows.values()
        return sorted({row.owner for row in rows if row.owner is not None and row.finished_at is None})

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""
        return sorted({row.program for row in self._journal.rows.values() if row.finished_at is None})

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those of `run_ids` that have ended or are parked."""
        rows = [self._journal.rows[run_id] for run_id in run_ids if run_id in self._journal.rows]
        return [row for row in rows if row.finished_at is not None or row.status is RunStatus.PARKED]


class MemoryTimers:
    """Due runs."""

    def __init__(self, journal: MemoryJournal) -> None:
        self._journal = journal
        # By run_id, once they have been read: the deadline of a run never changes.
        self._deadlines: dict[str, float | None] = {}

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs and queues due at `now`, earliest first."""
        self._journal.count("due")
        return [due for due in self._all(programs, skip, queues) if due.wake_at <= now][:limit]

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The next due moment, and the queues with queued runs."""
        self._journal.count("ahead")
        next_due = next((due.wake_at for due in self._all(programs, skip, queues)), None)
        return Ahead(next_due, await self._journal.queues.waiting(queues))

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs whose deadline has passed, and the next deadline."""
        self._journal.count("late")
        rows = [r for r in self._journal.rows.values() if r.wake_at is not None and r.program in programs]
        known = {run_id: at for run_id, at in self._deadlines.items() if run_id in self._journal.rows}
        self._deadlines = known | {r.run_id: self._deadline(r.run_id) for r in rows if r.run_id not in known}
        found = [(at, r) for r in rows if (at := self._deadlines[r.run_id]) is not None]
        late = sorted((at, r.run_id) for at, r in found if at <= now and r.owner not in skip)
        return Late([run_id for _, run_id in late[:limit]], min((at for at, _ in found if at > now), default=None))

    def _deadline(self, run_id: str) -> float | None:
        first = next(iter(self._journal.batches.get(run_id, ())), None)
        event = decode_events(first[2])[0] if first is not None else None
        return event.deadline if isinstance(event, RunStarted) else None

    def _all(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None) -> list[Due]:
        rows = [r for r in self._journal.rows.values() if queues is None or r.queue in queues]
        waiting = [
            Due(row.run_id, row.program, row.owner, row.wake_at, row.status is RunStatus.WAITING)
            for row in rows
            if row.wake_at is not None and row.owner not in skip and takes(programs, row.program, row.version)
        ]
        return sorted(waiting, key=lambda due: (due.wake_at, due.run_id))


class MemoryLeases:
    """Leases that expire by time."""

    def __init__(self, leases: dict[str, Lease] | None = None) -> None:
        self._leases = {} if leases is None else leases
        self._ends = LeaseEnds()
        self.changes = 0

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        held = self._leases.get(key)
        if held is not None and held.owner not in ("", owner) and held.expires > now:
            return HeldBy(held.owner, held.expires)
        self.changes += 1
        epoch = 1 if held is None else held.epoch + (held.owner != owner)
        self._leases[key] = Lease(key, owner, epoch, now + ttl)
        return Acquired(owner, epoch, now + ttl)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew many leases in one call."""
        lost = []
        for renewal in renewals:
            held = self._leases.get(renewal.key)
            if held is None or held.owner != renewal.owner:
                lost.append(renewal.key)
            else:
                self._leases[renewal.key] = msgspec.structs.replace(held, expires=now + renewal.ttl)
        return lost

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        self.changes += 1
        # Without an owner, not gone: the next holder's epoch must be higher.
        self._leases[key] = msgspec.structs.replace(self._own(key, owner), owner="")
        self._ends.notify(key)

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        keys = [key for key, lease in self._leases.items() if lease.owner == owner]
        for key in keys:
            await self.release(key, owner)
        return len(keys)

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        lease = self._leases.get(key)
        return lease if lease is not None and lease.owner and lease.expires > now else None

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        held = (lease for lease in self._leases.values() if lease.owner and lease.expires > now)
        return [lease for lease in held if lease.key.startswith(prefix)]

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease was released."""
        return self._ends.watch(prefix)

    def _own(self, key: str, owner: str) -> Lease:
        held = self._leases.get(key)
        if held is None or held.owner != owner:
            raise NotOwner(key, owner, held.owner or None if held else None)
        return held


class MemoryBlobs:
    """Immutable bytes."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.put_at: dict[str, float] = {}

    async def put(self, data: bytes) -> str:
        """Store the bytes and return their id."""
        id = blob_id(data)
        self.blobs[id] = bytes(data)
        self.put_at[id] = time.time()
        return id

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        return verified(blob_id_, self.blobs.get(blob_id_))
