"""Who waits for which run to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import islice

from perdure.errors import Corrupt, NoSuchRun, PerdureError, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import RunRow
from perdure.ports.store import Store

log = logging.getLogger("perdure")

# How often the store's version is looked at while somebody waits, and how often its rows are read regardless.
WATCH_SECONDS = 0.05
POLL_SECONDS = 5.0
# How often somebody looks whether the runs are still there: they may have ended, and been pruned since.
GONE_SECONDS = 60.0
# How many runs are asked about at a time: thousands of waiters must not keep the loop from the runs they wait for.
BATCH = 500


class Watch:
    """Resolves waiters: at once for runs that end in this process, soon after the commit for those of others."""

    def __init__(
        self,
        store: Store,
        is_local: Callable[[str], bool] = lambda run_id: False,
        unreadable: Mapping[str, Corrupt] | None = None,
        is_coming_back: Callable[[str], bool] = lambda run_id: False,
    ) -> None:
        self._store = store
        self._unreadable = unreadable if unreadable is not None else {}
        self._is_local = is_local
        # Whether a run that was parked goes on here in a moment.
        self._is_coming_back = is_coming_back
        self._waiters: dict[str, set[asyncio.Future[RunRow]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ended(self, run_id: str) -> RunRow:
        """The row of a run that has ended, or is parked; waits for as long as that takes."""
        if run_id in self._unreadable:
            raise self._unreadable[run_id]
        if not self._is_local(run_id):
            for row in await self._store.runs.finished([run_id]):
                if isinstance(row, Corrupt):
                    raise row
                if not self._is_resumed(row):
                    return row
        waiter: asyncio.Future[RunRow] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_id, set()).add(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._poll())
        try:
            return await waiter
        finally:
            waiters = self._waiters.get(run_id)
            if waiters is not None:
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[run_id]

    def resolve(self, row: RunRow | Corrupt) -> None:
        """A run has ended, is parked, or cannot be read any more."""
        for waiter in self._waiters.pop(row.run_id or "", ()):
            if waiter.done():
                continue
            if isinstance(row, Corrupt):
                waiter.set_exception(row)
            else:
                waiter.set_result(row)

    def _is_resumed(self, row: RunRow | Corrupt) -> bool:
        """Whether what the store says of a run is about to be otherwise."""
        parked = not isinstance(row, Corrupt) and row.status is RunStatus.PARKED
        return parked and self._is_coming_back(row.run_id or "")

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        version: object = object()
        polled, sought = 0.0, loop.time()
        # Runs to be asked about, those first that have not been asked about for longest.
        asking: dict[str, None] = {}
        while self._waiters:
            current = self._store.version()
            if current != version or loop.time() - polled > POLL_SECONDS:
                version, polled = current, loop.time()
                asking.update(dict.fromkeys(self._waiters))
            some = []
            for run_id in list(islice(asking, BATCH)):
                del asking[run_id]
                if run_id in self._waiters and not self._is_local(run_id):
                    some.append(run_id)
            if some:
                try:
                    for row in await self._store.runs.finished(some):
                        if not self._is_resumed(row):
                            self.resolve(row)
                except PerdureError as error:
                    log.warning("%s", error)
                except Exception:
                    log.exception("an unexpected error while runs are waited for; they are asked about again")
            if loop.time() - sought > GONE_SECONDS:
                sought = loop.time()
                await self._forget_gone()
            await asyncio.sleep(WATCH_SECONDS)

    async def _forget_gone(self) -> None:
        """Tell those who wait for a run that is not in the store any more."""
        waiting = [run_id for run_id in self._waiters if not self._is_local(run_id)]
        for start in range(0, len(waiting), BATCH):
            # A child lives in the journal of its root, whose run_id its own begins with.
            some = {run_id: run_id.partition("/")[0] for run_id in waiting[start : start + BATCH]}
            try:
                there = await self._store.journal.heads(list(set(some.values())))
            except PerdureError as error:
                log.warning("%s", error)
                return
            for run_id, root in some.items():
                if root not in there:
                    for waiter in self._waiters.pop(run_id, ()):
                        if not waiter.done():
                            waiter.set_exception(NoSuchRun(run_id))

    async def close(self) -> None:
        """Nobody will be told anything any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        closed = UsageError(
            "the engine was left before this run ended; it goes on when an engine opens the store again"
        )
        for waiters in self._waiters.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(closed)
        self._waiters.clear()
