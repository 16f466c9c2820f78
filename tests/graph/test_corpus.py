"""Each graph of the corpus comes to what the guide says: calmly, in storms, killed and continued anywhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
from hypothesis import settings

from perdure import Engine, Limits, RunResult
from perdure.testing.simulation import STORMY, Crash, Faults, Message, Report, Sender, Simulation
from tests.graph.corpus import CASES, Case

# Small, so that what is stored apart need not be large.
LIMITS = Limits(blob=300)
ENDED = ("completed", "failed", "bailed")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Failures are logged, and here they are the purpose."""
    log = logging.getLogger("perdure")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


def check(case: Case, result: RunResult[Any], where: str) -> None:
    assert result.status.value == case.status, (where, result)
    if case.status != "failed":
        found = dict(result.output) if hasattr(result.output, "keys") else result.output
        assert found == case.output, where


def played(case: Case, simulation: Simulation, crashes: tuple[Crash, ...] = (), **options: Any) -> Report:
    # A question may be asked late: after a crash, or in a late round.
    senders = [
        Sender([Message("approve", op, answer, wait=wait) for wait in (0.0, 30.0, 90.0)])
        for op, answer in case.answers.items()
    ]
    return simulation.run(
        case.graph(**case.inputs),
        programs=[case.graph],
        crashes=crashes,
        senders=senders,
        limit=600.0,
        limits=LIMITS,
        **options,
    )


@pytest.mark.parametrize("name", CASES)
def test_it_ends_as_the_guide_says_and_says_what_did_not_run(name: str) -> None:
    case, simulation = CASES[name], Simulation(0, faults=Faults())
    check(case, played(case, simulation).results["run-0"], "calm")

    async def read() -> Any:
        async with simulation.engine([case.graph]) as engine:
            return await engine.steps("run-0")

    steps = simulation.play(read())
    found = {step.path: step.skipped_by for step in steps if step.status == "skipped"}
    assert {op: found.get(op) for op in case.skipped} == case.skipped
    blocked = {step.path for step in steps if step.status == "blocked"}
    assert not case.blocked or blocked == set(case.blocked)


@pytest.mark.parametrize("name", CASES)
def test_it_ends_the_same_in_a_storm_and_killed_at_any_append(name: str) -> None:
    case, seed = CASES[name], crc32(name.encode())
    check(case, played(case, Simulation(seed, faults=STORMY), engines=2).results["run-0"], "stormy")
    appends = played(case, Simulation(0, faults=Faults())).appends
    everywhere = settings.get_current_profile_name() == "soak"
    for number in range(appends) if everywhere else {seed % appends, seed // 7 % appends}:
        for side in ("before", "after", "during") if everywhere else ("during",):
            report = played(case, Simulation(0, faults=Faults()), (Crash(number, side),))
            check(case, report.results["run-0"], f"killed {side} append {number}")


@pytest.mark.parametrize("name", CASES)
def test_it_ends_the_same_from_any_point_of_its_past(name: str) -> None:
    case, simulation = CASES[name], Simulation(0, faults=Faults())

    async def play() -> None:
        async with simulation.engine([case.graph], limits=LIMITS) as engine:
            _ = await engine.start(case.graph(**case.inputs), id="r")
            check(case, await answered(engine, "r", case), "calm")
            journal = {getattr(entry.event, "op", "") for entry in await engine.journal("r")}
            for step in await engine.steps("r"):
                if step.path in journal and step.status in ("succeeded", "failed"):
                    _ = await engine.time_travel("r", step.path, new_id=f"before {step.path}")
                    check(case, await answered(engine, f"before {step.path}", case), f"before {step.path}")
            for checkpoint in await engine.history("r"):
                _ = await engine.fork("r", checkpoint.seq + 1, new_id=f"from {checkpoint.seq}")
                check(case, await answered(engine, f"from {checkpoint.seq}", case), f"from {checkpoint.seq}")

    simulation.play(play())


async def answered(engine: Engine, id: str, case: Case) -> RunResult[Any]:
    """Answer what a run asks until it has ended."""
    while True:
        result = await engine.handle(id).outcome(until="rest")
        known = [one for one in result.interrupts if one.path in case.answers]
        if not known:
            return result if result.status.value in ENDED else await engine.handle(id).outcome()
        for one in known:
            await engine.approve(id, one.path, case.answers[one.path])
