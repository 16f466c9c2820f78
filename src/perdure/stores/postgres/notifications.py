"""Notifications between the processes of one database, and the store's version, which they change. Only a hint.

Waiting code polls every few seconds as well. A notification takes a lock that all notifying commits share, so that they
are committed one after the other. Outcomes of steps, the bulk of what is written, therefore notify no process: only
their owner uses them. There are two kinds. *Work* (a run without an owner, an external event, room in a queue, a lease
that ended) is for every process; what is *followed* (the end of a run, a chunk of a stream) is for the processes that
have asked about that run lately.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Sequence

from perdure.kernel.events import RunClaimed, RunFinished, Trait, events_with
from perdure.ports.journal import Append
from perdure.ports.leases import ORCHESTRATOR
from perdure.stores.lease_ends import LeaseEnds
from perdure.stores.postgres.config import PostgresConfig

_FOR_OWNER, _FOR_ALL = events_with(Trait.FOR_OWNER), events_with(Trait.FOR_ALL)

# PostgreSQL's limit is 8,000 bytes.
MAX_PAYLOAD = 7_000
WORK, FOLLOWED, LEASES, HEARTBEAT = "w", "n", "l", "b"
ALL = "*"


class Notifications:
    """The version of the store as this process knows it, and the payloads that notify the others."""

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self.listening = False
        self._token = secrets.token_hex(6)
        self._count = 0
        self._followed: dict[str, float] = {}
        self.leases = LeaseEnds()

    def version(self) -> object:
        """Changes when the store may have changed."""
        return self._count, 0 if self.listening else int(time.monotonic() / self._config.blind)

    def changed(self) -> None:
        """The store may have changed."""
        self._count += 1

    def follow(self, run_ids: Iterable[str]) -> None:
        """Code of this process waits for changes of these runs."""
        now = time.monotonic()
        if len(self._followed) > 10_000:
            oldest = now - self._config.follow
            self._followed = {run_id: at for run_id, at in self._followed.items() if at > oldest}
        self._followed.update(dict.fromkeys(run_ids, now))

    def received(self, payload: str) -> None:
        """Take in a notification."""
        sender, kind, what = (*payload.split(" ", 2), "", "")[:3]
        if sender == self._token:
            return  # our own, counted when it was written
        if kind == HEARTBEAT:
            key, _, ttl = what.rpartition(" ")
            self.leases.heartbeat(key, float(ttl))
            return
        if kind != FOLLOWED or self._wanted(what):
            self.changed()
        if kind == LEASES:
            for key in what.split(" "):
                self.leases.notify(key)

    def _wanted(self, what: str) -> bool:
        now = time.monotonic()
        followed = self._followed if what == ALL else what.split(" ")
        return any(self._followed.get(run_id, -math.inf) > now - self._config.follow for run_id in followed)

    # --- payloads -------------------------------------------------------------------------------------------------

    def for_appends(self, appends: Iterable[Append]) -> str:
        """The payload that goes with these appends; empty when they notify no process."""
        followed: list[str] = []
        for append in appends:
            kind = _kind(append)
            if kind == WORK:
                return f"{self._token} {WORK}"
            if kind == FOLLOWED:
                followed.append(append.run_id)
                followed.extend(child.run_id for child in append.children if child.finished_at is not None)
        return self._payload(FOLLOWED, followed) if followed else ""

    def for_work(self) -> str:
        """The payload that makes every process poll."""
        return f"{self._token} {WORK}"

    def for_heartbeat(self) -> str:
        """The payload of a heartbeat, to be followed by its lease and how long that lasts."""
        return f"{self._token} {HEARTBEAT} "

    def for_leases(self, keys: Sequence[str]) -> str:
        """The payload for leases that ended."""
        return self._payload(LEASES, keys)

    def _payload(self, kind: str, names: Sequence[str]) -> str:
        text = " ".join(names)
        # A name with a space in it, or too many names: it concerns every run.
        if len(text.encode()) > MAX_PAYLOAD or any(" " in name for name in names):
            text = ALL
        return f"{self._token} {kind} {text}"

    def orphans_possible(self) -> None:
        """Some runs may be orphans: make the watchers of leases look for them."""
        self.leases.notify(ORCHESTRATOR)


def _kind(append: Append) -> str:
    """Which processes an append notifies: WORK, FOLLOWED, or none."""
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
                kind = FOLLOWED
    return kind
