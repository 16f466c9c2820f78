"""The promises of perdure, under generated workflows and every crash. `Simulation.run` checks them; see `monitor.py`.

Each test is a search: a failure names the seed and the tree, and shrinks to the smallest tree that breaks a promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from perdure import every
from perdure.kernel.events import Batch, StepSucceeded
from perdure.kernel.ids import op_name
from perdure.kernel.policies.durability import Durability
from perdure.kernel.streams import Reading
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Report, Simulation, every_crash
from tests.simulation.grammar import Tree, interpret, trees

F = TypeVar("F", bound=Callable[..., Any])

seeds = st.integers(0, 1 << 32)
modes: st.SearchStrategy[str | Durability] = st.sampled_from(["async", "exit", "manual", every(1), every(4)])

# Virtual seconds after which a run that has not ended is taken to be stuck. A clock may be set back by an hour.
LIMIT, LONG = 600.0, 20_000.0


SOAK = 2_000


def search(examples: int, soak: int = 0) -> Callable[[F], F]:
    """Try so many examples; under the profile of `make soak`, which has tests with more only, `soak` of them."""
    more = soak and settings.get_current_profile_name() == "soak"
    tried = settings(max_examples=soak if more else examples, phases=[Phase.explicit, Phase.generate, Phase.shrink])
    return lambda test: pytest.mark.soak(pytest.mark.timeout(3600)(tried(test))) if more else tried(test)


def check(report: Report) -> None:
    """What the simulation cannot know: that a step was meant to be executed at most once, and what one has shown."""
    for batches in report.journals.values():
        for event in (event for batch in batches for event in batch.events):
            if isinstance(event, StepSucceeded) and op_name(event.op) == "streamed":
                assert shown(batches, event.op) == msgspec.json.decode(event.value)
    executed = Counter((e.run_id, e.op) for e in report.executions if op_name(e.op) == "once")
    assert [op for op, times in executed.items() if times > 1] == []


def shown(batches: Sequence[Batch], op: str) -> list[int]:
    """What is valid in the stream of a step."""
    valid: list[int] = []
    for chunk in Reading(op, 0).feed(batches):
        if chunk.restart:
            valid.clear()
        else:
            valid.append(msgspec.json.decode(chunk.value))
    return valid


def survives_every_crash(tree: Tree, seed: int, mode: str | Durability = "sync") -> None:
    for report in every_crash(interpret(tree), seed=seed, faults=Faults(), limit=LIMIT, durability=mode):
        check(report)


@search(3, SOAK)
@given(trees, seeds)
def test_a_run_survives_a_crash_at_every_append(tree: Tree, seed: int) -> None:
    survives_every_crash(tree, seed)


@search(3, SOAK)
@given(trees, seeds, modes)
@example(
    ["sequence", [["saga", ["streamed", 4], 7], ["saga", ["sequence", [["timeout", 4, ["streamed", 4]]]], 1]]],
    0,
    "async",
)
def test_a_run_survives_every_crash_in_a_mode_that_does_not_wait(tree: Tree, seed: int, mode: str | Durability) -> None:
    survives_every_crash(tree, seed, mode)
    for share in (0.0, 0.15):
        faults = Faults(delays=(0.0, 0.002, 0.3), interference=0.2, lost_replies=0.1, crashes=share)
        check(Simulation(seed, faults=faults).run(interpret(tree), limit=LIMIT, durability=mode))


@search(3, SOAK)
@given(trees, seeds)
def test_a_run_survives_every_crash_when_the_store_is_slow_and_others_write(tree: Tree, seed: int) -> None:
    faults = Faults(delays=(0.0, 0.002, 0.3), interference=0.2)
    for report in every_crash(interpret(tree), seed=seed, faults=faults, limit=LIMIT):
        check(report)


@search(3, SOAK * 3)
@given(trees, trees, seeds)
# An attempt that begins to show something after its run gave it up, which then is taken back: others wrote first.
@example(
    ["sequence", [["steps", [1, 1]]]],
    [
        "gather",
        [["loop", 1, ["retried", 1, 2]], ["steps", [1, 1]], ["timeout", 15, ["finally", ["step", 1], ["streamed", 4]]]],
    ],
    50186,
)
def test_runs_survive_lost_replies_refusals_interference_and_clocks_that_jump(
    tree: Tree, other: Tree, seed: int
) -> None:
    for engines in (1, 2):
        for share in (0.0, 0.15):
            faults = Faults(
                durations=STORMY.durations,
                delays=STORMY.delays,
                lost_replies=STORMY.lost_replies,
                refusals=STORMY.refusals,
                interference=STORMY.interference,
                clock_jumps=STORMY.clock_jumps,
                crashes=share,
            )
            simulation = Simulation(f"{seed} {engines} {share}", faults=faults)
            check(simulation.run(interpret(tree), interpret(other), engines=engines, limit=LONG))


@search(3, SOAK)
@given(trees, seeds)
def test_a_machine_paused_past_its_lease_at_any_append_writes_nothing_afterwards(tree: Tree, seed: int) -> None:
    calm = Simulation(seed, faults=Faults()).run(interpret(tree), engines=2)
    for number in range(calm.appends):
        for side in ("before", "after"):
            pause = Pause(number, 30.0, side)
            check(Simulation(seed, faults=Faults()).run(interpret(tree), engines=2, pauses=[pause], limit=LIMIT))


@search(12)
@given(trees, seeds, st.integers(0, 8), st.integers(0, 4))
def test_a_run_survives_a_crash_during_its_recovery(tree: Tree, seed: int, first: int, second: int) -> None:
    crashes = [Crash(first, "after"), Crash(first + second + 1)]
    check(Simulation(seed, faults=Faults()).run(interpret(tree), crashes=crashes, limit=LIMIT))
