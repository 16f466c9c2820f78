"""What a file names may be no file, no module and no text: reading it tells so with a place, and holds nothing up."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.authoring.flow.schemas import whole_schema
from perdure.cli.main import main
from perdure.flow import FlowInvalid, load_flow
from tests.flow.writing import flow_of, problems_of

ENDINGS = [
    ("raise SystemExit(0)", "it ends the process while it is imported"),
    ("import sys\nsys.exit('bye')", "it ends the process while it is imported"),
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("class Odd(BaseException): pass\nraise Odd('hm')", "Odd: hm"),
    ("def __getattr__(name): raise SystemExit(0)", "it ends the process"),
    ("def __getattr__(name): raise OSError('no disk')", "OSError: no disk"),
    ("def f(a: 'nothing_here'): pass\nf.__signature__ = 3", "cannot be used"),
    ("f = print", "is defined in builtins"),
    ("class F:\n    __module__ = 3\n    def __call__(self): pass\nf = F()", "is defined in 3"),
]


@pytest.mark.parametrize(("body", "why"), ENDINGS)
def test_a_module_that_ends_the_process_is_a_problem_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], body: str, why: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "oddmodule.py").write_text(body)
    text = "steps: [{id: a, use: 'python:oddmodule.f', with: {a: 1}}, {id: b, use: nothing}]"
    try:
        found = problems_of(tmp_path, text, python=["oddmodule"])
        assert why in found[0]
        assert [line.split(" ")[2] for line in found] == ["F023", "F020"]
        monkeypatch.chdir(tmp_path)
        (tmp_path / "perdure.yaml").write_text("flows: {python: [oddmodule]}")
        assert main(["flow", "check", "flow.yaml"]) == 2
        assert "F020" in capsys.readouterr().out
    finally:
        sys.modules.pop("oddmodule", None)


@pytest.mark.parametrize(
    "path",
    ["./a\0.yaml", "./\ud800.yaml", "./pipe.yaml", "./folder.yaml", "./link.yaml", "./x/b.yaml"],
)
@pytest.mark.parametrize("file", ["flow.yaml", "flow.json"])
def test_a_path_that_is_no_file_is_told_with_its_place(tmp_path: Path, path: str, file: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "link.yaml").symlink_to(tmp_path / "link.yaml")
    written = json.dumps({"perdure": 1, "name": "n", "steps": [{"id": "a", "use": f"flow:{path}"}]})
    if not path.isprintable() and not file.endswith(".json"):
        written = written.replace("\\ud", "\\\\ud")  # what YAML does not have at all
    found = problems_of(tmp_path, written, file)
    assert len(found) == 1
    assert found[0].split(" ")[2] in ("F023", "F001")


@pytest.mark.parametrize("path", ["a\0.yaml", "\ud800.yaml", "pipe.yaml", "folder.yaml", "none.yaml"])
def test_a_flow_that_is_no_file_is_told_like_any_other_problem(tmp_path: Path, path: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(FlowInvalid, match="1:1 error F001 the file cannot be read") as caught:
        load_flow(str(tmp_path / path), python=())
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "value", ["\ud800", "a\udfffb", {"\ud800": 1}, ["\udc00\ud800"], "${{ '\ud800' }}", {"$literal": "\ud800"}]
)
def test_half_a_character_is_told_with_its_place(tmp_path: Path, value: object) -> None:
    flow = {"perdure": 1, "name": "n", "steps": [{"id": "a", "use": "value", "with": value}]}
    found = problems_of(tmp_path, json.dumps(flow), "flow.json")
    assert [line.split(" ", 4)[2] for line in found] == ["F001"]
    assert "is half of a character" in found[0]


def test_whole_characters_may_be_written_in_halves(tmp_path: Path) -> None:
    text = '{"perdure": 1, "name": "n", "steps": [{"id": "a", "use": "value", "with": "\\ud83d\\ude42é\\u0000"}]}'
    flow_of(tmp_path, text, "flow.json")


def test_check_tells_of_every_file_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("some", "none", "some/inner"):
        os.mkdir(name)
    os.mkfifo("some/pipe.yaml")
    flow = "perdure: 1\nname: {}\nsteps: [{{id: a, use: {}}}]\n"
    Path("some/a.yaml").write_text(flow.format("a", "value"))
    Path("some/b.yaml").write_text(flow.format("b", "valu"))
    Path("some/other.yaml").write_text("services: {}\n")
    given = ["gone.yaml", "some", "none", "notes.txt", "some/b.yaml", "a\0.yaml"]
    expected = ["none:1:1", "notes.txt:1:1", "gone.yaml:1:1", "some/b.yaml:3:22", "a\\u0000.yaml:1:1"]
    assert main(["flow", "check", *given]) == 2
    assert [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()] == expected
    assert main(["flow", "check", "--json", *given]) == 2
    told = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in told["problems"]] == ["F001", "F001", "F001", "F020", "F001"]
    for command in (["test"], ["deploy"], ["fmt"], ["fmt", "--check"]):
        assert main(["flow", *command, "gone.yaml", "some", "notes.txt"]) == 2
        shown = capsys.readouterr().err
        assert all(name in shown for name in ("gone.yaml", "notes.txt"))
    assert main(["flow", "check", "some/a.yaml"]) == 0
    os.remove("some/b.yaml")
    assert main(["flow", "check", "some"]) == 0
    assert main(["flow", "test", "some"]) == 0
    assert main(["flow", "fmt", "--check", "some"]) in (0, 1)


OTHER = """
from perdure import step, workflow
from perdure.graph import Graph, node

@step
def charge() -> None: ...

@workflow
async def order() -> None: ...

@node
def one() -> int:
    return 1

picture = Graph([one], name="picture")
bound = picture.with_name("bound")
"""


def test_programs_of_modules_that_are_not_allowed_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "notallowed.py").write_text(OTHER)
    (tmp_path / "allowedone.py").write_text("from notallowed import *\nfrom notallowed import bound, picture\n")
    try:
        for name in ("order", "picture", "bound", "charge", "one"):
            text = f"steps: [{{id: a, use: 'python:allowedone.{name}'}}]"
            assert "defined in notallowed" in problems_of(tmp_path, text, python=["allowedone"])[0]
            flow_of(tmp_path, text, python=["allowedone", "notallowed"])
    finally:
        for name in ("notallowed", "allowedone"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "schema",
    [{"pattern": "(a)|" * 20_000}, {"patternProperties": {"(a)|" * 20_000: {}}}, {"items": {"pattern": "(a)|" * 300}}],
    ids=["pattern", "properties", "inside"],
)
def test_a_long_pattern_of_a_schema_is_refused_before_it_is_compiled(tmp_path: Path, schema: dict[str, Any]) -> None:
    """Compiling one with 20,000 groups takes 100 GB, and ends the process."""
    file = tmp_path / "flow.json"
    given = {"type": "string", "default": "a", "schema": schema}
    steps = [{"id": "a", "use": "value", "with": 1}]
    schedules = [{"every": "1h", "input": {"a": "a"}}]
    flow = {"perdure": 1, "name": "n", "inputs": {"a": given}, "steps": steps, "schedules": schedules}
    file.write_text(json.dumps(flow))
    with pytest.raises(FlowInvalid) as caught:
        load_flow(file, python=())
    assert [(one.code, "more than 1,000 characters" in one.message) for one in caught.value.problems] == [
        ("F030", True)
    ]


def test_a_schema_has_the_schemas_that_it_refers_to_and_no_others() -> None:
    schemas = {"A": {"items": {"$ref": "#/schemas/B/items"}}, "B": {"items": {"type": "string"}}, "C": {"type": "null"}}
    assert whole_schema({"$ref": "#/schemas/A"}, schemas)["schemas"].keys() == {"A", "B"}
    assert whole_schema({"type": "string"}, schemas) == {"type": "string"}
    for reference in ("#/schemas", "#anchor", "#/schemas/%41", "#/schemas/A~1"):
        assert whole_schema({"not": {"$ref": reference}}, schemas)["schemas"] == schemas
    assert whole_schema({"$id": "x:y", "$ref": "#/schemas/A"}, schemas)["schemas"] == schemas
