"""One poller for each open store of a process: it notices what is written, and ends with its last subscription."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
from collections.abc import Coroutine
from typing import Any

import pytest

from perdure import Engine, StoreUnavailable, workflow
from perdure.client.client import Client
from perdure.engine.change_feed import Subscription, _feeds, change_feed
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation.world import World


class Store(MemoryStore):
    """It counts how often its version is read."""

    def __init__(self) -> None:
        super().__init__()
        self.polls, self.written = 0, 0

    def version(self) -> object:
        self.polls += 1
        if self.written < 0:
            raise OSError("no disk")
        return self.written


class Subscriber:
    """It notes when it is refreshed."""

    def __init__(self, store: Store, interval: float = 0.0, longest: float = math.inf) -> None:
        self.at: list[float] = []
        self.wanted = True
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.subscription = Subscription(
            change_feed(store),
            "testing",
            self.refresh,
            interval=interval,
            longest=lambda: longest,
            wanted=lambda: self.wanted,
        )

    async def refresh(self) -> None:
        self.at.append(round(self.loop.time(), 3))
        if self.error is not None:
            raise self.error


def play(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in virtual time."""
    world = World("a feed", 1000.0)
    machine = world.machine("m")
    task = machine.loop.create_task(scenario)
    task.add_done_callback(lambda _: world.stop())
    assert world.run(1000.0)
    task.result()
    world.end()


def test_a_refresh_follows_the_start_each_change_and_nothing_else() -> None:
    async def scenario() -> None:
        store = Store()
        one = Subscriber(store)
        assert one.subscription.start()
        assert not one.subscription.start()
        await asyncio.sleep(1.01)
        assert one.at == [0.0]
        store.written = 1
        await asyncio.sleep(1.0)
        assert one.at == [0.0, 1.05]
        one.subscription.notify()
        await asyncio.sleep(1.0)
        assert one.at == [0.0, 1.05, 2.01]
        await one.subscription.close()

    play(scenario())


def test_one_that_starts_beside_others_waits_for_their_next_poll() -> None:
    """Each run that is started and awaited here subscribes for a moment: that costs no poll."""

    async def scenario() -> None:
        store = Store()
        first, second = Subscriber(store), Subscriber(store)
        first.subscription.start()
        await asyncio.sleep(0.01)
        polls = store.polls
        for _ in range(5):
            second.subscription.start()
            await asyncio.sleep(0.001)
        assert store.polls == polls
        await asyncio.sleep(0.1)
        assert second.at == [0.05]
        await first.subscription.close()
        await second.subscription.close()
        # The feed begins anew after its last subscription, even if it was notified meanwhile.
        second.subscription.notify()
        await asyncio.sleep(0.1)
        first.at.clear()
        first.subscription.start()
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        assert first.at == [round(began, 3)]
        await first.subscription.close()

    play(scenario())


def test_refreshes_are_an_interval_apart_and_the_last_change_is_never_missed() -> None:
    async def scenario() -> None:
        store = Store()
        one = Subscriber(store, interval=0.125)
        one.subscription.start()
        for _ in range(50):
            await asyncio.sleep(0.01)
            store.written += 1
        await asyncio.sleep(1.0)
        assert one.at == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]
        await one.subscription.close()

    play(scenario())


def test_where_nothing_changes_a_refresh_is_made_now_and_then() -> None:
    async def scenario() -> None:
        one = Subscriber(Store(), longest=1.0)
        one.subscription.start()
        await asyncio.sleep(3.5)
        assert len(one.at) == 4
        await one.subscription.close()

    play(scenario())


def test_a_refresh_that_fails_is_made_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        one = Subscriber(Store(), interval=0.1)
        one.error = StoreUnavailable("memory://", "it is away")
        one.subscription.start()
        await asyncio.sleep(1.05)
        assert len(one.at) >= 10
        one.error = None
        await asyncio.sleep(1.0)
        failed = len(one.at)
        await asyncio.sleep(1.0)
        assert len(one.at) == failed
        await one.subscription.close()

    with caplog.at_level(logging.WARNING, "perdure"):
        play(scenario())
    assert [line for line in caplog.messages if "testing failed, and will be retried" in line] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_version_that_cannot_be_read_counts_as_changed() -> None:
    async def scenario() -> None:
        store = Store()
        one = Subscriber(store, interval=1.0)
        one.subscription.start()
        await asyncio.sleep(0.5)
        store.written = -1
        await asyncio.sleep(3.0)
        assert one.at == [0.0, 1.0, 2.0, 3.0]
        await one.subscription.close()

    play(scenario())


def test_all_subscriptions_share_one_poller_which_ends_with_the_last() -> None:
    async def scenario() -> None:
        store = Store()
        some = [Subscriber(store) for _ in range(4)]
        for one in some:
            one.subscription.start()
        await asyncio.sleep(0.001)
        store.polls = 0
        await asyncio.sleep(1.0)
        assert store.polls == 20
        for one in some[1:]:
            one.wanted = False
        await asyncio.sleep(1.0)
        assert store.polls == 40
        await some[0].subscription.close()
        await asyncio.sleep(1.0)
        assert store.polls <= 41
        store.written = 1
        some[1].wanted = True
        assert some[1].subscription.start()
        await asyncio.sleep(0.01)
        assert len(some[1].at) == 2
        await some[1].subscription.close()

    play(scenario())


@workflow
async def quick() -> int:
    return 1


async def test_engines_and_clients_of_one_store_share_its_feed_and_leave_nothing_behind() -> None:
    store = MemoryStore()
    feed = change_feed(store)
    async with Engine(store, [quick], name="a") as one, Engine(store, [quick], name="b"), Client(store) as client:
        assert (await one.run(quick())).output == 1
        assert change_feed(store) is feed
        assert (await client.run(quick(), id="x")).output == 1
    del one, client
    key = next(key for key, known in _feeds.items() if known is feed)
    del feed
    gc.collect()
    assert key not in _feeds
