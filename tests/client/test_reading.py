"""Asking about runs: views, lists with filters and pages, steps, journals, and following one as it grows."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure import (
    Engine,
    Entry,
    NoSuchRun,
    Program,
    Queue,
    RunStatus,
    StepStatus,
    UsageError,
    bail,
    child,
    connect,
    continue_as,
    set_state,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.client.views import RunSummary
from perdure.kernel.events import RunClaimed, RunFinished, RunStarted, StepStarted, StepSucceeded, WaitOpened
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Gates, Recorded, holding


@step
async def charge(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return n


@workflow(version="2")
async def pay(n: int, note: str = "none") -> dict[str, int]:
    return {"paid": await charge(n)}


@workflow
async def nap() -> None:
    await sleep(timedelta(hours=1))


@workflow
async def give_up() -> None:
    bail("no stock")


# --- get -------------------------------------------------------------------------------------------------------------


async def test_a_view_says_everything_about_a_run() -> None:
    clock = FakeClock()
    async with Engine("memory://", [pay], clock=clock, name="worker") as engine:
        handle = await engine.start(pay(3, note="x"), id="it", tags={"a": "b"})
        await handle.result(PATIENCE)
        view = await engine.get("it")
    assert view is not None
    at = datetime.fromtimestamp(clock.now(), UTC)
    assert (view.id, view.run_id, view.program, view.version) == ("it", handle.run_id, "pay", "2")
    assert (view.status, view.output, view.error) == (RunStatus.COMPLETED, {"paid": 3}, None)
    assert view.input == {"n": 3, "note": "x"}
    assert (view.owner, view.epoch, view.tags) == ("worker", 1, {"a": "b"})
    assert (view.created_at, view.updated_at, view.finished_at) == (at, at, at)
    assert view.next_seq == 5
    assert (view.root, view.parent, view.forked_from) == (handle.run_id, None, None)


async def test_a_view_of_a_failed_run_has_its_error() -> None:
    async with Engine("memory://", [pay]) as engine:
        await engine.run(pay(-1), id="it")
        view = await engine.get("it")
    assert view is not None
    assert view.error is not None
    assert (view.error.type, view.error.message) == ("builtins.ValueError", "negative")


async def test_a_view_of_a_waiting_run_says_what_it_waits_for() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", [nap], clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(nap(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        view = await engine.get("it")
    assert view is not None
    assert view.status is RunStatus.WAITING
    [wait] = view.waits
    assert (wait.path, wait.kind) == ("sleep:0", "timer")
    assert wait.deadline == datetime.fromtimestamp(clock.now() + 3600, UTC)
    assert "test_reading.py" in wait.source
    assert view.finished_at is None


async def test_what_does_not_exist_is_none_or_an_error() -> None:
    async with Engine("memory://", [pay]) as engine:
        assert await engine.get("nobody") is None
        for call in (engine.steps, engine.journal):
            with pytest.raises(NoSuchRun, match="nobody"):
                await call("nobody")
        with pytest.raises(NoSuchRun):
            async for _ in engine.follow("nobody"):
                pass


# --- list ------------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/x.db"


async def test_a_list_is_newest_first_and_filtered(url: str) -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine(url, [pay, nap, give_up], clock=clock, on_commit=recorded) as engine:
        start = clock.now()
        await engine.run(pay(1), id="a", tags={"team": "red"})
        clock.advance(1)
        await engine.run(pay(-1), id="b", tags={"team": "red", "env": "prod"})
        clock.advance(1)
        _ = await engine.start(nap(), id="c")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        clock.advance(1)
        await engine.run(give_up(), id="d", tags={"team": "blue"})

        async def ids(**filters: Any) -> list[str]:
            return [view.id for view in await engine.list(**filters)]

        assert await ids() == ["d", "c", "b", "a"]
        assert await ids(status="completed") == ["a"]
        assert await ids(status=RunStatus.FAILED) == ["b"]
        assert await ids(status=["completed", RunStatus.BAILED]) == ["d", "a"]
        assert await ids(status=RunStatus.WAITING) == ["c"]
        assert await ids(program="pay") == ["b", "a"]
        assert await ids(program="nothing") == []
        assert await ids(tags={"team": "red"}) == ["b", "a"]
        assert await ids(tags={"team": "red", "env": "prod"}) == ["b"]
        assert await ids(since=datetime.fromtimestamp(start + 2, UTC)) == ["d", "c"]
        assert await ids(program="pay", status="failed", tags={"env": "prod"}) == ["b"]
        with pytest.raises(UsageError, match="is not a status"):
            await engine.list(status="done")
        with pytest.raises(UsageError, match="limit"):
            await engine.list(limit=0)


@pytest.mark.parametrize(("total", "limit"), [(10, 3), (9, 3), (1, 1), (3, 10), (0, 5), (5, 5)])
async def test_pages_follow_each_other_and_the_last_has_no_cursor(url: str, total: int, limit: int) -> None:
    clock = FakeClock()
    async with Engine(url, [pay], clock=clock) as engine:
        for n in range(total):
            await engine.run(pay(n), id=f"run {n}")
            clock.advance(0.01)
        seen: list[str] = []
        pages = 0
        cursor = None
        while True:
            page = await engine.list(limit=limit, cursor=cursor, program="pay")
            seen += [view.id for view in page]
            pages += 1
            cursor = page.cursor
            if cursor is None:
                break
    assert seen == [f"run {n}" for n in reversed(range(total))]
    assert pages == max(1, -(-total // limit))


@step
async def pack(n: int) -> int:
    return n


@workflow
async def part(n: int) -> int:
    return await pack(n)


@workflow
async def whole() -> int:
    return await part(1) + await part(2)


async def listed(client: Any, **filter: Any) -> list[str]:
    """The ids that a filter finds, the oldest first."""
    return [run.id for run in reversed(await client.list(**filter))]


async def test_a_list_is_narrowed_on_every_store(any_store: Store) -> None:
    clock = FakeClock()
    async with Engine(any_store, [whole, part, nap], clock=clock, name="w1") as engine:
        before = datetime.fromtimestamp(clock.now(), UTC)
        await engine.run(whole(), id="order-1")
        clock.advance(10)
        later = datetime.fromtimestamp(clock.now(), UTC)
        await engine.run(part(3), id="order_2")
        _ = await engine.start(nap(), id="later", queue="mail", delay=60)
        assert await listed(engine, root="order-1") == ["order-1", "order-1/part:0", "order-1/part:1"]
        assert await listed(engine, parent="order-1") == ["order-1/part:0", "order-1/part:1"]
        [run] = await engine.list(id_prefix="order-1", program="whole")
        assert await listed(engine, root=run.run_id, program="part") == ["order-1/part:0", "order-1/part:1"]
        assert await listed(engine, parent="order_2") == await listed(engine, parent="nobody") == []
        assert await listed(engine, id_prefix="order_") == ["order_2"]
        assert await listed(engine, id_prefix="") == await listed(engine)
        assert await listed(engine, queue="mail") == ["later"]
        assert await listed(engine, owner="w1") == ["order-1", "order_2"]
        assert await listed(engine, owner="w2") == []
        assert await listed(engine, until=later, program="part") == ["order-1/part:0", "order-1/part:1"]
        assert await listed(engine, since=later) == ["order_2", "later"]
        assert await listed(engine, until=before) == []
        page = await engine.list(root="order-1", limit=2)
        assert [run.id for run in await engine.list(root="order-1", limit=2, cursor=page.cursor)] == ["order-1"]


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"since": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"until": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001
        ({"until": 5}, "give a datetime"),
        ({"owner": ""}, "the name of an orchestrator"),
        ({"queue": 3}, "the name of a queue"),
        ({"parent": 3}, "the id of a run"),
        ({"id_prefix": b"x"}, "the beginning of an id"),
        ({"id_prefix": "a\0"}, "no name may have"),
        ({"owner": "\ud800"}, "no name may have"),
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(filter: dict[str, Any], said: str) -> None:
    async with Engine("memory://", []) as engine:
        with pytest.raises(UsageError, match=said):
            await engine.list(**filter)


@workflow
async def asks() -> str:
    return await wait_signal("go", type=str)


@workflow
async def family(n: int) -> str:
    set_state("n", n)
    await child(pay(n))
    return await child(asks())


@workflow
async def loops(n: int) -> int:
    if n:
        continue_as(n - 1)
    return await charge(n)


@step
async def works() -> None:
    await asyncio.Event().wait()


@workflow
async def busy() -> None:
    await works()


CHANGED: list[bool] = []


@workflow
async def unsteady() -> None:
    if CHANGED:
        await charge(1)
    await wait_signal("go", type=str)


async def test_a_list_says_of_every_run_in_every_status_what_get_says(any_store: Store) -> None:
    names = {field.name for field in dataclasses.fields(RunSummary)}
    CHANGED.clear()
    async with Engine(any_store, [unsteady], name="old") as engine:
        handle = await engine.start(unsteady(), id="parked")
        async with asyncio.timeout(PATIENCE):
            while await handle.status() is not RunStatus.WAITING:
                await asyncio.sleep(0)
    CHANGED.append(True)
    programs: list[Program] = [unsteady, pay, give_up, nap, asks, family, loops, busy]
    one = Queue("one", concurrency=1)
    async with Engine(any_store, programs, name="w", queues=[one], recovery=AT_ONCE) as engine:
        await engine.run(pay(1, note="x" * 300_000), id="completed", tags={"a": "b"})
        for invocation, id in ((pay(-1), "failed"), (give_up(), "bailed"), (loops(2), "continued")):
            await (await engine.start(invocation, id=id)).outcome(PATIENCE)
        await engine.signal("parked", "go", "on")
        for id in ("waiting", "paused", "cancelled"):
            _ = await engine.start(nap(), id=id)
        await engine.pause("paused")
        await engine.cancel("cancelled", "enough")
        await engine.handle("cancelled").outcome(PATIENCE)
        _ = await engine.start(busy(), id="running", queue="one", key="k")
        _ = await engine.start(busy(), id="queued", queue="one", key="k", priority=7)
        _ = await engine.start(nap(), id="later", delay=3600.0)
        _ = await engine.start(family(1), id="family")
        forked = await engine.fork("completed")
        await forked.outcome(PATIENCE)

        async def at_rest() -> bool:
            statuses = {row.id: row.status for row in await engine.list(limit=100)}
            return set(statuses.values()) == set(RunStatus) and statuses["family/asks:0"] is RunStatus.WAITING

        async with asyncio.timeout(PATIENCE):
            while not await at_rest():
                await asyncio.sleep(0)
        async with connect(any_store) as client:
            for asking in (engine, client):
                for row in await asking.list(limit=100):
                    view = await asking.get(row.run_id)
                    assert view is not None
                    assert {name: getattr(row, name) for name in names} == {name: getattr(view, name) for name in names}
        assert len(await engine.list(id_prefix="continued")) == 3, "each incarnation has a row"


async def test_a_list_has_nothing_that_is_not_true() -> None:
    async with Engine("memory://", [nap]) as engine:
        _ = await engine.start(nap(), id="it")
        [run] = await engine.list()
        view = await engine.get("it")
    assert not {"state", "waits", "parked", "divergence"} & set(dir(run))
    assert view is not None
    assert {name: getattr(view, name) for name in ("id", "run_id", "program", "input", "tags", "created_at")} == {
        name: getattr(run, name) for name in ("id", "run_id", "program", "input", "tags", "created_at")
    }


@dataclass
class Receipt:
    total: Decimal
    on: date


@workflow
async def buy() -> Receipt:
    return Receipt(Decimal("9.90"), date(2026, 1, 2))


async def test_an_output_is_of_its_programs_type_where_the_program_is_known(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    receipt = Receipt(Decimal("9.90"), date(2026, 1, 2))
    async with Engine(url, [buy, give_up]) as engine:
        await engine.run(buy(), id="it")
        await engine.run(give_up(), id="bailed")
        view, bailed = await engine.get("it"), await engine.get("bailed")
        assert view is not None
        assert bailed is not None
        assert (view.output, bailed.output) == (receipt, None)
        assert [run.output for run in await engine.list(program="buy")] == [receipt]
    async with connect(url) as client:
        view = await client.get("it")
        assert view is not None
        assert view.output == {"total": "9.90", "on": "2026-01-02"}

    @workflow(name="buy")
    async def other_buy() -> int:
        return 1

    async with Engine(url, [other_buy]) as engine:
        view = await engine.get("it")
        assert view is not None
        assert view.output == {"total": "9.90", "on": "2026-01-02"}


async def test_an_error_of_a_view_reads_as_one_says_it() -> None:
    async with Engine("memory://", [pay]) as engine:
        await engine.run(pay(-1), id="it")
        view, [step] = await engine.get("it"), await engine.steps("it")
    assert view is not None
    assert str(view.error) == str(step.error) == "ValueError: negative"


async def test_a_page_goes_on_where_it_was_although_new_runs_came() -> None:
    clock = FakeClock()
    async with Engine("memory://", [pay], clock=clock) as engine:
        for n in range(4):
            await engine.run(pay(n), id=f"run {n}")
            clock.advance(0.01)
        first = await engine.list(limit=2)
        await engine.run(pay(9), id="new")
        second = await engine.list(limit=2, cursor=first.cursor)
    assert [v.id for v in [*first, *second]] == ["run 3", "run 2", "run 1", "run 0"]


# --- steps -----------------------------------------------------------------------------------------------------------


async def test_steps_come_in_the_order_they_began_with_all_there_is_to_know() -> None:
    clock, gates = FakeClock(), Gates()

    @step
    async def hold() -> str:
        gates.open("runs")
        await gates.wait("hold")
        return "held"

    @workflow
    async def flow() -> str:
        await charge(1)
        try:
            await charge(-1)
        except ValueError:
            pass
        return await hold()

    async with Engine("memory://", [flow], clock=clock, recovery=AT_ONCE) as engine:
        handle = await engine.start(flow(), id="it")
        await gates.wait("runs")
        good, bad, running = await engine.steps("it")
        gates.open("hold")
        await handle.result(PATIENCE)
    assert [s.path for s in (good, bad, running)] == ["charge:0", "charge:1", "hold:0"]
    assert [s.name for s in (good, bad, running)] == ["charge", "charge", "hold"]
    assert [s.status for s in (good, bad, running)] == [StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.RUNNING]
    assert (good.output, good.error, good.attempt) == (1, None, 1)
    assert bad.error is not None
    assert (bad.output, bad.error.message) == (None, "negative")
    assert good.input_hash != bad.input_hash
    at = datetime.fromtimestamp(clock.now(), UTC)
    assert (good.started_at, good.finished_at, running.finished_at) == (at, at, None)
    assert "test_reading.py" in good.source


async def test_equal_inputs_have_equal_hashes_in_every_run() -> None:
    async with Engine("memory://", [pay]) as engine:
        await engine.run(pay(1), id="a")
        await engine.run(pay(1), id="b")
        await engine.run(pay(2), id="c")
        [a], [b], [c] = [await engine.steps(id) for id in "abc"]
    assert a.input_hash == b.input_hash != c.input_hash


# --- journal and follow ----------------------------------------------------------------------------------------------


async def test_a_journal_is_numbered_without_gaps_and_read_from_anywhere() -> None:
    async with Engine("memory://", [pay]) as engine:
        handle = await engine.start(pay(1), id="it")
        await handle.result(PATIENCE)
        entries = await engine.journal("it")
        tail = await engine.journal("it", start=3)
        by_run_id = await engine.journal(handle.run_id)
    assert [type(e.event) for e in entries] == [RunStarted, RunClaimed, StepStarted, StepSucceeded, RunFinished]
    assert [e.seq for e in entries] == [0, 1, 2, 3, 4]
    assert all(isinstance(e, Entry) and e.run_id == handle.run_id and e.at.tzinfo is UTC for e in entries)
    assert tail == entries[3:]
    assert by_run_id == entries


async def test_the_times_of_a_journal_never_go_back_though_the_clock_does() -> None:
    clock, gates = FakeClock(), Gates()

    @step
    async def hold() -> None:
        gates.open("runs")
        await gates.wait("hold")

    @workflow
    async def flow() -> None:
        await hold()
        await charge(1)

    async with Engine("memory://", [flow], clock=clock) as engine:
        handle = await engine.start(flow(), id="it")
        await gates.wait("runs")
        clock.advance(-1000)
        gates.open("hold")
        await handle.result(PATIENCE)
        times = [e.at for e in await engine.journal("it")]
    assert times == sorted(times)


@pytest.mark.parametrize("start", [0, 2])
async def test_follow_gives_the_past_and_then_what_comes_until_the_end(start: int) -> None:
    gates, flow = holding()
    store = MemoryStore()
    async with Engine(store, [flow]) as engine, connect(store) as client:
        handle = await engine.start(flow(), id="it")
        await gates.wait("runs")
        seen: list[Entry] = []

        async def follow() -> None:
            async for entry in client.follow("it", start=start):
                seen.append(entry)
                if isinstance(entry.event, StepStarted):
                    gates.open("hold")

        async with asyncio.timeout(PATIENCE):
            await follow()
        await handle.result(PATIENCE)
        assert seen == list(await engine.journal("it", start=start))
    assert [e.seq for e in seen] == list(range(start, 5))
    assert isinstance(seen[-1].event, RunFinished)


async def test_follow_of_a_finished_run_ends_at_once_from_anywhere() -> None:
    async with Engine("memory://", [pay]) as engine:
        await engine.run(pay(1), id="it")
        async with asyncio.timeout(PATIENCE):
            assert [e.seq async for e in engine.follow("it")] == [0, 1, 2, 3, 4]
            assert [e.seq async for e in engine.follow("it", start=5)] == []
            assert [e.seq async for e in engine.follow("it", start=99)] == []


async def test_follow_misses_no_end_that_comes_between_two_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    gates = Gates()

    @step
    async def hold() -> None:
        await gates.wait("hold")

    @workflow
    async def flow() -> None:
        await hold()

    store = MemoryStore()
    async with Engine(store, [flow]) as engine, connect(store) as client:
        handle = await engine.start(flow(), id="it")
        get = store.runs.get

        async def get_late(run_id: str) -> Any:
            # The journal has been read, and the run ends before its row is.
            gates.open("hold")
            await handle.outcome(PATIENCE)
            return await get(run_id)

        monkeypatch.setattr(store.runs, "get", get_late)
        async with asyncio.timeout(PATIENCE):
            seen = [entry.event async for entry in client.follow("it")]
    assert isinstance(seen[-1], RunFinished)


async def test_what_is_far_beyond_a_store_is_asked_for_like_anything_else(url: str) -> None:
    async with Engine(url, [pay], recovery=AT_ONCE) as engine:
        await engine.run(pay(1), id="p")
        for far in (sys.maxsize, 10**30):
            assert [run.id for run in await engine.list(limit=far)] == ["p"]
            assert await engine.journal("p", start=far) == []
            assert [entry async for entry in engine.follow("p", start=far)] == []
            assert [chunk async for chunk in engine.stream("p", start=far)] == []


@pytest.mark.parametrize("id", ["", "a\x00b", "\ud800", "../x", "x" * 100_000, "ä" * 64])
async def test_a_blob_id_that_none_can_have_is_no_blob_in_any_store(url: str, id: str) -> None:
    async with Engine(url, [pay], recovery=AT_ONCE) as engine:
        assert await engine.blobs.get(id) is None
