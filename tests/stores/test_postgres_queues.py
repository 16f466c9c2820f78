"""Several stores that serve one queue of a database pick different runs, within its limits."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from perdure import Engine, Queue, Rate, connect, step, workflow
from perdure.kernel.events import RunClaimed
from perdure.ports.journal import Append, Outcome
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.journal import PostgresJournal
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import BEGAN, History, write_all
from tests.patience import PATIENCE
from tests.stores.postgres import opened

NOW = BEGAN + 1_000.0
PROGRAMS = ["checkout"]


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url) as store:
        yield store


@pytest.fixture
async def other(store: PostgresStore, postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with opened(postgres_url, migrate=False) as other:
        yield other


async def queued(store: PostgresStore, count: int, key: str = "", queue: str = "emails") -> list[History]:
    name = key if queue == "emails" else queue
    runs = [History(f"r{name}{n}", queue=queue, queue_key=key, at=BEGAN + n) for n in range(count)]
    await write_all(store, *(run.begin() for run in runs))
    return runs


async def picked(store: PostgresStore, queue: Queue, room: int = 10) -> list[str]:
    return list((await store.queues.pick(queue, room, NOW, PROGRAMS)).run_ids)


async def test_another_store_picks_what_comes_next(store: PostgresStore, other: PostgresStore) -> None:
    await queued(store, 5)
    assert await picked(store, Queue("emails"), 2) == ["r0", "r1"]
    assert await picked(other, Queue("emails"), 2) == ["r2", "r3"]
    assert await picked(store, Queue("emails"), 3) == ["r0", "r1", "r4"]
    # Whoever left something to another looks again before long: the one that was offered it may have died.
    version = other.version()
    assert await picked(other, Queue("emails"), 4) == ["r2", "r3"]
    async with asyncio.timeout(PATIENCE):
        while other.version() == version:
            await asyncio.sleep(0)
    assert await picked(other, Queue("emails"), 5) == ["r0", "r1", "r2", "r3", "r4"]


async def test_stores_that_pick_at_the_same_instant_pick_different_runs(postgres_url: str) -> None:
    different = total = 0
    async with opened(postgres_url) as a, opened(postgres_url) as b, opened(postgres_url) as c:
        for queue in ("one", "two", "three", "four", "five", "six"):
            await queued(a, 40, queue=queue)
            picks = await asyncio.gather(*(picked(store, Queue(queue), 10) for store in (a, b, c)))
            assert all(picks)
            different += len(set[str]().union(*picks))
            total += sum(map(len, picks))
    # Two snapshots may lie so close together that they show the same; most never do.
    assert different > total * 0.5


async def test_what_others_are_about_to_begin_counts_for_the_limits(store: PostgresStore, other: PostgresStore) -> None:
    runs = await queued(store, 9)
    limit = Queue("emails", concurrency=3)
    assert await picked(store, limit, 2) == ["r0", "r1"]
    assert await picked(other, limit) == ["r2"]
    # Begun or about to begin, it counts once.
    await write_all(store, runs[0].then(RunClaimed("me", 1)))
    assert await picked(other, limit) == ["r2"]
    rate = Queue("emails", rate=Rate(3, per=10_000.0))
    assert await picked(other, rate) == ["r2"]


async def test_keys_that_others_are_about_to_serve_come_last_and_count(
    store: PostgresStore, other: PostgresStore
) -> None:
    await queued(store, 3, "a")
    await queued(store, 3, "b")
    assert await picked(store, Queue("emails"), 1) == ["ra0"]
    assert await picked(other, Queue("emails"), 3) == ["rb0", "ra1", "rb1"]
    assert await picked(other, Queue("emails", per_key=1)) == ["rb0"]


async def test_runs_of_a_queue_without_limits_begin_in_one_statement(store: PostgresStore) -> None:
    runs = await queued(store, 4)
    sent: list[str] = []
    store.trace(sent.append)
    for queue, some in ((Queue("emails"), runs[:2]), (Queue("emails", concurrency=1), runs[2:])):
        begins = [msgspec.structs.replace(run.then(RunClaimed("me", 1)), admit=queue) for run in some]
        outcomes = [type(outcome).__name__ for outcome in await store.journal.append(begins)]
        if queue.concurrency is None:
            assert outcomes == ["Appended"] * 2
            assert len(sent) == 1
        else:
            assert outcomes == ["Full"] * 2
            assert len(sent) > 2


@step
async def work(number: int) -> int:
    return number


@workflow
async def flow(count: int) -> int:
    return sum([await work(number) for number in range(count)])


class Counting(PostgresJournal):
    """A journal that counts its outcomes."""

    outcomes: Counter[str]

    async def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes = await super().append(appends)
        self.outcomes.update(type(outcome).__name__ for outcome in outcomes)
        return outcomes


@pytest.mark.parametrize("queue", [Queue("work"), Queue("work", concurrency=20)], ids=["unlimited", "limited"])
async def test_engines_that_serve_one_queue_do_not_get_in_each_others_way(postgres_url: str, queue: Queue) -> None:
    outcomes: Counter[str] = Counter()
    async with opened(postgres_url), connect(postgres_url) as client:
        ids = [f"it-{number}" for number in range(200)]
        runs = await asyncio.gather(*(client.start(flow(3), id=id, queue="work") for id in ids))
        # However long a busy machine takes to begin what was picked.
        stores = [PostgresStore(postgres_url, PostgresConfig(offer=PATIENCE)) for _ in range(2)]
        for store in stores:
            journal = Counting(store._database)
            journal.outcomes = outcomes
            store.journal = journal
        engines = [Engine(store, [flow], name=f"n{n}", queues=[queue]) for n, store in enumerate(stores)]
        async with engines[0], engines[1]:
            assert await asyncio.gather(*(run.result(PATIENCE) for run in runs)) == [3] * 200
    # They pick twenty at a time. Both may come upon the same ones once or twice; without notes of what others picked,
    # 80 to 100 are refused under the limit.
    refused = outcomes["Conflict"] + outcomes["Full"]
    assert refused < 60, outcomes
