"""Being told what other processes write. Never relied upon: whoever waits looks by itself every few seconds.

A notification takes a lock that all commits with one share, so they are made one after the other. Outcomes of steps,
the bulk of what is written, are therefore told to nobody: only their owner needs them. Told is what somebody else may
wait for. There are two kinds: work (a run that wants an owner, a message to a run, room in a queue, a lease that came
free), which every process wants to know; and news of certain runs (an end, a chunk of a stream), which only those want
to know who have asked about them lately.
"""

from __future__ import annotations

import secrets
import time
from asyncio import Queue, get_running_loop, timeout
from collections.abc import AsyncIterator, Iterable, Sequence

from perdure.kernel.events import RunClaimed, RunFinished, Trait, events_with
from perdure.ports.journal import Append
from perdure.ports.leases import ORCHESTRATOR

_FOR_OWNER, _FOR_ALL = events_with(Trait.FOR_OWNER), events_with(Trait.FOR_ALL)

# PostgreSQL's limit is 8,000 bytes.
MAX_PAYLOAD = 7_000
# For how long somebody who asked about a run wants to hear of it: longer than the pause between two looks.
INTEREST_SECONDS = 12.0
# While nobody can be heard, everything may have changed every so often.
BLIND_SECONDS = 1.0
WORK, NEWS, LEASES, BEAT = "w", "n", "l", "b"
# How long after its expiry a lease counts as ended: a heartbeat may be under way.
LATE_SECONDS = 0.2
ALL = "*"


class Wakes:
    """A counter that moves when there may be something new; and what to tell others."""

    def __init__(self) -> None:
        self.listening = False
        self._token = secrets.token_hex(6)
        self._count = 0
        self._asked: dict[str, float] = {}
        self._watchers: set[Queue[str]] = set()
        # When the leases end, by the clock of our loop, of those whose heartbeats we have heard.
        self._ends: dict[str, float] = {}

    def version(self) -> object:
        """Moves when there may be something new."""
        return self._count, 0 if self.listening else int(time.monotonic() / BLIND_SECONDS)

    def move(self) -> None:
        """Something may have changed."""
        self._count += 1

    def asked(self, run_ids: Iterable[str]) -> None:
        """Somebody here wants to know about these runs."""
        now = time.monotonic()
        if len(self._asked) > 10_000:
            self._asked = {run_id: at for run_id, at in self._asked.items() if now - at < INTEREST_SECONDS}
        self._asked.update(dict.fromkeys(run_ids, now))

    def heard(self, payload: str) -> None:
        """Somebody has told something."""
        teller, kind, what = (*payload.split(" ", 2), "", "")[:3]
        if teller == self._token:
            return  # that was counted when it was written
        if kind == BEAT:
            key, _, ttl = what.rpartition(" ")
            if key not in self._ends:
                self._tell_watchers([""])  # whoever watches has one more to wait for
            self._ends[key] = get_running_loop().time() + float(ttl) + LATE_SECONDS
            return
        if kind != NEWS or self._wanted(what):
            self.move()
        if kind == LEASES:
            self._tell_watchers(what.split(" "))

    def _wanted(self, what: str) -> bool:
        now = time.monotonic()
        asked = self._asked if what == ALL else what.split(" ")
        return any(now - self._asked.get(run_id, -INTEREST_SECONDS) < INTEREST_SECONDS for run_id in asked)

    # --- what to tell ---------------------------------------------------------------------------------------------

    def of_appends(self, appends: Iterable[Append]) -> str:
        """What to tell others with these appends; empty when it is nothing."""
        news: list[str] = []
        for append in appends:
            kind = _kind(append)
            if kind == WORK:
                return f"{self._token} {WORK}"
            if kind == NEWS:
                news.append(append.run_id)
                news.extend(child.run_id for child in append.children if child.finished_at is not None)
        return self._payload(NEWS, news) if news else ""

    def of_work(self) -> str:
        """What to tell others when all should look."""
        return f"{self._token} {WORK}"

    def of_beat(self) -> str:
        """What to tell others with a heartbeat, but for its lease and how long that lasts."""
        return f"{self._token} {BEAT} "

    def of_leases(self, keys: Sequence[str]) -> str:
        """What to tell others when leases came free."""
        return self._payload(LEASES, keys)

    def _payload(self, kind: str, names: Sequence[str]) -> str:
        text = " ".join(names)
        # A name with a space in it, or too many of them: everybody looks.
        if len(text.encode()) > MAX_PAYLOAD or any(" " in name for name in names):
            text = ALL
        return f"{self._token} {kind} {text}"

    # --- leases ---------------------------------------------------------------------------------------------------

    def _tell_watchers(self, keys: Iterable[str]) -> None:
        for watcher in self._watchers:
            for key in keys:
                watcher.put_nowait(key)

    def lost_owner(self) -> None:
        """There may be runs that have lost their owner: whoever watches leases looks for them."""
        self._tell_watchers([ORCHESTRATOR])

    async def freed(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` that others give back, as they are told."""
        watcher: Queue[str] = Queue()
        self._watchers.add(watcher)
        loop = get_running_loop()
        try:
            while True:
                ends = {key: at for key, at in self._ends.items() if key.startswith(prefix)}
                first = min(ends, key=ends.__getitem__, default=None)
                left = None if first is None else max(0.0, ends[first] - loop.time())
                try:
                    async with timeout(left):
                        key = await watcher.get()
                except TimeoutError:
                    assert first is not None
                    key = first
                    # A heartbeat may have arrived meanwhile.
                    if self._ends.get(key, 0.0) > loop.time():
                        continue
                self._ends.pop(key, None)
                if key and key.startswith(prefix):
                    yield key
        finally:
            self._watchers.discard(watcher)


def _kind(append: Append) -> str:
    """Whether others want to know: WORK, NEWS, or nothing."""
    row, kind = append.row, ""
    if append.outside or append.starts or (row is not None and row.owner is None and row.finished_at is None):
        return WORK
    for batch in append.batches:
        for event in batch.events:
            of = type(event)
            if of in _FOR_OWNER:
                # A takeover: notify the previous owner, so that it drops the run.
                if isinstance(event, RunClaimed) and event.epoch > 1:
                    return WORK
            # The end of a run of a queue leaves room for another one.
            elif of in _FOR_ALL or (of is RunFinished and row is not None and row.queue):
                return WORK
            else:
                kind = NEWS
    return kind
