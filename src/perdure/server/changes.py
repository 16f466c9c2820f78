"""Which runs of the store have changed: one watcher for all listeners, which stops when the last of them leaves."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from perdure.client.client import Client
from perdure.engine.change_feed import Subscription, change_feed
from perdure.ports.runs import RunFilter


@dataclass(frozen=True, slots=True)
class ChangesConfig:
    """Durations are in seconds."""

    interval: float = 0.1
    """The shortest time between two queries, while the store changes. With the time that the change feed takes to
    notice a commit, and the pause of a page between two reads, a step's end is on the page within 0.3 s."""
    longest: float = 0.7
    """The longest: the version of some stores does not change with every event of another process."""
    newest: int = 100
    """How many of the newest runs are compared. For older ones, listeners only learn that some may have changed."""
    kept: int = 256
    """How many changes are kept for listeners that reconnect."""


@dataclass(frozen=True, slots=True)
class Change:
    """Runs that have changed, each with its program. `more`: others may have changed, too."""

    id: str
    runs: tuple[tuple[str, str], ...]
    more: bool
    event: str = ""
    """The name of an event that is not about runs, such as `dev`; empty for a change of runs."""


class Changes:
    """The changes of a store. They are numbered from when the first listener came."""

    def __init__(self, client: Client, config: ChangesConfig = ChangesConfig()) -> None:  # noqa: B008 - frozen
        self._client, self._config = client, config
        self._listeners = 0
        # A random prefix of the ids, new each time watching starts: changes before that are unknown.
        self._session = ""
        self._number = 0
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        # Next number and status of the newest runs, by run_id and program; None before the first query.
        self._seen: dict[tuple[str, str], tuple[int, str]] | None = None
        self._version: object = None
        self._subscription: Subscription | None = None

    @property
    def last(self) -> str:
        """The id of the last change."""
        return f"{self._session}-{self._number}"

    def listen(self) -> None:
        """Start watching the store, unless it is watched. Call `follow` next, without an await in between."""
        if self._subscription is None:
            self._subscription = Subscription(
                change_feed(self._client.store),
                "showing which runs change",
                self._refresh,
                interval=self._config.interval,
                longest=lambda: self._config.longest,
                wanted=lambda: self._listeners > 0,
            )
        if self._subscription.start():
            self._session, self._number, self._changes, self._seen = secrets.token_hex(4), 0, [], None

    async def follow(self, after: str) -> AsyncIterator[Change | None]:
        """The changes after the one with this id, as they happen; None where some may have been missed."""
        self._listeners += 1
        try:
            self.listen()
            at = self._place(after)
            if after and at is None:
                yield None
            at = self._number if at is None else at
            while True:
                missed = len(self._changes) < self._number - at
                if missed:
                    yield None
                    at = self._number
                for change in self._changes[len(self._changes) - (self._number - at) :]:
                    at += 1
                    yield change
                if at == self._number:
                    await self._changed.wait()
        finally:
            self._listeners -= 1

    def _place(self, id: str) -> int | None:
        """The number in an id; None if changes after it are no longer known."""
        session, _, number = id.partition("-")
        known = session == self._session and number.isdecimal() and len(number) < 16 and int(number) <= self._number
        return int(number) if known else None

    async def _refresh(self) -> None:
        version = self._client.store.version()
        newest = RunFilter(limit=self._config.newest, values=False)
        rows = await self._client.store.runs.list(newest)
        found = {(row.run_id, row.program): (head.next_seq, row.status.value) for row, head in rows}
        seen, self._seen = self._seen, found
        older, self._version = version != self._version, version
        # Before the first query, runs may have changed since the listeners read what they show.
        runs = () if seen is None else tuple(run for run, state in found.items() if seen.get(run) != state)
        if runs or older or seen is None:
            self._add(runs, older or seen is None)

    def announce(self, event: str) -> None:
        """Send all listeners an event that is not about runs."""
        self._add((), False, event)

    def _add(self, runs: tuple[tuple[str, str], ...], more: bool, event: str = "") -> None:
        self._number += 1
        self._changes = [*self._changes, Change(self.last, runs, more, event)][-self._config.kept :]
        self._changed.set()
        self._changed = asyncio.Event()
