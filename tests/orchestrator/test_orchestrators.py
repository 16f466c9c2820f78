"""Orchestrators that share a store: names and sessions, lost leases, orphans that are heard of, rows that heal."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from perdure import (
    Engine,
    Recovery,
    StoreUnavailable,
    UsageError,
    approval,
    call,
    connect,
    lock,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.kernel.events import Batch, RunClaimed, RunParked, RunStatus, StepStarted, decode_events
from perdure.orchestrator import quarantine
from perdure.orchestrator.orphans import OrphansConfig
from perdure.orchestrator.service import ServiceConfig
from perdure.orchestrator.session import OrchestratorConfig
from perdure.ports.journal import Append
from perdure.ports.leases import ORCHESTRATOR, Leases, holder
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.engine.harness import AT_ONCE, PATIENCE, eventually, holding, left_by_a_crash

LEASE = 60.0
BRIEF = Recovery(lease=LEASE, check_interval=20.0, grace=0)


class Fickle:
    """Leases that cannot be renewed for as long as `away` is set."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self.away = False

    async def renew_all(self, *args: Any) -> Sequence[str]:
        if self.away:
            raise StoreUnavailable("leases", "out of reach")
        return await self._leases.renew_all(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


began: list[str] = []
cancelled: list[str] = []


@step
async def rest(name: str, seconds: float) -> str:
    began.append(name)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(name)
        raise
    return name


@workflow
async def resting(name: str, seconds: float) -> str:
    return await rest(name, seconds)


@pytest.fixture(autouse=True)
def fresh() -> None:
    began.clear()
    cancelled.clear()


def test_an_orchestrator_that_cannot_renew_stops_before_its_lease_ends_and_goes_on_by_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Fickle(sim.store.leases)
        async with sim.engine([resting], name="a", leases=leases, recovery=BRIEF) as engine:
            run = await engine.start(resting("x", 300.0), id="x")
            await sim.advance(30)
            leases.away = True
            lease = await sim.store.leases.get(ORCHESTRATOR + "a", 0.0)
            assert lease is not None
            await sim.advance(LEASE * 5 / 6)
            assert sim.now().timestamp() < lease.expires + 1
            assert cancelled == ["x"]
            assert not engine._orchestrator.active  # type: ignore[union-attr]
            with pytest.raises(StoreUnavailable, match="try again"):
                _ = await engine.start(resting("y", 1.0), id="y")
            leases.away = False
            await sim.advance(LEASE)
            assert began == ["x", "x"]
            assert await run.result(400) == "x"
            journal = [e.event for e in await engine.journal("x")]
            # Nobody else had it: it is still the same owner, which counts the attempt that it gave up.
            assert [type(event) for event in journal].count(RunClaimed) == 1
            assert [event.attempt for event in journal if isinstance(event, StepStarted)] == [1, 2]

    sim.play(scenario())
    said = [line for line in caplog.messages if line.startswith("orchestrator a: ")]
    assert said[0].startswith("orchestrator a: heartbeat failed: ")
    assert said[0].endswith(". It tries again, and stops its runs unless one succeeds before its lease ends")
    assert said[1:] == [
        "orchestrator a: no heartbeat succeeded in time; stopped 1 run (another orchestrator may take over). "
        "Resumes when a heartbeat succeeds",
        "orchestrator a: heartbeat succeeded again; resuming its runs",
    ]


def test_a_renewal_that_fails_for_a_moment_changes_nothing() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        leases = Fickle(sim.store.leases)
        async with sim.engine([resting], name="a", leases=leases, recovery=BRIEF) as engine:
            run = await engine.start(resting("x", 100.0), id="x")
            leases.away = True
            await sim.advance(LEASE / 2)
            leases.away = False
            assert await run.result(400) == "x"
            assert began == ["x"]

    sim.play(scenario())


def test_a_process_that_slept_through_its_lease_begins_and_writes_nothing_before_it_has_shown_that_it_lives() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([resting], name="a", recovery=BRIEF) as engine:
            run = await engine.start(resting("x", 3600.0), id="x")
            await sim.advance(1)
            orchestrator = engine._orchestrator
            assert orchestrator is not None
            driver = orchestrator.active[run.run_id]
            # As if it had been stopped: the time is over, and no timer has had its turn.
            orchestrator.lease_deadline.until = asyncio.get_running_loop().time()
            before = len(await engine.journal("x"))
            driver.record(RunClaimed("a", 9, orchestrator.session.id))
            await sim.advance(0)
            assert len(await engine.journal("x")) == before
            assert orchestrator.session.suspended
            assert driver.closed
            await sim.advance(LEASE)
            assert not orchestrator.session.suspended
            assert run.run_id in orchestrator.active

    sim.play(scenario())


def test_whoever_starts_under_a_name_takes_it_and_the_older_process_stops() -> None:
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([resting], name="node", recovery=BRIEF) as old:
            run = await old.start(resting("x", 200.0), id="x")
            await sim.advance(1)
            async with sim.engine([resting], name="node", recovery=BRIEF) as new:
                await sim.advance(LEASE / 3 + 1)
                assert old.superseded.is_set()
                assert not new.superseded.is_set()
                assert cancelled == ["x"]
                with pytest.raises(UsageError, match="started under the name 'node'"):
                    _ = await old.start(resting("y", 1.0), id="y")
                # Who waits at the old one hears of the end all the same.
                assert await run.result(1000) == "x"
                [one] = await new.orchestrators()
                assert one.session == new._orchestrator.session.id  # type: ignore[union-attr]
        claims = [e for b in await sim.store.journal.read(run.run_id) for e in b.events if isinstance(e, RunClaimed)]
        assert len({claim.session for claim in claims}) == 2
        assert len(claims) == 2, "they do not take it from each other"

    sim.play(scenario())


async def test_the_older_process_does_not_give_back_the_lease_of_the_newer() -> None:
    store = MemoryStore()
    old = await Engine(store, [resting], name="node", recovery=AT_ONCE).open()
    async with Engine(store, [resting], name="node", recovery=AT_ONCE) as new:
        await old.close()
        assert [one.alive for one in await new.orchestrators()] == [True]


async def test_the_end_of_another_is_heard_of_at_once() -> None:
    gates, flow = holding()
    store = MemoryStore()
    rarely = Recovery(grace=0, check_interval=3600)
    first = await Engine(store, [flow], name="first", recovery=rarely).open()
    _ = await first.start(flow(), id="it")
    await gates.wait("runs")
    async with Engine(store, [flow], name="second", recovery=rarely) as second:
        # It dies without a word, and its lease is taken away.
        first._orchestrator.abort()  # type: ignore[union-attr]
        await first._service.stop()  # type: ignore[union-attr]
        gates.open("hold")
        await store.leases.release_all(holder("first", first._orchestrator.session.id))  # type: ignore[union-attr]
        handle = await second.start(flow(), id="it")
        assert await handle.result(PATIENCE) == "held"


def test_a_lease_that_an_orchestrator_finds_when_it_starts_is_awaited_until_it_ends() -> None:
    """Its holder may have sent its last heartbeat before there was anyone to be notified of it."""
    sim = Simulation()
    rarely = Recovery(grace=0, lease=14, check_interval=3600)

    async def dies() -> None:
        engine = await sim.engine([resting], name="first", recovery=rarely).open()
        _ = await engine.start(resting("x", 1e6), id="x")
        await sim.advance(seconds=1)

    async def takes_over() -> None:
        async with sim.engine([resting], name="second", recovery=rarely) as engine:
            await sim.advance(seconds=16)
            view = await engine.get("x")
            assert view is not None
            assert view.owner == "second"

    sim.play(dies())
    sim.play(takes_over())


async def test_a_row_that_names_the_wrong_owner_follows_the_journal_in_both_directions() -> None:
    store = MemoryStore()
    async with Engine(store, [resting], name="first", recovery=AT_ONCE) as first:
        run = await first.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    quick = Recovery(grace=0, check_interval=0.02)
    rows = found.journal.rows
    # The journal says first, who lives; the row says somebody who does not.
    await found.leases.acquire(ORCHESTRATOR + "first", holder("first", "s"), 1e9, first.clock.now())
    rows[run.run_id] = msgspec.structs.replace(rows[run.run_id], owner="ghost")
    async with Engine(found, [resting], name="second", recovery=quick):
        await eventually(lambda: rows[run.run_id].owner == "first")
        assert await claims(found, run.run_id) == ["first"]
        # And the other way round: the row says one who lives, and the owner in the journal does not.
        await found.leases.release_all(holder("first", "s"))
        rows[run.run_id] = msgspec.structs.replace(rows[run.run_id], owner="second")
        await eventually(lambda: rows[run.run_id].epoch == 2)
        assert await claims(found, run.run_id) == ["first", "second"]


async def claims(store: MemoryStore, run_id: str) -> list[str]:
    batches: Sequence[Batch] = await store.journal.read(run_id)
    return [event.owner for batch in batches for event in batch.events if isinstance(event, RunClaimed)]


def test_looks_for_orphans_are_spread_by_the_name_of_who_looks() -> None:
    def first_looks(name: str) -> list[float]:
        chance = Random(name)
        return [1 + OrphansConfig().jitter * chance.uniform(-1, 1) for _ in range(3)]

    spread = [first_looks(f"node-{n}")[0] for n in range(100)]
    assert first_looks("node-1") == first_looks("node-1")
    assert len(set(spread)) == 100
    assert min(spread) < 0.8
    assert max(spread) > 1.2


async def test_a_poisoned_run_is_parked_for_a_person_and_not_tried_by_itself() -> None:
    store = MemoryStore()
    async with Engine(store, [resting], name="n0", recovery=AT_ONCE) as engine:
        run = await engine.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    for number in range(1, 4):
        async with Engine(found, [resting], name=f"n{number}", recovery=AT_ONCE):
            await eventually(lambda n=number: len(began) == n + 1)  # type: ignore[misc]
            found = left_by_a_crash(found)
    async with Engine(found, [resting], name="n4", recovery=AT_ONCE) as last:
        await eventually(lambda: found.journal.rows[run.run_id].status is RunStatus.PARKED)
        view = await last.get("x")
        assert view is not None
        assert view.parked == "poisoned"
        assert "n1, n2, n3" in (view.reason or "")
    async with Engine(found, [resting], name="n5", recovery=AT_ONCE) as later:
        view = await later.get("x")
        assert view is not None
        assert view.status is RunStatus.PARKED, "whatever code there is, it is for a person to say"
        assert len(began) == 4
        _ = await later.resolve("x")
        await eventually(lambda: len(began) == 5)
    events = [event for batch in await found.journal.read(run.run_id) for event in batch.events]
    assert [event.kind for event in events if isinstance(event, RunParked)] == ["poisoned"]


async def test_a_run_that_waits_for_a_lock_loses_owners_without_blame() -> None:
    @workflow
    async def locked() -> int:
        async with lock("door", ttl=3600) as held:
            return held.token

    store, wanted = MemoryStore(), "lock:door"
    _ = await store.leases.acquire(wanted, "somebody", 3600.0, time.time())
    async with Engine(store, [locked], name="n0", recovery=AT_ONCE) as engine:
        run = await engine.start(locked(), id="x")
        await eventually(lambda: bool(engine._orchestrator and engine._orchestrator.locks._waits))
        found = left_by_a_crash(store)
    for number in range(1, 7):
        _ = await found.leases.acquire(wanted, "somebody", 3600.0, time.time())
        async with Engine(found, [locked], name=f"n{number}", recovery=AT_ONCE) as engine:
            await eventually(lambda: bool(engine._orchestrator and engine._orchestrator.locks._waits))
            if number < 6:
                found = left_by_a_crash(found)
            else:
                await found.leases.release(wanted, "somebody")
                assert await (await engine.start(locked(), id="x")).result(PATIENCE) > 0
    events = [event for batch in await found.journal.read(run.run_id) for event in batch.events]
    assert [event.tried for event in events if isinstance(event, RunClaimed)] == [0] * 7


def acquitted(store: MemoryStore, run_id: str, name: str) -> bool:
    """Whether an orchestrator has said of a run that it lives with it."""
    batches = [decode_events(data) for _, _, data in store.journal.batches[run_id]]
    return sum(isinstance(event, RunClaimed) and event.owner == name for batch in batches for event in batch) > 1


@workflow
async def guarded(inside: str) -> str:
    async with lock("door", ttl=3600):
        match inside:
            case "signal":
                return str(await wait_signal("go"))
            case "sleep":
                await sleep(1e6)
            case "approval":
                await approval("go")
            case _:
                await asyncio.gather(wait_signal("go"), sleep(1e6))
    return ""


@pytest.mark.parametrize("inside", ["signal", "sleep", "approval", "several"])
async def test_a_run_that_waits_inside_a_lock_loses_owners_without_blame(inside: str) -> None:
    store = MemoryStore()
    async with Engine(store, [guarded], name="n0", recovery=AT_ONCE) as engine:
        run = await engine.start(guarded(inside), id="x")
        async with asyncio.timeout(PATIENCE):
            while not (view := await engine.get("x")) or not view.waits or view.waits[0].kind == "lock":
                await asyncio.sleep(0)
        found = left_by_a_crash(store)
    for number in range(1, 8):
        name = f"n{number}"
        async with Engine(found, [guarded], name=name, recovery=AT_ONCE):
            rows = found.journal.rows
            await eventually(lambda r=rows, n=name: r[run.run_id].owner == n)  # type: ignore[misc]
            found = left_by_a_crash(found)
    assert found.journal.rows[run.run_id].status is not RunStatus.PARKED


@pytest.mark.parametrize("kind", ["coroutine", "thread", "heartbeat"])
async def test_a_step_that_has_run_for_long_loses_owners_without_blame(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = OrchestratorConfig(trial=1e9 if kind == "heartbeat" else 0.01, trial_poll=0.001)
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(orchestrator=config))
    over = threading.Event()

    @step
    async def coroutine() -> None:
        await asyncio.Event().wait()

    @step
    def thread() -> None:
        over.wait()

    @step
    async def heartbeat() -> None:
        while True:
            step_context().heartbeat()
            await asyncio.sleep(0.01)

    long = {"coroutine": coroutine, "thread": thread, "heartbeat": heartbeat}[kind]

    @workflow
    async def slow() -> None:
        await long()

    store = MemoryStore()
    began: list[str] = []

    def note(id: str, append: Append) -> None:
        began.extend(e.op for b in append.batches for e in b.events if isinstance(e, StepStarted))

    try:
        async with Engine(store, [slow], name="n0", recovery=AT_ONCE, on_commit=note) as engine:
            run = await engine.start(slow(), id="x")
            await eventually(lambda: len(began) == 1)
            found = left_by_a_crash(store)
        for number in range(1, 8):
            async with Engine(found, [slow], name=f"n{number}", recovery=AT_ONCE, on_commit=note):
                await eventually(lambda n=number: len(began) == n + 1)  # type: ignore[misc]
                if number == 2:
                    await eventually(lambda f=found: acquitted(f, run.run_id, "n2"))  # type: ignore[misc]
                found = left_by_a_crash(found)
    finally:
        over.set()
    assert found.journal.rows[run.run_id].status is not RunStatus.PARKED


async def test_a_step_that_swells_its_process_is_not_acquitted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = OrchestratorConfig(trial=0.01, trial_poll=0.001)
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(orchestrator=config))
    looks = itertools.count()
    monkeypatch.setattr(quarantine, "memory", lambda: next(looks) * (quarantine.GROWTH_BYTES + 1))
    store = MemoryStore()
    async with Engine(store, [resting], name="n0", recovery=AT_ONCE) as engine:
        run = await engine.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    for number in range(1, 4):
        async with Engine(found, [resting], name=f"n{number}", recovery=AT_ONCE):
            await eventually(lambda n=number: len(began) == n + 1)  # type: ignore[misc]
            before = next(looks)
            await eventually(lambda n=number, b=before: n == 1 or next(looks) > b + 30)  # type: ignore[misc]
            found = left_by_a_crash(found)
    async with Engine(found, [resting], name="n4", recovery=AT_ONCE):
        await eventually(lambda: found.journal.rows[run.run_id].status is RunStatus.PARKED)


def test_a_process_that_a_big_one_has_started_sees_that_it_swells() -> None:
    ballast = b"x" * (256 << 20)
    swell = """
from perdure.orchestrator.quarantine import GROWTH_BYTES, memory
before = memory()
hoard = b"x" * (2 * GROWTH_BYTES)
print(memory() - before > GROWTH_BYTES)
"""
    told = subprocess.run([sys.executable, "-c", swell], capture_output=True, text=True, timeout=PATIENCE)
    assert told.stdout == "True\n", told.stderr
    del ballast


async def test_of_many_suspects_an_eighth_is_tried_at_a_time_and_those_of_a_bad_group_alone() -> None:
    ids = [f"r{number}" for number in range(16)]
    store = MemoryStore()
    async with Engine(store, [resting], name="n0", recovery=AT_ONCE) as engine:
        for id in ids:
            _ = await engine.start(resting(id, 1e6), id=id)
        await eventually(lambda: len(began) == 16)
        found = left_by_a_crash(store)
    for number, tried in ((1, 16), (2, 2), (3, 1)):
        before = len(began)
        async with Engine(found, [resting], name=f"n{number}", recovery=AT_ONCE):
            await eventually(lambda b=before, t=tried: len(began) == b + t)  # type: ignore[misc]
            found = left_by_a_crash(found)
    *_, one, two, alone = began
    assert alone in (one, two), "what went down with few others is tried before what was not tried at all"
    async with Engine(found, [resting], name="n4", recovery=AT_ONCE) as last:
        await eventually(lambda: any(row.status is RunStatus.PARKED for row in found.journal.rows.values()))
        assert [view.id for view in await last.list(status=RunStatus.PARKED)] == [alone]


async def test_quarantine_can_be_switched_off() -> None:
    store = MemoryStore()
    never = Recovery(grace=0, quarantine=0)
    async with Engine(store, [resting], name="n0", recovery=never) as engine:
        _ = await engine.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    for number in range(1, 7):
        async with Engine(found, [resting], name=f"n{number}", recovery=never):
            await eventually(lambda n=number: len(began) == n + 1)  # type: ignore[misc]
            found = left_by_a_crash(found)
    with pytest.raises(ValueError, match="quarantine=-1"):
        Recovery(quarantine=-1)


async def test_those_that_are_gone_are_shown_as_long_as_they_own_something() -> None:
    store = MemoryStore()
    async with Engine(store, [resting], name="gone", recovery=AT_ONCE) as engine:
        _ = await engine.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    async with connect(found) as client:
        assert [(o.name, o.alive, o.running, o.expires_at) for o in await client.orchestrators()] == [
            ("gone", False, 1, None)
        ]
        _ = await client.start(call("other"), id="queued")
        assert len(await client.orchestrators()) == 1, "what nobody owns is nobody's"


class Deaf(Fickle):
    """A library between us and the leases that loses the first cancellation, as some do."""

    def __init__(self, leases: Leases) -> None:
        super().__init__(leases)
        self.asked, self.lost = asyncio.Event(), False

    async def renew_all(self, *args: Any) -> Sequence[str]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.lost:
                raise
            self.lost = True
        return []


async def test_an_engine_ends_though_a_cancellation_gets_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(cancel_again=0.01))
    leases = Deaf(MemoryStore().leases)
    async with asyncio.timeout(PATIENCE):
        async with Engine(MemoryStore(), [resting], leases=leases, recovery=Recovery(lease=0.03)):
            await leases.asked.wait()
    assert leases.lost


class Awaited(Fickle):
    """Leases that tell when one was renewed."""

    def __init__(self, leases: Leases) -> None:
        super().__init__(leases)
        self.renewed = asyncio.Event()

    async def renew_all(self, *args: Any) -> Sequence[str]:
        self.renewed.set()
        return await super().renew_all(*args)


async def test_an_orchestrator_shows_that_it_lives_while_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: thousands of runs take longer than a lease lasts."""
    store = MemoryStore()
    async with Engine(store, [resting], name="a", recovery=AT_ONCE) as engine:
        _ = await engine.start(resting("x", 1e6), id="x")
        await eventually(lambda: began == ["x"])
        found = left_by_a_crash(store)
    leases, owned = Awaited(found.leases), found.runs.owned

    async def slowly(*args: Any) -> Any:
        await leases.renewed.wait()
        return await owned(*args)

    monkeypatch.setattr(found.runs, "owned", slowly)
    brief = Recovery(lease=3, grace=0)
    async with asyncio.timeout(PATIENCE), Engine(found, [resting], name="a", leases=leases, recovery=brief):
        await eventually(lambda: began == ["x", "x"])
