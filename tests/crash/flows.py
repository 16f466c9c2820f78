"""The flows that the crash tests run: jobs with all that they have, and what a batch runs for each row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.flow import Flow, load_flow
from tests.crash.programs import effect

PAGE = """
perdure: 1
name: page
inputs: {number: integer}
steps:
  - {id: fetch, use: count, with: {n: "${{ input.number }}"}}
  - {id: double, use: count, with: {n: "${{ steps.fetch * 2 }}"}, lock: pages}
output: ${{ steps.double }}
finally: [{id: closed, use: count, with: {n: 0}}]
"""

NIGHTLY = """
perdure: 1
name: nightly
inputs: {rows: integer}
variables: {home: {env: HOME}, token: {secret: CRASH_TOKEN}}
workspace: {root: work}
jobs:
  - id: extract
    steps:
      - {id: probe, use: probe, with: {rows: "${{ input.rows }}"}, on_no_data: skip_job}
      - id: pull
        use: pull
        with: {folder: "${{ run.workspace }}", rows: "${{ steps.probe.rows }}", token: "${{ secrets.CRASH_TOKEN }}"}
      - {id: nap, use: sleep, with: {for: 10ms}}
      - {id: squares, map: {over: "${{ steps.pull.rows }}", limit: 1}, use: count, with: {n: "${{ item * item }}"}}
  - id: nothing
    steps:
      - {id: probe, use: probe, with: {rows: 0}, on_no_data: skip_job}
      - {id: never, use: count, with: {n: 1}}
  - id: blocked
    needs: [nothing]
    steps: [{id: never, use: count, with: {n: 1}}]
  - id: transform
    needs: [extract]
    when: ${{ jobs.extract.probe.rows > 2 }}
    lock: {key: warehouse, ttl: 1d}
    steps:
      - {id: page, use: "flow:./page.yaml", with: {number: "${{ jobs.extract.squares | sum }}"}}
      - {id: pages, map: {over: [1, 2, 3], limit: 1}, use: "flow:./page.yaml", with: {number: "${{ item }}"}}
      - {id: home, use: value, with: "${{ vars.home | length > 0 }}"}
  - id: load
    steps:
      - {id: book, use: approval, with: {request: "${{ jobs.transform.page }}"}}
      - id: copy
        use: read
        with: {path: "${{ jobs.extract.pull.path }}", answer: "${{ steps.book }}"}
        lock: {key: "warehouse", ttl: 1d, wait: 1d}
finally:
  - {id: tell, use: count, with: {n: "${{ jobs.transform.page }}"}, when: "${{ run.status == 'succeeded' }}"}
output: {page: "${{ jobs.transform.page }}", pages: "${{ jobs.transform.pages }}", copy: "${{ jobs.load.copy }}"}
"""

ROWS = 4
TOKEN = "only-in-the-environment"
OUTPUT = {"page": 28, "pages": [2, 4, 6], "copy": [ROWS, True]}


async def count(n: int) -> int:
    effect()
    return n


async def probe(rows: int) -> dict[str, Any]:
    effect()
    return {"rows": rows} if rows else {"status": "no_data"}


def pull(folder: str, rows: int, token: str) -> dict[str, Any]:
    effect()
    assert token == TOKEN
    path = os.path.join(folder, "rows")
    Path(path).write_text("x" * rows, encoding="utf-8")
    return {"path": path, "rows": list(range(rows))}


def read(path: str, answer: bool) -> list[Any]:
    effect()
    return [len(Path(path).read_text(encoding="utf-8")), answer]


def nightly(folder: Path) -> Flow:
    """The flow, written to a folder."""
    os.environ["CRASH_TOKEN"] = TOKEN
    for file, text in (("page.yaml", PAGE), ("nightly.yaml", NIGHTLY)):
        written = folder / f"{file}.{os.getpid()}"
        written.write_text(text, encoding="utf-8")
        written.rename(folder / file)
    components: dict[str, Callable[..., Any]] = {"count": count, "probe": probe, "pull": pull, "read": read}
    return load_flow(folder / "nightly.yaml", python=(), http=(), shell=False, components=components)


# --- a batch in chunks ----------------------------------------------------------------------------------------------

LINE = """
perdure: 1
name: line
inputs: {number: integer}
steps:
  - {id: squared, use: squared, with: {number: "${{ input.number }}"}}
  - {id: nap, use: sleep, with: {for: 1ms}, after: [squared]}
  - id: doubled
    use: count
    with: {n: "${{ steps.squared * 2 }}"}
    needs: [nap]
    lock: {key: "line-${{ input.number % 4 }}", ttl: 1d}
output: ${{ steps.doubled }}
"""

LINES, CHUNK, UNLUCKY = 16, 3, 7
RESULTS = [2 * number * number for number in range(LINES)]


async def squared(number: int) -> int:
    effect()
    if number == UNLUCKY:
        raise ValueError("as it should")
    return number * number


def line(folder: Path) -> Flow:
    """What a batch runs for each row, written to a folder."""
    written = folder / f"line.yaml.{os.getpid()}"
    written.write_text(LINE, encoding="utf-8")
    return load_flow(written.rename(folder / "line.yaml"), components={"squared": squared, "count": count})
