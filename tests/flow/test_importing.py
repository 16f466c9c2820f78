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
    assert {file.name.partition("_")[0] for file in FILES} == {"stepflow", "aetherflow"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_becomes_a_flow_and_a_report(file: Path) -> None:
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
        for outcome in run_tests(str(file), Flows()):
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


async def test_the_jobs_of_aetherflow_run_as_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = await run(load_flow(FOLDER / "aetherflow_jobs.yaml", python=()))
    by_path = {step.path: step for step in ran.steps}
    assert by_path["probe:0/say:0"].output["stdout"] == "2 true r"
    assert by_path["first_load:0/guarded:0"].output["stdout"] == "demo/probe: 2 items | 2 true r | 30"
    statuses = {path: step.status for path, step in by_path.items()}
    assert statuses["empty:0/never:0"] == "skipped"
    assert statuses["blocked:0"] == "blocked"
    assert ran.result.status == "completed"


def test_what_cannot_be_translated_of_aetherflow_is_reported_with_its_place() -> None:
    assert report_of("""
version: 1
flow: {id: f}
schedule: daily
jobs:
  - id: a
    when: len(jobs.x) > 1
    steps:
      - {id: s, type: external.process, inputs: {command: [ls], bogus: 1, timeout_seconds: "{{ env.T:1 }}",
         idempotency: {strategy: atomic_dir}}}
      - {id: t, type: with_lock, inputs: {step: {id: u, type: external.process, inputs: {args: [a]}}}}
      - {type: x}
      - {id: v, type: external.process, inputs: {command: ["{{ x | lower }}", "{{ jobs.a.outputs.none }}"]},
         outputs: {o: "{{ job.outputs.o }}"}}
      - {id: w, type: external.process, inputs: {command: ["{{ job.outputs.o }}"]}}
""") == [
        "4:1 warning F041 'schedule' of a file has no counterpart here, and is left out",
        "7:11 error F040 this condition is not translated: there is no function 'len'; there is range",
        "9:23 warning F041 commands get PATH, HOME and the like of the environment; name all else under `env`",
        "9:65 error F040 'bogus' of a process is not translated",
        "9:92 error F040 this is a fixed number here, without a template",
        "10:34 error F040 the strategy 'atomic_dir' is not translated",
        "11:42 error F006 with_lock needs a lock_key",
        "11:89 error F006 external.process needs a command",
        "12:9 error F006 a step of Aetherflow needs an id and a type",
        "13:60 error F040 this template is not translated; Aetherflow has {{PATH}} and {{PATH:DEFAULT}}",
        "13:80 error F040 {{ jobs.a.outputs.none }} refers to nothing that is known here",
        "14:24 error F040 {{ job.outputs.o }} refers to nothing that is known here",
    ]
    assert report_of("version: 1\nflow: {state: {backend: sqlite, path: /tmp/state/state.db}}\n") == [
        "1:1 error F006 a flow of Aetherflow needs jobs",
        "2:15 warning F041 where runs are kept is said by the engine, as in --store sqlite:////tmp/state/state.db",
    ]


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


SCHEDULER = """\
timezone: Europe/Berlin
items:
  - {id: nightly, cron: "0 3 * * *", flow_yaml: flows/etl.yaml, misfire_grace_time: 60}
  - id: hourly
    cron: "0 * * * *"
    flow_yaml: flows/sync.yaml
    flow_job: pull
    bundle_manifest: bundle.yaml
"""
PROFILES = """\
prod:
  config: {host: db.example.com, password: c2VjcmV0}
  options: {timeout: 5}
  decode: {config: {password: true}}
dev: {config: {host: localhost}}
"""


def test_schedules_and_profiles_of_aetherflow_are_told_with_where_they_are_written_here() -> None:
    with pytest.raises(FlowInvalid) as caught:
        translated(SCHEDULER.encode())
    assert [(one.line, one.column, one.code) for one in caught.value.problems] == [(3, 5, "F040"), (4, 5, "F040")]
    first, second = (one.message for one in caught.value.problems)
    expected = 'schedules: [{id: "nightly", cron: "0 3 * * *", timezone: "Europe/Berlin", catch_up: "one"}]'
    assert f"write it in flows/etl.yaml, as {expected}" in first
    assert second.endswith("bundle_manifest and flow_job have no counterpart")
    with pytest.raises(FlowInvalid) as caught:
        translated(PROFILES.encode())
    assert [(one.line, one.column, one.code) for one in caught.value.problems] == [(1, 1, "F040"), (5, 1, "F040")]
    assert 'profiles: {"prod": {resources: {NAME: {host: ..., password: ..., timeout: ...}}}}' in str(caught.value)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "items: []\ntimezone: UTC\n",
        "items: [1, {cron: x}]\n",
        "items: {a: {cron: x, flow_yaml: y}}\n",
        "a: {config: 1}\nb: 2\n",
        "a: {}\n",
        "a: [config]\n",
    ],
)
def test_what_only_resembles_a_file_of_aetherflow_is_no_flow(text: str) -> None:
    assert translated(text.encode())[1] == []


@pytest.mark.parametrize(
    "text",
    [
        "items: [{cron: 1, flow_yaml: [2], id: {}}]\ntimezone: 3\n",
        "a: {config: {x: 1}, decode: 3}\n",
        "a: {options: 2}\n",
    ],
)
def test_files_of_aetherflow_with_anything_in_them_are_told(text: str) -> None:
    with pytest.raises(FlowInvalid, match="F040"):
        translated(text.encode())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("input['x'] + 1", "input.a.b + 1"),
        ("data['x'] * data['n']", "input.a.b * 3"),
        ("lambda v: v['x'][0]", "input.a.b[0]"),
        ("input['o']['k']", "input.a.b"),
        ("-input['x'] in [1, 2]", "-input.a.b in [1, 2]"),
        ("input['text'] == 'no'", "'a b' == 'no'"),
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
