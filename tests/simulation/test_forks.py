"""Forks of generated workflows, at every point: each goes on to its end, and nothing that is kept runs again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import example, given

from perdure import Engine, RunStatus, RunView, UsageError
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildFinished,
    RunForked,
    StepFailed,
    StepSkipped,
    StepSucceeded,
    WaitResolved,
    entries,
)
from perdure.kernel.history.ops import ops
from perdure.testing.simulation import Faults, Simulation
from tests.simulation.grammar import Tree, interpret, trees
from tests.simulation.test_promises import SOAK, search, seeds

OUTCOMES = (StepSucceeded, StepFailed, StepSkipped)


def outcomes(batches: Sequence[Batch], before: int | None = None) -> dict[str, Any]:
    """The outcomes of steps and waits before an event."""
    found: dict[str, Any] = {}
    for batch in batches:
        for seq, event in enumerate(batch.events, batch.seq):
            if isinstance(event, (*OUTCOMES, WaitResolved)) and (before is None or seq < before):
                found[event.op] = event
    return found


def given_up(event: AnyEvent) -> bool:
    """Whether an event says that the program, or its end, gave an op up."""
    cancelled = isinstance(event, StepFailed) and event.cancelled
    closed = isinstance(event, ChildFinished) and event.status is RunStatus.CANCELLED
    return cancelled or closed or (isinstance(event, WaitResolved) and event.by == "cancelled")


async def ended(engine: Engine, id: str) -> RunView:
    handle_view = await engine.get(id)
    assert handle_view is not None
    async for _ in engine.follow(handle_view.run_id):
        pass
    view = await engine.get(handle_view.run_id)
    assert view is not None
    return view


@search(15, SOAK)
@given(trees, seeds)
# A child that is given up while it compensates; a step that is given up, and shows more when its run has left memory.
@example(["race", [["child", ["saga", ["retried", 8, 2], 5]], ["child", ["saga", ["retried", 8, 2], 5]]]], 939)
@example(["sequence", [["branch", ["timeout", 1, ["streamed", 2]], ["step", 1], ["step", 1]]]], 0)
def test_a_fork_at_any_point_goes_on_to_its_end(tree: Tree, seed: int) -> None:
    sim = Simulation(seed, faults=Faults(durations=(0.0, 0.05, 0.4)))
    chance = random.Random(seed)

    async def scenario() -> None:
        async with sim.engine([interpret]) as engine:
            _ = await engine.start(interpret(tree), id="original")
            original = await ended(engine, "original")
            journal = await sim.store.journal.read(original.run_id)
            places: list[int | str] = [*range(1, original.next_seq), *ops(journal)]
            for place in chance.sample(places, min(len(places), 12)):
                fork = await engine.fork("original", at=place)
                view = await ended(engine, fork.id)
                assert view.status in (RunStatus.COMPLETED, RunStatus.FAILED), (place, view.status, view.reason)
                past = await sim.store.journal.read(view.run_id)
                point = next(e.event for e in entries(view.run_id, past) if isinstance(e.event, RunForked))
                if isinstance(place, int):
                    # Never later than asked for, and earlier only by what an end gave up, in whose midst that lies.
                    assert point.seq <= place
                    assert all(given_up(e.event) for e in entries(original.run_id, journal)[point.seq : place])
                    kept, mine = outcomes(journal, point.seq), outcomes(past)
                    # What had an outcome has the same, and (as the monitor sees to) is not called again.
                    assert {op: mine[op] for op in kept} == kept
                    again = {e.op for e in sim.monitor.executions if e.run_id == view.run_id}
                    assert again.isdisjoint(kept)
            if original.status is RunStatus.FAILED:
                await goes_on_from_what_failed(engine, journal)

    async def goes_on_from_what_failed(engine: Engine, journal: Sequence[Batch]) -> None:
        try:
            again = await engine.retry("original")
        except UsageError:
            assert any("compensate:" in op for op in ops(journal))
            return
        view = await ended(engine, again.run_id)
        assert view.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        mine = await sim.store.journal.read(view.run_id)
        point = next(e.seq for e in entries(view.run_id, mine) if isinstance(e.event, RunForked))
        kept, were = outcomes(mine, point), outcomes(journal)
        assert kept == {op: were[op] for op in kept}
        assert {e.op for e in sim.monitor.executions if e.run_id == view.run_id}.isdisjoint(kept)

    sim.play(scenario())
