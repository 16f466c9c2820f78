"""Test a workflow: kill it at every durable boundary, let its steps end in many orders.

Asserts that the result and the side effects are the same each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.authoring.code.workflow import Workflow
from perdure.client.views import RunResult
from perdure.config import Recovery
from perdure.kernel.events import AnyEvent, StepFailed, StepSkipped, StepSucceeded
from perdure.kernel.invocation import Invocation
from perdure.kernel.values.failures import type_name
from perdure.testing.fixtures import invoked, known
from perdure.testing.simulation import Crash, Faults, PromiseBroken, Report, Simulation
from perdure.testing.simulation.faults import Side

SIDES: tuple[Side, ...] = ("before", "after", "during")
# Enough to let steps that started together end in any order.
DURATIONS = (0.0, 0.001, 0.01, 0.1, 1.0)
Make = Invocation[Any] | Callable[[], Invocation[Any]]


@dataclass(frozen=True, slots=True)
class Survived:
    """The outcome of killing a workflow at each of its durable boundaries."""

    result: RunResult[Any]
    """How it ended, each time."""
    effects: Any
    """The side effects, each time: the value of the `effects` function."""
    boundaries: int
    """How many appends it makes without a crash."""
    crashes: int
    """How often it was killed: before, after and during each append."""
    executions: Mapping[str, int]
    """The most executions of each step's code, by op path: 2 if a crash came before its outcome was recorded."""


def crash_everywhere(
    invocation: Make,
    *,
    before: Callable[[], object] | None = None,
    effects: Callable[[], Any] | None = None,
    sides: Iterable[Side] = SIDES,
    seed: int | str = 0,
    **options: Any,
) -> Survived:
    """Run a workflow without a crash, then once per durable boundary and kill it there; its end must be the same.

    `before` is called before each run, to reset the test's state. `effects` returns the side effects, which must be the
    same too: count them by `step_context().id`, as a service with idempotency keys would. No step may be executed more
    often than without a crash, plus once per crash. Takes the options of `Simulation.run`, such as `senders` and
    `programs`. Raises AssertionError for the first run that ends differently, and says where it was killed.
    """

    def once(*crashes: Crash) -> tuple[Report, Any]:
        report = _run(invocation, before, lambda: Simulation(seed), {**options, "crashes": crashes}, options)
        return report, effects() if effects is not None else None

    calm, wanted = once()
    result = calm.results["run-0"]
    usual = _executions(calm)
    most = Counter(usual)
    crashes = 0
    for number in range(calm.appends):
        for side in sides:
            report, seen = once(Crash(number, side))
            crashes += report.crashes
            where = f"killed {side} append {number} of {calm.appends}"
            _same(report.results["run-0"], result, where)
            hint = "" if before is not None else " (before= is called before each run, to reset state)"
            assert seen == wanted, f"{where}: {seen!r} took effect, and {wanted!r} when it was not killed{hint}"
            for op, count in _executions(report).items():
                allowed = usual.get(op, 0) + report.crashes
                assert count <= allowed, f"{where}: the code of {op} ran {count} times, and {allowed} is the most"
                most[op] = max(most[op], count)
    return Survived(result, wanted, calm.appends, crashes, dict(most))


@dataclass(frozen=True, slots=True)
class Interleavings:
    """The outcome of letting the steps of a workflow end in many orders."""

    result: RunResult[Any]
    """How it ended each time; the first result if they need not be the same."""
    orders: Mapping[tuple[str, ...], int]
    """The orders in which its steps ended, by op path, and the first seed of each."""
    results: tuple[RunResult[Any], ...]
    """How it ended under each seed."""


def interleavings(
    invocation: Make,
    *,
    seeds: int | Iterable[int] = 50,
    before: Callable[[], object] | None = None,
    same: bool = True,
    durations: tuple[float, ...] = DURATIONS,
    **options: Any,
) -> Interleavings:
    """Run a workflow once per seed, with random step durations, so that its steps end in different orders.

    Unless `same` is False its end must be the same each time: the result of `gather` does not depend on which step ends
    first. Takes the options of `Simulation.run`. An AssertionError names the seed, which reproduces the order.
    """
    orders: dict[tuple[str, ...], int] = {}
    results: list[RunResult[Any]] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        make = partial(Simulation, seed, faults=Faults(durations=durations))
        report = _run(invocation, before, make, options, options)
        order = tuple(_completion_order(report))
        orders.setdefault(order, seed)
        results.append(report.results["run-0"])
        if same:
            _same(results[-1], results[0], f"seed {seed}, where steps ended in the order {', '.join(order)}")
    return Interleavings(results[0], orders, tuple(results))


# For a workflow that sleeps for days: takeover after a crash may take minutes.
_SLOW: dict[str, Any] = {"limit": 1e9, "recovery": Recovery(lease=600.0, check_interval=300.0), "watch": 300.0}


def _run(
    invocation: Make,
    before: Callable[[], object] | None,
    make: Callable[[], Simulation],
    options: dict[str, Any],
    kept: dict[str, Any],
) -> Report:
    """Run a workflow once. If it sleeps past the time limit, run it again with `_SLOW`, which later runs keep."""
    if before is not None:
        before()
    made = invocation() if callable(invocation) and not isinstance(invocation, Workflow | Invocation) else invocation
    run = invoked(made)
    programs = options.get("programs") or ()
    simulation = make()
    try:
        return simulation.run(run, **{**options, "programs": programs if callable(programs) else known(run, programs)})
    except PromiseBroken:
        asleep = any(row.wake_at for row in simulation.store.journal.rows.values() if row.finished_at is None)
        if not asleep or "limit" in options:
            raise
    kept.update(_SLOW)
    return _run(invocation, before, make, {**options, **_SLOW}, kept)


def _same(found: RunResult[Any], wanted: RunResult[Any], where: str) -> None:
    assert _end(found) == _end(wanted), f"{where}: it ended with {_end(found)}, and with {_end(wanted)} otherwise"


def _end(result: RunResult[Any]) -> tuple[str, Any]:
    error = result.error
    return (result.status.value, result.output if error is None else f"{type_name(type(error))}: {error}")


def _executions(report: Report) -> Counter[str]:
    """How often the code of each step was executed, in the run that did so most; not the steps of perdure itself."""
    most = Counter[str]()
    for (_, op), count in Counter((one.run_id, one.op) for one in report.executions).items():
        if not op.rpartition("/")[2].startswith("<"):
            most[op] = max(most[op], count)
    return most


def _completion_order(report: Report) -> list[str]:
    ends = StepSucceeded | StepFailed | StepSkipped
    events: list[AnyEvent] = [event for batch in report.journals["run-0"] for event in batch.events]
    return [event.op for event in events if isinstance(event, ends)]
