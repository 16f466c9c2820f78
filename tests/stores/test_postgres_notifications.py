"""Being told what others write, and how few statements things take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec import Raw

from perdure import Engine, connect, step, wait_signal, workflow
from perdure.client.subscriptions import SubscriptionsConfig
from perdure.kernel.events import ChunkAppended, RunClaimed, SignalReceived, StepStarted
from perdure.ports.journal import Append
from perdure.ports.leases import Renewal
from perdure.ports.runs import RunFilter
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, finished, released, timer, write_all
from perdure.testing.conformance.history import step as steps
from tests.patience import PATIENCE
from tests.stores.postgres import opened


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


@pytest.fixture
async def other(store: PostgresStore, postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url, migrate=False) as other:
        yield other


async def moved(store: PostgresStore, before: object) -> None:
    """Wait until the version is another one."""
    async with asyncio.timeout(PATIENCE):
        while store.version() == before:
            await asyncio.sleep(0)


async def hears(store: PostgresStore, other: PostgresStore, append: Append) -> bool:
    """Whether one store is told of an append of the other. What is told next is told after it."""
    before = store.version()
    await write_all(other, append)
    connection = store._database.listener
    assert connection is not None
    # Over the connection that listens: the server sends what was told before it answers.
    await connection.fetch("select 1")
    return store.version() != before


async def test_steps_are_told_to_nobody(store: PostgresStore, other: PostgresStore) -> None:
    run = History("r1")
    assert not await hears(store, other, run.begin_as("me"))
    assert not await hears(store, other, run.then(*steps(0)))
    assert not await hears(store, other, run.then(timer(99.0)))


async def test_work_for_others_is_told_to_all(store: PostgresStore, other: PostgresStore) -> None:
    run, queued = History("r1"), History("r2", queue="emails")
    assert await hears(store, other, History("r3").begin())
    assert await hears(store, other, queued.begin())
    await write_all(other, run.begin_as("me"))
    assert await hears(store, other, run.then(SignalReceived("go")))
    assert await hears(store, other, run.then(released("me")))
    assert await hears(store, other, run.then(RunClaimed("you", 2)))
    await write_all(other, queued.then(RunClaimed("me", 1)))
    assert await hears(store, other, queued.then(finished()))


async def test_news_of_a_run_is_told_to_those_who_asked_about_it(store: PostgresStore, other: PostgresStore) -> None:
    one, two = History("r1"), History("r2")
    await write_all(other, one.begin_as("me", StepStarted("work:0")), two.begin_as("me"))
    assert list(await store.runs.finished(["r1"])) == []
    assert await store.journal.heads(["r1"]) == {"r1": 3}
    assert not await hears(store, other, two.then(finished()))
    assert await hears(store, other, one.then(ChunkAppended("work:0", 1, 0, (Raw(b"1"),))))
    assert await hears(store, other, one.then(finished()))


async def test_a_lease_that_is_given_back_is_told(store: PostgresStore, other: PostgresStore) -> None:
    await other.leases.acquire("lock:a", "me", 10.0, 100.0)
    watch = store.leases.watch("lock:")
    coming = asyncio.ensure_future(anext(watch))
    await asyncio.sleep(0)
    before = store.version()
    await other.leases.release("lock:a", "me")
    async with asyncio.timeout(PATIENCE):
        assert await coming == "lock:a"
    await moved(store, before)


@pytest.mark.parametrize("heartbeats", [0, 2])
async def test_an_orchestrator_that_is_not_heard_until_its_lease_ends_is_missed_even_before_its_first_heartbeat(
    store: PostgresStore, other: PostgresStore, heartbeats: int
) -> None:
    missed = asyncio.ensure_future(anext(store.leases.watch("orchestrator:")))
    await asyncio.sleep(0)
    await other.leases.acquire("orchestrator:a", "a#1", 0.01, 100.0)
    for number in range(heartbeats):
        await other.leases.renew_all([Renewal("orchestrator:a", "a#1", 0.01)], 100.0 + number)
    async with asyncio.timeout(PATIENCE):
        assert await missed == "orchestrator:a"


async def test_a_group_of_appends_is_one_statement(store: PostgresStore) -> None:
    runs = [History(f"r{number}") for number in range(200)]
    sent: list[str] = []
    store.trace(sent.append)
    await write_all(store, *(run.begin_as("me") for run in runs))
    await write_all(store, *(run.then(*steps(0)) for run in runs))
    await write_all(store, *(run.then(finished()) for run in runs))
    await write_all(store, runs[0].then(released("me")))
    assert len(sent) == 4


async def test_runs_that_several_orchestrators_look_for_are_offered_to_one_of_them(
    store: PostgresStore, other: PostgresStore
) -> None:
    runs = [History(f"r{number}", not_before=1.0) for number in range(6)]
    await write_all(store, *(run.begin() for run in runs))
    programs, alive = ["checkout"], ["somebody"]
    mine = await store.timers.due(1e10, 4, programs, alive)
    theirs = await other.timers.due(1e10, 4, programs, alive)
    assert [due.run_id for due in mine] == ["r0", "r1", "r2", "r3"]
    assert [due.run_id for due in theirs] == ["r4", "r5"]
    assert [due.run_id for due in await store.timers.due(1e10, 4, programs, alive)] == ["r0", "r1", "r2", "r3"]
    # What the other one left alone is looked for again before long.
    await moved(store, store.version())


@step
async def work(number: int) -> int:
    return number


@workflow
async def flow(count: int) -> int:
    return sum([await work(number) for number in range(count)])


@workflow
async def waiting() -> int:
    return int(await wait_signal("go"))


async def test_many_steps_take_few_statements(postgres_url: str) -> None:
    sent: list[str] = []
    async with Engine(postgres_url, [flow]) as engine:
        engine.store.trace(sent.append)
        runs = await asyncio.gather(*(engine.start(flow(10), id=f"many-{n}") for n in range(100)))
        assert sum(await asyncio.gather(*(run.result(PATIENCE) for run in runs))) == 4500
        engine.store.trace(None)
    assert len(sent) <= 0.1 * 1000


async def test_a_step_is_one_statement(postgres_url: str) -> None:
    sent: list[str] = []
    async with Engine(postgres_url, [flow]) as engine:
        await engine.run(flow(1))
        engine.store.trace(sent.append)
        assert (await engine.run(flow(50))).output == sum(range(50))
        engine.store.trace(None)
    appends = [text for text in sent if '"perdure_journal"' in text and "insert" in text]
    assert len(appends) <= 52


async def test_a_signal_from_another_process_wakes_a_run(postgres_url: str) -> None:
    async with Engine(postgres_url, [waiting]) as engine:
        run = await engine.start(waiting(), id="it")
        async with connect(postgres_url) as client:
            async with asyncio.timeout(PATIENCE):
                while not [row for row, _ in await client.store.runs.list(RunFilter()) if row.status == "waiting"]:
                    await asyncio.sleep(0)
            await client.signal("it", "go", 7)
            row = await asyncio.wait_for(client.watch.wait_for_end(run.run_id), PATIENCE)
            assert bytes(row.output) == b"7"
        assert await run.result(PATIENCE) == 7


async def test_who_follows_a_run_of_another_process_sees_steps_that_are_told_to_nobody(
    store: PostgresStore, postgres_url: str
) -> None:
    run = History("r1")
    await write_all(store, run.begin_as("me"))
    async with connect(postgres_url) as client:
        # What is asked for in any case does not count here.
        client._base.followers._config = SubscriptionsConfig(longest=3600.0)
        following = client.follow("r1")
        seen = [(await anext(following)).seq for _ in range(run.state.next_seq)]
        for number in range(3):
            coming = asyncio.ensure_future(anext(following))
            async with asyncio.timeout(PATIENCE):
                while not [one for one in client._base.followers.followed["r1"] if one.is_waiting]:
                    await asyncio.sleep(0)
            await write_all(store, run.then(*steps(number)))
            async with asyncio.timeout(PATIENCE):
                seen.append((await coming).seq)
                while seen[-1] < run.state.next_seq - 1:
                    seen.append((await anext(following)).seq)
    assert seen == list(range(run.state.next_seq))


async def test_appends_of_many_callers_share_their_commits(store: PostgresStore) -> None:
    sent: list[str] = []
    store.trace(sent.append)
    runs = [History(f"r{number}") for number in range(100)]
    await asyncio.gather(*(write_all(store, run.begin()) for run in runs))
    assert len(sent) == 2
    signals = [run.then(SignalReceived("go")) for run in (*runs[:5], runs[0])]
    await asyncio.gather(*(write_all(store, signal) for signal in signals))
    assert len(await store.journal.read("r0")) == 3


async def test_a_caller_that_gives_up_takes_nobody_with_it(store: PostgresStore) -> None:
    runs = [History(f"r{number}") for number in range(4)]
    writing = [asyncio.ensure_future(write_all(store, run.begin())) for run in runs]
    await asyncio.sleep(0)
    writing[1].cancel()
    assert await asyncio.gather(*writing[:1], *writing[2:]) == [None] * 3
    assert sorted(await store.journal.heads([run.run_id for run in runs])) == ["r0", "r2", "r3"]


async def test_an_append_that_cannot_be_written_takes_no_other_with_it(store: PostgresStore) -> None:
    runs = [History(f"r{number}") for number in range(3)]
    bad = History("bad", id="no\0thing")
    results = await asyncio.gather(
        *(write_all(store, run.begin()) for run in (runs[0], bad, *runs[1:])), return_exceptions=True
    )
    assert [type(result).__name__ for result in results] == ["NoneType", "StoreError", "NoneType", "NoneType"]


async def test_many_signs_of_life_at_once_leave_the_listener_listening(store: PostgresStore) -> None:
    keys = [f"k{number}" for number in range(10)]
    for key in keys:
        await store.leases.acquire(key, "me", 10.0, 100.0)
    listener = store._database.listener
    renewals = [store.leases.renew_all([Renewal(key, "me", 10.0)], 105.0) for key in keys]
    assert [list(lost) for lost in await asyncio.gather(*renewals)] == [[]] * 10
    assert store._database.listener is listener
    assert len(await store.leases.live("k", 112.0)) == 10
