"""Two stores on one server wake each other, and whoever is idle asks for next to nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import redis

from perdure.kernel.policies.queues import Queue
from perdure.ports.leases import Renewal
from perdure.stores.redis.config import RedisConfig
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance.history import History, step, timer, write_all
from perdure.testing.conformance.queues import queued
from tests.patience import PATIENCE
from tests.services.plugin import Servers


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open(migrate=True)
    await store._notifications.listening.wait()
    yield store
    await store.close()


@pytest.fixture
async def second(store: RedisStore, redis_url: str) -> AsyncIterator[RedisStore]:
    second = RedisStore(redis_url)
    await second.open(migrate=False)
    await second._notifications.listening.wait()
    yield second
    await second.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


def traced(store: RedisStore) -> list[str]:
    commands: list[str] = []
    store.trace(commands.append)
    return commands


async def test_an_append_is_heard_by_others_without_a_command(store: RedisStore, second: RedisStore) -> None:
    commands, before = traced(second), second.version()
    await write_all(store, History("r1").begin())
    await eventually(lambda: second.version() != before)
    assert commands == []


async def test_a_lease_that_changes_hands_is_heard_and_a_sign_of_life_is_not(
    store: RedisStore, second: RedisStore
) -> None:
    before = second.version()
    await store.leases.acquire("k", "a", 30.0, 1.0)
    await eventually(lambda: second.version() != before)
    before, mine = second.version(), store.version()
    await store.leases.renew_all([Renewal("k", "a", 30.0)], 2.0)
    await store.leases.renew_all([Renewal("k", "a", 30.0)], 3.0)
    assert (second.version(), store.version()) == (before, mine)
    await store.leases.release("k", "a")
    await eventually(lambda: second.version() != before)


async def test_a_lease_that_is_given_back_is_told_to_who_watches(store: RedisStore, second: RedisStore) -> None:
    ended = second.leases.watch("orchestrator:")
    waiting = asyncio.ensure_future(anext(ended))
    await asyncio.sleep(0)
    for key in ("lock:x", "orchestrator:a"):
        await store.leases.acquire(key, "a", 30.0, 1.0)
    await store.leases.release_all("a")
    assert await waiting == "orchestrator:a"


@pytest.mark.parametrize("heartbeats", [0, 2])
async def test_an_orchestrator_that_is_not_heard_until_its_lease_ends_is_missed_even_before_its_first_heartbeat(
    store: RedisStore, second: RedisStore, heartbeats: int
) -> None:
    missed = asyncio.ensure_future(anext(second.leases.watch("orchestrator:")))
    await asyncio.sleep(0)
    await store.leases.acquire("orchestrator:a", "a#1", 0.01, time.time())
    for _ in range(heartbeats):
        await store.leases.renew_all([Renewal("orchestrator:a", "a#1", 0.01)], time.time())
    async with asyncio.timeout(PATIENCE):
        assert await missed == "orchestrator:a"


async def test_every_write_is_one_command(store: RedisStore) -> None:
    """However many runs are written, renewed, looked for or read."""
    runs = [History(f"r{i}") for i in range(40)]
    await write_all(store, *(run.begin_as("a", timer(9.0)) for run in runs))
    await queued(store, "q")
    commands = traced(store)
    for write, script in (
        (write_all(store, *(run.then(*step(0)) for run in runs)), "append"),
        (store.journal.read_many([run.run_id for run in runs]), "read"),
        (store.journal.heads([run.run_id for run in runs]), "heads"),
        (store.timers.due(10.0, 100, ["checkout"], []), "due"),
        (store.timers.ahead(["checkout"], []), "ahead"),
        (store.runs.finished([run.run_id for run in runs]), "finished"),
        (store.leases.renew_all([Renewal(f"k{i}", "a", 3.0) for i in range(40)], 1.0), "renew"),
    ):
        commands.clear()
        await write
        assert [c for c in commands if not c.startswith("SCRIPT")][-1:] == [f"EVALSHA {script}"]
        commands.clear()
    await store.queues.pick(Queue("emails"), 10, 1e10, ["checkout"])
    assert len([c for c in commands if not c.startswith("SCRIPT")]) <= 4


async def test_the_counter_is_read_only_when_no_notification_came(store: RedisStore, second: RedisStore) -> None:
    second._server.config = RedisConfig(poll_interval=0.0)
    commands = traced(second)
    await second._notifications.stop()
    second._notifications.start(0)
    await eventually(lambda: "HGET" in commands)
    # A heartbeat returns it too.
    commands.clear()
    second._server.config = RedisConfig(poll_interval=3600.0)
    heard = second._notifications._last_notice
    await second.leases.renew_all([Renewal("k", "a", 3.0)], 1.0)
    assert second._notifications._last_notice > heard
    assert [c for c in commands if c.startswith("EVALSHA")]


async def test_a_dead_connection_is_noticed_by_what_was_missed(
    store: RedisStore, second: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that do not arrive on a connection that looks alive: the counter says so, and it is made anew."""
    listening = second._notifications._tasks[0]
    missed: list[int] = []
    monkeypatch.setattr(second._notifications, "committed", missed.append)
    await write_all(store, History("r1").begin())
    await eventually(lambda: bool(missed))
    monkeypatch.undo()
    second._server.config = RedisConfig(poll_interval=0.05)
    second._notifications._tasks[1].cancel()
    second._notifications._tasks[1] = asyncio.get_running_loop().create_task(second._notifications._poll())
    await eventually(lambda: second._notifications._tasks[0] is not listening)
    await eventually(second._notifications.listening.is_set)
    before = second.version()
    await write_all(store, History("r2").begin())
    await eventually(lambda: second.version() != before)


async def test_a_user_who_may_not_listen_hears_by_the_counter(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    with servers.redis() as server:
        with redis.Redis.from_url(server.url) as root:
            root.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~*", "resetchannels", "+@all")
        url = server.url.replace("://", "://deaf:pw@")
        stores = [RedisStore(url, RedisConfig(poll_interval=0.0)) for _ in range(2)]
        for store in stores:
            await store.open(migrate=True)
        await eventually(lambda: "may not subscribe" in caplog.text)
        before = stores[1].version()
        await write_all(stores[0], History("r1").begin())
        await eventually(lambda: stores[1].version() != before)
        for store in stores:
            await store.close()
