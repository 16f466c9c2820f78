"""Upkeep in Redis. Everything is done in small parts, so that no script blocks the server for long."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.upkeep import Collected, Ended, Load
from perdure.stores.redis.notifications import Notifications
from perdure.stores.redis.rows import head_of, pack, unpack_or_damage
from perdure.stores.redis.scripts import COLLECT, KEEP_BLOB, PAGE, REMOVE, REPROJECT
from perdure.stores.redis.server import Server, Texts

PAGE_SIZE = 200


class RedisUpkeep:
    """The upkeep of one store."""

    def __init__(self, server: Server, notifications: Notifications) -> None:
        self._server, self._notifications = server, notifications

    async def loads(self) -> Sequence[Load]:
        """How many unfinished root runs each owner has, by name; None comes first."""
        loads = await self._server.query("HGETALL", f"{self._server.address.prefix}loads")
        counts: dict[str, list[int]] = {}
        for place, count in zip(loads[::2], loads[1::2], strict=True):
            status, _, owner = place.decode().partition("\0")
            counts.setdefault(owner, [0, 0])[status != RunStatus.RUNNING.value] += int(count)
        return [Load(owner or None, *counts[owner]) for owner in sorted(counts)]

    async def list_ended(
        self, before: float, statuses: Sequence[RunStatus], limit: int, after: str = ""
    ) -> Sequence[Ended]:
        """Root runs of these statuses that ended before that moment, by run_id."""
        keys = [f"by:{status.value}" for status in statuses if status.finished]
        found: list[Ended] = []
        while keys and len(found) < limit:
            page = await self._server.call(PAGE, (keys, after, PAGE_SIZE, False))
            for run_id, text, head in page:
                row = unpack_or_damage(run_id.decode(), text)
                if isinstance(row, Corrupt) or row.root or row.finished_at is None or row.finished_at >= before:
                    continue
                known = head_of(head)
                size = known.size if known is not None else 0
                found.append(Ended(row.run_id, row.id, row.program, row.status, row.finished_at, size))
            if len(page) < PAGE_SIZE:
                break
            after = page[-1][0].decode()
        return found[:limit]

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        """Remove runs that have ended, with all that belongs to them, in one script."""
        if not run_ids:
            return []
        commits, gone = await self._server.call(REMOVE, list(run_ids))
        self._notifications.committed(commits)
        return [run_id.decode() for run_id in gone]

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        """Remove blobs that no journal refers to, last put over `age` seconds ago by the server's clock."""
        blobs, size = await self._server.call(COLLECT, (float(age), limit, dry_run))
        return Collected(blobs, size)

    async def keep(self, blob_id: str) -> None:
        """Never collect this blob."""
        await self._server.call(KEEP_BLOB, blob_id)

    async def journals(self, after: str, limit: int) -> Sequence[str]:
        """The run_ids of all journals, in order."""
        key = f"{self._server.address.prefix}journals"
        found = await self._server.query("ZRANGEBYLEX", key, f"({after}", "+", "LIMIT", 0, limit)
        return [run_id.decode() for run_id in found]

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        """Replace the rows of a journal's run and its children."""
        texts = Texts()
        packed = [pack(row, texts) for row in rows]
        commits, done = await self._server.call(REPROJECT, (run_id, expected_next, packed), *texts.all)
        self._notifications.committed(commits)
        return bool(done)
