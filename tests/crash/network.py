"""Workers that reach their store through a network that fails, and audits of stores that are named by a URL."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from perdure import Engine, Recovery, StoreUnavailable
from perdure.kernel.events import RunClaimed, RunFinished
from perdure.kernel.projection import project
from perdure.ports.runs import RunFilter
from perdure.stores.open import open_store
from tests.crash import programs
from tests.crash.harness import Journal


def labour(url: str, effects: str, drained: str, name: str, lease: float) -> str:
    """Work off what is queued, until nothing is left and the file `drained` says that no more will come.

    The file `drained.NAME` says that it is ready.
    """
    programs.log_effects(effects)

    async def main() -> str:
        recovery = Recovery(check_interval=lease / 4, lease=lease, quarantine=0)
        async with Engine(url, [programs.five], recovery=recovery, name=name, max_concurrency=8) as engine:
            Path(f"{drained}.{name}").touch()
            while True:
                with suppress(StoreUnavailable):
                    if os.path.exists(drained) and not await engine.store.runs.programs():
                        return "drained"
                await asyncio.sleep(0.05)

    return asyncio.run(main())


async def audit(url: str) -> dict[str, Journal]:
    """Check what a store promises whatever happened around it, and return its journals by id.

    Rows are what the journals imply; the epochs of owners grow; outcomes of steps and ends of runs are recorded once;
    nothing follows the end of a run.
    """
    store = open_store(url)
    await store.open(migrate=False)
    try:
        listed = await store.runs.list(RunFilter(limit=10_000))
        journals = {}
        for row, head in listed:
            journal = Journal(row.run_id, row.id, await store.journal.read(row.run_id))
            assert len(journal.events) == head.next_seq
            assert project(row.run_id, journal.batches) == row
            epochs = [event.epoch for event in journal.events if isinstance(event, RunClaimed)]
            assert epochs == sorted(set(epochs)), f"epochs of {row.id}: {epochs}"
            for what in (journal.outcomes, journal.attempts):
                repeated = [one for one, times in Counter(what).items() if times > 1]
                assert not repeated, f"recorded twice in {row.id}: {repeated}"
            assert [isinstance(event, RunFinished) for event in journal.events].count(True) <= 1
            assert row.id not in journals
            journals[row.id] = journal
        return journals
    finally:
        await store.close()
