"""Watch leases that end, for a backend that notifies: they are released, or not renewed in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class LeaseEnds:
    """The ends of leases, as this process is notified of them.

    A lease counts as ended `late` seconds after its expiry: a heartbeat may be under way.
    """

    def __init__(self, late: float = 0.2) -> None:
        self._late = late
        self._watchers: dict[asyncio.Queue[str | Exception], str] = {}
        # When the leases end whose heartbeats have arrived, by the clock of the loop.
        self._ends: dict[str, float] = {}

    def heartbeat(self, key: str, seconds: float) -> None:
        """A lease was renewed, and lasts for so many seconds from now."""
        if key not in self._ends:
            for watcher in self._watchers:
                watcher.put_nowait("")  # it has one more lease to wait for
        self._ends[key] = asyncio.get_running_loop().time() + seconds + self._late

    def notify(self, key: str) -> None:
        """A lease was released, or may have ended."""
        self._ends.pop(key, None)
        for watcher, prefix in self._watchers.items():
            if key.startswith(prefix):
                watcher.put_nowait(key)

    def fail(self, error: Exception) -> None:
        """No notification arrives any more: the watchers raise this."""
        for watcher in self._watchers:
            watcher.put_nowait(error)

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease was released, or not renewed in time."""
        watcher: asyncio.Queue[str | Exception] = asyncio.Queue()
        self._watchers[watcher] = prefix
        try:
            while True:
                ends = {key: at for key, at in self._ends.items() if key.startswith(prefix)}
                first = min(ends, key=ends.__getitem__, default="")
                try:
                    async with asyncio.timeout_at(ends.get(first)):
                        key = await watcher.get()
                except TimeoutError:
                    # A heartbeat may have arrived since.
                    if self._ends.get(first, 0.0) > asyncio.get_running_loop().time():
                        continue
                    self._ends.pop(first, None)
                    key = first
                if isinstance(key, Exception):
                    raise key
                if key:
                    yield key
        finally:
            del self._watchers[watcher]
