"""How often an orchestrator shows that it lives, what that costs, and how soon it is missed. All in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from perdure import Engine, Recovery, StoreUnavailable, lock, sleep, step, wait_signal, workflow
from perdure.engine.change_feed import ChangeFeedConfig, change_feed
from perdure.ports.leases import ORCHESTRATOR, Acquired, HeldBy, Leases, Renewal
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.notifications import Notifications
from perdure.testing.simulation import Simulation

MINUTE = 60.0
# What a minute of heartbeats may cost an engine with nothing to do, and a minute of everything that it asks for.
BEATS, STATEMENTS = 6, 12


class Counted:
    """Leases, and when each heartbeat came."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._loop = asyncio.get_running_loop()
        self.beats: list[float] = []
        self.away = False
        # How long the next heartbeat takes.
        self.slow = 0.0

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        if not any(one.key.startswith(ORCHESTRATOR) for one in renewals):
            return await self._leases.renew_all(renewals, now)  # of a lock
        self.beats.append(self._loop.time())
        slow, self.slow = self.slow, 0.0
        await asyncio.sleep(slow)
        if self.away:
            raise StoreUnavailable("leases", "out of reach")
        return await self._leases.renew_all(renewals, now)

    def pauses(self) -> list[float]:
        """The seconds from each heartbeat to the next."""
        return [round(after - before, 3) for before, after in zip(self.beats, self.beats[1:], strict=False)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


class Heard:
    """Leases whose heartbeats are told to others, as on PostgreSQL."""

    def __init__(self, leases: Leases, everyone: list[Notifications]) -> None:
        self._leases, self._everyone, self._notifications = leases, everyone, Notifications(PostgresConfig())
        everyone.append(self._notifications)

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        answer = await self._leases.acquire(key, owner, ttl, now)
        if isinstance(answer, Acquired) and key.startswith(ORCHESTRATOR):
            self._tell(key, ttl)
        return answer

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        lost = await self._leases.renew_all(renewals, now)
        for one in renewals:
            if one.key not in lost and one.key.startswith(ORCHESTRATOR):
                self._tell(one.key, one.ttl)
        return lost

    def _tell(self, key: str, ttl: float) -> None:
        for wakes in self._everyone:
            wakes.received(f"{self._notifications.for_heartbeat()}{key} {ttl}")

    def watch(self, prefix: str) -> AsyncIterator[str]:
        return self._notifications.leases.watch(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


began: list[float] = []


@step
async def long() -> None:
    began.append(asyncio.get_running_loop().time())
    await asyncio.sleep(300)


@workflow
async def working() -> None:
    await long()


@workflow
async def asleep() -> None:
    await sleep(1_000_000)


@workflow
async def waiting() -> None:
    await wait_signal("go")


@workflow
async def locked() -> None:
    async with lock("one"):
        await wait_signal("go")


@workflow
async def brief() -> int:
    return 1


PROGRAMS: list[Any] = [working, asleep, waiting, locked, brief]


@pytest.fixture(autouse=True)
def fresh() -> None:
    began.clear()


def test_an_engine_with_nothing_to_do_gives_six_heartbeats_a_minute_and_asks_twelve_times_at_most() -> None:
    sim = Simulation(seed=1)
    asked: list[str] = []

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery()) as engine:
            change_feed(engine.store)._config = ChangeFeedConfig(poll_interval=0.5)
            for program in (asleep, waiting):
                _ = await engine.start(program(), id=program.name)
            await sim.advance(MINUTE)  # what was started leaves memory
            leases.beats.clear()
            engine.store.trace(asked.append)
            await sim.advance(10 * MINUTE)
            engine.store.trace(None)
            assert 10 * BEATS - 1 <= len(leases.beats) <= 10 * BEATS
            assert set(leases.pauses()) == {10.0}
            # The memory store does not count what is asked of leases that are given beside it.
            looks = 10 * MINUTE / Recovery().check_interval
            assert asked
            assert len(asked) + looks + len(leases.beats) <= 10 * STATEMENTS, asked

    sim.play(scenario())


@pytest.mark.parametrize("program", [working, locked])
def test_an_engine_that_has_something_to_stop_has_time_to_try_a_heartbeat_again(program: Any) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery(grace=0)) as engine:
            _ = await engine.start(program(), id="x")
            await sim.advance(2 * MINUTE)
            assert set(leases.pauses()) == {7.0}
            leases.away = True
            await sim.advance(9.5)
            leases.away = False
            await sim.advance(20)
            assert len(began) == (program is working)

    sim.play(scenario())


def test_the_first_run_that_comes_into_memory_finds_a_lease_that_lasts() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery(grace=0)) as engine:
            await sim.advance(10.0 + 9.0)
            assert len(leases.beats) == 1
            _ = await engine.start(working(), id="x")
            await sim.advance(0)
            assert len(began) == 1
            assert leases.pauses() == [9.0]
            await sim.advance(MINUTE)
            assert set(leases.pauses()[1:]) == {7.0}

    sim.play(scenario())


def test_runs_that_come_and_go_make_no_more_heartbeats_than_runs_that_stay() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery()) as engine:
            for number in range(200):
                _ = await engine.run(brief(), id=f"b{number}")
                await sim.advance(0.9)
            assert min(leases.pauses()) >= 7.0
            assert max(leases.pauses()) <= 10.0

    sim.play(scenario())


@pytest.mark.parametrize("program", [working, waiting])
def test_a_lease_that_was_given_has_three_heartbeats_whatever_there_is_to_do(program: Any) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery(lease=45.0, grace=0)) as engine:
            _ = await engine.start(program(), id="x")
            await sim.advance(3 * MINUTE)
            assert set(leases.pauses()) == {15.0}
            lease = await sim.store.leases.get(ORCHESTRATOR + "a", 0.0)
            assert lease is not None
            assert lease.expires - sim.now().timestamp() > 29.0

    sim.play(scenario())


def test_on_one_machine_nothing_is_different() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine(PROGRAMS, name="a", recovery=Recovery()) as engine:
            assert (engine._recovery.ttl, engine._recovery.heartbeat, engine._recovery.idle_heartbeat) == (30, 10, 10)

    sim.play(scenario())


def test_a_late_heartbeat_of_an_engine_with_nothing_to_stop_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Counted(sim.store.leases)
        async with sim.engine(PROGRAMS, name="a", leases=leases, recovery=Recovery()) as engine:
            orchestrator = engine._orchestrator
            assert orchestrator is not None
            await sim.advance(9.9)
            leases.slow = 3.0
            await sim.advance(2.5)  # where work would have to stop by now
            assert orchestrator.lease_deadline.until < orchestrator.loop.time()
            assert not orchestrator.session.suspended
            await sim.advance(1.0)
            assert await engine.run(brief(), id="b") is not None
            # And once the lease has ended it is suspended as ever, and goes on.
            leases.away = True
            await sim.advance(30.0)
            assert orchestrator.session.suspended
            leases.away = False
            await sim.advance(2.0)
            assert not orchestrator.session.suspended

    sim.play(scenario())
    assert sum("no heartbeat succeeded in time" in line for line in caplog.messages) == 1


@pytest.mark.parametrize("lived", [0.1, 3.0, 6.9, 7.1, 13.0, 25.0, 60.0])
@pytest.mark.parametrize("before", [0.0, 5.0, 40.0])
def test_work_goes_on_within_fifteen_seconds_of_the_death_of_a_machine(before: float, lived: float) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        everyone: list[Notifications] = []
        loop = asyncio.get_running_loop()

        def engine(name: str) -> Engine:
            return sim.engine(
                PROGRAMS, name=name, leases=Heard(sim.store.leases, everyone), recovery=Recovery(check_interval=3600)
            )

        async with engine("survivor"):
            await sim.advance(before)
            doomed = await engine("doomed").__aenter__()
            _ = await doomed.start(working(), id="x")
            await sim.advance(lived)
            died = loop.time()
            assert len(began) == 1
            orchestrator, beating = doomed._orchestrator, doomed._service
            assert orchestrator is not None
            assert beating is not None
            orchestrator.abort()  # without another word to the store
            await beating.stop()
            await sim.advance(15.0)
            assert len(began) == 2
            assert began[1] - died <= 15.0

    sim.play(scenario())
