"""Others append to a run without pause, each time just before its owner does: the owner still gets its turn.

The flood is the worst that can be: whenever the owner is about to append, the store lets callers append first, one call
each, unless they wait by themselves. So what is asserted is a bound on how many appends the owner loses, not on time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import Cancelled, Client, Engine, RunStatus, connect, set_state, step, wait_signal, workflow
from perdure.engine.driver import Driver
from perdure.engine.turns import EXTERNAL_EVENTS, LOSSES, Turns
from perdure.kernel.state import fold
from perdure.orchestrator.loader import Loader
from perdure.ports.journal import Append, Outcome
from perdure.ports.leases import TURN, Acquired, Lease
from perdure.ports.store import Store
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, replay

Tell = Callable[[Client, int], Awaitable[object]]


async def signal(client: Client, number: int) -> object:
    return await client.signal("r", "by hand", number)


class Flood:
    """Callers, each of which tells a run something before every append of its owner."""

    def __init__(self, clients: Sequence[Client], tell: Tell, enough: int) -> None:
        self._clients, self._tell, self._enough = clients, tell, enough
        self._calls: dict[Client, asyncio.Task[object]] = {}
        self._polite: dict[Client, asyncio.Event] = {}
        self.on = False
        self.told = 0
        for client in clients:
            self._polite[client] = asyncio.Event()
            self._watch(client)

    def _watch(self, client: Client) -> None:
        get = client.store.leases.get

        async def notice(key: str, now: float) -> Lease | None:
            found = await get(key, now)
            if key.startswith(TURN) and found is not None:
                self._polite[client].set()
            return found

        client._base.leases = _Noticed(client.store.leases, notice)

    async def before_an_append(self) -> None:
        """Every caller that is not waiting for its turn gets a call through."""
        if not self.on:
            return
        for client in self._clients:
            call = self._calls.get(client)
            if call is None or call.done():
                assert self.told < self._enough, f"the owner has not written in spite of {self.told} losses"
                self.told += 1
                self._polite[client].clear()
                call = self._calls[client] = asyncio.create_task(_call(self._tell, client, self.told))
            waits = asyncio.create_task(self._polite[client].wait())
            await asyncio.wait({call, waits}, return_when=asyncio.FIRST_COMPLETED)
            waits.cancel()

    async def over(self) -> None:
        """The callers are done."""
        self.on = False
        await asyncio.gather(*self._calls.values())


async def _call(tell: Tell, client: Client, number: int) -> object:
    return await tell(client, number)


class _Noticed:
    def __init__(self, leases: Any, get: Any) -> None:
        self._leases, self.get = leases, get

    def __getattr__(self, name: str) -> Any:
        return getattr(self._leases, name)


def flooded(store: Store, flood: Callable[[], Flood | None]) -> Store:
    """The store as the owner has it: callers come first."""
    journal = store.journal
    original = journal.append

    async def append(appends: Sequence[Append]) -> Sequence[Outcome]:
        found = flood()
        if found is not None and any(one.expected_next for one in appends):
            await found.before_an_append()
        outcomes = original(appends)
        return await outcomes if isinstance(outcomes, Awaitable) else outcomes

    journal.append = append  # type: ignore[method-assign]
    return store


@pytest.fixture(params=["file", "sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    urls = {"file": f"file:///{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    return urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


# --- programs ---------------------------------------------------------------------------------------------------------

APPENDS = 12  # more than any of these programs needs
called: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    called.clear()


@step
async def part(name: str) -> str:
    called.append(name)
    return name


@step
async def large(name: str) -> str:
    called.append(name)
    return name * 60_000


@workflow
async def steps() -> list[str]:
    return [await part(name) for name in "abc"]


@workflow
async def fan_out() -> list[str]:
    return await asyncio.gather(*(part(name) for name in "abc"))


@workflow
async def telling_of_itself() -> list[str]:
    done: list[str] = []
    for name in "abc":
        done.append(await part(name))
        set_state("done", len(done))
    return done


@workflow
async def large_values() -> list[str]:
    return [(await large(name))[:1] for name in "abc"]


@workflow
async def with_a_child() -> list[str]:
    return await steps()


@workflow
async def listening() -> list[str]:
    for _ in range(3):
        await wait_signal("by hand")
    return [await part(name) for name in "abc"]


@workflow
async def waiting() -> list[str]:
    await wait_signal("go")
    return [await part(name) for name in "abc"]


# --- and what the owner does under a flood ----------------------------------------------------------------------------


async def endure(url: str, flow: Any, callers: int = 1, tell: Tell = signal) -> None:
    """A run ends with the right result, every step was called once, and the owner lost no more than it may."""
    bound = APPENDS * (LOSSES + EXTERNAL_EVENTS + callers) * callers
    flood: list[Flood] = []
    store = flooded(open_store(url), lambda: flood[0] if flood else None)
    async with Engine(store, {flow, steps}, recovery=AT_ONCE) as engine, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connect(url)) for _ in range(callers)]
        flood.append(Flood(clients, tell, bound))
        flood[0].on = True
        handle = await engine.start(flow(), id="r")
        for _ in range(3):
            await clients[0].signal("r", "by hand")
        assert await handle.result(PATIENCE) == ["a", "b", "c"]
        await flood[0].over()
        assert sorted(called) == ["a", "b", "c"]
        assert 0 < flood[0].told < bound
        assert not await store.leases.live(TURN, engine.clock.now())
        await replay(flow, handle.run_id, store, others=[steps])


@pytest.mark.parametrize("callers", [1, 3])
async def test_an_owner_gets_its_turn_however_many_signals_come(url: str, callers: int) -> None:
    await endure(url, steps, callers)


@pytest.mark.parametrize("flow", [fan_out, telling_of_itself, large_values, with_a_child, listening])
async def test_every_kind_of_program_gets_on_under_a_flood(sqlite: str, flow: Any) -> None:
    await endure(sqlite, flow, 2)


async def test_a_flood_to_a_child_keeps_neither_it_nor_its_parent_from_going_on(sqlite: str) -> None:
    async def to_child(client: Client, number: int) -> object:
        return await client.signal("r/steps:0", "by hand", number)

    await endure(sqlite, with_a_child, 2, to_child)


async def test_another_owner_takes_a_run_over_under_a_flood(url: str) -> None:
    async with Engine(url, [waiting], recovery=AT_ONCE, name="first") as engine:
        handle = await engine.start(waiting(), id="r")
    flood: list[Flood] = []
    store = flooded(open_store(url), lambda: flood[0] if flood else None)
    bound = APPENDS * (LOSSES + EXTERNAL_EVENTS + 2) * 2
    async with connect(url) as one, connect(url) as two:
        flood.append(Flood([one, two], signal, bound))
        flood[0].on = True
        async with Engine(store, [waiting], recovery=AT_ONCE, name="second") as engine:
            await one.signal("r", "go")
            assert await engine.handle("r").result(PATIENCE) == ["a", "b", "c"]
            await flood[0].over()
            assert called == ["a", "b", "c"]
            assert flood[0].told < bound
            await replay(waiting, handle.run_id, store)


@workflow(name="waiting")
async def other_code() -> list[str]:
    await part("z")
    return await waiting.fn()


def broken(state: object, *_: object) -> None:
    raise RuntimeError("no turn")


@pytest.mark.parametrize("reason", ["other code", "an error inside", "no journal"])
async def test_a_run_that_cannot_continue_is_parked_under_a_flood(
    url: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url, [waiting], recovery=AT_ONCE, name="first") as engine:
        _ = await engine.start(waiting(), id="r")
    flood: list[Flood] = []
    store = flooded(open_store(url), lambda: flood[0] if flood else None)
    if reason == "an error inside":
        monkeypatch.setattr(Driver, "adopt", broken)
    elif reason == "no journal":
        monkeypatch.setattr(Loader, "_is_ours", broken)
    bound = APPENDS * (LOSSES + EXTERNAL_EVENTS + 1)
    async with connect(url) as client:
        flood.append(Flood([client], signal, bound))
        flood[0].on = True
        async with Engine(
            store, [other_code if reason == "other code" else waiting], recovery=AT_ONCE, name="first"
        ) as engine:
            await client.signal("r", "go")
            result = await engine.handle("r").outcome(PATIENCE)
            assert result.status is RunStatus.PARKED
            await flood[0].over()
            assert not await store.leases.live(TURN, engine.clock.now())


async def test_a_caller_that_lost_its_append_again_and_again_gets_its_turn(sqlite: str) -> None:
    """Nothing is written by an owner: the run waits, and an operator wants to cancel it."""
    async with Engine(sqlite, [waiting], recovery=AT_ONCE) as engine:
        handle = await engine.start(waiting(), id="r")
    flood: list[Flood] = []
    store = flooded(open_store(sqlite), lambda: flood[0] if flood else None)
    async with connect(sqlite) as one, connect(store) as operator:
        flood.append(Flood([one], signal, LOSSES + EXTERNAL_EVENTS + 2))
        flood[0].on = True
        assert await operator.cancel("r") == Cancelled()
        await flood[0].over()
        assert not await store.leases.live(TURN, operator.clock.now())
        state = fold(handle.run_id, await store.journal.read(handle.run_id))
        assert state.cancel_requested is not None


async def test_a_turn_of_a_process_that_died_delays_callers_no_longer_than_it_lasts(sqlite: str) -> None:
    clock = FakeClock()
    async with Engine(sqlite, [waiting], recovery=AT_ONCE) as engine:
        handle = await engine.start(waiting(), id="r")
    async with connect(sqlite, clock=clock) as client:
        for number in range(EXTERNAL_EVENTS):
            await signal(client, number)
        taken = await client.store.leases.acquire(TURN + handle.run_id, "dead", 5.0, clock.now())
        assert isinstance(taken, Acquired)
        flood = Flood([client], signal, 2)
        flood.on = True
        await flood.before_an_append()  # the call is under way, and waits
        clock.advance(5.0)
        await flood.over()


async def test_two_losses_of_the_owner_are_needed_before_it_asks_for_a_turn(sqlite: str) -> None:
    """One signal that comes before an append of the owner is no flood, and costs no lease."""
    store = open_store(sqlite)
    turns = Turns(store.leases, FakeClock(), "owner")
    await store.open(migrate=True)
    for losses in range(LOSSES):
        await turns.reserve("r")
        assert await store.leases.live(TURN, FakeClock().now()) == [], f"after {losses} losses"
        turns.lose("r")
    await turns.reserve("r")
    [turn] = await store.leases.live(TURN, FakeClock().now())
    assert turn.owner == "owner"
    assert turns.reset("r")
    await turns.give_back("r")
    assert await store.leases.live(TURN, FakeClock().now()) == []
    assert not turns.lost
    await store.close()
