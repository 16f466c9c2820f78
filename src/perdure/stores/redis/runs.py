"""Reading runs and due runs in Redis. Writes nothing: rows change only with the journal."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.queues import Waiting
from perdure.ports.runs import RunFilter, Span, Tally, tallies, without_values
from perdure.ports.timers import Ahead, Due, Late
from perdure.stores.redis.notifications import Notifications
from perdure.stores.redis.rows import head_of, listed, unpack, unpack_or_damage
from perdure.stores.redis.scripts import AHEAD, DUE, FIND, FINISHED, LATE, OWNED, PAGE, TALLY
from perdure.stores.redis.server import Server

# How many rows one script reads.
PAGE_SIZE = 200
# How many rows one script counts.
TALLIED = 1000
ALL = [f"by:{status.value}" for status in RunStatus]
ENDED = [status for status in RunStatus if status.finished]


class RedisRuns:
    """The rows of runs on one server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def _key(self, name: str) -> str:
        return self._server.address.prefix + name

    async def get(self, run_id: str) -> RunRow | None:
        """One run, or None."""
        text = await self._server.query("GET", self._key(f"row:{run_id}"))
        return unpack(run_id, text) if text is not None else None

    async def find(self, id: str) -> tuple[RunRow, Head] | None:
        """The latest incarnation under a caller's id, or None."""
        found = await self._server.call(FIND, id)
        if found is None or found[1] is None:
            return None
        row = unpack(found[0].decode(), found[1])
        head = head_of(found[2])
        if head is None:
            raise Corrupt(f"the journal of run {row.id!r}", "its head is missing", run_id=row.run_id)
        return row, head

    async def list(self, filter: RunFilter) -> Sequence[tuple[RunRow, Head]]:
        """Runs that match, newest first."""
        keys = ["asking"] if filter.asking else [f"by:{status.value}" for status in dict.fromkeys(filter.status)] or ALL
        found: list[tuple[RunRow, Head]] = []
        cursor = filter.cursor
        if filter.root is not None:
            # The run_ids of a tree begin with the root's run_id and '/'; '0' is the character after '/'.
            beyond = filter.root + "0"
            cursor = beyond if cursor is None else min(cursor, beyond)
        while len(found) < filter.limit:
            size = min(PAGE_SIZE, max(25, filter.limit - len(found)))
            page = await self._server.call(PAGE, (keys, cursor, size, True))
            rows = (listed(run_id.decode(), text, head) for run_id, text, head in page)
            fitting = ((row, head) for row, head in rows if filter.fits(row, head))
            found += [(row if filter.values else without_values(row), head) for row, head in fitting]
            if len(page) < size:
                break
            cursor = page[-1][0].decode()
            if cursor < max(filter.root or "", filter.floor):
                break
        return found[: filter.limit]

    async def nth(self, count: int, cursor: str | None = None) -> str | None:
        """The run_id of the newest run but `count`, before the cursor."""
        run_ids: list[bytes] = []
        before = "+" if cursor is None else f"({cursor}"
        for key in ALL:
            limit = ("LIMIT", "0", str(count + 1))
            found = await self._server.query("ZREVRANGEBYLEX", self._key(key), before, "-", *limit)
            run_ids = heapq.nlargest(count + 1, [*run_ids, *found])
        return run_ids[count].decode() if count < len(run_ids) else None

    async def counts(self, bound: int) -> Sequence[Tally]:
        """How many runs there are, by program and status."""
        return await self._tallies([*RunStatus], None, None, bound)

    async def count_ended(self, span: Span, program: str | None, bound: int) -> Sequence[Tally]:
        """How many runs ended in each bucket of a time."""
        return await self._tallies(ENDED, span, program, bound)

    async def _tallies(
        self, statuses: Sequence[RunStatus], span: Span | None, program: str | None, bound: int
    ) -> Sequence[Tally]:
        """Counts, the newest runs first: no index has them, so that all the runs of a status are gone through."""
        rows: list[tuple[str, RunStatus, int | None]] = []
        for status in statuses:
            cursor: bytes | None = None
            for _ in range(0, bound + 1, TALLIED):
                answer = await self._server.call(TALLY, (f"by:{status.value}", cursor, TALLIED))
                for name, finished in answer[1]:
                    bucket = 0 if span is None else span.bucket(float(finished) if finished else None)
                    if program in (None, name.decode()):
                        rows.append((name.decode(), status, bucket))
                cursor = answer[0]
                if cursor is None:
                    break
        return tallies(rows, bound)

    async def owned(
        self,
        owners: Sequence[str],
        status: RunStatus,
        programs: Sequence[str],
        limit: int,
        queues: Sequence[str] | None = None,
    ) -> Sequence[str]:
        """Ids of runs of these owners, programs and queues in this status, oldest first."""
        if limit <= 0:
            return []
        found = await self._server.call(OWNED, (owners, status.value, programs, limit, queues))
        return [run_id.decode() for run_id in heapq.nsmallest(limit, found)]

    async def owners(self) -> Sequence[str]:
        """Every orchestrator that owns a run which is not finished."""
        fields = await self._server.query("HKEYS", self._key("loads"))
        return sorted({owner.decode() for _, owner in (field.split(b"\0", 1) for field in fields) if owner})

    async def programs(self) -> Sequence[str]:
        """The names of the programs of all runs that are not finished."""
        return sorted(name.decode() for name in await self._server.query("HKEYS", self._key("programs")))

    async def finished(self, run_ids: Sequence[str]) -> Sequence[RunRow | Corrupt]:
        """Those `run_ids` that have ended or are parked; a damaged row is returned as its error."""
        if not run_ids:
            return []
        found = await self._server.call(FINISHED, list(run_ids))
        return [unpack_or_damage(run_id.decode(), text) for run_id, text in found]


class RedisTimers:
    """Due runs on one server."""

    def __init__(self, server: Server, notifications: Notifications) -> None:
        self._server, self._notifications = server, notifications

    async def due(
        self,
        now: float,
        limit: int,
        programs: Sequence[str],
        skip: Sequence[str],
        queues: Sequence[str] | None = None,
    ) -> Sequence[Due]:
        """Runs of these programs and queues due at `now`, earliest first."""
        if limit <= 0:
            return []
        found = await self._server.call(DUE, (repr(now), limit, programs, skip, queues))
        due = [_due(*columns) for columns in found]
        return heapq.nsmallest(limit, due, key=lambda one: (one.wake_at, one.run_id))

    async def ahead(self, programs: Sequence[str], skip: Sequence[str], queues: Sequence[str] | None = None) -> Ahead:
        """The next due moment, and the queues with queued runs."""
        commits, first, waiting = await self._server.call(AHEAD, (programs, skip, queues))
        self._notifications.committed(commits)
        return Ahead(None if first is None else float(first), waits(waiting))

    async def late(self, now: float, limit: int, programs: Sequence[str], skip: Sequence[str]) -> Late:
        """Runs of these programs whose deadline has passed, and the next deadline."""
        found, first = await self._server.call(LATE, (repr(now), limit, programs, skip))
        late = heapq.nsmallest(limit, ((float(at), run_id.decode()) for at, run_id in found))
        return Late([run_id for _, run_id in late], None if first is None else float(first))


def waits(found: Sequence[Any]) -> list[Waiting]:
    """Queues with queued runs, by name."""
    return sorted((Waiting(name.decode(), float(first)) for name, first in found), key=lambda one: one.queue)


def _due(run_id: bytes, program: bytes, owner: bytes, at: bytes, waiting: bytes) -> Due:
    return Due(run_id.decode(), program.decode(), owner.decode() or None, float(at), waiting == b"w")
