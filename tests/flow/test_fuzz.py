"""Whatever a file says, reading it ends in a flow, or in problems with their places; and so do expressions.

Under `-m soak` each file takes at most 100 ms of the processor and 20 MB, and each expression 50 ms and 10 MB.
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.authoring.flow.definition import FLOW_KEYS, JOB_KEYS, STEP_KEYS
from perdure.authoring.flow.expressions import FILTERS, UNSET, Expression, Failed, Unset, Wrong, encode
from perdure.authoring.flow.flow import Access, load
from perdure.errors import FlowInvalid, FlowProblem

SEED = """\
perdure: 1
name: nightly
inputs:
  date: {type: string, format: date}
  shops: {type: array, items: {type: string}, default: [a]}
variables: {api: {default: "https://x", env: API}, token: {secret: TOKEN}, n: 3}
schemas: {D: {type: object}}
steps:
  - id: orders
    use: http
    with: {url: "${{ vars.api }}/o?d=${{ input.date }}", headers: {A: "B ${{ secrets.TOKEN }}"}}
    retry: {attempts: 5, initial: 1s, max: 1m}
    timeout: 30s
  - id: totals
    map: {over: "${{ steps.orders.body.items }}", as: order, limit: 20, tolerate: 1%}
    use: value
    with: {order: "${{ order }}", position: "${{ index }}", x: {$if: {$input: date}, then: 1}}
  - {id: big, when: "${{ steps.totals | sum > 9 }}", use: approval, with: {request: 1, schema: {$ref: "#/schemas/D"}}}
  - id: book
    needs: [totals]
    after: [big]
    use: shell
    with: {argv: [a, "${{ steps.totals | sum * 2 }}"]}
    on_error: skip
output:
  booked: ${{ steps.book.stdout }}
  big: ${{ steps.big.ok | default(false) }}
  all: {$coalesce: [{$step: book, path: "$.a[0]"}, {$variable: n, default: 1}]}
on_failure: continue
"""
JOBS = """\
perdure: 1
name: jobs
jobs:
  - id: extract
    lock: {key: "a-${{ run.id }}", ttl: 10m, wait: 1h}
    steps:
      - {id: probe, use: value, with: {status: no_data}, on_no_data: skip_job}
      - {id: pull, use: shell, with: {argv: [ls], cwd: "${{ run.workspace }}"}}
  - id: load
    needs: [extract]
    when: ${{ jobs.extract.probe.rows > 0 }}
    in_order: false
    steps: [{id: copy, use: value, with: "${{ jobs.extract.pull.stdout }}"}]
workspace: {root: ./work, cleanup: on_success}
finally: [{id: tell, use: value, with: {status: "${{ run.status }}"}}]
"""
# Files of other engines, with most of what they can say.
FOREIGN = [
    file.read_text(encoding="utf-8")
    for file in sorted((Path(__file__).parent / "imports").glob("*.yaml"))
    if not file.name.endswith(".to.yaml")
]
SEEDS = [SEED, SEED, JOBS, *FOREIGN]
PIECES = [
    *"{}[]:,-#&*!|>'\"%@`\t\n $",
    "${{",
    "}}",
    "${{ ",
    "$${{",
    "null",
    "true",
    "1e999",
    "-1",
    "\0",
    "é",
    "\ud7ff",
    "🙂",
    "---\n",
]
PIECES += [
    "steps.",
    "input",
    "$step: ",
    "component: ",
    "{{ ",
    "jobs.",
    "$from: ",
    "$if: ",
    "map: ",
    "- ",
    "  ",
    "? ",
    "<<: ",
    "!!map ",
    "&a ",
    "*a ",
    "\r",
    "\ufeff",
    "\x85",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "\\0",
    "flow:./",
    "flow:",
    "python:",
    "python:os.path.join",
    "queue:",
    "/dev/stdin",
    "../",
]


USES = ["value", "flow:./a.yaml", "python:a.b", "queue:q/step", "shell", "http"]


def mutated(draw: random.Random) -> bytes:
    """A file that is nearly right."""
    text = draw.choice(SEEDS)
    if draw.random() < 0.2:
        text = json.dumps(
            {"perdure": 1, "name": "n", "steps": [{"id": "a", "use": draw.choice(USES), "with": "${{ input.x }}"}]}
        )
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice([0, 0, 1, 3, 20]))
        other = draw.randrange(len(text))
        piece = draw.choice([draw.choice(PIECES), text[other : other + draw.randint(1, 30)], "[" * draw.randint(1, 50)])
        text = text[:at] + piece + text[end:]
    return text.encode(errors="surrogatepass")


WORDS = [
    "a",
    "b",
    "value",
    "sleep",
    "shell",
    "http",
    "signal",
    "approval",
    "fail",
    "skip",
    "1s",
    "5%",
    "item",
    "",
    "a-b",
]
WORDS += [
    "${{ steps.a }}",
    "${{ input.x | default(1) }}",
    "${{ secrets.T }}",
    "x ${{ steps.b.c }}",
    "${{ item }}",
    "{{ a }}",
]


def anything(draw: random.Random, depth: int = 0) -> Any:
    """A value that may stand anywhere."""
    kind = draw.randrange(10 if depth < 4 else 6)
    if kind < 3:
        return draw.choice(WORDS)
    if kind < 6:
        return draw.choice([None, True, False, 0, 1, -1, 2.5, 10**12, "2026-11-16"])
    if kind < 8:
        return [anything(draw, depth + 1) for _ in range(draw.randrange(4))]
    keys = [
        "$step",
        "$input",
        "$if",
        "then",
        "$coalesce",
        "default",
        "env",
        "secret",
        "value",
        "a",
        "b",
        "type",
        "key",
        "over",
    ]
    return {draw.choice(keys): anything(draw, depth + 1) for _ in range(draw.randrange(4))}


def entry(draw: random.Random, keys: Any, right: dict[str, Any]) -> dict[str, Any]:
    """An object with keys that exist, most of them right."""
    found = {key: anything(draw) for key in draw.sample(sorted(keys), draw.randrange(4))}
    return {**found, **{key: value for key, value in right.items() if draw.random() < 0.95}}


def generated(draw: random.Random) -> bytes:
    """A file of the right shape, with anything in it."""

    def steps() -> list[Any]:
        some = draw.randrange(1, 5)
        return [entry(draw, STEP_KEYS, {"id": id, "use": draw.choice(WORDS[:8])}) for id in "abcd"[:some]]

    jobs = {"jobs": [entry(draw, JOB_KEYS, {"id": id, "steps": steps()}) for id in "ab"]}
    right = {"perdure": 1, "name": "n", **(jobs if draw.random() < 0.3 else {"steps": steps()})}
    return json.dumps(entry(draw, FLOW_KEYS, right)).encode()


def check_all(folder: Path, seeds: range, spent: Callable[[int], None] = lambda seed: None) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        data = draw.choice([mutated, mutated, generated])(draw)
        file = folder / ("flow.json" if draw.random() < 0.2 else "flow.yaml")
        file.write_bytes(data)
        lines = data.count(b"\n") + data.count(b"\r") + data.count("\x85".encode()) + data.count("\u2028".encode()) + 2
        for problem in problems_in(file, seed):
            assert 1 <= problem.line <= lines, seed
            assert problem.column >= 1, seed
        spent(seed)


def problems_in(file: Path, seed: int) -> Sequence[FlowProblem]:
    try:
        return load(str(file), Access()).warnings
    except FlowInvalid as error:
        return error.problems
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


# --- expressions ----------------------------------------------------------------------------------------------------

SCRAPS = [
    "_x",
    "steps.a",
    "steps.a.b",
    "input.n",
    "item[0]",
    'item["k"]',
    "1",
    "2.5",
    "1e9",
    "'t'",
    '"u"',
    "true",
    "none",
]
SCRAPS += [
    "[1, 2]",
    "{'k': 1}",
    "range(9)",
    "range(10 ** 9)",
    "range(-1, 9, 0)",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    ":",
]
SIGNS = [
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "**",
    "~",
    "==",
    "!=",
    "<",
    ">=",
    "and",
    "or",
    "in",
    "not in",
    "is",
    "if",
    "|",
    "=",
]
TESTS = ["defined", "none", "odd", "divisibleby(0)", "sameas", "startingwith('a')", "in([1])", "number", "not string"]
VALUES: list[Any] = [
    UNSET,
    None,
    True,
    0,
    3,
    -1,
    2**62,
    1.5,
    "",
    "text",
    "2026-11-16",
    [],
    [1, "a", None],
    {},
    {"k": [1]},
]
VALUES += ["x" * 1000, list(range(500)), [{"k": n} for n in range(50)], "\0", "é🙂"]


def expression(draw: random.Random, depth: int = 0) -> str:
    """An expression, or a soup of what they consist of."""
    if draw.random() < 0.1 and not depth:
        return " ".join(draw.choice(SCRAPS + SIGNS + TESTS) for _ in range(draw.randrange(12)))
    kind = draw.randrange(9 if depth < 4 else 2)
    inner = [expression(draw, depth + 1) for _ in range(3)] if kind > 1 else []
    if kind <= 1:
        return draw.choice(SCRAPS[:18])
    if kind == 2:
        return f"{inner[0]} {draw.choice(SIGNS)} {inner[1]}"
    if kind == 3:
        name = draw.choice(sorted(FILTERS))
        given = draw.choice(["", "", f"({inner[1]})", f"({inner[1]}, {inner[2]})", "(attribute='k')", "('%Y')"])
        return f"{inner[0]} | {name}{given}"
    if kind == 4:
        return f"{inner[0]} is {draw.choice(TESTS)}"
    if kind == 5:
        return f"({inner[0]} if {inner[1]} else {inner[2]})"
    if kind == 6:
        return f"({inner[0]})[{inner[1]}]"
    if kind == 7:
        return f"[{inner[0]}, {inner[1]}] + [{inner[2]}]"
    return f"({inner[0]}) {draw.choice(SIGNS[:8])} ({inner[1]})"


def check_expressions(seeds: range, spent: Callable[[int], None] = lambda seed: None) -> int:
    """Evaluate expressions, and return how many had a value."""
    done = 0
    for seed in seeds:
        draw = random.Random(seed)
        text = expression(draw)
        try:
            found = Expression(text)
            encode(found.evaluate([draw.choice(VALUES) for _ in found.references]))
            done += 1
        except (Wrong, Unset, Failed):
            pass
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {text}: {error!r}") from error
        spent(seed)
    return done


# --- how many, and what they may take -------------------------------------------------------------------------------


class Budget:
    """Holds each of many to the same budget of the processor, and all of them to the memory that one may take."""

    def __init__(self, seconds: float, megabytes: int) -> None:
        self._seconds, self._megabytes = seconds, megabytes
        self._most = _memory()
        self._last = time.process_time()

    def spent(self, seed: int) -> None:
        now = time.process_time()
        assert now - self._last < self._seconds, f"seed {seed}: {now - self._last} s"
        assert _memory() - self._most < self._megabytes, f"seed {seed}: {_memory() - self._most} MB"
        self._last = now


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_files_that_are_nearly_right(tmp_path: Path) -> None:
    check_all(tmp_path, range(250))


def test_expressions_of_any_kind() -> None:
    assert check_expressions(range(400)) > 40


@pytest.mark.soak
def test_many_files_that_are_nearly_right(tmp_path: Path) -> None:
    check_all(tmp_path, range(2000))  # until everything is loaded
    check_all(tmp_path, range(2000, 100_000), Budget(0.1, 20).spent)


@pytest.mark.soak
def test_many_expressions_of_any_kind() -> None:
    check_expressions(range(2000))
    check_expressions(range(2000, 100_000), Budget(0.05, 10).spent)


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"  - {{id: s{n}, use: value, with: '${{{{ steps.q{n} }}}}'}}\n" for n in range(3000)),
        "".join(f"  - {{id: s{n}, use: valu{n}, needs: [q{n}], k{n}: 1}}\n" for n in range(3000)),
        "  - {id: a, use: value, with: '" + "${{ " * 100_000 + "'}",
        '  - {id: a, use: value, with: "${{ ' + "{" * 500_000 + '"}',
        "  - {id: a, use: value}\n" * 3000,
        "  - id: a\n    use: value\n    with: |\n      ${{ '" + "\\'" * 400_000 + " }}\n",
    ],
    ids=["references", "keys", "beginnings", "braces", "ids", "quotes"],
)
def test_a_file_in_which_everything_is_wrong_does_not_take_long(tmp_path: Path, text: str) -> None:
    """What is quadratic does not end here."""
    file = tmp_path / "flow.yaml"
    file.write_text(f"perdure: 1\nname: n\nsteps:\n{text}")
    found = problems_in(file, 0)
    assert 1 <= len(found) <= 101
    assert len(found) < 101 or found[-1].code == "F000"


def test_templates_of_aetherflow_that_double_end(tmp_path: Path) -> None:
    outputs = ", ".join(f"o{n}: '{{{{job.outputs.o{n - 1}}}}}{{{{job.outputs.o{n - 1}}}}}'" for n in range(1, 31))
    file = tmp_path / "flow.yaml"
    file.write_text(
        "version: 1\nflow: {id: a}\njobs: [{id: j, steps: [{id: s, type: x, inputs: {a: '{{job.outputs.o30}}'}, "
        f"outputs: {{o0: '{{{{result.a}}}}', {outputs}}}}}]}}]\n"
    )
    assert {"F040"} == {one.code for one in problems_in(file, 0)} & {"F040"}


@pytest.mark.parametrize("required", ["[{a: 1}]", "[[a]]", "[1]", "{a: 1}", "a"])
def test_what_a_foreign_file_requires_may_be_anything(tmp_path: Path, required: str) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(
        f"schemas: {{properties: {{input: {{properties: {{a: {{type: string}}}}, required: {required}}}}}}}\n"
        "steps: [{id: s, component: /builtin/noop, input: {$input: a}}]\noutput: {$step: s}\n"
    )
    problems_in(file, 0)
