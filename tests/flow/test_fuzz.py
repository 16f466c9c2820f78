"""Whatever a file says, reading it ends in a flow, or in problems with their places."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from perdure.authoring.flow.flow import load
from perdure.config import Flows
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
]


def mutated(draw: random.Random) -> bytes:
    """A file that is nearly right."""
    text = SEED
    if draw.random() < 0.2:
        text = json.dumps({"perdure": 1, "name": "n", "steps": [{"id": "a", "use": "value", "with": "${{ input.x }}"}]})
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(text) + 1)
        end = min(len(text), at + draw.choice([0, 0, 1, 3, 20]))
        other = draw.randrange(len(text))
        piece = draw.choice([draw.choice(PIECES), text[other : other + draw.randint(1, 30)], "[" * draw.randint(1, 50)])
        text = text[:at] + piece + text[end:]
    return text.encode(errors="surrogatepass")


def check_all(folder: Path, seeds: range) -> None:
    for seed in seeds:
        draw = random.Random(seed)
        data = mutated(draw)
        file = folder / ("flow.json" if draw.random() < 0.2 else "flow.yaml")
        file.write_bytes(data)
        lines = data.count(b"\n") + data.count(b"\r") + data.count("\x85".encode()) + 2
        for problem in problems_in(file, seed):
            assert 1 <= problem.line <= lines, seed
            assert problem.column >= 1, seed


def problems_in(file: Path, seed: int) -> Sequence[FlowProblem]:
    try:
        return load(str(file), Flows(), {}).warnings
    except FlowInvalid as error:
        return error.problems
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error


def test_files_that_are_nearly_right(tmp_path: Path) -> None:
    check_all(tmp_path, range(300))


@pytest.mark.soak
def test_many_files_that_are_nearly_right(tmp_path: Path) -> None:
    check_all(tmp_path, range(100_000))
