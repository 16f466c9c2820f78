"""Snapshots of long journals: taken by the owner in the background, used when a run is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.engine.driver import Driver
from perdure.errors import Corrupt, PerdureError, StoreUnavailable
from perdure.kernel.events import Batch, SnapshotTaken
from perdure.kernel.snapshot import decode_snapshot, encode_snapshot, newest
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.orchestrator.session import Session
from perdure.ports.appends import extend
from perdure.ports.journal import append_one
from perdure.ports.store import Store


class SnapshotReader:
    """Reads journals by their snapshots."""

    def __init__(self, store: Store, every: int) -> None:
        self._store, self._every = store, every

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Journals, as far as replay needs them. In place of a damaged one there is its error."""
        journal = self._store.journal
        if not self._every:
            return await journal.read_many(run_ids)
        heads = await journal.heads(run_ids)
        # Only for a long journal is it quicker to look for a snapshot than to read all of it.
        long = [run_id for run_id in run_ids if heads.get(run_id, 0) > 2 * self._every]
        found = await journal.read_many([run_id for run_id in run_ids if run_id not in long]) if long else None
        if found is None:
            return await journal.read_many(run_ids)
        for run_id in long:
            try:
                found[run_id] = await self.read(run_id, heads[run_id])
            except Corrupt as error:
                found[run_id] = error
        return found

    async def read(self, run_id: str, head: int) -> list[Batch]:
        """A long journal: its newest snapshot and what came after it, or all of it."""
        journal = self._store.journal
        # The next one is taken before the last is further back than this.
        start = max(0, head - 4 * self._every)
        tail = await journal.read(run_id, start)
        taken = newest(tail)
        if taken is not None:
            try:
                past = await self._past(run_id, taken)
                if taken.seq >= start:
                    return [*past, *_from(tail, taken.seq)]
                return [*past, *await journal.read(run_id, taken.seq)]
            except Corrupt as damage:
                log.warning("%s; run_id %s is loaded from its journal", damage, run_id)
        past = await journal.read(run_id, 0, start) if start and tail else []
        if past and past[-1].seq + len(past[-1].events) == tail[0].seq:
            return [*past, *tail]
        return await journal.read(run_id) if start else tail

    async def _past(self, run_id: str, taken: SnapshotTaken) -> list[Batch]:
        data = await self._store.blobs.get(taken.blob)
        if data is None:
            raise Corrupt(f"a snapshot of run_id {run_id}", f"the blob {taken.blob} is missing", run_id)
        return decode_snapshot(data, run_id, taken.seq)


class SnapshotTaker:
    """Takes a snapshot when enough events of a journal are obsolete.

    `broke` parks a run that an error of the engine stopped.
    """

    def __init__(self, reader: SnapshotReader, session: Session, broke: Callable[[Driver, Exception], None]) -> None:
        self._reader, self._session, self._broke = reader, session, broke
        self._store, self._runs, self._every = session.store, session.runs, session.recovery.snapshot
        # The runs of which a snapshot is being taken. They may be evicted in the meantime.
        self._taking: set[str] = set()

    def take_soon(self, driver: Driver) -> None:
        """Take a snapshot in the background, of what is in the store."""
        if driver.run_id not in self._taking and not self._session.closing:
            self._taking.add(driver.run_id)
            self._session.spawn(self._take(driver))

    async def take(self, driver: Driver) -> None:
        """Take a snapshot that a caller asked for, unless snapshots are off or one is being taken."""
        if self._every and driver.run_id not in self._taking and not self._session.closing:
            self._taking.add(driver.run_id)
            await self._take(driver)

    async def _take(self, driver: Driver) -> None:
        run_id = driver.run_id
        try:
            head = (await self._store.journal.heads([run_id])).get(run_id, 0)
            batches = await self._reader.read(run_id, head)
            seq, data = encode_snapshot(run_id, batches)
            event = SnapshotTaken(seq, await self._store.blobs.put(data), driver.size)
            if run_id not in self._runs.drivers:
                await self._append(fold(run_id, batches), event)
                return

            def record() -> None:
                if self._runs.has(driver) and not driver.stale and driver.state.finished is None:
                    try:
                        driver.record(event)
                    except BaseException as error:
                        self._broke(driver, contained(error))

            await self._session.in_callback(record)
        except StoreUnavailable:
            pass  # retried later: the journal is complete without it
        except Exception as error:
            reason = error if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
            log.warning("run %r: no snapshot was taken: %s; the run is not affected", driver.id, reason)
        finally:
            self._taking.discard(run_id)

    async def _append(self, state: RunState, event: SnapshotTaken) -> None:
        """Record a snapshot of a run that has been evicted, if it is still ours and nothing else has happened."""
        if state.finished is None and self._session.owns(state):
            await append_one(self._store.journal, extend(state, [event], self._session.clock.now()))


def _from(batches: Sequence[Batch], seq: int) -> list[Batch]:
    """The events from a number on."""
    cut = [Batch(max(b.seq, seq), b.at, b.events[max(0, seq - b.seq) :]) for b in batches]
    return [batch for batch in cut if batch.events]
