"""Run the tests that are in the file of a flow, in virtual time: sleeps, retries and timeouts of days take none."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.authoring.flow.definition import CaseDef
from perdure.authoring.flow.flow import load
from perdure.client.views import RunResult, StepView
from perdure.config import Flows, Recovery
from perdure.errors import NotDecodable
from perdure.kernel.events import RunStatus, StepStatus
from perdure.stored import access
from perdure.testing.simulation import Simulation

# There is one engine, and all that happens is its own doing: it need not look often.
RARELY = 100 * 86400.0
ALONE = Recovery(lease=RARELY, check_interval=RARELY)
# What a test calls the status of a run.
_STATUSES = {RunStatus.COMPLETED: "succeeded", RunStatus.BAILED: "succeeded"}


class CaseOutcome(msgspec.Struct, frozen=True):
    """What has become of a test; it is as expected if there are no `flaws`."""

    name: str
    where: str
    flaws: tuple[str, ...]


def run_tests(path: str, allowed: Flows, case: str | None = None) -> list[CaseOutcome]:
    """The outcomes of the tests of a flow, or of those of one name. Raises FlowInvalid."""
    tests = load(path, access(allowed)).tests
    return [_run(path, allowed, test) for test in tests if case is None or test.name == case]


def _run(path: str, allowed: Flows, test: CaseDef) -> CaseOutcome:
    flow, sim = load(path, access(allowed), test.stubs), Simulation()

    async def scenario() -> list[str]:
        async with sim.engine([flow], recovery=ALONE) as engine:
            result = await engine.run(flow(**test.input), id="test")
            return _flaws(test.expect, result, await engine.steps("test"))

    try:
        flaws = sim.play(scenario(), poll=RARELY)
    except (TypeError, NotDecodable) as error:
        flaws = [f"the input does not fit: {error}"]
    return CaseOutcome(test.name, test.where, tuple(flaws))


def _flaws(expect: dict[str, Any], result: RunResult[Any], steps: Any) -> list[str]:
    """How a run differs from what was expected."""
    found = []
    status = _STATUSES.get(result.status, str(result.status))
    wanted = expect.get("status", "failed" if "error" in expect else "succeeded" if "output" in expect else status)
    if status != wanted:
        why = f": {result.error}" if result.error is not None else ""
        found.append(f"it {_shown(status)}, and {wanted} was expected{why}")
    elif "output" in expect and result.output != expect["output"]:
        found.append(f"output is {_json(result.output)}, and {_json(expect['output'])} was expected")
    if "error" in expect and expect["error"] not in str(result.error):
        found.append(f"the error is {str(result.error)!r}, and {expect['error']!r} was expected in it")
    if "skipped" in expect:
        named = expect["skipped"] if isinstance(expect["skipped"], list) else [expect["skipped"]]
        skipped = sorted(_not_run(steps))
        if skipped != sorted(named):
            found.append(f"skipped are {_json(skipped)}, and {_json(sorted(named))} were expected")
    return found


def _not_run(steps: list[StepView]) -> set[str]:
    """The steps of the flow itself that were skipped or blocked."""
    left_out = (StepStatus.SKIPPED, StepStatus.BLOCKED)
    return {step.name for step in steps if step.status in left_out and "/" not in step.path}


def _shown(status: str) -> str:
    return "waits" if status == "waiting" else status


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
