"""The indexes of the Redis store are written by hand, script by script: whatever happens, they say what memory says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
import redis

from perdure.kernel.events import (
    AnyEvent,
    InputReplaced,
    RunClaimed,
    RunFinished,
    RunPaused,
    RunReleased,
    RunResumed,
    RunStatus,
    WaitOpened,
)
from perdure.kernel.policies.queues import Queue, Rate
from perdure.kernel.projection import row
from perdure.kernel.state import RunState, fold
from perdure.ports.journal import Append
from perdure.ports.runs import RunFilter
from perdure.stores.memory.store import MemoryStore
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance.history import BEGAN, History, parked, timer, write
from tests.amounts import some

PROGRAMS = ["checkout", "refund"]
OWNERS = ["a", "b"]
QUEUES = ["", "mail", "gpu"]
LIMITS = {"mail": Queue("mail", concurrency=3, per_key=2), "gpu": Queue("gpu", rate=Rate(3, per=20.0))}


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


class Chance:
    """Appends as engines write them, by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.runs: list[History] = []
        self.now = BEGAN

    def appends(self) -> list[Append]:
        return [self._append() for _ in range(self.random.randint(1, 3))]

    def _append(self) -> Append:
        self.now += self.random.choice([0.0, 0.5, 3.0])
        open_runs = [run for run in self.runs if run.state.finished is None]
        if not open_runs or self.random.random() < 0.3:
            return self._begin()
        run = self.random.choice(open_runs)
        run.at = self.now
        events = self._next(run)
        append = run.then(*events)
        if isinstance(events[0], RunClaimed) and run.started.queue and append.row and append.row.began_at == self.now:
            return msgspec.structs.replace(append, admit=LIMITS[run.started.queue])
        return append

    def _begin(self) -> Append:
        number, queue = len(self.runs), self.random.choice(QUEUES)
        fields: dict[str, Any] = {"program": self.random.choice(PROGRAMS), "tags": {"t": str(number % 3)}}
        if queue:
            fields |= {"queue": queue, "queue_key": self.random.choice(["", "k", "l"])}
            fields |= {"priority": self.random.choice([-1, 0, 5])}
            if self.random.random() < 0.3:
                fields["not_before"] = self.now + self.random.choice([1.0, 10.0, 100.0])
        run = History(f"r{number:03}", at=self.now, id=f"id {number}", **fields)
        self.runs.append(run)
        return run.begin() if queue or self.random.random() < 0.5 else run.begin_as(self.random.choice(OWNERS))

    def _next(self, run: History) -> list[AnyEvent]:
        state, number = run.state, run.state.next_seq
        if state.owner is None:
            if state.status is RunStatus.QUEUED and self.random.random() < 0.2:
                replaced = InputReplaced(run.started.input, "", self.now + 5, 3)
                return [replaced if run.started.queue else RunPaused()]
            if state.status is RunStatus.PAUSED:
                return [RunResumed()]
            return [RunClaimed(self.random.choice(OWNERS), state.epoch + 1)]
        match self.random.randint(0, 7):
            case 0 | 1:
                return [RunFinished(self.random.choice([RunStatus.COMPLETED, RunStatus.FAILED]))]
            case 2:
                return [timer(self.now + self.random.choice([-1.0, 0.0, 7.25]), f"sleep:{number}")]
            case 3:
                return [WaitOpened(f"ask:{number}", "approval", name="ask")]
            case 4:
                return [RunReleased(state.owner)]
            case 5:
                return [parked()] if state.parked is None else [RunResumed()]
            case 6:
                return [RunClaimed(self.random.choice(OWNERS), state.epoch + 1)]
            case _:
                return [RunPaused() if state.paused is None else RunResumed()]


async def said(store: Any, now: float) -> dict[Any, Any]:
    """Everything that a store says about its runs."""
    answers: dict[Any, Any] = {
        "list": [(one, head) for one, head in await store.runs.list(RunFilter(limit=1000))],
        "asking": [one.run_id for one, _ in await store.runs.list(RunFilter(asking=True))],
        "failed": [one.run_id for one, _ in await store.runs.list(RunFilter(status=[RunStatus.FAILED], limit=3))],
        "owners": list(await store.runs.owners()),
        "programs": list(await store.runs.programs()),
        "loads": list(await store.upkeep.loads()),
        "stats": list(await store.queues.stats()),
        "waiting": list(await store.queues.waiting(None)),
    }
    for queues in (None, ["mail"], [""]):
        for skip in ([], ["a"]):
            place = (str(queues), str(skip))
            due = await store.timers.due(now, 7, PROGRAMS, skip, queues)
            answers["due", *place] = list(due)
            answers["ahead", *place] = await store.timers.ahead(PROGRAMS[:1], skip, queues)
    for status in (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.PARKED):
        answers["owned", status] = list(await store.runs.owned(OWNERS, status, PROGRAMS, 5))
    for queue in LIMITS.values():
        for room in (1, 4, 100):
            answers["pick", queue.name, room] = await store.queues.pick(queue, room, now, PROGRAMS)
    return answers


@pytest.mark.parametrize("seed", some(range(12), 5))
async def test_indexes_say_what_memory_says(store: RedisStore, seed: int) -> None:
    memory, chance = MemoryStore(), Chance(seed)
    for _ in range(40):
        appends = chance.appends()
        outcomes = await write(memory, *appends)
        assert await write(store, *appends) == outcomes
        for append in appends:
            # What was refused did not happen: go on from what there is.
            run = next(run for run in chance.runs if run.run_id == append.run_id)
            if (head := await memory.journal.head(run.run_id)) is None or head.next_seq != run.state.next_seq:
                await _reread(memory, run)
        if (ours := await said(store, chance.now)) != (theirs := await said(memory, chance.now)):
            assert {name: answer for name, answer in ours.items() if answer != theirs[name]} == {}


async def _reread(memory: MemoryStore, run: History) -> None:
    batches = await memory.journal.read(run.run_id)
    run.state = fold(run.run_id, batches) if batches else RunState(run.run_id)


@pytest.mark.parametrize("seed", range(4))
async def test_rows_that_are_written_again_change_nothing_and_removed_ones_leave_nothing(
    store: RedisStore, keys: Any, seed: int
) -> None:
    memory, chance = MemoryStore(), Chance(100 + seed)
    for _ in range(30):
        for append in chance.appends():
            await write(memory, append)
            await write(store, append)
            run = next(run for run in chance.runs if run.run_id == append.run_id)
            await _reread(memory, run)
    before = await said(store, chance.now)
    for run in chance.runs:
        if run.state.started is not None:
            assert await store.upkeep.reproject(run.run_id, run.state.next_seq, [row(run.state)])
    assert await said(store, chance.now) == before
    for run in chance.runs:
        if run.state.started is not None and run.state.finished is None:
            await write(store, run.then(RunFinished(RunStatus.CANCELLED)))
    await store.upkeep.remove([run.run_id for run in chance.runs])
    assert {key.decode() for key in keys.scan_iter()} == {"perdure:meta"}
