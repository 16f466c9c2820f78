"""Any graph does what a plain reading of it says, whatever crashes on the way.

Each test is a search: a failure shrinks to the smallest graph that ends differently.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from perdure import RunStatus
from perdure.kernel.events import StepSucceeded
from perdure.kernel.ids import op_name
from perdure.testing.simulation import STORMY, Crash, Faults, Message, Report, Sender, Simulation
from tests.graph.plans import INPUTS, build, plans
from tests.graph.reference import Expected, Plan, Spec, answer_to

F = TypeVar("F", bound=Callable[..., Any])
SOAK = 2_000
LIMIT = 600.0
FEATURES = ("failures", "nested", "interrupts")


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


def check(report: Report, plan: Plan, expected: Expected) -> None:
    """Compare what happened with what should have."""
    result = report.results["run-0"]
    wanted = {op: end for op, end in expected.turns.items() if is_step(plan, op)}
    events = [event for batch in report.journals["run-0"] for event in batch.events]
    done = Counter(event.op for event in events if isinstance(event, StepSucceeded))
    assert set(done.values()) <= {1}
    ran = {op for op, end in wanted.items() if end.how == "ran"}
    if expected.failed:
        assert result.status is RunStatus.FAILED, result
        partial = expected.limit or plan.on_failure == "stop"
        assert (set(done) <= ran or expected.limit) if partial else set(done) == ran
    else:
        assert result.status is RunStatus.COMPLETED, result
        assert set(done) == ran
        assert result.output is not None
        assert dict(result.output) == expected.outputs()
    values = {event.op: msgspec.json.decode(event.value) for event in events if isinstance(event, StepSucceeded)}
    for op in set(done) & ran:
        assert list(expected.turns[op].values.values()) == as_values(plan, op, values[op]), op
    most = 1 + report.crashes
    assert all(times <= most for times in Counter(execution.op for execution in report.executions).values())


def is_step(plan: Plan, op: str) -> bool:
    return spec_of(plan, op).kind == "step"


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


def outcomes(plan: Plan, seed: int = 0, crashes: tuple[Crash, ...] = (), **options: Any) -> Report:
    graph = build(plan)
    asked = [spec.name for spec in plan.nodes if spec.kind == "interrupt"]
    senders = [Sender([Message("approve", name, answer_to(name))]) for name in asked]
    faults = options.pop("faults", None) or Faults(durations=(0.0, 0.0, 0.01, 0.1))
    used = {name: value for name, value in INPUTS.items() if name in {**graph.inputs.required, **graph.inputs.optional}}
    return Simulation(seed, faults=faults).run(
        graph(**used), programs=[graph], crashes=crashes, senders=senders, limit=LIMIT, **options
    )


def survives_every_crash(plan: Plan, seed: int) -> None:
    expected = Expected(plan, INPUTS)
    calm = outcomes(plan, seed)
    check(calm, plan, expected)
    for number in range(calm.appends):
        for side in ("before", "after", "during"):
            check(outcomes(plan, seed, (Crash(number, side),)), plan, expected)


seeds = st.integers(0, 1 << 32)


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
