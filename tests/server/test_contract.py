"""The API keeps to its description, whatever it is sent: a bounded part here, and a soak."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from perdure import Engine
from perdure.server.problems import MEDIA_TYPE, ProblemBody
from tests.server.programs import PROGRAMS, fails, order, pipeline, quick, streams, waits
from tests.server.served import served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# It does not end; tests/server/test_live.py reads it.
ENDLESS = "/events"


async def prepared(engine: Engine) -> dict[str, list[str]]:
    """Names of what there is, by the parameters of paths."""
    invocations: list[Any] = [quick(1), fails(), streams(3), pipeline(amount=2)]
    ended: list[Any] = [await engine.run(invocation) for invocation in invocations]
    asked = [await engine.run(order(number), until="rest") for number in range(3)]
    waiting = [await engine.start(waits()) for _ in range(3)]
    _ = await engine.schedule("nightly", quick(1), cron="0 3 * * *")
    _ = await engine.locks.acquire("a/b", "me", ttl=3600)
    runs = [run.run_id for run in (*ended, *asked, *waiting)]
    return {
        "run": runs,
        "ended": runs[:4],
        "other": runs,
        "path": ["charge:0", "ship:0", "refuse:0"],
        "name": ["go", "quick", "q"],
        "id": ["nightly"],
        "key": ["a/b"],
        "seq": ["0", "1", "2", "run"],
        "field": ["value", "input", "output", "payload", "state:phase"],
    }


def sent(case: Any, names: dict[str, list[str]], known: Sequence[int]) -> Any:
    """A request with some of its names replaced by those of things that there are."""
    for number, name in enumerate(case.path_parameters or {}):
        pick = known[number % len(known)]
        if name in names and pick % 3:
            stream = case.path.endswith(("/events", "/stream"))
            choice = names["ended" if name == "run" and stream else name]
            case.path_parameters[name] = choice[pick % len(choice)]
    if isinstance(case.body, dict) and "program" in case.body and known[0] % 2:
        case.body["program"] = "quick"
    return case


def judged(case: Any, answer: Any) -> None:
    """An answer as the description says; and a problem for every error."""
    case.validate_response(answer, checks=CHECKS)
    if answer.status_code >= 400:
        assert (
            answer.headers["content-type"][0] == MEDIA_TYPE
            if isinstance(answer.headers["content-type"], list)
            else answer.headers["content-type"] == MEDIA_TYPE
        )
        problem = msgspec.json.decode(answer.content, type=ProblemBody)
        assert (problem.status, bool(problem.code), bool(problem.detail)) == (answer.status_code, True, True)


def storm(examples: int, modes: Sequence[GenerationMode]) -> int:
    """Send so many requests to each operation, right or wrong ones; returns how many were sent."""
    count = 0
    with served(lambda: Engine("memory://", PROGRAMS), prepared) as (address, names):
        schema = schemathesis.openapi.from_url(f"{address}/api/v1/openapi.json")
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if operation.path == ENDLESS:
                continue
            for mode in modes:

                @settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                    derandomize=examples < 100,
                )
                @given(
                    case=operation.as_strategy(generation_mode=mode),
                    known=st.lists(st.integers(0, 999), min_size=1, max_size=4),
                )
                def once(case: Any, known: list[int]) -> None:
                    nonlocal count
                    count += 1
                    case = sent(case, names, known)
                    judged(case, case.call(base_url=f"{address}/api/v1"))

                with suppress(Unsatisfiable):  # nothing is wrong for an operation without parameters
                    once()
    return count


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_answers_are_as_the_description_says(mode: GenerationMode) -> None:
    assert storm(3, [mode]) > 100


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_thousand_answers_are_as_the_description_says() -> None:
    assert storm(220, list(GenerationMode)) >= 20_000
