"""An engine that was told to prunes by the clock; one that was not never does."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Retention, UsageError, workflow
from perdure.client.pruning import KeptRun, PruneReport
from perdure.orchestrator.retention import Pruner
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.engine.harness import FakeClock


@workflow
async def quick() -> int:
    return 1


@pytest.mark.parametrize("retention", [None, Retention(older_than=timedelta(hours=1), every=600)])
def test_runs_go_when_they_are_old_enough_and_only_if_somebody_said_so(retention: Retention | None) -> None:
    sim = Simulation(seed=1)

    async def scenario() -> tuple[bool, bool, bool]:
        async with sim.engine([quick], retention=retention) as engine:
            await engine.run(quick(), id="a")
            await sim.advance(minutes=50)
            young = await engine.get("a") is not None
            await sim.advance(minutes=30)
            return young, await engine.get("a") is not None, await engine.get("b") is not None

    young, old, _ = sim.play(scenario())
    assert young
    assert old is (retention is None)


class Passes:
    def __init__(self, *reports: PruneReport) -> None:
        self.made = 0
        self._reports = reports

    async def prune(self, retention: Retention) -> PruneReport:
        self.made += 1
        return self._reports[self.made - 1] if self.made <= len(self._reports) else PruneReport()


async def test_of_several_engines_one_makes_each_pass(caplog: pytest.LogCaptureFixture) -> None:
    store, clock, retention = MemoryStore(), FakeClock(), Retention(older_than=1, every=100)
    passes = Passes(PruneReport(runs=3, blobs=2), PruneReport(kept=[KeptRun("a", "r1", "the disk is full")]))
    pruners = [Pruner(retention, store.leases, name, passes.prune) for name in ("one", "two", "three")]
    caplog.set_level("INFO", "perdure")
    for made in (1, 2, 3):
        reports = [await pruner.run_once(clock.now()) for pruner in pruners]
        assert [report.pruned for report in reports].count(True) == 1
        assert passes.made == made
        clock.advance(100)
    assert "pruned 3 runs and 2 blobs" in caplog.text
    assert "1 runs could not be pruned" in caplog.text
    assert "the disk is full" in caplog.text


async def test_when_the_one_is_gone_another_goes_on() -> None:
    store, clock, passes = MemoryStore(), FakeClock(), Passes()
    retention = Retention(older_than=1, every=100)
    one, two = (Pruner(retention, store.leases, name, passes.prune) for name in ("one", "two"))
    assert (await one.run_once(clock.now())).pruned
    assert not (await two.run_once(clock.now())).pruned
    await store.leases.release_all("one")
    assert (await two.run_once(clock.now())).pruned


def test_the_first_pass_is_made_soon() -> None:
    def first(every: float) -> float:
        return Pruner(Retention(1, every=every), MemoryStore().leases, "n", Passes().prune).first

    assert (first(86400), first(5)) == (60, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"older_than": -1},
        {"older_than": "30d"},
        {"older_than": 1, "every": 0},
        {"older_than": 1, "every": True},
        {"older_than": 1, "statuses": "running"},
        {"older_than": 1, "statuses": []},
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Retention"):
        Retention(**arguments)


async def test_an_engine_without_retention_holds_no_lease_for_it() -> None:
    store = MemoryStore()
    async with Engine(store, [quick]) as engine:
        await engine.run(quick())
        assert await store.leases.get("retention", engine.clock.now()) is None
