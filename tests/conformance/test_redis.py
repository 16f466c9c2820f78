"""The Redis store holds the contract of every port, between two stores on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.ports.store import Store
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance import (
    BlobsConformance,
    JournalConformance,
    LeasesConformance,
    QueuesConformance,
    RunsConformance,
    TimersConformance,
    UpkeepConformance,
)


class OnRedis:
    """Nothing under a prefix of its own, and a second store there."""

    @pytest.fixture
    async def store(self, redis_url: str) -> AsyncIterator[Store]:
        store = RedisStore(redis_url)
        await store.open(migrate=True)
        yield store
        await store.close()

    @pytest.fixture
    async def second(self, store: Store, redis_url: str) -> AsyncIterator[Store]:
        second = RedisStore(redis_url)
        await second.open(migrate=False)
        yield second
        await second.close()


class TestRedisJournal(OnRedis, JournalConformance): ...


class TestRedisRuns(OnRedis, RunsConformance): ...


class TestRedisTimers(OnRedis, TimersConformance): ...


class TestRedisQueues(OnRedis, QueuesConformance): ...


class TestRedisLeases(OnRedis, LeasesConformance): ...


class TestRedisBlobs(OnRedis, BlobsConformance): ...


class TestRedisUpkeep(OnRedis, UpkeepConformance): ...
