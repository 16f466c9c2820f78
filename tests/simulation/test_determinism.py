"""One seed, one trace: in one process and in several."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import step, workflow
from perdure.testing.simulation import STORMY, Crash, Faults, Pause, Simulation
from tests.simulation.grammar import Tree, interpret, trees
from tests.simulation.test_promises import LONG, search

ROOT = Path(__file__).parents[2]

TREE: Tree = [
    "sequence",
    [
        ["race", [["slow", 9], ["queue", [["step", 1], ["slow", 2], ["plain", 3]]]]],
        ["timeout", 5, ["retried", 1, 2]],
        ["group", [["sleep", 11], ["caught", 4], ["inline", 5], ["value", "uuid"]]],
    ],
]


def trace(seed: int, tree: Tree = TREE) -> str:
    """What happens to three runs on two machines when everything goes wrong."""
    report = Simulation(seed, faults=STORMY).run(
        interpret(tree),
        interpret(["step", 1]),
        interpret(["steps", [1, 2, 3]]),
        engines=2,
        crashes=[Crash(3, "during"), Crash(6, "after")],
        pauses=[Pause(9)],
        limit=LONG,
    )
    return report.text


def fingerprint() -> str:
    """One line for the traces of several seeds, to be compared between processes."""
    return hashlib.sha256("\n".join(trace(seed) for seed in range(4)).encode()).hexdigest()


def test_the_same_seed_gives_the_same_trace_to_the_byte() -> None:
    assert trace(1).encode() == trace(1).encode()


def test_other_seeds_give_other_traces() -> None:
    assert len({trace(seed) for seed in range(4)}) == 4


@search(5)
@given(trees, st.integers(0, 1000))
def test_the_same_seed_gives_the_same_trace_of_any_workflow(tree: Tree, seed: int) -> None:
    assert trace(seed, tree) == trace(seed, tree)


def test_the_trace_does_not_depend_on_the_process_or_its_hash_seed() -> None:
    code = (
        "import logging; logging.disable(); from tests.simulation.test_determinism import fingerprint as f; print(f())"
    )
    found = set()
    for hash_seed in ("1", "4242"):
        path = os.pathsep.join([str(ROOT), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())
    assert found == {fingerprint()}


def test_steps_that_roll_dice_roll_the_same_ones() -> None:
    @step
    async def roll() -> list[Any]:
        return [random.random(), str(uuid.uuid4())]

    @workflow(name="dice")
    async def dice() -> list[Any]:
        return [await roll(), await roll()]

    def rolled(seed: int) -> object:
        return Simulation(seed).run(dice()).results["run-0"].output

    assert rolled(5) == rolled(5)
    assert rolled(5) != rolled(6)


def test_chance_outside_is_what_it_was() -> None:
    random.seed(11)
    expected = random.random()
    random.seed(11)
    urandom = os.urandom
    Simulation(1).run(interpret(["step", 1]))
    assert random.random() == expected
    assert os.urandom is urandom


@pytest.mark.parametrize("wrong", [{"lost_replies": 1.0}, {"delays": ()}, {"durations": (-1.0,)}, {"crashes": -0.1}])
def test_faults_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Faults"):
        Faults(**wrong)
