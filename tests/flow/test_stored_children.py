"""Flows as steps of others that are found when they begin: by name in the store, or made by an earlier step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, RunStatus
from tests.flow.writing import flow_of, problems_of, run

INNER = "perdure: 1\nname: inner\ninputs: {n: integer}\nsteps: [{id: v, use: value, with: '${{ input.n * %s }}'}]\n"
OUTER = "steps: [{id: go, use: signal, with: {name: go}}, {id: in, use: 'flow:inner%s', with: {n: 2}, after: [go]}]"


async def test_a_stored_flow_is_a_child_in_the_version_that_is_the_latest_when_it_begins(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    first, second = (flow_of(tmp_path, INNER % n, f"{n}.yaml") for n in (10, 100))
    flow = flow_of(tmp_path, OUTER % "")
    fixed = flow_of(tmp_path, OUTER % f"@{first.version}", "fixed.yaml")
    async with Engine(store, [flow, fixed]) as engine:
        await engine.store_flow(first)
        for id, one in {"a": flow, "b": fixed}.items():
            await engine.run(one(), id=id)
        await engine.store_flow(second)
    async with Engine(store) as engine:
        for id, output in {"a": {"in": {"v": 200}}, "b": {"in": {"v": 20}}}.items():
            await engine.signal(id, "go")
            result = await engine.handle(id).outcome()
            assert result.output == {"go": None, **output}
        child = await engine.get("a/in:0")
        assert child is not None
        assert (child.program, child.version) == ("inner", second.version)


async def test_a_flow_that_is_not_stored_fails_its_step(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, "steps: [{id: a, use: 'flow:none'}, {id: b, use: 'flow:test@00'}]\non_failure: continue")
    ran = await run(flow)
    assert ran.result.status is RunStatus.FAILED
    assert "'none'" in str(ran.result.error)


MAKES = """
variables: {token: {secret: MY_TOKEN}}
steps:
  - id: plan
    use: value
    with:
      perdure: 1
      name: planned
      inputs: {n: integer}
      steps:
        - {id: more, use: signal, with: {name: more}}
        - {id: v, use: value, with: "$${{ input.n + 1 }}", needs: [more]}
  - id: ask
    use: signal
    with: {name: go}
    needs: [plan]
  - id: done
    use: flow
    with: {definition: "${{ steps.plan }}", input: {n: 4}}
    after: [ask]
output: ${{ steps.done.v }}
"""


async def test_a_flow_that_a_step_has_made_runs_as_a_child_also_elsewhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    flow = flow_of(tmp_path, MAKES)
    async with Engine(store, [flow]) as engine:
        await engine.run(flow(), id="r")
        await engine.signal("r", "go")
        await engine.handle("r").outcome(until="rest")
    async with Engine(store) as engine:
        assert [run.id for run in await engine.list(program="flow")] == ["r/done:0"]
        await engine.signal("r/done:0", "more")
        assert await engine.handle("r") == 5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": [{"id": "x", "use": "flow:./other.yaml"}]}, "F023 the flow ./other.yaml is not a part"),
        ({"variables": {"x": {"secret": "OTHER"}}}, "F023 OTHER may not be used here"),
        ({"variables": {"x": {"env": "HOME"}}}, "F023 HOME may not be used here"),
        ({"steps": [{"id": "x", "use": "python:os.getcwd"}]}, "F023 functions of os are not allowed"),
        ({"steps": []}, "F002 a flow has at least one step"),
        ({"inputs": {"n": "string"}}, "the input n of planned"),
    ],
)
async def test_a_flow_that_a_step_has_made_may_do_what_its_caller_may(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    plan = {"perdure": 1, "name": "planned", "inputs": {"n": "integer"}, "steps": [{"id": "v", "use": "value"}]}
    text = """
    inputs: {plan: object}
    variables: {token: {secret: MY_TOKEN}}
    steps: [{id: done, use: flow, with: {definition: "${{ input.plan }}", input: {n: 4}}}]
    """
    ran = await run(flow_of(tmp_path, text), plan=plan | change)
    assert ran.result.status is RunStatus.FAILED
    assert said in str(ran.result.error)


async def test_flows_that_steps_make_do_not_nest_without_end(tmp_path: Path) -> None:
    given = {"definition": "${{ input.plan }}", "input": {"plan": "${{ input.plan }}"}}
    plan = {
        "perdure": 1,
        "name": "a",
        "inputs": {"plan": "object"},
        "steps": [{"id": "d", "use": "flow", "with": given}],
    }
    ran = await run(flow_of(tmp_path, json.dumps(plan), "a.json"), plan=plan)
    assert "five deep at most" in str(ran.result.error)


def test_names_that_are_none_are_problems(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "steps: [{id: a, use: 'flow:a@'}, {id: b, use: 'flow:a b'}, {id: c, use: flow}]")
    assert [line.partition(" error ")[2][:4] for line in found] == ["F020", "F020", "F022"]


MADE = """
inputs: {plan: {}}
steps: [{id: done, use: flow, with: {definition: "${{ input.plan }}"}}]
output: ${{ steps.done }}
"""


def planned(**more: Any) -> dict[str, Any]:
    return {"perdure": 1, "name": "planned", "steps": [{"id": "a", "use": "shell", "with": {"argv": ["echo"]}}], **more}


def around(plan: dict[str, Any]) -> dict[str, Any]:
    """A flow that runs another one, as a step has made both."""
    step = {"id": "b", "use": "flow", "with": {"definition": {"$literal": plan}}}
    return {"perdure": 1, "name": "around", "steps": [step]}


@pytest.mark.parametrize("plan", [planned(), around(planned()), around(around(planned()))])
async def test_a_flow_that_a_step_has_made_runs_commands_only_if_that_is_said(
    tmp_path: Path, plan: dict[str, Any]
) -> None:
    for shell, status, why in (
        (None, RunStatus.FAILED, "a flow that a step has made may not run commands"),
        (False, RunStatus.FAILED, "flows may not run commands here"),
        (True, RunStatus.COMPLETED, ""),
    ):
        flow = flow_of(tmp_path, MADE, shell=shell)
        result = (await run(flow, plan=plan)).result
        assert result.status is status
        assert why in str(result.error)


@pytest.mark.parametrize("root", ["/etc", "../..", "/tmp"])
async def test_a_flow_that_a_step_has_made_has_no_workspace_elsewhere(tmp_path: Path, root: str) -> None:
    steps = [{"id": "a", "use": "value", "with": "${{ run.workspace }}"}]
    plan = planned(steps=steps, workspace={"root": root})
    result = (await run(flow_of(tmp_path, MADE), plan=plan)).result
    assert "is outside of the folder of this flow" in str(result.error)
    plan = planned(steps=steps, workspace={"root": "work"})
    assert (await run(flow_of(tmp_path, MADE), plan=plan)).output["a"].startswith(f"{tmp_path}/work/")


async def test_a_flow_that_a_step_has_made_takes_nothing_from_files_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("perdure: 1\nname: s\nsteps: [{id: a, use: value, with: s3cret}]\n")
    for use, why in (("flow:./secret.yaml", "files are not read here"), ("python:os.getcwd", "are not allowed here")):
        plan = planned(steps=[{"id": "a", "use": use}])
        assert why in str((await run(flow_of(tmp_path, MADE), plan=plan)).result.error)
