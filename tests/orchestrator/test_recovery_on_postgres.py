"""One orchestrator of a hundred starts again on PostgreSQL: it reads its own runs, whatever the planner knows."""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg  # type: ignore[import-untyped]
import pytest

from perdure import Engine, RunStatus, step, workflow
from perdure.stores.open import open_store
from tests.orchestrator.test_recovery_at_scale import CALM, OWN, Clock, flow, populate, recovered

ORCHESTRATORS = 100
# By run: its row, its head, its journal, the claim and what follows it. By name: whether it has runs, and its lease.
PER_RUN, PER_NAME = 12, 6

_READ = """
    select relname, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) as rows, coalesce(seq_scan, 0) as scans
    from pg_stat_user_tables
"""


async def read_so_far(url: str) -> tuple[Counter[str], Counter[str]]:
    """By table: how many rows were read, and how often it was read from end to end. Of connections that have ended."""
    connection = await asyncpg.connect(url)
    try:
        # Numbers come when a connection ends; the last of them has ended when nobody else is connected.
        others = "select count(*) from pg_stat_activity where datname = current_database() and application_name = $1"
        while await connection.fetchval(others, "perdure"):
            pass
        found = await connection.fetch(_READ)
        return Counter({r["relname"]: r["rows"] for r in found}), Counter({r["relname"]: r["scans"] for r in found})
    finally:
        await connection.close()


async def prepare(url: str, analyze: bool) -> None:
    store = open_store(url)
    await store.open(migrate=True)
    await populate(store, ORCHESTRATORS)
    await store.close()
    connection = await asyncpg.connect(url)
    try:
        # Or else it may happen in the middle of the test, or not.
        for table in ("runs", "heads", "journal", "leases"):
            await connection.execute(f"alter table perdure_{table} set (autovacuum_enabled = off)")
        if analyze:
            await connection.execute("analyze")
    finally:
        await connection.close()


@pytest.mark.parametrize("analyze", [True, False], ids=["the planner knows the tables", "it knows nothing of them"])
async def test_one_that_starts_again_reads_its_own_runs(bare_url: str, analyze: bool) -> None:
    await prepare(bare_url, analyze)
    rows_before, scans_before = await read_so_far(bare_url)
    store = open_store(bare_url)
    await store.open(migrate=False)
    await store.close()
    seen, ours = await recovered(store, "node-000")
    assert ours == {f"{n:03}-000" for n in range(OWN)}
    rows, scans = await read_so_far(bare_url)
    rows.subtract(rows_before)
    scans.subtract(scans_before)
    large = ("perdure_runs", "perdure_heads", "perdure_journal")
    few = PER_RUN * OWN + PER_NAME * ORCHESTRATORS
    assert {table: scans[table] for table in large} == dict.fromkeys(large, 0), "a table was read from end to end"
    assert sum(rows[table] for table in large) <= few, rows
    # However many runs it has: the batches of one statement are as long as that takes.
    assert len(seen) < 40, "\n".join(seen)


async def test_one_that_had_nothing_reads_nothing_of_the_others(bare_url: str) -> None:
    await prepare(bare_url, analyze=True)
    rows_before, _ = await read_so_far(bare_url)
    async with Engine(bare_url, [flow], name="new", recovery=CALM, clock=Clock()) as engine:
        assert engine._orchestrator is not None
        # Nobody else is dead but the first.
        assert len(engine._orchestrator.active) == OWN
    rows, _ = await read_so_far(bare_url)
    rows.subtract(rows_before)
    assert rows["perdure_runs"] < PER_RUN * OWN + PER_NAME * ORCHESTRATORS


async def test_what_an_owner_has_itself_is_not_withheld_from_those_who_take_it_over(bare_url: str) -> None:
    """An owner looks for runs of its own that it does not know of. Should it die then, its note keeps no run."""
    began = asyncio.Event()

    @step
    async def long() -> None:
        began.set()
        await asyncio.Event().wait()

    @workflow
    async def works() -> None:
        await long()

    other = open_store(bare_url)
    async with Engine(bare_url, [works], name="owner", recovery=CALM) as engine:
        run = await engine.start(works(), id="it")
        await began.wait()
        assert engine._service is not None
        _ = await engine._service.takeover.search(startup=False)
        await other.open(migrate=False)
        found = await other.runs.owned(["owner"], RunStatus.RUNNING, ["works"], 10)
        assert list(found) == [run.run_id]
        # What is offered to one that has not got it is withheld from the next, as ever.
        third = open_store(bare_url)
        await third.open(migrate=False)
        assert list(await third.runs.owned(["owner"], RunStatus.RUNNING, ["works"], 10)) == []
        await third.close()
        await other.close()
