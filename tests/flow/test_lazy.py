"""A lazy flow runs what its output needs, and of what `$if` and `$coalesce` choose among, what they chose."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.testing.simulation import every_crash
from tests.amounts import some
from tests.flow.writing import flow_of, run


def call(name: str, given: Any, result: Any) -> Any:
    return given if result == "given" else result


HEAD = {"perdure": 1, "name": "test", "execution": "lazy"}


def step(id: str, given: Any = 1, result: Any = "given") -> dict[str, Any]:
    return {"id": id, "use": "call", "with": {"name": id, "given": given, "result": result}}


def at(id: str) -> dict[str, str]:
    return {"$step": id}


TRUE, FALSE = [step("yes", True), step("no", False)]
CASES: dict[str, tuple[list[dict[str, Any]], Any, Any, str]] = {
    "a branch": ([step("a", 1), step("b", 2)], {"$if": True, "then": at("a"), "else": at("b")}, 1, "a"),
    "the other branch": ([step("a", 1), step("b", 2)], {"$if": None, "then": at("a"), "else": at("b")}, 2, "b"),
    "no branch": ([TRUE, step("a", 1)], {"$if": {"$literal": False}, "then": at("a")}, None, ""),
    "a condition that a step makes": (
        [FALSE, step("a", 1), step("b", 2)],
        {"$if": at("no"), "then": at("a"), "else": at("b")},
        2,
        "no b",
    ),
    "what a branch needs": (
        [TRUE, step("x"), step("a", at("x")), step("y"), step("b", at("y"))],
        [{"$if": at("yes"), "then": at("a"), "else": at("b")}],
        [1],
        "yes x a",
    ),
    "what both branches need, and something else needs": (
        [TRUE, step("x", 5), step("a", at("x")), step("b", at("x")), step("c", 7)],
        {"x": {"$if": at("yes"), "then": at("a"), "else": at("b")}, "c": at("c")},
        {"x": 5, "c": 7},
        "yes x a c",
    ),
    "the first that is not null": (
        [step("a", None), step("b", 2), step("c", 3)],
        {"$coalesce": [at("a"), at("b"), at("c")]},
        2,
        "a b",
    ),
    "none of them": ([step("a", None), step("b", None)], {"$coalesce": [at("a"), at("b")]}, None, "a b"),
    "forms in forms": (
        [TRUE, FALSE, step("a", None), step("b", 2), step("c", 3), step("d", 4)],
        {
            "$if": at("yes"),
            "then": {"$coalesce": [at("a"), {"$if": at("no"), "then": at("b"), "else": at("c")}, at("d")]},
            "else": at("d"),
        },
        3,
        "yes a no c",
    ),
    "a form in a step that is not needed": (
        [TRUE, step("a", 1), step("b", {"$if": at("yes"), "then": at("a"), "else": 2}), step("c", 3)],
        at("c"),
        3,
        "c",
    ),
    "a form in a step of a branch": (
        [TRUE, FALSE, step("a", 1), step("b", {"$if": at("yes"), "then": at("a"), "else": 2}), step("c", 3)],
        {"$if": at("no"), "then": at("b"), "else": at("c")},
        3,
        "no c",
    ),
    "a condition that is needed by what it chooses": (
        [step("a", True), step("b", at("a"))],
        {"$if": at("a"), "then": at("b"), "else": at("a")},
        True,
        "a b",
    ),
}


@pytest.mark.parametrize(("steps", "output", "result", "called"), CASES.values(), ids=CASES)
async def test_what_is_not_chosen_is_not_called(
    tmp_path: Path, steps: list[Any], output: Any, result: Any, called: str
) -> None:
    calls: list[str] = []

    def component(name: str, given: Any, result: Any) -> Any:
        calls.append(name)
        return call(name, given, result)

    flow = flow_of(
        tmp_path, json.dumps({**HEAD, "steps": steps, "output": output}), "flow.json", components={"call": component}
    )
    ran = await run(flow)
    assert ran.output == result
    assert sorted(calls) == sorted(called.split())


async def test_a_step_that_must_run_does_and_one_that_is_not_chosen_has_a_reason(tmp_path: Path) -> None:
    steps = [TRUE, step("a"), {**step("b"), "must_run": True}, {**step("c"), "after": ["a"]}]
    output = [{"$if": at("yes"), "then": at("c"), "else": [at("a"), at("b")]}]
    text = json.dumps({**HEAD, "steps": steps, "output": output})
    flow = flow_of(tmp_path, text, "flow.json", components={"call": call})
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(), id="r")).output == [1]
        steps_of = {one.path: one for one in await engine.steps("r")}
        assert {path for path, one in steps_of.items() if one.status == "succeeded"} == {"yes:0", "b:0", "c:0"}
        assert (steps_of["a:0"].skipped_by, steps_of["a:0"].reason) == ("output.if:0", "output.if:0 chose c")


# --- against a reading of the rules that is as short as they are ------------------------------------------------------


def value(draw: random.Random, known: list[str], depth: int = 0) -> Any:
    kind = draw.randrange(8 if depth < 3 else 4)
    if kind < 3 and known:
        return at(draw.choice(known))
    if kind < 4:
        return draw.choice([None, False, True, 0, "x"])
    if kind == 4:
        return [value(draw, known, depth + 1) for _ in range(draw.randrange(3))]
    if kind == 5:
        return {"$coalesce": [value(draw, known, depth + 1) for _ in range(draw.randrange(4))]}
    form = {"$if": value(draw, known, depth + 1), "then": value(draw, known, depth + 1)}
    return {**form, "else": value(draw, known, depth + 1)} if draw.random() < 0.7 else form


def drawn(seed: int) -> tuple[list[dict[str, Any]], Any]:
    draw = random.Random(seed)
    steps: list[dict[str, Any]] = []
    for number in range(draw.randint(1, 8)):
        known = [one["id"] for one in steps]
        result = draw.choice(["given", "given", None, False, True])
        steps.append(step(f"s{number}", value(draw, known), result))
    return steps, value(draw, [one["id"] for one in steps])


class Reader:
    """Evaluates a flow from its output, and calls a step when its value is asked for."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self._steps = {one["id"]: one["with"] for one in steps}
        self.called: dict[str, Any] = {}

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.read(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "$step" in value:
            return self._call(value["$step"])
        if "$if" in value:
            held = self.read(value["$if"])
            return self.read(value.get("else") if held is None or held is False else value["then"])
        for one in value["$coalesce"]:
            if (found := self.read(one)) is not None:
                return found
        return None

    def _call(self, id: str) -> Any:
        if id not in self.called:
            given = self._steps[id]
            self.called[id] = call(id, self.read(given["given"]), given["result"])
        return self.called[id]


async def check(folder: Path, seed: int) -> bool:
    """Whether it called nothing more than had to be; in any case it called that, and nothing twice."""
    steps, output = drawn(seed)
    calls: list[str] = []

    def component(name: str, given: Any, result: Any) -> Any:
        calls.append(name)
        return call(name, given, result)

    text = json.dumps({**HEAD, "steps": steps, "output": output})
    flow = flow_of(folder, text, "flow.json", components={"call": component})
    reader = Reader(steps)
    expected = reader.read(output)
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow(), id="r")
    assert result.output == expected, f"seed {seed}: {text}"
    assert len(calls) == len(set(calls)), f"seed {seed}: {text}"
    assert set(calls) >= reader.called.keys(), f"seed {seed}: {text}"
    return len(calls) == len(reader.called)


@pytest.mark.parametrize("seeds", some([range(n, n + 100) for n in range(0, 5000, 100)], 1), ids=str)
async def test_flows_run_what_they_need_and_nothing_else(tmp_path: Path, seeds: range) -> None:
    exact = [await check(tmp_path, seed) for seed in seeds]
    # The others decide by the value about which they decide.
    assert sum(exact) > 85


def test_choices_are_kept_through_crashes(tmp_path: Path) -> None:
    steps, output, result, called = CASES["forms in forms"]
    text = json.dumps({**HEAD, "steps": steps, "output": output})
    flow = flow_of(tmp_path, text, "flow.json", components={"call": call})
    for report in every_crash(flow(), seed=3):
        assert report.results["run-0"].output == result
        executed = {one.op.partition(":")[0] for one in report.executions}
        assert executed == set(called.split())


@pytest.mark.parametrize(
    ("form", "output"),
    [
        ("{{$if: {{$step: s{0}}}, then: {{$step: s{0}}}, else: {{$step: s{1}}}}}", "{$step: s199}"),
        ("{{$if: {{$input: x}}, then: {{$step: s{0}}}}}", "{$step: s199}"),
        ("{{$if: {{$input: x}}, then: {{$step: s{0}}}, else: {{$step: s{1}}}}}", "{$step: s199}"),
        (
            "{{$if: {{$step: s{0}}}, then: {{$step: s{0}}}, else: {{$step: s{1}}}}}",
            "{$if: {$input: x}, then: {$step: s199}}",
        ),
        ("{{$if: {{$step: s{2}}}, then: {{$step: s{0}}}}}", "{$step: s199}"),
        ("{{$coalesce: [{{$step: s{0}}}, {{$step: s{1}}}, {{$step: s{2}}}]}}", "{$step: s199}"),
    ],
)
def test_forms_of_forms_are_settled(tmp_path: Path, form: str, output: str) -> None:
    """What grows without bounds does not end here, and what recurses meets the limit of it."""
    steps = [
        f"  - {{id: s{n}, use: value, with: {form.format(n - 1, n - 2, n // 2) if n > 1 else 1}}}\n" for n in range(200)
    ]
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        flow_of(
            tmp_path,
            f"inputs: {{x: boolean}}\nexecution: lazy\nsteps:\n{''.join(steps)}output: {output}\n",
        )
    finally:
        sys.setrecursionlimit(old)
