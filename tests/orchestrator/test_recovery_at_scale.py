"""One orchestrator of a hundred starts again: it touches its own runs, and what others own costs it nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import pytest
from msgspec import Raw

from perdure import Engine, Recovery, step, workflow
from perdure.kernel.events import AnyEvent, RunClaimed, RunStarted, RunStatus, StepStarted
from perdure.kernel.state import RunState
from perdure.ports.appends import extend
from perdure.ports.journal import Appended, append_all
from perdure.ports.leases import ORCHESTRATOR, holder
from perdure.ports.store import Store
from perdure.stores.open import open_store

OWN = 100
# What a plan may go through from end to end: lists of the caller, names, a page of what is parked.
FEW = (
    "json_each",
    "perdure_migrations",
    "sqlite_",
    "VIRTUAL TABLE",
    "CONSTANT ROW",
    "owners",
    "programs",
    "names",
    "perdure_runs_parked",
)
# Far off, so that nothing but the recovery at the start is counted.
CALM = Recovery(lease=3600, check_interval=3600, grace=0)


@step
async def work() -> None:
    await asyncio.Event().wait()


@workflow
async def flow() -> None:
    await work()


def running(run_id: str, owner: str) -> Any:
    """A run that was under way when its owner died."""
    state = RunState(run_id)
    started = RunStarted(run_id, "flow", "1", Raw(b"[]"))
    events: list[AnyEvent] = [started, RunClaimed(owner, 1, "gone"), StepStarted("work:0", 1)]
    return extend(state, events, 1_000.0)


async def populate(store: Store, orchestrators: int) -> None:
    """So many orchestrators with a hundred running runs each. All but the first live."""
    for number in range(orchestrators):
        name = f"node-{number:03}"
        if number:
            await store.leases.acquire(ORCHESTRATOR + name, holder(name, "s"), 1e6, 1_000.0)
        outcomes = await append_all(store.journal, [running(f"{n:03}-{number:03}", name) for n in range(OWN)])
        assert set(outcomes) == {Appended()}


class Clock:
    """It stands still."""

    def now(self) -> float:
        return 2_000.0


async def recovered(store: Store, name: str) -> tuple[list[str], set[str]]:
    """What an orchestrator asks of the store when it starts, and the runs that it then has."""
    seen: list[str] = []
    store.trace(seen.append)
    async with Engine(store, [flow], name=name, recovery=CALM, clock=Clock()) as engine:
        store.trace(None)
        assert engine._orchestrator is not None
        return seen, set(engine._orchestrator.active)


def is_question(statement: str) -> bool:
    return statement.lstrip().lower().startswith(("select", "with"))


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[int], Any]]:
    opened: list[Store] = []

    async def make(orchestrators: int) -> Store:
        store = open_store(f"sqlite:///{tmp_path}/{orchestrators}.db")
        await store.open(migrate=True)
        await populate(store, orchestrators)
        opened.append(store)
        return store

    yield make
    for store in opened:
        await store.close()


async def test_one_that_starts_again_touches_its_own_runs_however_many_others_there_are(
    make: Callable[[int], Any],
) -> None:
    few, ours = await recovered(await make(3), "node-000")
    many, ours_of_many = await recovered(await make(100), "node-000")
    assert len(ours) == OWN
    assert ours_of_many == {f"{n:03}-000" for n in range(OWN)}
    # Statement by statement the same: what it asks does not depend on how many runs there are. How many commits the
    # rows take that it writes depends on how busy the machine is.
    few, many = [[" ".join(one.split()) for one in seen if is_question(one)] for seen in (few, many)]
    assert Counter(many) == Counter(few)
    assert 0 < len(many) < 30, "\n".join(many)


async def test_what_it_asks_is_found_by_indexes(make: Callable[[int], Any], tmp_path: Path) -> None:
    store = await make(100)
    seen, _ = await recovered(store, "node-000")
    db = apsw.Connection(f"{tmp_path}/100.db")
    reading = {one for one in seen if one.lstrip().lower().startswith(("select", "with"))}
    assert any("owners" in one for one in reading)
    for statement in reading:
        asked = "explain query plan " + statement
        names = apsw.ext.query_info(db, asked).bindings_names
        bindings = dict.fromkeys(name or "" for name in names) if all(names) else (None,) * len(names)
        plan = [str(row[3]) for row in db.execute(asked, bindings)]
        # The few that are parked are looked through, by an index that has no others.
        scans = [line for line in plan if line.startswith("SCAN") and not any(few in line for few in FEW)]
        assert scans == [], f"{statement}\n{plan}"
    db.close()


async def test_a_status_of_all_orchestrators_is_one_look(make: Callable[[int], Any]) -> None:
    store = await make(20)
    async with Engine(store, [], name="onlooker", clock=Clock(), recovery=CALM) as engine:
        views = {one.name: one for one in await engine.orchestrators()}
        assert len(views) == 21
        assert {(one.alive, one.running) for one in views.values() if one.name not in ("node-000", "onlooker")} == {
            (True, OWN)
        }
        assert (views["node-000"].alive, views["node-000"].running) == (False, OWN)
        assert views["onlooker"].alive
        assert RunStatus.RUNNING in {view.status for view in await engine.list(limit=1)}


async def test_it_is_the_same_on_postgresql(postgres_url: str) -> None:
    store = open_store(postgres_url)
    await store.open(migrate=True)
    await populate(store, 100)
    await store.close()
    seen, ours = await recovered(store, "node-000")
    assert ours == {f"{n:03}-000" for n in range(OWN)}
    assert len(seen) < 40, "\n".join(seen)
