"""Put a workflow to the test: kill it at every durable boundary, let its steps end in many orders.

Asserts what must be the same each time: the result, and what took effect.
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
# Enough to bring steps that were begun together to an end in any order.
DURATIONS = (0.0, 0.001, 0.01, 0.1, 1.0)
Make = Invocation[Any] | Callable[[], Invocation[Any]]


@dataclass(frozen=True, slots=True)
class Survived:
    """What came of killing a workflow at each of its durable boundaries."""

    result: RunResult[Any]
    """How it ended, each time."""
    effects: Any
    """What took effect, each time: what the `effects` function said."""
    boundaries: int
    """How many appends it makes when nothing happens to it."""
    crashes: int
    """How often it was killed: before, after and during each."""
    executions: Mapping[str, int]
    """How often the code of each step was executed at most, by op path: 2 where a crash came before its record."""


def crash_everywhere(
    invocation: Make,
    *,
    before: Callable[[], object] | None = None,
    effects: Callable[[], Any] | None = None,
    sides: Iterable[Side] = SIDES,
    seed: int | str = 0,
    **options: Any,
) -> Survived:
    """Run a workflow in peace, then once for each durable boundary, and kill it there; its end must be the same.

    `before` is called before each run, to set up the world anew. `effects` says what took effect; that must be the same
    too: count by `step_context().id`, as a service would that takes idempotency keys. No step may be executed more
    often than it was tried in peace, and once more for the crash. Takes the options of `Simulation.run`, such as
    `senders` and `programs`. Raises AssertionError at the first run that ends otherwise, and says where it was killed.
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
            hint = "" if before is not None else " (before= sets up the world anew for each run)"
            assert seen == wanted, f"{where}: {seen!r} took effect, and {wanted!r} when it was not killed{hint}"
            for op, count in _executions(report).items():
                allowed = usual.get(op, 0) + report.crashes
                assert count <= allowed, f"{where}: the code of {op} ran {count} times, and {allowed} is the most"
                most[op] = max(most[op], count)
    return Survived(result, wanted, calm.appends, crashes, dict(most))


@dataclass(frozen=True, slots=True)
class Interleavings:
    """What came of letting the steps of a workflow end in many orders."""

    result: RunResult[Any]
    """How it ended, each time; the first one where they need not be the same."""
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
    """Run a workflow once for each seed, with steps that take times drawn from it, so that they end in other orders.

    Unless `same` is False its end must be the same each time: what `gather` returns does not depend on who is first.
    Takes the options of `Simulation.run`. An AssertionError names the seed, which gives the same order again.
    """
    orders: dict[tuple[str, ...], int] = {}
    results: list[RunResult[Any]] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        make = partial(Simulation, seed, faults=Faults(durations=durations))
        report = _run(invocation, before, make, options, options)
        order = tuple(_ended(report))
        orders.setdefault(order, seed)
        results.append(report.results["run-0"])
        if same:
            _same(results[-1], results[0], f"seed {seed}, where steps ended in the order {', '.join(order)}")
    return Interleavings(results[0], orders, tuple(results))


# For a workflow that sleeps for days: whoever takes it over after a crash comes some minutes later.
_SLOW: dict[str, Any] = {"limit": 1e9, "recovery": Recovery(lease=600.0, check_interval=300.0), "watch": 300.0}


def _run(
    invocation: Make,
    before: Callable[[], object] | None,
    make: Callable[[], Simulation],
    options: dict[str, Any],
    kept: dict[str, Any],
) -> Report:
    """Run a workflow once. One that sleeps for longer than a run may take has the time it needs, this time and next."""
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
    return Counter(execution.op for execution in report.executions)


def _ended(report: Report) -> list[str]:
    ends = StepSucceeded | StepFailed | StepSkipped
    events: list[AnyEvent] = [event for batch in report.journals["run-0"] for event in batch.events]
    return [event.op for event in events if isinstance(event, ends)]
