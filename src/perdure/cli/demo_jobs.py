"""The flow of `perdure demo --flow`: three jobs, as anyone writes them. Nothing in it knows that it will be killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.flow import Flow, load_flow

FLOW = """\
perdure: 1
name: nightly
inputs: {date: {type: string, format: date}}
workspace: {root: ./work}
jobs:
  - id: extract
    steps:
      - {id: pull, use: pull, with: {date: "${{ input.date }}", folder: "${{ run.workspace }}"}}
  - id: transform
    needs: [extract]
    steps:
      - {id: clean, use: clean, with: {path: "${{ jobs.extract.pull.path }}"}}
      - {id: nap, use: sleep, with: {for: 100ms}}     # durable: it could be a month
      - {id: total, use: total, with: {rows: "${{ steps.clean }}"}}
  - id: load
    when: ${{ jobs.transform.total > 0 }}
    lock: {key: warehouse, ttl: 10m}
    steps:
      - {id: load, use: load, with: {date: "${{ input.date }}", total: "${{ jobs.transform.total }}"}}
output: {date: "${{ input.date }}", total: "${{ jobs.transform.total }}"}
"""
DATE = "2026-11-15"


def pull(date: str, folder: str) -> dict[str, str]:
    print(f"pull: the orders of {date} are in the workspace", flush=True)
    path = os.path.join(folder, "orders.txt")
    Path(path).write_text("40\nno price\n2\n", encoding="utf-8")
    return {"path": path}


def clean(path: str) -> list[int]:
    rows = [int(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.isdecimal()]
    print(f"clean: {len(rows)} rows are left", flush=True)
    return rows


def total(rows: list[int]) -> int:
    print(f"total: {sum(rows)}", flush=True)
    return sum(rows)


def load(date: str, total: int) -> None:
    print(f"load: {total} written to the warehouse, under its lock", flush=True)


def nightly(folder: str) -> Flow:
    """The flow, from a file in a folder."""
    path = Path(folder) / "nightly.yaml"
    path.write_text(FLOW, encoding="utf-8")
    components: dict[str, Callable[..., Any]] = {"pull": pull, "clean": clean, "total": total, "load": load}
    return load_flow(path, python=(), http=(), shell=False, profile="", components=components)
