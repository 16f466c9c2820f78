"""Keys that are lost or changed by somebody else: told run by run, and no run hides another."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from perdure.errors import Corrupt
from perdure.kernel.events import RunStatus
from perdure.kernel.projection import row
from perdure.ports.runs import RunFilter
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance.history import History, finished, numbered, step, timer, write_all

CHECKOUT = ["checkout"]


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url)
    await store.open(migrate=True)
    yield store
    await store.close()


@pytest.fixture
def keys(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as keys:
        yield keys


async def two(store: RedisStore) -> list[History]:
    runs = [History("r1"), History("r2")]
    for run in runs:
        await write_all(store, run.begin_as("a"), run.then(*step(0)), run.then(timer(9.0)))
    return runs


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda keys: keys.lset("perdure:journal:r1", 1, b"2 9.0 00000000 []"), "checksum"),
        (lambda keys: keys.lset("perdure:journal:r1", 1, b"nonsense"), "at entry|in its part"),
        (lambda keys: keys.lset("perdure:journal:r1", 1, b"\xff\0\xff"), "in its part"),
        (lambda keys: keys.ltrim("perdure:journal:r1", 1, -1), "entries are missing"),
        (lambda keys: keys.rpop("perdure:journal:r1"), "it ends here, and its head says 5"),
        (lambda keys: keys.delete("perdure:journal:r1"), "its entries are missing"),
        (lambda keys: keys.delete("perdure:head:r1"), "its head says None"),
        (lambda keys: keys.hset("perdure:head:r1", "n", 77), "its head says 77"),
        (lambda keys: keys.hset("perdure:head:r1", "n", b"\xff"), "r1"),
    ],
)
async def test_a_damaged_journal_is_told_and_the_others_come(
    store: RedisStore, keys: Any, harm: Any, reason: str
) -> None:
    await two(store)
    harm(keys)
    with pytest.raises(Corrupt, match=reason) as caught:
        await store.journal.read("r1")
    assert caught.value.run_id == "r1"
    found = await store.journal.read_many(["r1", "r2"])
    assert isinstance(found["r1"], Corrupt)
    assert isinstance(found["r2"], list)


async def test_an_entry_of_another_run_is_noticed(store: RedisStore, keys: Any) -> None:
    """The checksum covers the run, so that a journal cannot be made of another's."""
    await two(store)
    keys.lset("perdure:journal:r1", 1, keys.lindex("perdure:journal:r2", 1))
    with pytest.raises(Corrupt, match="checksum"):
        await store.journal.read("r1")


@pytest.mark.parametrize(
    "harm",
    [
        lambda keys, text: keys.set("perdure:row:r1", text[:-9]),
        lambda keys, text: keys.set("perdure:row:r1", b"\xff\0" + text),
        lambda keys, text: keys.set("perdure:row:r1", text.replace(b"checkout", b"checkin!")),
        lambda keys, text: keys.set("perdure:row:r1", keys.get("perdure:row:r2")),
        lambda keys, text: keys.set("perdure:row:r1", b""),
    ],
)
async def test_a_damaged_row_is_listed_with_what_is_wrong(store: RedisStore, keys: Any, harm: Any) -> None:
    runs = await two(store)
    await write_all(store, *(run.then(finished()) for run in runs))
    harm(keys, keys.get("perdure:row:r1"))
    with pytest.raises(Corrupt):
        await store.runs.get("r1")
    listed = {row.run_id: row for row, _ in await store.runs.list(RunFilter())}
    assert set(listed) == {"r1", "r2"}
    assert "r1" in listed["r1"].reason
    assert listed["r2"].reason == ""
    ended = {one.run_id: one for one in await store.runs.finished(["r1", "r2"])}
    assert isinstance(ended["r1"], Corrupt)
    assert not isinstance(ended["r2"], Corrupt)
    assert [one.run_id for one in await store.upkeep.list_ended(1e11, [RunStatus.COMPLETED], 10)] == ["r2"]


async def test_timers_of_rows_that_were_damaged_and_mended_do_not_stay(store: RedisStore, keys: Any) -> None:
    """A damaged row hides no due run. The row that comes after it knows nothing of its traces; whoever looks does."""
    runs = await two(store)
    keys.set("perdure:row:r1", b"zzzz")
    assert {due.run_id for due in await store.timers.due(100.0, 10, CHECKOUT, [])} == {"r1", "r2"}
    await write_all(store, runs[0].then(finished()))
    assert [due.run_id for due in await store.timers.due(100.0, 10, CHECKOUT, [])] == ["r2"]
    assert keys.zcard("perdure:wake:checkout\0a") == 1
    assert await store.upkeep.reproject("r1", runs[0].state.next_seq, [row(runs[0].state)])
    assert await store.runs.get("r1") == row(runs[0].state)
    assert [one.run_id for one, _ in await store.runs.list(RunFilter())] == ["r2", "r1"]


async def test_a_row_that_is_lost_leaves_no_timer_behind(store: RedisStore, keys: Any) -> None:
    await two(store)
    keys.delete("perdure:row:r1")
    assert [due.run_id for due in await store.timers.due(100.0, 10, CHECKOUT, [])] == ["r2"]
    assert (await store.timers.ahead(CHECKOUT, [])).next_due == 9.0
    assert keys.zcard("perdure:wake:checkout\0a") == 1


async def test_a_row_without_its_journal_is_told(store: RedisStore, keys: Any) -> None:
    await two(store)
    keys.delete("perdure:head:r1", "perdure:journal:r1")
    with pytest.raises(Corrupt, match="its head is missing"):
        await store.runs.find("r1")
    assert await store.journal.read("r1") == []
    assert len(await store.runs.list(RunFilter())) == 2
    assert len(await numbered(store.journal, "r2")) == 5


async def test_a_damaged_blob_is_told(store: RedisStore, keys: Any) -> None:
    blob = await store.blobs.put(b"abc")
    keys.hset(f"perdure:blob:{blob}", "d", b"abd")
    with pytest.raises(Corrupt, match="do not match"):
        await store.blobs.get(blob)
    keys.hdel(f"perdure:blob:{blob}", "d")
    assert await store.blobs.get(blob) is None
