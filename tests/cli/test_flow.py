"""`perdure flow`: checks, runs and draws flows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.cli.main import main

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
    assert main(["flow", "graph", str(file)]) == 0
    assert "a" in capsys.readouterr().out
    assert main(["flow", "schema"]) == 0
    assert "steps" in json.loads(capsys.readouterr().out)["properties"]
