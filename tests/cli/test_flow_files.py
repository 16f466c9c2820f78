"""`perdure flow import` and `perdure flow fmt` write files of flows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.cli.main import main

FOREIGN = """\
name: totals
steps:
  - id: a
    component: /builtin/noop
    input: {n: {$input: n}}
  - id: b
    component: /builtin/openai
    input: {n: {$step: a, path: n}}
output: {$step: b}
"""


def test_import_writes_a_flow_and_reports_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "foreign.yaml", tmp_path / "out.yaml"
    file.write_text(FOREIGN)
    assert main(["flow", "import", str(file), "-o", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"{file}:7:16 warning F040 the component /builtin/openai is not translated; write a component of the name "
        "todo_openai",
        "perdure: a flow of Stepflow: 1 left to be written",
    ]
    assert "use: todo_openai" in out.read_text()
    assert main(["flow", "import", str(file)]) == 2
    assert capsys.readouterr().out == out.read_text()
    assert main(["flow", "import", str(file), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["engine"], found["flow"]["name"]) == ("stepflow", "totals")
    assert [(one["line"], one["column"], one["code"]) for one in found["problems"]] == [(7, 16, "F040")]
    file.write_text(FOREIGN.replace("/builtin/openai", "/builtin/noop"))
    assert main(["flow", "import", str(file), "-o", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["steps"][1]["use"] == "value"
    # The file itself can be checked and run.
    assert main(["flow", "check", str(file)]) == 0
    capsys.readouterr()
    assert main(["flow", "run", str(file), "--input", '{"n": 3}', "--store", "memory://"]) == 0
    assert json.loads(capsys.readouterr().out) == {"n": 3}


@pytest.mark.parametrize("text", ["perdure: 1\nname: a\nsteps: []\n", "a: 1\n", "- 1\n", "steps: [", None])
def test_import_refuses_what_is_no_flow_of_another_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    file, out = tmp_path / "flow.yaml", tmp_path / "out.yaml"
    if text is not None:
        file.write_text(text)
    assert main(["flow", "import", str(file), "-o", str(out)]) == 2
    assert not out.exists()
    assert str(file) in capsys.readouterr().err


def test_fmt_prints_checks_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other, broken = tmp_path / "good.yaml", tmp_path / "other.yaml", tmp_path / "broken.yaml"
    good.write_text("perdure: 1\nname: good\nsteps:\n  - id: a\n    use: value\n")
    other.write_text("# mine\nname: 'other'\nperdure: 1\nsteps: [{use: value, id: a}]\n")
    other.chmod(0o640)
    broken.write_text("perdure: [\n")
    assert main(["flow", "fmt", str(other)]) == 0
    shown = capsys.readouterr().out
    assert shown == "# mine\nperdure: 1\nname: other\nsteps:\n  - id: a\n    use: value\n"
    assert main(["flow", "fmt", "--check", str(good), str(other)]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{other}\n"
    assert "1 of 2 not in canonical form" in captured.err
    before = other.read_text()
    assert main(["flow", "fmt", "--write", str(other), str(broken)]) == 2
    assert f"{broken}:2:1 error F001" in capsys.readouterr().err
    assert other.read_text() == before
    assert main(["flow", "fmt", "--write", "--check", str(other)]) == 2
    assert main(["flow", "fmt", "--write", str(good), str(other)]) == 0
    assert other.read_text() == shown
    assert other.stat().st_mode & 0o777 == 0o640
    assert main(["flow", "fmt", "--check", str(good), str(other)]) == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broken.yaml", "good.yaml", "other.yaml"]
