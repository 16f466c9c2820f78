"""A storm on Redis: workers on one server, killed at random; and the server itself killed while they work."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

from perdure import Engine, Recovery, RunStatus, StoreUnavailable
from perdure.kernel.projection import project
from perdure.ports.runs import RunFilter
from perdure.stores.open import open_store
from tests.crash import programs
from tests.crash.children import ALL
from tests.crash.harness import (
    Child,
    Children,
    Journal,
    check_executions,
    effects_by_run,
    has_lines,
    kill_at_random,
    queue,
    until,
)
from tests.crash.test_storm import STEPS, check_run
from tests.services.plugin import Servers

LEASE = 4.0


def work(url: str, effects: str) -> str:
    """Work off what is queued, until nothing is left and the file `drained` says that no more will come."""
    programs.log_effects(effects)
    drained = os.path.join(os.path.dirname(effects), "drained")

    async def main() -> str:
        # Kills follow each other quickly: a run that was hit by several of them is not poisoned.
        recovery = Recovery(check_interval=0.3, lease=LEASE, quarantine=0)
        async with Engine(url, ALL, recovery=recovery, max_concurrency=16) as engine:
            Path(os.path.dirname(effects), f"opened-{os.getpid()}").touch()
            while True:
                await asyncio.sleep(0.05)
                try:
                    if os.path.exists(drained) and not await engine.store.runs.programs():
                        return "drained"
                except StoreUnavailable:
                    pass  # it comes back

    return asyncio.run(main())


async def audited(url: str) -> list[Journal]:
    """Every journal, whole, and each row what its journal says."""
    store = open_store(url)
    await store.open(migrate=False)
    try:
        rows = {row.run_id: row for row, _ in await store.runs.list(RunFilter(limit=10_000))}
        found = await store.journal.read_many(list(rows))
        journals = []
        for run_id, batches in found.items():
            assert isinstance(batches, list), batches
            assert project(run_id, batches) == rows[run_id]
            journals.append(Journal(run_id, rows[run_id].id, batches))
        assert list(await store.runs.owners()) == []
        assert list(await store.upkeep.loads()) == []
        assert list(await store.timers.due(1e11, 10, ["five"], [])) == []
        return journals
    finally:
        await store.close()


def test_no_run_is_lost_or_ends_twice_when_workers_are_killed_at_random(
    children: Children, redis_url: str, tmp_path: Path
) -> None:
    runs, kills, log = 90, 6, tmp_path / "effects"
    asyncio.run(queue(redis_url, {f"run-{n}": programs.five(n, 0.02) for n in range(runs)}))

    def start() -> Child:
        return children.start("tests.crash.test_redis:work", tmp_path, url=redis_url, effects=str(log))

    kill_at_random(start, log, workers=3, kills=kills, lines=runs * STEPS, seed=1, busy=True)
    journals, effects = asyncio.run(audited(redis_url)), effects_by_run(log)
    assert {journal.id for journal in journals} == {f"run-{n}" for n in range(runs)}, "a run was lost"
    assert sum(check_run(journal, effects[journal.run_id], kills) for journal in journals) > 0


def test_a_server_that_is_killed_while_workers_work_loses_nothing_it_acknowledged(
    children: Children, servers: Servers, tmp_path: Path
) -> None:
    """With `appendfsync always`: every run ends, once, and each outcome is recorded once."""
    runs, kills, log = 60, 3, tmp_path / "effects"
    with servers.redis() as server:
        asyncio.run(queue(server.url, {f"run-{n}": programs.five(n, 0.02) for n in range(runs)}))
        workers = [
            children.start("tests.crash.test_redis:work", tmp_path, url=server.url, effects=str(log)) for _ in range(2)
        ]
        try:
            # An engine that finds no server when it is opened ends with an error.
            until(lambda: len(list(tmp_path.glob("opened-*"))) == 2, what="until both have opened the store")
            for kill in range(kills):
                until(partial(has_lines, log, (kill + 1) / (kills + 1) * runs * STEPS), what=f"before kill {kill}")
                server.kill()
                server.start()
            (tmp_path / "drained").touch()
            for worker in workers:
                assert worker.result() == "drained"
        finally:
            for worker in workers:
                worker.kill()
        journals, effects = asyncio.run(audited(server.url)), effects_by_run(log)
    assert {journal.id for journal in journals} == {f"run-{n}" for n in range(runs)}, "a run was lost"
    for journal in journals:
        assert [end.status for end in journal.finished] == [RunStatus.COMPLETED]
        assert sorted(journal.outcomes) == [f"add_slowly:{i}" for i in range(STEPS)]
        check_executions(journal, effects[journal.run_id])
