"""Looks at long runs: the event loop goes on meanwhile, and the next look reads what is new."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from perdure import Client, Engine, UsageError, workflow
from perdure.client import folded, queries
from perdure.errors import Corrupt
from perdure.kernel.events import StepProgressed, StepStarted
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, finished, step, write_all
from tests.engine.harness import PATIENCE, FakeClock

STEPS = 3000


async def long_run(store: Store) -> History:
    """A run of many steps."""
    run = History("00000000000000r1")
    await store.open(migrate=True)
    append = run.then_batches([run.started], *(step(n) for n in range(STEPS)))
    await write_all(store, append)
    return run


async def turns_during(look: Awaitable[Any]) -> int:
    """How often another task of the loop had its turn meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    try:
        await look
    finally:
        other.cancel()
    return turns


async def test_the_loop_goes_on_while_a_long_run_is_looked_at() -> None:
    store = MemoryStore()
    run = await long_run(store)
    slices = STEPS // folded.SLICE - 1
    async with Client(store) as client:
        assert await turns_during(client.get(run.run_id)) >= slices
        assert await turns_during(client.steps(run.run_id)) >= slices
        assert await turns_during(client.journal(run.run_id)) >= slices


async def test_two_callers_of_one_long_run_fold_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    run = await long_run(store)
    read = store.journal.read
    asked: list[int] = []

    async def noted(run_id: str, start: int = 0, limit: int | None = None) -> Any:
        asked.append(start)
        return await read(run_id, start, limit)

    async with Client(store) as client:
        monkeypatch.setattr(store.journal, "read", noted)
        views = await asyncio.gather(*(client.get(run.run_id) for _ in range(5)))
    assert len({view.run_id for view in views if view is not None}) == 1
    assert len(asked) == len(set(asked)), "a part was read twice"


async def test_a_caller_that_is_cancelled_while_it_folds_holds_up_no_other() -> None:
    store = MemoryStore()
    run = await long_run(store)
    async with Client(store) as client:
        first, second = (asyncio.create_task(client.get(run.run_id)) for _ in range(2))
        for _ in range(3):
            await asyncio.sleep(0)
        first.cancel()
        view = await second
    assert (first.cancelled(), view is not None) == (True, True)


async def test_the_next_look_reads_what_is_new_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    run = await long_run(store)
    read = store.journal.read
    asked: list[int] = []

    async def noted(run_id: str, start: int = 0, limit: int | None = None) -> Any:
        asked.append(start)
        return await read(run_id, start, limit)

    async with Client(store) as client:
        first = await client.get(run.run_id)
        assert len(await client.steps(run.run_id)) == STEPS
        monkeypatch.setattr(store.journal, "read", noted)
        assert await client.get(run.run_id) == first
        assert len(await client.steps(run.run_id)) == STEPS
        assert asked == []
        end = run.state.next_seq
        await write_all(store, run.then(StepStarted("late:0"), StepProgressed("late:0", 1, Raw(b"1"))))
        assert len(await client.steps(run.run_id)) == STEPS + 1
        assert asked == [end]


async def test_a_compacted_run_is_read_anew() -> None:
    store = MemoryStore()
    run = await long_run(store)
    await write_all(store, run.then(finished()))
    async with Client(store) as client:
        assert len(await client.steps(run.run_id)) == STEPS
        batches = await store.journal.read(run.run_id)
        shorter = [batches[0], batches[1], batches[-1]]
        seq, written = 0, []
        for batch in shorter:
            written.append(type(batch)(seq, batch.at, batch.events))
            seq += len(batch.events)
        await store.journal.rewrite(run.run_id, run.state.next_seq, written)
        assert len(await client.steps(run.run_id)) == 1


async def test_what_is_kept_of_looks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(folded, "KEPT", 3)
    await write_all(store, *(History(f"00000000000000r{n}").begin() for n in range(9)))
    async with Client(store) as client:
        for n in range(9):
            await client.get(f"00000000000000r{n}")
        assert list(client._base.folded_states._kept) == [f"00000000000000r{n}" for n in (6, 7, 8)]


async def test_a_journal_that_has_lost_its_end_is_damaged_also_when_it_is_read_in_slices(tmp_path: Path) -> None:
    store, run = SqliteStore(str(tmp_path / "runs.db")), History("00000000000000r1")
    async with Engine(store, []) as engine:
        await write_all(store, run.begin_as("a", *step(0)))
        assert store._database._writer is not None
        store._database._writer.execute("update perdure_heads set next_seq = next_seq + 1")
        for look in (engine.get(run.run_id), engine.steps(run.run_id), engine.journal(run.run_id)):
            with pytest.raises(Corrupt, match="its head says"):
                await look


async def test_a_journal_is_read_page_by_page(any_store: Store) -> None:
    run = History("00000000000000r1")
    async with Engine(any_store, []) as client:
        await write_all(any_store, run.then_batches([run.started], *(step(n) for n in range(5)), [finished()]))
        whole = await client.journal(run.run_id)
        pages, start = [], 0
        while page := await client.journal(run.run_id, start, limit=5):
            pages.append(page)
            start = page[-1].seq + 1
        assert [len(page) for page in pages] == [5, 5, 2]
        assert [entry for page in pages for entry in page] == list(whole)
        with pytest.raises(UsageError, match="limit"):
            await client.journal(run.run_id, limit=0)


# --- lists that search ------------------------------------------------------------------------------------------------


@workflow
async def buy(customer: str, qty: int = 1) -> dict[str, int]:
    if qty < 0:
        raise ValueError(f"cannot sell {qty}")
    return {"total": qty * 2}


async def test_runs_are_searched_by_their_arguments_results_and_errors(any_store: Store) -> None:
    async with Engine(any_store, [buy]) as engine:
        for id, call in {"a": buy("ann", 2), "b": buy("bo"), "c": buy("ann", -1)}.items():
            await (await engine.start(call, id=id)).outcome(timeout=PATIENCE)
        assert [run.id for run in await engine.list(search="input.customer=ann")] == ["c", "a"]
        assert [run.id for run in await engine.list(search="output.total=4", values=False)] == ["a"]
        [failed] = await engine.list(search="error=Cannot sell", values=False)
        assert (failed.id, failed.input, failed.output) == ("c", None, None)
        assert str(failed.error) == "ValueError: cannot sell -1"
        assert await engine.list(search="input.customer=ann", status="completed", roots=True, limit=1) != []
        counts = {(one.program, one.status.value): one.count for one in await engine.counts()}
        assert counts == {("buy", "completed"): 2, ("buy", "failed"): 1}
        now = datetime.now(UTC)
        buckets = await engine.histogram(since=now - timedelta(hours=1), until=now + timedelta(hours=1), buckets=2)
        assert sum(sum(bucket.counts.values()) for bucket in buckets) == 3
        assert buckets[0].until == buckets[1].since


@pytest.mark.parametrize("search", ["customer=ann", "input", "input.", "input.a", "error=", "error.x=1", 3])
async def test_a_search_that_is_none_says_how_one_is_written(search: Any) -> None:
    async with Client(MemoryStore()) as client:
        with pytest.raises(UsageError, match=r"input\.customer=ann"):
            await client.list(search=search)


async def test_a_search_says_where_it_stopped_and_goes_on_there(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "SEARCHED", 4)
    async with Engine(any_store, []) as client:
        runs = [History(f"00000000000000r{n}", tags={"team": "a"} if n in (1, 7) else None) for n in range(9)]
        await write_all(any_store, *(run.begin() for run in runs))
        page = await client.list(tags={"team": "a"})
        assert [run.run_id[-1] for run in page] == ["7"]
        assert (page.searched, page.cursor) == (4, "00000000000000r5")
        page = await client.list(tags={"team": "a"}, cursor=page.cursor)
        assert [run.run_id[-1] for run in page] == ["1"]
        assert (page.searched, page.cursor) == (4, "00000000000000r1")
        page = await client.list(tags={"team": "a"}, cursor=page.cursor)
        assert (list(page), page.searched, page.cursor) == ([], None, None)
        assert (await client.list(limit=2)).searched is None


@pytest.mark.parametrize(("since", "until", "buckets"), [(0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 1, 1001), (0, 1, True)])
async def test_a_histogram_that_makes_no_sense_is_refused(since: int, until: int, buckets: int) -> None:
    began = datetime.fromtimestamp(FakeClock().now(), UTC)
    async with Client(MemoryStore()) as client:
        with pytest.raises(UsageError, match="histogram"):
            await client.histogram(
                since=began + timedelta(hours=since), until=began + timedelta(hours=until), buckets=buckets
            )
