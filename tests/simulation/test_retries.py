"""Generated workflows that fail and are tried again: nothing that succeeded is executed a second time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from perdure import CannotRetry, RunStatus, UsageError
from perdure.kernel.events import AnyEvent, StepStarted, StepSucceeded
from perdure.kernel.ids import op_name
from perdure.testing.simulation import Faults, Simulation
from tests.simulation.grammar import LIMITS, Tree, interpret, trees
from tests.simulation.test_promises import SOAK, search, seeds

Call = tuple[str, str]


def asked(events: Iterable[AnyEvent]) -> dict[str, Call]:
    """What each step was asked for."""
    return {e.op: (op_name(e.op), e.inputs) for e in events if isinstance(e, StepStarted) and e.attempt == 1}


def never_twice(tree: Tree, seed: int) -> bool:
    """Run a tree, and try it again twice if it fails; says whether it was."""
    sim = Simulation(seed, faults=Faults())
    retried: list[str] = []

    async def scenario() -> None:
        async with sim.engine([interpret], limits=LIMITS) as engine:
            handle = await engine.start(interpret(tree), id="r")
            for _ in range(2):
                if (await handle.outcome()).status is not RunStatus.FAILED:
                    return
                events = [entry.event for entry in await engine.journal("r")]
                calls = asked(events)
                succeeded = Counter(calls[e.op] for e in events if isinstance(e, StepSucceeded) and e.op in calls)
                try:
                    handle = await engine.retry("r")
                except (CannotRetry, UsageError):
                    return  # nothing was run
                retried.append(handle.run_id)
                assert (await handle.outcome()).status.finished
                again = asked(entry.event for entry in await engine.journal("r"))
                executed = Counter(
                    again[op]
                    for op in {e.op for e in sim.monitor.executions if e.run_id == handle.run_id}
                    if op in again
                )
                wanted = Counter(again.values())
                assert not {
                    call: times for call, times in executed.items() if times > max(0, wanted[call] - succeeded[call])
                }

    sim.play(scenario())
    return bool(retried)


@search(15, SOAK)
@given(trees, seeds, st.sampled_from(["sequence", "gather", "group", "queue"]))
def test_what_succeeded_is_not_executed_again_when_a_run_is_retried(tree: Tree, seed: int, around: str) -> None:
    never_twice([around, [tree, ["sequence", [["slow", 1], ["uncaught", 1]]], ["slow", 3]]], seed)
