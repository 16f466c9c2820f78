"""`perdure flow`: checks, runs and draws flows."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from perdure import Engine, call
from perdure.cli.main import main
from perdure.cli.targets import load
from perdure.flow import load_flow
from tests.cli.conftest import Cli

RIGHT = "perdure: 1\nname: right\ninputs: {n: integer}\nsteps: [{id: a, use: value, with: '${{ input.n + 1 }}'}]\n"
WRONG = "perdure: 1\nname: wrong\nsteps: [{id: a, use: valu, with: yes}]\n"


def test_check_tells_all_problems_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(RIGHT)
    wrong.write_text(WRONG)
    assert main(["flow", "check", str(right)]) == 0
    assert main(["flow", "check", str(right), str(wrong)]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out == [
        f"{wrong}:3:22 error F020 there is no component 'valu'; did you mean 'value'?",
        f"{wrong}:3:34 warning F009 yes is text here; write true, false, null or a number, or quote it",
    ]
    assert main(["flow", "check", str(wrong), "--json"]) == 2
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert (problems[0]["line"], problems[0]["column"], problems[0]["code"]) == (3, 22, "F020")
    assert main(["flow", "check", str(tmp_path / "none.yaml")]) == 2
    assert main(["flow", "run", str(wrong)]) == 2


def test_run_graph_and_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "right.yaml"
    file.write_text(RIGHT)
    store = f"sqlite:///{tmp_path}/f.db"
    for _ in range(2):
        assert main(["flow", "run", str(file), "--id", "r", "--input", '{"n": 2}', "--store", store]) == 0
        assert json.loads(capsys.readouterr().out) == {"a": 3}
    assert main(["flow", "run", str(file), "--input", '{"n": "x"}', "--store", store]) == 2
    assert main(["flow", "run", str(file), "--input", '{"m": 2}', "--store", store]) == 2
    assert "there is no input 'm'; there is n; a flow takes an object" in capsys.readouterr().err
    assert main(["flow", "run", str(file), "--input", "[2]", "--store", store]) == 2
    assert "a flow takes an object with its inputs by name" in capsys.readouterr().err
    assert main(["flow", "graph", str(file)]) == 0
    assert "a" in capsys.readouterr().out
    assert main(["flow", "schema"]) == 0
    assert "steps" in json.loads(capsys.readouterr().out)["properties"]


def test_tests_in_a_file_are_run_with_mocks_and_without_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tested.yaml"
    file.write_text("""
perdure: 1
name: tested
inputs: {n: integer}
steps:
  - {id: get, use: http, with: {url: "https://example.com/${{ input.n }}"}}
  - {id: nap, use: sleep, with: {for: 900d}, after: [get]}
  - {id: list, map: {over: "${{ steps.get.body }}"}, use: shell, with: {argv: ["false", "${{ item }}"]}}
  - {id: ask, use: approval, when: "${{ input.n > 5 }}", after: [nap]}
  - {id: wrong, use: value, with: "${{ steps.get.bdy }}", when: "${{ input.n == 3 }}"}
output: ["${{ steps.list }}", "${{ steps.ask | default('none') }}"]
tests:
  - {name: a, input: {n: 1}, mock: {get: {body: [1]}, list: [a]}, expect: {output: [[a], none], skipped: [ask, wrong]}}
  - {name: b, input: {n: 6}, mock: {get: {body: []}}, expect: {status: waiting}}
  - {name: c, input: {n: 6}, mock: {get: {body: []}, ask: yes please}, expect: {output: [[], yes please]}}
  - {name: d, input: {n: 3}, mock: {get: {body: []}}, expect: {error: "did you mean 'body'?"}}
  - {name: e, input: {n: x}, expect: {}}
  - {name: f, input: {n: 1}, mock: {get: {body: []}}, expect: {status: failed, skipped: []}}
""")
    assert main(["flow", "test", str(file), "--json"]) == 1
    outcomes = {one["name"]: one["flaws"] for one in json.loads(capsys.readouterr().out)["tests"]}
    assert [name for name, flaws in outcomes.items() if not flaws] == ["a", "b", "c", "d"]
    assert "the input does not fit" in outcomes["e"][0]
    assert outcomes["f"] == [
        "it succeeded, and failed was expected",
        'skipped are ["ask","wrong"], and [] were expected',
    ]
    file.write_text(RIGHT + "tests: [{name: a, mock: {b: 1}, expect: {stats: x, skipped: [c]}}]\n")
    assert main(["flow", "check", str(file)]) == 2
    found = [line.split(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert found == ["F012", "F005", "F012"]


CAUSES = """
perdure: 1
name: causes
inputs: {n: integer}
steps:
  - {id: off, use: value, with: 1, when: "${{ input.n > 3 }}"}
  - {id: after_off, use: value, with: "${{ steps.off }}"}
  - {id: parsed, use: value, with: "${{ 'no json' | from_json }}"}
  - {id: after_parsed, use: value, with: "${{ steps.parsed }}"}
on_failure: continue
"""


def test_what_did_not_run_is_shown_with_its_cause(cli: Cli) -> None:
    assert cli("flow", "run", str(cli.write("causes.yaml", CAUSES)), "--id", "r", "--input", '{"n": 1}').code == 1
    shown = {line.split()[0]: line for line in cli("runs", "steps", "r").out.splitlines()}
    assert "its `when` is false" in shown["off:0"]
    assert "off:0 was skipped" in shown["after_off:0"]
    assert "blocked" in shown["after_parsed:0"]
    assert "parsed:0 failed" in shown["after_parsed:0"]
    counts = next(line for line in cli("runs", "show", "r").out.splitlines() if line.startswith("steps"))
    assert sorted(counts.removeprefix("steps").strip().split(", ")) == [
        "0 started",
        "1 blocked",
        "1 failed",
        "2 skipped",
    ]


def test_a_folder_of_flows_is_a_target_and_its_functions_are_found_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", sys.path[:])
    Path("flowfolder.py").write_text("def twice(n: int) -> int:\n    return n * 2\n")
    Path("perdure.yaml").write_text("flows: {python: [flowfolder]}\n")
    Path("flows").mkdir()
    Path("flows/right.yaml").write_text(RIGHT)
    Path("flows/other.yaml").write_text("not: a flow\n")
    Path("flows/twice.json").write_text(
        '{"perdure": 1, "name": "two", "steps": [{"id": "a", "use": "python:flowfolder.twice", "with": {"n": 4}}]}'
    )
    assert sorted(load("flows").programs) == ["right.yaml", "twice.json"]
    assert main(["run", "flows:two"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 8}
    assert main(["run", "flows/right.yaml", "--input", '{"n": 1}']) == 0
    Path("empty").mkdir()
    assert main(["run", "./empty/"]) == 2
    assert "is a directory; write file.py:workflow, module:workflow or flow.yaml" in capsys.readouterr().err


def test_components_are_listed_with_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["components", "ls"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in ("approval", "http", "shell", "signal", "sleep", "value") if name not in listed] == []
    assert main(["components", "show", "shell", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["parameters"][0]["name"] == "argv"
    assert {one["name"]: one["schema"] for one in shown["parameters"]}["grace"] == {"type": "number"}
    assert main(["components", "show", "http"]) == 0
    assert "max_bytes" in capsys.readouterr().out
    assert main(["components", "show", "shel"]) == 2
    assert "did you mean 'shell'?" in capsys.readouterr().err


def test_a_batch_has_a_row_and_a_result_in_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, rows, out = tmp_path / "right.yaml", tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    file.write_text(RIGHT)
    rows.write_text('{"n": 1}\n\n{"n": "x"}\n{"n": 3}\n')
    run = ["flow", "run", str(file), "--store", f"sqlite:///{tmp_path}/f.db"]
    batch = [*run, "--inputs", str(rows), "--limit", "2", "--id", "b"]
    assert main([*batch, "--out", str(out)]) == 1
    captured = capsys.readouterr()
    assert "3 rows, 2 completed, 1 failed" in captured.err
    assert "perdure runs retry b --store" in captured.err
    first, second, third = [json.loads(line) for line in out.read_text().splitlines()]
    assert (first, third) == ({"a": 2}, {"a": 4})
    assert "its schema" in second["error"]["message"]
    # It goes on with the batch of that id, and so reads no rows.
    rows.unlink()
    assert main([*batch, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["completed"] == 2
    assert main([*batch, "--tolerate", "1"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [first, second, third]
    # More rows fail than may: those that did not run are in the results all the same.
    rows.write_text('{"n": "x"}\n' * 2 + '{"n": 1}\n')
    assert main([*run, "--inputs", str(rows), "--limit", "1", "--tolerate", "0", "--out", str(out)]) == 1
    errors = [json.loads(line)["error"]["type"] for line in out.read_text().splitlines()]
    assert errors == ["perdure.errors.NotDecodable", "perdure.NotRun", "perdure.NotRun"]
    capsys.readouterr()
    for wrong, says in (
        (["--inputs", str(tmp_path / "none.jsonl")], "No such file"),
        (["--inputs", str(file)], "right.yaml:1 is not JSON"),
        (["--inputs", str(rows), "--input", "{}"], "give one of them"),
        (["--limit", "3", "--out", "x"], "--limit and --out can only be used for a batch"),
        (["--inputs", str(rows), "--tolerate", "some"], "tolerate='some'"),
    ):
        assert main([*run, *wrong]) == 2
        assert says in capsys.readouterr().err


ASKING = """
perdure: 1
name: asking
inputs: {name: string, n: {type: integer, default: 2}}
steps:
  - {id: hello, use: value, with: "hello ${{ input.name }}"}
  - {id: twice, map: {over: "${{ range(input.n) }}"}, use: value, with: "${{ steps.hello }} ${{ item }}"}
  - {id: ask, use: approval, with: {request: "${{ steps.twice }}"}}
output: ${{ steps.ask }}
"""


async def test_inspect_shows_values_in_place_of_variables_without_the_file(cli: Cli) -> None:
    flow = cli.write("asking.yaml", ASKING)
    async with Engine(cli.url, [load_flow(flow, python=())]) as engine:
        await engine.run(call("asking", name="Ann"), id="r")
    shown = await asyncio.to_thread(cli, "runs", "inspect", "r", "--store", cli.url)
    assert shown.out.splitlines() == [
        "asking",
        "    name = 'Ann'",
        "    hello = 'hello Ann'",
        "    twice[0] = 'hello Ann 0'",
        "    twice[1] = 'hello Ann 1'",
        "",
        "asking, waits for ask:0",
        f"  {flow}:8:10 in ask",
        '    > - {id: ask, use: approval, with: {request: "${{ steps.twice }}"}}',
        "    request = ['hello Ann 0', 'hello Ann 1']",
    ]
    flow.unlink()
    tasks = (await asyncio.to_thread(cli, "runs", "inspect", "r", "--at", "twice:0[1]", "--json")).json["tasks"]
    assert tasks[0]["frames"][0]["variables"].keys() == {"name", "hello", "twice[0]"}
    assert tasks[1]["frames"][0]["variables"] == {"value": "'hello Ann 1'"}
    steps = (await asyncio.to_thread(cli, "runs", "steps", "r", "--inputs", "--json")).json
    assert steps[0]["inputs"] == {"value": "hello Ann"}


CHANGED = """
perdure: 1
name: changed
variables: {who: dev}
profiles: {prod: {variables: {who: prod}}}
jobs:
  - id: one
    steps:
      - {id: a, use: value, with: {text: "${{ vars.who }}", n: 1}}
      - {id: b, use: value, with: "${{ steps.a.text }}"}
output: ["${{ jobs.one.a }}", "${{ jobs.one.b | default('skipped') }}"]
tests: [{name: who, expect: {output: [{text: prod, n: 1}, prod]}}]
"""


def test_a_run_is_started_with_changes_and_a_profile(cli: Cli) -> None:
    flow = str(cli.write("changed.yaml", CHANGED))
    cli.write("changes.json", '{"one.a": [{"op": "replace", "path": "/with/n", "value": 7}]}')

    def run(*words: str) -> object:
        ended = cli("flow", "run", flow, "--store", "memory://", *words)
        assert ended.code == 0, ended.err
        return ended.json

    assert run() == [{"text": "dev", "n": 1}, "dev"]
    assert run("--profile", "prod") == [{"text": "prod", "n": 1}, "prod"]
    assert run("--set", "one.a.with.n=2", "--set", "one.a.with.text=a=b") == [{"text": "a=b", "n": 2}, "a=b"]
    assert run("--set", "one.when=${{ false }}") is None
    assert run("--overrides", "@changes.json", "--profile", "prod") == [{"text": "prod", "n": 7}, "prod"]
    steps = '{"steps": {"one.b": {"$type": "merge_patch", "value": {"with": "x"}}}}'
    assert run("--overrides", steps) == [{"text": "dev", "n": 1}, "x"]
    for words, said in (
        (("--set", "one.a.with"), "is not STEP.KEY=VALUE"),
        (("--set", "one=1"), "is not STEP.KEY=VALUE"),
        (("--set", "one.a=1"), "names no key of one.a"),
        (("--set", "one.a.with=1", "--set", "one.a.with.n=1"), "gives with a value that is not an object"),
        (("--set", "two.a.with=1"), "there is no such step or job"),
        (("--overrides", "[1]"), "gives changes by step"),
        (("--overrides", "@none.json"), "--overrides @none.json: there is no such file"),
        (("--profile", "prd"), "did you mean 'prod'?"),
    ):
        ended = cli("flow", "run", flow, "--store", "memory://", *words)
        assert (ended.code, said in ended.err) == (2, True), ended.err
    first = cli("flow", "run", flow, "--store", cli.url, "--id", "r", "--set", "one.a.with.n=2")
    again = cli("flow", "run", flow, "--store", cli.url, "--id", "r")
    assert first.json == again.json
    assert "was started with another version of the flow, and keeps that" in again.err
    assert cli("flow", "test", flow).code == 1
    assert cli("flow", "test", flow, "--profile", "prod").code == 0
    assert cli("flow", "check", flow, "--profile", "prd").code == 2
    cli.write("perdure.yaml", "flows: {profile: prod}\n")
    assert run() == [{"text": "prod", "n": 1}, "prod"]


STUBBED = """
perdure: 1
name: stubbed
variables: {who: me, where: {env: FLOW_NEVER_SET}}
resources: {db: {host: localhost}}
steps:
  - {id: flaky, use: python:stubbed_steps.flaky, with: {}, retry: {attempts: 5, initial: 1d, max: 30d}}
  - {id: shell, use: shell, with: {argv: [printf, "%s", "${{ vars.who }} ${{ vars.where }} ${{ resources.db.host }}"]}}
  - {id: nap, use: python:stubbed_steps.nap, with: {}, timeout: 1s}
  - {id: pay, use: http, with: {url: "https://example.com"}, on_error: {value: none}, after: [nap]}
  - {id: ask, use: approval, timeout: 3d, on_timeout: {value: nobody came}, after: [pay]}
  - {id: must, use: signal, timeout: 3d, after: [ask]}
output: ["${{ steps.flaky }}", "${{ steps.shell.stdout }}", "${{ steps.pay }}", "${{ steps.ask }}"]
finally: [{id: told, use: value, with: "${{ run.status }}"}]
tests:
  - name: it goes well
    vars: {who: you, where: there, db.host: elsewhere}
    mock: {pay: {body: 1}, ask: yes I do, must: 1}
    expect: {output: [4, you there elsewhere, {body: 1}, yes I do]}
  - name: it goes wrong
    vars: {where: there}
    fail: {pay: no connection, ask: "", must: ""}
    expect: {status: failed, error: no signal 'must' came in time}
  - name: what stands in for a failure
    vars: {where: there}
    fail: {pay: no connection, ask: ""}
    mock: {must: 1}
    expect: {output: [4, me there localhost, none, nobody came]}
  - name: what is not set
    expect: {error: FLOW_NEVER_SET}
"""
STEPS = """
import asyncio
from perdure import step_context


def flaky():
    if step_context().attempt < 4:
        raise ConnectionError("away")
    return step_context().attempt


async def nap():
    await asyncio.sleep(0)
"""


def test_tests_take_no_time_and_things_go_wrong_in_them(cli: Cli) -> None:
    cli.write("stubbed.yaml", STUBBED)
    cli.write("stubbed_steps.py", STEPS)
    cli.write("perdure.yaml", "flows: {python: [stubbed_steps]}\n")
    ran = cli("flow", "test", "stubbed.yaml")
    assert (ran.code, ran.out.count("ok  "), ran.out.count("FAILED")) == (0, 4, 0), ran.out
    one = cli("flow", "test", "stubbed.yaml", "--case", "it goes wrong", "--json").json["tests"]
    assert [case["name"] for case in one] == ["it goes wrong"]
    cli.write("stubbed.yaml", STUBBED.replace("fail: {pay", "fail: {pya").replace("db.host: e", "db.hots: e"))
    said = cli("flow", "check", "stubbed.yaml").out
    assert "unknown step 'pya' in fail; did you mean 'pay'?" in said
    assert "unknown variable 'db.hots' in vars; did you mean 'db.host'?" in said
