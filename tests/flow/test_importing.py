"""Flows of Stepflow and Aetherflow: what is translated runs, and what is not is reported with its place.

Beside each file in `imports/` is what becomes of it, `NAME.to.yaml`, and the report, `NAME.report`;
`python -m tests.flow.test_importing` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.authoring.flow.formatting import as_yaml, formatted
from perdure.authoring.flow.importing import native
from perdure.authoring.flow.tree import Item, Problems, read
from perdure.config import Flows
from perdure.flow import FlowInvalid, load_flow
from perdure.testing.flows import run_tests
from tests.flow.writing import run

FOLDER = Path(__file__).parent / "imports"
FILES = sorted(file for file in FOLDER.glob("*.yaml") if not file.name.endswith(".to.yaml"))


def translated(data: bytes, file: str = "flow.yaml") -> tuple[Item, list[str]]:
    problems = Problems(file)
    root = native(read(data, file, problems), problems)
    found = sorted(problems.found, key=lambda one: (one.line, one.column))
    return root, [str(one).removeprefix(f"{file}:") for one in found]


def report_of(text: str) -> list[str]:
    return translated(text.encode())[1]


async def anything(**given: Any) -> Any:
    """What stands in for a component that is still to be written."""
    return {"given": given}


def test_the_corpus_is_complete() -> None:
    assert {file.name.partition("_")[0] for file in FILES} == {"stepflow"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_becomes_a_flow_and_a_report(file: Path) -> None:
    root, report = translated(file.read_bytes(), file.name)
    text = as_yaml(root)
    assert text == file.with_suffix(".to.yaml").read_text(encoding="utf-8")
    assert report == file.with_suffix(".report").read_text(encoding="utf-8").splitlines()
    # It is in canonical form, and the file itself loads as what its translation loads as.
    assert formatted(text.encode(), "flow.yaml") == text
    todo = {one.rpartition(" ")[2]: anything for one in report if " F040 " in one}
    direct = load_flow(file, components=todo, python=())
    assert load_flow(file.with_suffix(".to.yaml"), components=todo, python=()).version == direct.version
    if not todo:
        for outcome in await run_tests(str(file), Flows()):
            assert not outcome.flaws


async def test_a_component_that_is_to_be_written_is_given_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("name: n\nsteps: [{id: a, component: /mine/double, input: {n: {$input: n}}}]\noutput: {$step: a}\n")
    with pytest.raises(FlowInvalid, match="there is no component 'todo_mine_double'"):
        load_flow(file, python=())

    def double(n: int) -> int:
        return n * 2

    flow = load_flow(file, components={"todo_mine_double": double}, python=())
    assert (await run(flow, n=4)).output == 8
    assert [(one.line, one.column, one.code) for one in flow.warnings] == [(2, 28, "F040")]


def test_problems_have_their_place_in_the_file_of_the_other_engine(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(
        "name: n\nsteps:\n  - id: a\n    component: /builtin/noop\n    input: {x: {$step: b}}\noutput: {$step: a}\n"
    )
    with pytest.raises(FlowInvalid) as caught:
        load_flow(file, python=())
    assert [(one.line, one.column, one.code) for one in caught.value.problems] == [(5, 16, "F012")]


@pytest.mark.parametrize(
    "text",
    [
        'storageConfig:\n  type: sqlite\n  databaseUrl: "sqlite:/path/to/stepflow.db?mode=rwc"\n  autoMigrate: true\n',
        "leaseManager:\n  type: none\n",
        "recovery:\n  enabled: true\n  checkIntervalSecs: 30\n  maxStartupRecovery: 100\n  maxClaimsPerCheck: 10\n",
        "storageConfig:\n  type: inMemory\n",
        'storageConfig: {type: sqlite}\nleaseManager:\n  type: etcd\n  endpoints: ["http://etcd-1:2379"]\n',
    ],
)
def test_settings_of_stepflow_are_no_flow(text: str) -> None:
    with pytest.raises(FlowInvalid, match="these are settings of Stepflow, and no flow; give the file as --config"):
        translated(text.encode())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("input['x'] + 1", "input.a.b + 1"),
        ("data['x'] * data['n']", "input.a.b * 3"),
        ("lambda v: v['x'][0]", "input.a.b[0]"),
        ("input['o']['k']", "input.a.b"),
        ("-input['x'] in [1, 2]", "-input.a.b in [1, 2]"),
        ("input['text'] == 'no'", "\"a b\" == 'no'"),
        ("input['gone'] + 1", None),
        ("input", None),
        ("len(input['x'])", None),
        ("input['x'].upper()", None),
        ("1 < input['x'] < 3", None),
        ("[n for n in input['x']]", None),
        ("__import__('os').system('id')", None),
        ("f\"{input['x']}\"", None),
        ("x = 1", None),
        ("(" * 300, None),
        ("input['mixed']", None),
        ("", None),
    ],
)
def test_code_that_is_an_expression_becomes_one(code: str, expected: str | None) -> None:
    text = f"""
steps:
  - {{id: c, component: /builtin/put_blob, input: {{data: {{code: {json.dumps(code)}}}}}}}
  - id: u
    component: /python/udf
    input:
      blob_id: {{$step: c, path: blob_id}}
      input:
        x: {{$input: a.b}}
        n: 3
        o: {{k: {{$input: a.b}}}}
        text: a b
        mixed: {{list: [1]}}
output: {{$step: u}}
"""
    root, report = translated(text.encode())
    step = root.plain()["steps"][0]
    if expected is None:
        assert step["use"] == "todo_python_udf_u"
        assert len(report) == 1
    else:
        assert (step["use"], step["with"]) == ("value", f"${{{{ {expected} }}}}")
        assert not report


def write_anew() -> None:
    for file in FILES:
        root, report = translated(file.read_bytes(), file.name)
        file.with_suffix(".to.yaml").write_text(as_yaml(root), encoding="utf-8")
        file.with_suffix(".report").write_text("".join(f"{line}\n" for line in report), encoding="utf-8")


if __name__ == "__main__":
    write_anew()
