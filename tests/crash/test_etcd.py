"""Engines whose etcd was wiped, put back or away while they work: who may write, the journal decides all the same."""

from __future__ import annotations

import asyncio
import math
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from perdure import Engine, Recovery, RunHandle, connect, step, workflow
from perdure.errors import NotOwner, StoreUnavailable
from perdure.kernel.events import RunClaimed, RunFinished, RunReleased, StepSucceeded
from perdure.ports.journal import Append
from perdure.ports.leases import HeldBy, Renewal
from perdure.stores.etcd.leases import EtcdLeases
from tests.amounts import some
from tests.crash.test_etcd_processes import rewind, wipe
from tests.patience import PATIENCE
from tests.services.plugin import Servers
from tests.services.proxy import Proxy
from tests.services.servers import Etcd

RUNS, STEPS = 6, 40
RECOVERY = Recovery(lease=1.5, check_interval=0.1, grace=0.1)


@step
async def work(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


@workflow
async def labour() -> int:
    return sum([await work(number) for number in range(STEPS)])


async def started(engine: Engine, id: str) -> RunHandle[int]:
    """Start a run, as a caller does who is told to try again: on a busy machine an engine may lose its short lease."""
    while True:
        try:
            return await engine.start(labour(), id=id)
        except StoreUnavailable:
            await asyncio.sleep(0.05)


class Pair:
    """Two engines on one file whose leases are in etcd, and what each of them wrote."""

    def __init__(self, db: str, leases: str) -> None:
        self.db, self.leases = db, leases
        # By run, the numbers of entries, and by whom each was written.
        self.wrote: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[tuple[Engine, Engine]]:
        async with AsyncExitStack() as stack:
            a, b = [await self._opened(name, stack) for name in ("a", "b")]
            yield a, b

    async def _opened(self, name: str, stack: AsyncExitStack) -> Engine:
        """Open an engine, again and again where etcd does not answer in time: the machine may be busy."""
        while True:
            with suppress(StoreUnavailable):
                return await stack.enter_async_context(self._engine(name))
            await asyncio.sleep(0.05)

    def _engine(self, name: str) -> Engine:
        def note(id: str, append: Append) -> None:
            for seq in range(append.expected_next, append.next_seq):
                self.wrote[append.run_id][seq].append(name)

        url = f"{self.leases}?timeout=2"
        return Engine(self.db, [labour], name=name, leases=url, recovery=RECOVERY, on_commit=note)

    async def check(self, handles: list[RunHandle[int]]) -> int:
        """Every entry was written once, by whoever had claimed the run last; returns how often runs changed hands."""
        handed = 0
        async with connect(self.db) as client:
            for handle in handles:
                entries = await client.journal(handle.id)
                owner, epoch = "", 0
                for entry in entries:
                    event = entry.event
                    if isinstance(event, RunClaimed):
                        assert event.epoch > epoch
                        handed += owner not in ("", event.owner)
                        owner, epoch = event.owner, event.epoch
                    writers = self.wrote[handle.run_id][entry.seq]
                    # A claim and the release before it are not told to observers of commits.
                    told = [[owner]] if not isinstance(event, RunClaimed | RunReleased) else [[owner], []]
                    assert not owner or writers in told, f"{entry} of {handle.id}: {writers}, owned by {owner}"
                outcomes = Counter(e.event.op for e in entries if isinstance(e.event, StepSucceeded))
                assert set(outcomes.values()) == {1}
                assert len(outcomes) == STEPS
                assert sum(isinstance(e.event, RunFinished) for e in entries) == 1
        return handed


@pytest.mark.parametrize("lose", [wipe, rewind])
async def test_an_etcd_that_forgot_lets_nobody_write_twice(
    servers: Servers, tmp_path: Path, lose: Callable[[Etcd, Path], None]
) -> None:
    with servers.etcd() as server:
        server.stop()
        old = tmp_path / "old"
        shutil.copytree(server.directory / "data", old)
        server.start()
        pair = Pair(f"sqlite:///{tmp_path}/runs.db", server.url)
        async with pair.open() as (a, b):
            handles = [await started((a, b)[n % 2], f"run-{n}") for n in range(RUNS)]
            for _ in range(3):
                await asyncio.sleep(0.3)
                await asyncio.to_thread(lose, server, old)
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(h.result() for h in handles)) == [sum(range(STEPS))] * RUNS
        await pair.check(handles)


async def test_both_think_that_they_are_alone_and_one_writes(servers: Servers, tmp_path: Path) -> None:
    """The keys of etcd are taken away again and again: each finds nobody else alive, and takes the other's runs."""
    with servers.etcd() as server:
        pair = Pair(f"sqlite:///{tmp_path}/runs.db", server.url)
        async with pair.open() as (a, b):
            handles = [await started((a, b)[n % 2], f"run-{n}") for n in range(RUNS)]
            thief = asyncio.create_task(_steal(a))
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(h.result() for h in handles)) == [sum(range(STEPS))] * RUNS
            thief.cancel()
        assert await pair.check(handles) > 0


async def _steal(engine: Engine) -> None:
    leases = engine.store.leases
    while True:
        for lease in await leases.live("orchestrator:", engine.clock.now()):
            with suppress(NotOwner):
                await leases.release(lease.key, lease.owner)
        await asyncio.sleep(0.02)


async def test_engines_go_on_when_etcd_was_away_for_longer_than_a_lease(servers: Servers, tmp_path: Path) -> None:
    with servers.etcd() as server:
        pair = Pair(f"sqlite:///{tmp_path}/runs.db", server.url)
        async with pair.open() as (a, b):
            handles = [await started((a, b)[n % 2], f"run-{n}") for n in range(RUNS)]
            await asyncio.sleep(0.3)
            server.kill()
            await asyncio.sleep(3 * RECOVERY.ttl)
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(h.result() for h in handles)) == [sum(range(STEPS))] * RUNS
        await pair.check(handles)


# --- networks -------------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Proxy], None]] = {
    "silence": Proxy.blackhole,
    "nothing is heard": lambda proxy: proxy.blackhole("down"),
    "nothing is said": lambda proxy: proxy.blackhole("up"),
    "refused": Proxy.refuse,
    "replies are lost": lambda proxy: proxy.lose_replies(5),
    "broken off": lambda proxy: proxy.reset_after(700),
    "answers are broken off": lambda proxy: proxy.reset_after(300, "down"),
    "slow": lambda proxy: proxy.delay(0.2),
}


# Those that differ most for a client; the others by `make soak`.
DIFFERENT = ["nothing is heard", "refused", "replies are lost", "answers are broken off"]


@pytest.mark.parametrize("fault", some([*DIFFERENT, *sorted(FAULTS.keys() - DIFFERENT)], len(DIFFERENT)))
async def test_work_goes_on_when_the_way_to_etcd_heals(servers: Servers, tmp_path: Path, fault: str) -> None:
    with servers.etcd() as server, Proxy(server.port) as proxy:
        pair = Pair(f"sqlite:///{tmp_path}/runs.db", proxy.url(server.url))
        async with pair.open() as (a, b):
            handles = [await started((a, b)[n % 2], f"run-{n}") for n in range(RUNS)]
            await asyncio.sleep(0.2)
            FAULTS[fault](proxy)
            await asyncio.sleep(1.5 * RECOVERY.ttl)
            proxy.heal()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*(h.result() for h in handles)) == [sum(range(STEPS))] * RUNS
        await pair.check(handles)


class Tenure:
    """What is known of one time during which somebody held the lease."""

    def __init__(self, owner: str, began: float, until: float) -> None:
        self.owner, self.began, self.until = owner, began, until
        # When it heard that it has the lease: it was given at some moment between the two.
        self.heard = began
        # When it began to give the lease back, whatever it heard of that.
        self.left: float | None = None


async def test_one_holds_a_lease_at_a_time_whatever_the_network_does(servers: Servers) -> None:
    """Each epoch has one holder, and begins when the one before has run out or was given back."""
    clock = asyncio.get_running_loop().time
    tenures: dict[int, Tenure] = {}
    unknown, limit = 0, clock() + PATIENCE

    def enough() -> bool:
        """Whether all have had it, many times, and often without knowing."""
        assert clock() < limit, f"{len(tenures)} tenures, {unknown} of unknown outcome"
        return len(tenures) > 50 and unknown > 5 and len({tenure.owner for tenure in tenures.values()}) == 3

    async def contend(leases: EtcdLeases, owner: str, chance: random.Random) -> None:
        nonlocal unknown
        while not enough():
            now = clock()
            try:
                answer = await leases.acquire("k", owner, 0.3, now)
                if isinstance(answer, HeldBy):
                    await asyncio.sleep(0.01)
                    continue
                tenure = tenures.setdefault(answer.epoch, Tenure(owner, now, answer.expires))
                assert tenure.owner == owner
                tenure.heard = max(tenure.heard, clock())
                tenure.until = max(tenure.until, answer.expires)
                if chance.random() < 0.5:
                    await asyncio.sleep(0.02)
                    now = clock()
                    if not await leases.renew_all([Renewal("k", owner, 0.3)], now):
                        tenure.until = max(tenure.until, now + 0.3)
                if chance.random() < 0.7:
                    tenure.left = min(tenure.left or math.inf, clock())
                    await leases.release("k", owner)
            except NotOwner:
                pass
            except StoreUnavailable:
                unknown += 1

    async def disturb(proxy: Proxy, chance: random.Random) -> None:
        while not enough():
            chance.choice(list(FAULTS.values()))(proxy)
            await asyncio.sleep(chance.random() * 0.3)
            proxy.heal()
            await asyncio.sleep(chance.random() * 0.1)

    with servers.etcd() as server, Proxy(server.port) as proxy:
        url = f"{proxy.url(server.url)}?timeout=0.2"
        async with EtcdLeases(server.url) as near, EtcdLeases(url) as far, EtcdLeases(url) as farther:
            await asyncio.gather(
                contend(near, "near", random.Random(1)),
                contend(far, "far", random.Random(2)),
                contend(farther, "farther", random.Random(3)),
                disturb(proxy, random.Random(4)),
            )
            proxy.heal()
    # By epoch they are in the order in which they were given.
    ordered = [tenures[epoch] for epoch in sorted(tenures)]
    for before, after in pairwise(ordered):
        assert before.began <= after.heard
        assert after.began >= before.until or before.left is not None, f"{before.owner} and {after.owner}"
