"""Whether the limits of a queue admit a run: counted in the transaction that begins it, under a lock on the queue.

The end of a run takes no lock: it only makes more room than was counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Full
from perdure.stores.postgres.address import Address
from perdure.stores.postgres.appends import Prepared
from perdure.stores.postgres.connection import Connection

_LOCK = "select pg_advisory_xact_lock(key) from unnest($1::bigint[]) as key"
# Counting stops at the limit: beyond it the number does not matter.
_RUNNING = """
    select w.queue, (
        select count(*) from (
            select 1 from perdure_runs r
            where r.queue = w.queue and r.began_at is not null and r.finished_at is null limit w.most) counted)
    from unnest($1::text[], $2::bigint[]) as w (queue, most)
"""
_RUNNING_OF_KEY = """
    select w.queue, w.queue_key, (
        select count(*) from (
            select 1 from perdure_runs r
            where r.queue = w.queue and r.queue_key = w.queue_key and r.began_at is not null and r.finished_at is null
            limit w.most) counted)
    from unnest($1::text[], $2::text[], $3::bigint[]) as w (queue, queue_key, most)
"""
# Starts on either side of a moment: a clock may have been set back, and no window holds more than is allowed.
_STARTS = """
    select w.queue, r.began_at from unnest($1::text[], $2::float8[], $3::float8[]) as w (queue, first, last)
    join perdure_runs r on r.queue = w.queue and r.began_at is not null and r.began_at > w.first and r.began_at < w.last
"""


async def lock_queues(connection: Connection, address: Address, prepared: Sequence[Prepared]) -> None:
    """Lock these queues until the transaction ends: until then no other process begins their runs."""
    place = f"{address.schema} {address.names.prefix}"
    keys = {_key(f"{place} {one.admit.name}") for one in prepared if one.admit is not None}
    # In sorted order, so that two transactions that need the same queues do not deadlock.
    await connection.fetch(_LOCK, sorted(keys))


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


async def admit(connection: Connection, fill: Callable[[str], str], prepared: Sequence[Prepared]) -> dict[str, Full]:
    """Those of these appends that may not be written now, by run_id. Each that may counts for those after it."""
    claims = [(one.admit, one.append.row) for one in prepared]
    begins = [(queue, row) for queue, row in claims if queue is not None and row is not None]
    if not begins:
        return {}
    count = await _count(connection, fill, begins)
    return {row.run_id: full for queue, row in begins if (full := count.admit(queue, row)) is not None}


class _Count:
    """The runs under way, and when runs began."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.of_key: dict[tuple[str, str], int] = {}
        self.starts: dict[str, list[float]] = {}

    def admit(self, queue: Queue, row: RunRow) -> Full | None:
        """Count a run that begins, or return why it may not."""
        key = (row.queue, row.queue_key)
        if queue.concurrency is not None and self.running.get(row.queue, 0) >= queue.concurrency:
            return Full()
        if queue.per_key is not None and self.of_key.get(key, 0) >= queue.per_key:
            return Full()
        if queue.rate is not None and row.began_at is not None:
            per = queue.rate.seconds
            starts = self.starts.setdefault(row.queue, [])
            around = sorted((at for at in starts if row.began_at - per < at < row.began_at + per), reverse=True)
            if len(around) >= queue.rate.count:
                return Full(around[queue.rate.count - 1] + per)
            starts.append(row.began_at)
        self.running[row.queue] = self.running.get(row.queue, 0) + 1
        self.of_key[key] = self.of_key.get(key, 0) + 1
        return None


async def _count(connection: Connection, fill: Callable[[str], str], begins: Sequence[tuple[Queue, RunRow]]) -> _Count:
    count = _Count()
    most = {row.queue: queue.concurrency for queue, row in begins if queue.concurrency is not None}
    if most:
        for name, running in await connection.fetch(fill(_RUNNING), list(most), list(most.values())):
            count.running[name] = running
    keys = {(row.queue, row.queue_key): queue.per_key for queue, row in begins if queue.per_key is not None}
    if keys:
        names, of = [name for name, _ in keys], [key for _, key in keys]
        for name, key, running in await connection.fetch(fill(_RUNNING_OF_KEY), names, of, list(keys.values())):
            count.of_key[name, key] = running
    windows: dict[str, tuple[float, float]] = {}
    for queue, row in begins:
        if queue.rate is not None and row.began_at is not None:
            per = queue.rate.seconds
            first, last = windows.get(row.queue, (row.began_at, row.began_at))
            windows[row.queue] = min(first, row.began_at - per), max(last, row.began_at + per)
    if windows:
        bounds = [bound[0] for bound in windows.values()], [bound[1] for bound in windows.values()]
        for name, at in await connection.fetch(fill(_STARTS), list(windows), *bounds):
            count.starts.setdefault(name, []).append(at)
    return count
