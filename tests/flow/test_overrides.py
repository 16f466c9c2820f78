"""Overrides of a run, resources and profiles: a flow is changed before it is read, and a run records what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, connect
from perdure.flow import FlowInvalid
from tests.flow.writing import flow_of, problems_of, run

TEXT = """
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: a, use: value, with: {x: "${{ input.n }}", y: [1, 2, {z: 3}]}}
  - id: b
    use: value
    with: [1]
    when: ${{ input.n > 0 }}
output: {a: "${{ steps.a }}", b: "${{ steps.b | default('none') }}"}
finally: [{id: end, use: value, with: ended}]
"""
A = {"x": 1, "y": [1, 2, {"z": 3}]}
CASES: list[tuple[Any, Any]] = [
    ({"a": {"with": {"x": 5}}}, {"x": 5, "y": A["y"]}),
    ({"a": {"with": {"x": None, "w": {"v": 1}}}}, {"y": A["y"], "w": {"v": 1}}),
    ({"a": {"with": "${{ input.n + 1 }}"}}, 2),
    ({"a": {"with": {"y": {"z": None, "k": {"l": None}}}}}, {"x": 1, "y": {"k": {}}}),
    ({"a": {}}, A),
    ({"a": [{"op": "replace", "path": "/with/y/2/z", "value": 4}]}, {"x": 1, "y": [1, 2, {"z": 4}]}),
    ({"a": [{"op": "add", "path": "/with/y/0", "value": 0}]}, {"x": 1, "y": [0, 1, 2, {"z": 3}]}),
    ({"a": [{"op": "add", "path": "/with/y/-", "value": "end"}]}, {"x": 1, "y": [1, 2, {"z": 3}, "end"]}),
    ({"a": [{"op": "remove", "path": "/with/y/1"}]}, {"x": 1, "y": [1, {"z": 3}]}),
    ({"a": [{"op": "move", "from": "/with/x", "path": "/with/w~1~0"}]}, {"y": A["y"], "w/~": 1}),
    ({"a": [{"op": "copy", "from": "/with/y/2", "path": "/with/x"}]}, {"x": {"z": 3}, "y": A["y"]}),
    (
        {"a": [{"op": "test", "path": "/use", "value": "value"}, {"op": "replace", "path": "/with", "value": 1}]},
        1,
    ),
    ({"a": {"$type": "merge_patch", "value": {"with": 7}}}, 7),
    ({"a": {"$type": "json_patch", "value": [{"op": "replace", "path": "/with", "value": 8}]}}, 8),
]


@pytest.mark.parametrize(("overrides", "expected"), CASES)
async def test_a_step_is_changed_for_a_run(tmp_path: Path, overrides: Any, expected: Any) -> None:
    flow = flow_of(tmp_path, TEXT)
    changed = flow.override(overrides)
    output = (await run(changed)).output
    assert output is not None
    assert output["a"] == expected
    assert (changed.name, changed.overrides, flow.overrides) == (flow.name, [overrides], [])
    assert (await run(flow)).output == {"a": A, "b": [1]}


WRONG = [
    ({"c": {"with": 1}}, "there is no such step or job; there are a, b, end"),
    ({"a": {"id": "z"}}, "it must leave an object with the same id"),
    ({"a": [{"op": "replace", "path": "", "value": 1}]}, "it must leave an object with the same id"),
    ({"a": {"tiemout": 1}}, "a step has no key 'tiemout'; did you mean 'timeout'?"),
    ({"a": 7}, "an object, a merge patch, or a list, a JSON patch; not 7"),
    ({"a": [7]}, "an operation is an object with `op` and `path`"),
    ({"a": [{"op": "replce", "path": "/with"}]}, "there is no operation 'replce'; did you mean 'replace'?"),
    ({"a": [{"op": "add", "path": "with", "value": 1}]}, "a path begins with /"),
    ({"a": [{"op": "add", "path": "/with/x"}]}, "add needs a value"),
    ({"a": [{"op": "add", "path": "/with/y/9", "value": 1}]}, "there is no '9' in"),
    ({"a": [{"op": "add", "path": "/with/x/y", "value": 1}]}, "leads into"),
    ({"a": [{"op": "remove", "path": "/wth"}]}, "did you mean 'with'?"),
    ({"a": [{"op": "remove", "path": ""}]}, "a step is not removed"),
    ({"a": [{"op": "move", "path": "/with"}]}, "a path begins with /"),
    ({"a": [{"op": "test", "path": "/use", "value": "http"}]}, "the test of /use does not hold"),
    ({"a": {"$type": "json_patch", "value": {}}}, "`$type` is merge_patch"),
    ({"a": {"with": "${{ steps.zzz }}"}}, "unknown step 'zzz'"),
    ({"a": {"use": "python:os.system"}}, "are not allowed here"),
]


@pytest.mark.parametrize(("overrides", "said"), WRONG)
def test_what_cannot_be_changed_is_told_with_its_place(tmp_path: Path, overrides: Any, said: str) -> None:
    with pytest.raises(FlowInvalid) as caught:
        flow_of(tmp_path, TEXT).override(overrides)
    assert said in str(caught.value)
    assert {problem.file for problem in caught.value.problems} == {str(tmp_path / "flow.yaml")}
    assert caught.value.problems[0].line == (1 if "c" in overrides else 5)


async def test_jobs_and_steps_of_jobs_and_what_runs_in_the_end_are_changed_too(tmp_path: Path) -> None:
    text = """
jobs:
  - {id: one, steps: [{id: a, use: value, with: 1}, {id: one, use: value, with: 2}]}
  - {id: two, when: "${{ false }}", steps: [{id: a, use: value, with: 3}]}
finally: [{id: end, use: value, with: ended}]
output: ["${{ jobs.one.a }}", "${{ jobs.one.one }}", "${{ jobs.two.a | default('none') }}"]
"""
    flow = flow_of(tmp_path, text)
    changed = flow.override({"one.a": {"with": 5}, "one.one": {"with": 6}, "two": {"when": None}})
    assert (await run(changed)).output == [5, 6, 3]
    again = changed.override({"end": {"with": "over"}}).override({"one.a": {"with": 7}})
    ran = await run(again)
    assert ran.output == [7, 6, 3]
    assert [step.output for step in ran.steps if step.name == "end"] == ["over"]
    assert len(again.overrides) == 3


async def test_a_run_keeps_its_overrides_also_elsewhere(tmp_path: Path) -> None:
    text = "steps: [{id: ask, use: approval}, {id: a, use: value, with: 1, after: [ask]}]\noutput: '${{ steps.a }}'"
    flow = flow_of(tmp_path, text)
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow]) as engine:
        await engine.run(flow.override({"a": {"with": 2}})(), id="changed")
        await engine.run(flow(), id="as-it-is")
    (tmp_path / "flow.yaml").unlink()
    async with Engine(url) as engine, connect(url) as client:
        for id in ("changed", "as-it-is"):
            await client.approve(id, "ask", True)
        assert await engine.handle("changed").result() == 2
        assert await engine.handle("as-it-is").result() == 1
        view = await client.get("changed")
        assert view is not None
        stored = await client.get_flow(f"test@{view.version}")
        assert stored.overrides == [{"a": {"with": 2}}]
        # What was changed for a run is not what is started by name.
        assert (await client.get("as-it-is")).version == flow.version  # type: ignore[union-attr]


async def test_elsewhere_errors_name_the_place_in_the_file(tmp_path: Path) -> None:
    text = """
inputs: {x: {}}
steps:
  - {id: ask, use: approval}
  - id: a
    use: value
    after: [ask]
    with: {deep: ["${{ input.x.abc }}"]}
"""
    flow = flow_of(tmp_path, text)
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow]) as engine:
        await engine.run(flow(x={"abd": 1}), id="r")
        here = await engine.run(flow(x={"abd": 1}), id="here", answers={"ask": True})
    (tmp_path / "flow.yaml").unlink()
    async with Engine(url) as engine:
        await engine.approve("r", "ask", True)
        result = await engine.handle("r").outcome()
        assert str(result.error).startswith(f"{tmp_path}/flow.yaml:9:23: ${{{{ input.x.abc }}}} has no value: input.x")
        assert str(result.error) == str(here.error)
        steps = {step.path: step.source for step in await engine.steps("r")}
        assert steps["a:0"] == f"{tmp_path}/flow.yaml:6:9"


# --- resources and profiles -------------------------------------------------------------------------------------------

RESOURCES = """
variables: {v: 1}
resources:
  db:
    host: localhost
    options: {ssl: false, deep: [1, 2]}
    user: {env: FLOW_USER, default: me}
    password: {secret: FLOW_PASSWORD}
  other: {port: 1}
profiles:
  prod: {variables: {v: 2}, resources: {db: {host: db.internal, user: {env: FLOW_USER, default: prod}}}}
  none: {}
steps:
  - id: a
    use: value
    with: ["${{ vars.v }}", "${{ resources.db.host }}", "${{ resources.db.options.deep[1] }}", "${{ env.FLOW_USER }}"]
  - {id: b, use: connect, with: {db: "${{ resources.db }}", port: "${{ resources.other }}"}}
output: ["${{ steps.a }}", "${{ steps.b }}"]
"""


def connects(db: dict[str, Any], port: dict[str, int]) -> list[Any]:
    return [*db, db["password"] == "s3cret-password", db["user"], port]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("", [1, "localhost", 2, "me"]),
        ("none", [1, "localhost", 2, "me"]),
        ("prod", [2, "db.internal", 2, "prod"]),
    ],
)
async def test_a_profile_is_laid_over_variables_and_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str, expected: Any
) -> None:
    monkeypatch.setenv("FLOW_PASSWORD", "s3cret-password")
    flow = flow_of(tmp_path, RESOURCES, components={"connect": connects}, profile=profile)
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow(), id="r")
        keys = ["host", "options", "user", "password"]
        assert result.output == [expected, [*keys, True, expected[3], {"port": 1}]]
        assert "s3cret-password" not in repr(await engine.journal("r"))
    plain = flow_of(tmp_path, RESOURCES, components={"connect": connects})
    assert (flow.version == plain.version) == (profile != "prod"), "the chosen profile is a part of the version"


def test_a_profile_that_is_none_is_told(tmp_path: Path) -> None:
    components = {"connect": connects}
    found = problems_of(tmp_path, RESOURCES, components=components, profile="prd")
    assert found == ["11:1 error F013 there is no profile 'prd'; did you mean 'prod'?"]
    without = "steps: [{id: a, use: value}]"
    assert flow_of(tmp_path, without, profile="prod").version == flow_of(tmp_path, without).version


def test_what_is_wrong_with_resources_and_profiles_is_told_with_its_place(tmp_path: Path) -> None:
    text = """
variables: {v: 1}
resources: {db: {host: a, b c: 1, user: {env: U, secret: S}}, x: 1}
profiles:
  prod: {variables: {w: 1, v: {secret: [1]}}, resources: {dc: {}, db: {hots: 1}}, steps: []}
steps:
  - {id: a, use: value, with: ["${{ resources.dx }}", "${{ resources.db.hots }}", "${{ resources }}"]}
  - {id: b, use: value, with: "${{ resources.db | tojson }}", when: "${{ resources.db.user }}"}
"""
    places = [(line.partition(" ")[0], line.split(" ")[2]) for line in problems_of(tmp_path, text)]
    assert places == [
        ("4:27", "F002"),
        ("4:41", "F002"),
        ("4:66", "F002"),
        ("6:22", "F013"),
        ("6:40", "F002"),
        ("6:59", "F013"),
        ("6:72", "F013"),
        ("6:83", "F005"),
        ("8:37", "F013"),
        ("8:60", "F013"),
        ("8:88", "F011"),
        ("9:36", "F011"),
        ("9:74", "F014"),
    ]
