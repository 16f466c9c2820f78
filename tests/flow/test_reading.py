"""Files become trees with places, and everything that is wrong with one is told at once, with its line and column."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import FlowInvalid, UsageError
from perdure.authoring.flow import expressions
from perdure.authoring.flow.definition import FLOW_KEYS, STEP_KEYS
from perdure.authoring.flow.tree import Item, Mark, Problems, read
from perdure.flow import flow_schema, load_flow
from tests.flow.writing import flow_of, problems_of


def tree(text: str, file: str = "f.yaml") -> tuple[Item, Problems]:
    problems = Problems(file)
    return read(text.encode(), file, problems), problems


def test_scalars_follow_the_rules_of_json_and_what_yaml_reads_otherwise_is_text_with_a_warning() -> None:
    root, problems = tree(
        "a: yes\nb: 2026-11-16\nc: 0x10\nd: 1:30\ne: 007\nf: 1.5\ng: -3\nh: null\ni:\nj: 'no'\nk: 1e3"
    )
    assert root.plain() == {
        "a": "yes",
        "b": "2026-11-16",
        "c": "0x10",
        "d": "1:30",
        "e": "007",
        "f": 1.5,
        "g": -3,
        "h": None,
        "i": None,
        "j": "no",
        "k": 1000.0,
    }
    assert [(one.line, one.column, one.level) for one in problems.found] == [
        (1, 4, "warning"),
        (3, 4, "warning"),
        (4, 4, "warning"),
        (5, 4, "warning"),
    ]


def test_json_has_the_same_places_as_yaml_and_may_be_indented_by_tabs() -> None:
    text = '{\n\t"a": [1, {"b": "x\\ud83d\\ude00"}],\n\t"c": true, "d": -1.5e2\n}'
    root, _ = tree(text, "f.json")
    assert root.plain() == json.loads(text)
    assert root.keys["c"] == Mark(3, 2)
    assert root.value["a"].value[1].mark == Mark(2, 11)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("a: &x 1", "F007", (1, 4)),
        ("a: *x", "F007", (1, 4)),
        ("a: !!python/object:os.system 1", "F007", (1, 4)),
        ("a: 1\na: 2", "F004", (2, 1)),
        ("a: {{ x }}", "F021", (1, 4)),
        ("a: [", "F001", (2, 1)),
        ("a: 1\n---\nb: 2", "F001", (2, 1)),
        ("", "F001", (1, 1)),
        ("a: \x00", "F001", (1, 1)),
        ("[" * 1000, "F008", (1, 21)),
        ("a: 99999999999999999999999", "F002", (1, 4)),
        ("a: 1e999", "F002", (1, 4)),
        ("x" * 1_100_000, "F008", (1, 1)),
    ],
)
def test_what_is_hostile_or_cannot_be_meant_is_refused_with_its_place(
    text: str, code: str, place: tuple[int, int]
) -> None:
    with pytest.raises(FlowInvalid) as caught:
        tree(text)
    first = caught.value.problems[0]
    assert (first.code, (first.line, first.column)) == (code, place)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"a": 1, "a": 2}', "F004"),
        ('{"a": }', "F001"),
        ("[" * 100_000, "F008"),
        ("[" * 30 + "]" * 30, "F008"),
        ("{}x", "F001"),
        ("1" * 5000, "F002"),
    ],
)
def test_json_is_refused_likewise(text: str, code: str) -> None:
    with pytest.raises(FlowInvalid) as caught:
        tree(text, "f.json")
    assert caught.value.problems[0].code == code


def test_aliases_that_multiply_are_refused_before_they_do() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    with pytest.raises(FlowInvalid) as caught:
        tree("\n".join(lines))
    assert {one.code for one in caught.value.problems} == {"F007", "F000"}  # F000: and there may be more


def test_a_retry_whose_first_wait_is_longer_than_the_longest_is_told_at_its_place(tmp_path: Path) -> None:
    text = """
        perdure: 1
        name: f
        steps:
          - id: a
            use: value
            with: 1
            retry: {initial: 2m, max: 1m}
    """
    reason = "the first wait is longer than the longest; raise max, or leave it out"
    assert problems_of(tmp_path, text) == [f"7:12 error F002 Retry(initial=120.0, max=60.0): {reason}"]


def test_all_problems_are_told_at_once_with_what_may_be_meant(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        """
        perdure: 2
        nmae: nightly
        inputs: {date: strin, n: {type: integer, default: x}}
        steps:
          - id: totals
            use: value
            wiht: 1
          - id: totals
            use: valu
            timeout: soon
            retry: {attempts: 0}
          - use: value
          - id: big
            use: value
            with: ${{ steps.totls.n + input.dat }}
            needs: [nothing]
            on_error: ignore
        """,
    )
    assert found == [
        "1:1 error F006 a flow needs the key 'name'",
        "1:10 error F002 the version of the format is 1; this is 2",
        "2:1 error F005 a flow has no key 'nmae'; did you mean 'name'?",
        "3:16 error F002 this is one of string, number, integer, boolean, array, object, null; did you mean 'string'?",
        '3:51 error F030 the default does not fit the schema: "x" is not of type "integer"',
        "7:5 error F005 a step has no key 'wiht'; did you mean 'with'?",
        f"8:9 error F003 duplicate id 'totals'; first at {tmp_path / 'flow.yaml'}:5:9",
        "9:10 error F020 there is no component 'valu'; did you mean 'value'?",
        "10:14 error F002 'soon' is no length of time; write seconds, or 5ms, 5s, 5m, 5min, 5h, 5d, 5w",
        "11:12 error F002 Retry(attempts=0): a step needs at least one attempt",
        "12:5 error F006 a step needs the key 'id'",
        "15:15 error F012 unknown step 'totls' in ${{ steps.totls.n }}; did you mean 'totals'?",
        "15:31 error F013 unknown input 'dat' in ${{ input.dat }}; did you mean 'date'?",
        "16:13 error F012 unknown step 'nothing' in needs; there are big, totals",
        "17:15 error F002 this is one of fail, skip, {value: ...} or {use: ..., with: ...}; there are fail, skip",
    ]


def test_what_steps_refer_to_is_checked_with_the_column_in_the_expression(tmp_path: Path) -> None:
    found = problems_of(
        tmp_path,
        """
        inputs: {date: string}
        variables: {token: {secret: TOKEN}, plain: 1}
        steps:
          - id: totals
            use: valu
          - id: big
            use: value
            with: "a ${{ steps.totls.n }} ${{ input.dat }}"
            needs: [totl]
          - id: c
            use: value
            with: {a: "${{ nothing }}", b: "${{ 1 + }}",
              c: "${{ x | shuffle }}", d: "${{ 'a'.upper() }}", e: "${{ open('x') }}"}
          - {id: d, use: sleep, with: {fro: 3s}}
          - {id: e, use: value, with: "${{ vars.token }}"}
          - {id: f, use: value, with: "${{ steps.g }}"}
          - {id: g, use: value, with: "${{ steps.f }}"}
          - {id: h, use: "python:os.system", with: {command: ls}}
          - {id: i, use: "${{ input.date }}"}
          - {id: j, use: "flow:../../etc/passwd.yaml"}
        """,
    )
    codes = [(line.partition(" ")[0], line.split(" ")[2]) for line in found]
    assert codes == [
        ("7:10", "F020"),
        ("10:18", "F012"),
        ("10:39", "F013"),
        ("11:13", "F012"),
        ("14:20", "F011"),
        ("14:44", "F010"),
        ("15:19", "F015"),
        ("15:44", "F015"),
        ("15:65", "F015"),
        ("16:31", "F022"),
        ("16:32", "F022"),
        ("17:36", "F014"),
        ("18:10", "F016"),
        ("20:18", "F023"),
        ("21:18", "F014"),
        ("22:18", "F023"),
    ]
    assert any("did you mean 'totals'?" in line for line in found)
    assert any("did you mean 'for'?" in line for line in found)
    assert any("this is no expression: it ends too early" in line for line in found)


STEP = {"id": "a", "use": "value", "with": 1}
STEPS = {"perdure": 1, "name": "t", "steps": [STEP]}
JOB = {"id": "j", "steps": [{**STEP, "on_no_data": "skip_job"}]}
JOBS = {"perdure": 1, "name": "t", "jobs": [JOB]}
FIRES = {"every": "6h"}
DB = {"db": {"host": "h", "any": {"x": 1}, "user": {"env": "U", "default": 1}, "pw": {"secret": "S"}}}
MAP = {"over": [1], "as": "one", "limit": 2, "tolerate": "1%", "on_error": "none"}
# The parts of a flow, a step, a job and others, with values that are right and values that are wrong.
FLOW_PARTS: dict[str, tuple[list[Any], list[Any]]] = {
    "perdure": ([1], [2, "1", None, True]),
    "name": (["a", "a.b-c", "1a", "_"], [3, "", "a b", "a/b", "perdure.x", None]),
    "version": (["3"], [3]),
    "description": (["d"], [3, None]),
    "inputs": (
        [{}, {"x": "string", "y": {"type": "integer", "default": 3}}, {"x": {"schema": {"enum": [1]}}}],
        [{"x": "strin"}, {"1x": "string"}, [], {"x": 1}],
    ),
    "variables": (
        [{"x": 3, "y": {"env": "Y"}, "z": {"secret": "Z"}, "w": {"default": None, "description": "d"}, "l": []}],
        [{"x": {"envi": "Y"}}, {"x": {"env": 1}}, [], {"x y": 1}],
    ),
    "resources": ([{}, DB], [[], {"db": 1}, {"d b": {}}, {"db": {"a b": 1}}, {"db": {"x": {"env": "U", "more": 1}}}]),
    "schemas": ([{}, {"D": {"type": "object"}}], [[]]),
    "on_failure": (["stop", "continue"], ["halt", 1]),
    "execution": (["all", "lazy"], ["eager"]),
    "max_rounds": ([1, 5], [0, "5", True]),
    "workspace": ([{"root": "w"}, {"root": "w", "cleanup": "never"}], [{}, {"root": 3}, {"root": "w", "cleanup": "l"}]),
    "output": ([None, 1, {"x": 1}], []),
    "finally": ([[{**STEP, "id": "z"}]], [[], {}, [{}]]),
    "schedules": (
        [[], [FIRES], [{"cron": "0 3 * * *", "timezone": "Europe/Berlin", "input": {}, "overlap": "allow"}]],
        [{}, [{}], [{**FIRES, "cron": "0 3 * * *"}], [{**FIRES, "overlap": "x"}], [{**FIRES, "jitter": "x"}], [1]],
    ),
    "tests": ([[], [{"name": "n", "expect": {}}]], [{}, [{"name": "n"}], [{"name": "n", "expect": {"stat": 1}}]]),
    "stpes": ([], [[]]),
}
STEP_PARTS: dict[str, tuple[list[Any], list[Any]]] = {
    "id": (["a", "_a1"], ["a b", "1a", "", "vars", "END", 1, None]),
    "use": (["value"], ["", 1, None]),
    "with": ([1, {"x": 1}, None], []),
    "when": (["${{ 1 > 0 }}"], []),
    "needs": ([[], "b"], [{}, [1]]),
    "after": ([["b"]], [1]),
    "retry": (
        [3, {"attempts": 3, "initial": "1s", "max": 3, "factor": 2, "jitter": True}, {"attempts": 2, "initial": "1h"}],
        [0, "3", {"tries": 1}],
    ),
    "timeout": ([30, 0.5, "30s", "5 m"], ["soon", -1, [], True]),
    "on_error": (["fail", "skip", {"value": None}, {"use": "value", "with": 1}], ["ignore", {}, {"with": 1}, 1]),
    "map": ([{"over": [1]}], [{"ovr": [1]}, [], {"over": [1], "limit": 0}, {"over": [1], "tolerate": -1}]),
    "repeat": ([{"until": "${{ last > 0 }}", "max": 3}], [{"max": 3}, {"until": "${{ true }}", "max": 0}]),
    "lock": (["k", {"key": "k", "ttl": "10m", "wait": 3}], [{"ttl": 3}, 1, {"key": "k", "ttl": "x"}]),
    "must_run": ([True, False], ["yes", 1]),
    "description": (["d"], [1]),
    "on_timout": ([], [{"value": 1}]),
}
JOB_PARTS: dict[str, tuple[list[Any], list[Any]]] = {
    "id": (["j"], ["j k", None]),
    "steps": ([[STEP]], [[], None, {}]),
    "in_order": ([True, False], ["no", 1]),
    "needs": ([[]], [1]),
    "after": ([[]], [{}]),
    "when": (["${{ 1 > 0 }}"], []),
    "lock": (["k"], [{}]),
    "description": (["d"], [1]),
    "colour": ([], ["red"]),
}


def corpus() -> Iterator[tuple[dict[str, Any], bool]]:
    """Flows with one part each in every way, and whether they are right."""
    other = {**STEP, "id": "b"}
    for number in range(2):
        right = not number
        for key, values in FLOW_PARTS.items():
            for value in values[number]:
                yield {**STEPS, key: value}, right
        for key, values in STEP_PARTS.items():
            for value in values[number]:
                given = {"with": "${{ item }}"} if key == "map" else {}
                yield {**STEPS, "steps": [{**STEP, **given, key: value}, other]}, right
        for key, values in JOB_PARTS.items():
            for value in values[number]:
                yield {**JOBS, "jobs": [{**JOB, key: value}]}, right
    yield {**JOBS, "jobs": [{**JOB, "steps": [{**STEP, "on_no_data": "fail"}]}]}, False
    yield {**STEPS, "steps": [{**STEP, "with": "${{ one }}", "map": MAP}]}, True
    yield {**STEPS, "steps": [{"id": "a", "use": "approval", "on_timeout": {"value": 1}, "timeout": "3d"}]}, True
    yield {**STEPS, "steps": [{"id": "a", "use": "approval", "on_timeout": {}}]}, False
    yield {**STEPS, "steps": [{"id": "a", "use": "queue:a/b", "queue": "c"}]}, True
    yield {**STEPS, "steps": [{"id": "a", "use": "queue:a/b", "queue": ""}]}, False
    yield {**STEPS, "resources": DB, "profiles": {"p": {"resources": {"db": {"host": 1}}}}}, True
    yield {**STEPS, "profiles": {"p": {"steps": []}}}, False
    yield {**STEPS, "profiles": []}, False
    yield {**JOBS, "steps": [STEP]}, False
    yield {**JOBS, "jobs": []}, False
    yield {"name": "t", "steps": [STEP]}, False
    yield {"perdure": 1, "name": "t"}, False


def test_the_schema_for_editors_agrees_with_the_reader(tmp_path: Path) -> None:
    import jsonschema_rs

    validator, keys = jsonschema_rs.validator_for(flow_schema()), set[str]()
    for one, right in corpus():
        try:
            flow_of(tmp_path, json.dumps(one), "flow.json")
            reads = True
        except FlowInvalid:
            reads = False
        assert (reads, validator.is_valid(one)) == (right, right), one
        keys |= {*one, *(key for step in one.get("steps", ()) if isinstance(step, dict) for key in step)}
    assert not {*FLOW_KEYS, *STEP_KEYS} - keys - {"on_no_data"}, "there is an example of each key"


def test_the_hash_is_of_what_a_flow_says_and_not_of_how_it_is_written(tmp_path: Path) -> None:
    one = flow_of(tmp_path, "steps:\n  - {id: a, use: value, with: {x: 1, y: 2}}\n")
    same = flow_of(tmp_path, "# a comment\ndescription: d\nsteps:\n  - id: a\n    with: {y: 2, x: 1}\n    use: value\n")
    as_json = json.dumps(
        {"perdure": 1, "name": "test", "steps": [{"id": "a", "use": "value", "with": {"x": 1, "y": 2}}]}
    )
    other = flow_of(tmp_path, "steps:\n  - {id: a, use: value, with: {x: 1, y: 3}}\n")
    assert one.version == same.version == flow_of(tmp_path, as_json, "flow.json").version != other.version


def test_a_file_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_flow(tmp_path / "none.yaml", python=())


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "steps: [{id: a, use: value, with: '${{ 1 }}'}]"
    for library in ("yaml", "minijinja"):
        expressions._environment.cache_clear()
        expressions._engine.cache_clear()
        with monkeypatch.context() as without:
            without.setitem(sys.modules, library, None)
            with pytest.raises(UsageError, match=r"pip install 'perdure\[flow\]'"):
                flow_of(tmp_path, text)
    assert flow_of(tmp_path, text).name == "test"


def test_components_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "flowparts-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: flowparts\nVersion: 1\n")
    points = "[perdure.components]\ngreet = flowparts:greet\ngone = flowparts:gone\n"
    (package / "entry_points.txt").write_text(points)
    (tmp_path / "flowparts.py").write_text("def greet(name: str, *, word: str = 'hi') -> str:\n    return name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert flow_of(tmp_path, "steps: [{id: a, use: greet, with: {name: x}}]").name == "test"
    found = problems_of(
        tmp_path, "steps: [{id: a, use: greet, with: {nme: x}}, {id: b, use: gone}, {id: c, use: gret}]"
    )
    assert [line.split(" ", 1)[1] for line in found] == [
        "error F022 greet needs 'name'",
        "error F022 greet takes no argument 'nme'; did you mean 'name'?",
        "error F023 the component 'gone' of flowparts:gone cannot be loaded: "
        "module 'flowparts' has no attribute 'gone'",
        "error F020 there is no component 'gret'; did you mean 'greet'?",
    ]


@pytest.mark.parametrize("form", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("last", ["{type: string}", "{properties: {definitions: {$ref: '#/schemas/A0'}}}"])
def test_schemas_that_refer_to_too_much_are_refused_before_they_are_used(tmp_path: Path, form: str, last: str) -> None:
    """Each of them asks twice for the next one: what is not refused does not end here."""
    chain = [f"  A{n}: {{{form}: [{{$ref: '#/schemas/A{n + 1}'}}, {{$ref: '#/schemas/A{n + 1}'}}]}}" for n in range(40)]
    schemas = "\n".join(["schemas:", *chain, f"  A40: {last}"])
    inputs = "inputs:\n  x: {schema: {$ref: '#/schemas/A0'}, default: {definitions: {}}}"
    (found,) = problems_of(tmp_path, f"{schemas}\n{inputs}\nsteps: [{{id: a, use: value, with: 1}}]\n")
    assert "F030 with what it refers to, this JSON Schema has more than 10,000 parts" in found
    question = "steps: [{id: a, use: approval, with: {schema: {$ref: '#/schemas/A0'}}}]"
    (found,) = problems_of(tmp_path, f"{schemas}\n{question}\n")
    assert "F030" in found


def test_schemas_may_refer_to_themselves_and_to_each_other(tmp_path: Path) -> None:
    flow_of(
        tmp_path,
        """
        schemas:
          Tree: {type: object, properties: {left: {$ref: "#/schemas/Tree"}, right: {$ref: "#/schemas/Other"}}}
          Other: {anyOf: [{$ref: "#/schemas/Tree"}, {type: "null"}]}
        inputs:
          tree: {schema: {$ref: "#/schemas/Tree"}, default: {left: {left: {}}, right: null}}
          more: {schema: {$defs: {"a/b": {type: string}}, items: {$ref: "#/$defs/a~1b"}}, default: [x]}
        steps: [{id: a, use: value, with: 1}]
        """,
    )
