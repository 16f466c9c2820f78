"""Any graph does what a plain reading of it says, whatever crashes on the way.

Each test is a search: a failure shrinks to the smallest graph that ends differently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perdure import Limits, RunStatus, StepView
from perdure.kernel.events import (
    AnyEvent,
    ChildStarted,
    RunClaimed,
    StepFailed,
    StepStarted,
    StepSucceeded,
    WaitOpened,
)
from perdure.kernel.ids import op_name
from perdure.kernel.values.items import parts_of
from perdure.testing.simulation import STORMY, Crash, Faults, Message, Pause, Report, Sender, Simulation
from tests.graph.plans import INPUTS, build, descendants, plans
from tests.graph.reference import Expected, Plan, Spec, answer_to

F = TypeVar("F", bound=Callable[..., Any])
SOAK = 2_000
# Clocks that are set back by an hour, several times, keep what is due waiting for as long.
LIMIT = 36_000.0
# Small, so that what is stored apart need not be large.
LIMITS = Limits(blob=300)
FEATURES = ("blobs", "failures", "loops", "maps", "nested", "interrupts")


def search(examples: int, soak: int = SOAK) -> Callable[[F], F]:
    """Try so many examples; under the profile of `make soak`, `soak` of them."""
    more = settings.get_current_profile_name() == "soak"
    tried = settings(max_examples=soak if more else examples, phases=[Phase.explicit, Phase.generate, Phase.shrink])
    return lambda test: pytest.mark.soak(pytest.mark.timeout(3600)(tried(test))) if more else tried(test)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are logged by the thousand, and here they are the purpose."""
    log = logging.getLogger("perdure")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)


def check(report: Report, plan: Plan, expected: Expected, paused: int = 0) -> None:
    """Compare what happened with what should have, under a crash or while so many machines were `paused`."""
    result = report.results["run-0"]
    wanted = {op: end for op, end in expected.turns.items() if is_step(plan, op)}
    events = [event for batch in report.journals["run-0"] for event in batch.events]
    assert not begun_late(plan, events)
    done = Counter(event.op for event in events if isinstance(event, StepSucceeded))
    assert set(done.values()) <= {1}
    ran = {op for op, end in wanted.items() if end.how == "ran"}
    perhaps = {op for op, end in wanted.items() if end.how == "perhaps"}
    clear = {op for op in done if not op.startswith(tuple(expected.unclear))}
    if expected.failed:
        assert result.status is RunStatus.FAILED, result
        partial = expected.limit or plan.on_failure == "stop"
        assert expected.limit or clear <= ran | perhaps
        assert partial or set(done) >= ran
    else:
        assert result.status is RunStatus.COMPLETED, result
        assert clear <= ran <= set(done)
        assert result.output is not None
        assert dict(result.output) == expected.outputs()
    ended = [event for event in events if isinstance(event, StepSucceeded)]
    inline = [event for event in ended if not event.blob and parts_of(event.value) is None]
    values = {event.op: msgspec.json.decode(event.value) for event in inline}
    for op in set(values) & ran:
        assert list(expected.turns[op].values.values()) == as_values(plan, op, values[op]), op
    # Clocks that jump hand a run over without a crash.
    most = max(1 + report.crashes + paused, sum(isinstance(event, RunClaimed) for event in events))
    assert all(times <= most for times in Counter(execution.op for execution in report.executions).values())


def begun_late(plan: Plan, events: Sequence[AnyEvent]) -> list[str]:
    """What began after the failure of a node with which nothing new may begin."""
    failures = [number for number, event in enumerate(events) if isinstance(event, StepFailed) and "[" not in event.op]
    first = next((number for number in failures if "/" not in events[number].op), len(events))  # type: ignore[union-attr]
    begun = [event for event in events[first:] if isinstance(event, StepStarted | ChildStarted | WaitOpened)]
    new = [event.op for event in begun if not isinstance(event, StepStarted) or event.attempt == 1]
    return new if plan.on_failure == "stop" else []


def is_step(plan: Plan, op: str) -> bool:
    spec = spec_of(plan, op)
    return spec.kind == "step" and (not spec.over or op.endswith("]"))


def spec_of(plan: Plan, op: str) -> Spec:
    *outer, last = op.split("/")
    for part in outer:
        inner = next(spec for spec in plan.nodes if spec.name == part.partition(":")[0]).inner
        assert inner is not None
        plan = inner
    return next(spec for spec in plan.nodes if spec.name == op_name(last).partition("[")[0])


def as_values(plan: Plan, op: str, value: Any) -> list[Any]:
    outputs = spec_of(plan, op).outputs
    return [] if not outputs else [value] if len(outputs) == 1 else list(value)


def check_steps(steps: Sequence[StepView], plan: Plan, expected: Expected) -> None:
    """Compare what the steps view says of nodes that did not run: which, and because of what."""
    unclear, not_run = tuple(expected.unclear), ("skipped", "blocked")
    found = {step.path: step for step in steps if step.status in not_run and not step.path.startswith(unclear)}
    wanted = {op: end for op, end in expected.turns.items() if end.how in not_run}
    if expected.failed and (expected.limit or plan.on_failure == "stop" or any("/" in op for op in expected.turns)):
        return  # what had its turn before the end is not known
    assert {op: step.status.value for op, step in found.items()} == {op: end.how for op, end in wanted.items()}
    for op, end in wanted.items():
        assert op_name(found[op].skipped_by or "") in end.by, op


def outcomes(plan: Plan, seed: int = 0, crashes: tuple[Crash, ...] = (), **options: Any) -> Report:
    """Run a graph and answer what it asks, under crashes; read its steps, where nothing crashes."""
    graph, expected = build(plan), Expected(plan, INPUTS)
    stormy = "faults" in options
    faults = options.pop("faults", Faults(durations=(0.0, 0.0, 0.01, 0.1)))
    used = {name: value for name, value in INPUTS.items() if name in {**graph.inputs.required, **graph.inputs.optional}}
    simulation = Simulation(seed, faults=faults)
    report = simulation.run(
        graph(**used),
        programs=[graph],
        crashes=crashes,
        senders=answers(plan, expected),
        limit=LIMIT,
        limits=LIMITS,
        **options,
    )
    if not crashes and not stormy and "pauses" not in options:

        async def read(*programs: Any) -> Sequence[StepView]:
            async with simulation.engine(programs) as engine:
                return await engine.steps("run-0")

        steps = simulation.play(read(graph))
        check_steps(steps, plan, expected)
        # A process without the code says the same of it.
        assert [replace(step, inputs=None) for step in steps] == list(simulation.play(read()))
    return report


def answers(plan: Plan, expected: Expected) -> list[Sender]:
    """For each question, a sender that answers it."""
    asked = [op for op in expected.turns if spec_of(plan, op).kind == "interrupt"]
    # A sender gives up after a while, and a question may be asked late: after a crash, or in a late round.
    waits = (0.0, 30.0, 90.0)
    return [
        Sender([Message("approve", op, answer_to(spec_of(plan, op).name), wait=wait) for wait in waits]) for op in asked
    ]


def survives_every_crash(plan: Plan, seed: int) -> None:
    expected = Expected(plan, INPUTS)
    calm = outcomes(plan, seed)
    check(calm, plan, expected)
    for number in range(calm.appends):
        for side in ("before", "after", "during"):
            check(outcomes(plan, seed, (Crash(number, side),)), plan, expected)


def in_chunks(plan: Plan, seed: int, crashes: tuple[Crash, ...] = (), **options: Any) -> Report:
    """Run a graph whose maps are in chunks of one item, and compare what came of it with what should have."""
    graph, expected = build(plan, chunk=1), Expected(plan, INPUTS)
    faults = options.pop("faults", Faults(durations=(0.0, 0.0, 0.01, 0.1)))
    used = {name: value for name, value in INPUTS.items() if name in {**graph.inputs.required, **graph.inputs.optional}}
    report = Simulation(seed, faults=faults).run(
        graph(**used),
        programs=[graph],
        crashes=crashes,
        senders=answers(plan, expected),
        limit=LIMIT,
        limits=LIMITS,
        **options,
    )
    result = report.results["run-0"]
    if expected.failed:
        assert result.status is RunStatus.FAILED, result
    else:
        assert result.status is RunStatus.COMPLETED, result
        assert result.output is not None
        assert dict(result.output) == expected.outputs()
    return report


seeds = st.integers(0, 1 << 32)


@search(8)
@given(plans(*FEATURES, "lazy", size=8), seeds)
def test_any_map_in_chunks_gives_what_one_map_gives(plan: Plan, seed: int) -> None:
    in_chunks(plan, seed)
    in_chunks(plan, seed, faults=STORMY, engines=2)


@search(2)
@given(plans(*FEATURES, "lazy", size=5), seeds)
def test_any_map_in_chunks_goes_on_after_a_crash_at_any_append(plan: Plan, seed: int) -> None:
    for number in range(in_chunks(plan, seed).appends):
        for side in ("before", "after"):
            in_chunks(plan, seed, (Crash(number, side),))


@search(3)
@given(plans(*FEATURES), seeds)
def test_any_graph_does_what_it_says_with_a_crash_at_every_append(plan: Plan, seed: int) -> None:
    survives_every_crash(plan, seed)


@search(30)
@given(plans(*FEATURES, size=10), seeds)
def test_any_graph_does_what_it_says(plan: Plan, seed: int) -> None:
    check(outcomes(plan, seed), plan, Expected(plan, INPUTS))


@search(4)
@given(plans(*FEATURES), seeds)
def test_any_graph_does_what_it_says_under_lost_replies_zombies_and_conflicts(plan: Plan, seed: int) -> None:
    check(outcomes(plan, seed, faults=STORMY, engines=2), plan, Expected(plan, INPUTS))


@search(2)
@given(plans(*FEATURES, size=5), seeds)
def test_any_graph_does_what_it_says_when_a_machine_is_paused_past_its_lease_at_any_append(
    plan: Plan, seed: int
) -> None:
    expected = Expected(plan, INPUTS)
    calm = outcomes(plan, seed, engines=2)
    for number in range(calm.appends):
        for side in ("before", "after"):
            check(outcomes(plan, seed, pauses=[Pause(number, 30.0, side)], engines=2), plan, expected, 1)


@search(10)
@given(plans("blobs", "nested", size=8), st.data())
def test_any_value_that_is_replaced_runs_again_what_depends_on_it_and_nothing_else(
    plan: Plan, data: st.DataObject
) -> None:
    before = Expected(plan, INPUTS)
    steps = [spec for spec in plan.nodes if spec.kind in ("step", "graph") and spec.name in before.ended]
    values = sorted(value for spec in steps for value in before.ended[spec.name].values)
    if not values:
        return
    name = data.draw(st.sampled_from(values))
    after = Expected(plan, INPUTS, replaced={name: 1000})
    graph, simulation = build(plan), Simulation(0)
    used = {one: value for one, value in INPUTS.items() if one in {**graph.inputs.required, **graph.inputs.optional}}

    async def update() -> tuple[Any, set[str], set[str]]:
        async with simulation.engine([graph], limits=LIMITS) as engine:
            await engine.run(graph(**used), id="run-0")
            simulation.monitor.executions.clear()
            said = await engine.update_state("run-0", {name: 1000}, dry_run=True)
            result = await (await engine.update_state("run-0", {name: 1000})).outcome()
            executed = [execution.op for execution in simulation.monitor.executions]
            assert len(set(executed)) == len(executed)
            return result.output, set(executed), set(said)

    output, executed, said = simulation.play(update())
    assert dict(output) == after.outputs()
    changed = {op for op, end in after.turns.items() if is_step(plan, op) and end != before.turns.get(op)}
    maker = {op for op, end in after.turns.items() if name in end.values and "/" not in op}
    ran = {op for op, end in after.turns.items() if end.how == "ran"}
    # What gives another value now has run again; what did not depend on the value has not.
    assert changed & ran - maker <= executed <= ran - maker
    assert {op for op in executed if op in before.turns and before.turns[op].how == "ran"} <= said


@search(10)
@given(plans("blobs", "nested", "maps", "loops", size=8), st.data())
def test_any_op_that_a_run_goes_back_to_runs_again_with_what_depends_on_it_and_nothing_else(
    plan: Plan, data: st.DataObject
) -> None:
    expected = Expected(plan, INPUTS)
    ops = sorted(op for op, end in expected.turns.items() if is_step(plan, op) and end.how == "ran")
    if expected.failed or not ops:
        return
    op = data.draw(st.sampled_from(ops))
    graph, simulation = build(plan), Simulation(0)
    used = {one: value for one, value in INPUTS.items() if one in {**graph.inputs.required, **graph.inputs.optional}}

    async def go_back() -> tuple[Any, list[str]]:
        async with simulation.engine([graph], limits=LIMITS) as engine:
            _ = await engine.run(graph(**used), id="run-0")
            simulation.monitor.executions.clear()
            result = await (await engine.time_travel("run-0", op, new_id="run-1")).outcome()
            return result.output, [execution.op for execution in simulation.monitor.executions]

    output, executed = simulation.play(go_back())
    assert dict(output) == expected.outputs()
    assert executed.count(op) == 1
    assert len(set(executed)) == len(executed)
    node = op_name(op.partition("/")[0]).partition("[")[0]
    behind = descendants([*plan.nodes], node) | {node}
    assert {op_name(one.partition("/")[0]).partition("[")[0] for one in executed} <= behind
