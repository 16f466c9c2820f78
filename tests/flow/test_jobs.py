"""Jobs are children in the journal of their flow: in order, by what they need, with what runs in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import RunStatus
from perdure.flow import Flow
from tests.flow.writing import flow_of, problems_of, run

ETL = """
inputs: {day: string, rows: {type: integer, default: 3}}
variables: {source: orders}
jobs:
  - id: extract
    steps:
      - {id: probe, use: probe, with: {rows: "${{ input.rows }}"}, on_no_data: skip_job}
      - {id: pull, use: note, with: {text: "${{ vars.source }} of ${{ input.day }}"}}
      - {id: never, use: note, with: {text: never}, when: "${{ steps.probe.rows > 100 }}"}
  - id: load
    needs: [extract]
    when: ${{ jobs.extract.probe.rows > 1 }}
    steps: [{id: copy, use: note, with: {text: "copy ${{ jobs.extract.pull }}"}}]
  - id: report
    needs: [load]
    steps: [{id: mail, use: note, with: {text: "${{ jobs.load.copy }}, ${{ jobs.extract.never | default('no') }}"}}]
  - id: stats
    steps:
      - {id: count, use: value, with: "${{ jobs.extract.probe.rows | default(0) }}"}
      - {id: lost, use: value, with: "${{ jobs.extract.pull }}"}
output: {mail: "${{ jobs.report.mail }}", count: "${{ jobs.stats.count }}"}
"""


def components(seen: list[str] | None = None) -> dict[str, Any]:
    def note(text: str) -> str:
        if seen is not None:
            seen.append(text)
        if text == "break":
            raise ValueError("broken")
        return text

    def probe(rows: int) -> dict[str, Any]:
        return {"status": "ok", "rows": rows} if rows else {"status": "no_data"}

    return {"note": note, "probe": probe}


def etl(folder: Path, text: str = ETL, seen: list[str] | None = None) -> Flow:
    return flow_of(folder, text, components=components(seen))


async def test_jobs_run_by_what_they_need_and_see_what_others_have_made(tmp_path: Path) -> None:
    ran = await run(etl(tmp_path), day="monday")
    assert ran.output == {"mail": "copy orders of monday, no", "count": 3}
    assert ran.skipped() == {"extract:0/never:0": "when"}
    assert [step.path for step in ran.steps if step.status == "succeeded"] == [
        "extract:0/probe:0",
        "extract:0/pull:0",
        "load:0/copy:0",
        "stats:0/count:0",
        "report:0/mail:0",
        "stats:0/lost:0",
    ]


async def test_a_job_without_data_is_skipped_and_what_needs_it_is_blocked(tmp_path: Path) -> None:
    ran = await run(etl(tmp_path), day="monday", rows=0)
    assert ran.result.status is RunStatus.COMPLETED
    assert ran.output == {"count": 0}
    assert {step.path: (step.status, step.skipped_by, step.reason) for step in ran.steps if step.reason} == {
        "extract:0/pull:0": ("skipped", "extract:0/probe:0", "probe:0 found no data"),
        "extract:0/never:0": ("skipped", "extract:0/probe:0", "probe:0 found no data"),
        "extract:0": ("skipped", "extract:0/probe:0", "probe:0 found no data"),
        "load:0": ("blocked", "extract:0", "extract:0 was skipped"),
        "report:0": ("blocked", "load:0", "load:0 was blocked"),
        "stats:0/lost:0": ("skipped", "input", "jobs.extract.pull has no value"),
    }


async def test_a_job_whose_condition_does_not_hold_is_skipped_and_blocks_others(tmp_path: Path) -> None:
    ran = await run(etl(tmp_path), day="monday", rows=1)
    assert {
        step.path: (step.status, step.skipped_by) for step in ran.steps if step.reason and "/" not in step.path
    } == {
        "load:0": ("skipped", "when"),
        "report:0": ("blocked", "load:0"),
    }


@pytest.mark.parametrize("on_failure", ["stop", "continue"])
async def test_a_failed_job_blocks_what_comes_after_it(tmp_path: Path, on_failure: str) -> None:
    text = f"""
on_failure: {on_failure}
jobs:
  - id: a
    steps:
      - {{id: one, use: note, with: {{text: one}}}}
      - {{id: two, use: note, with: {{text: break}}}}
      - {{id: three, use: note, with: {{text: three}}}}
  - {{id: b, needs: [a], steps: [{{id: x, use: note, with: {{text: b}}}}]}}
  - {{id: c, steps: [{{id: x, use: note, with: {{text: "${{{{ jobs.b.x | default('c') }}}}"}}}}]}}
  - {{id: d, after: [a], steps: [{{id: x, use: note, with: {{text: d}}}}]}}
"""
    seen: list[str] = []
    ran = await run(etl(tmp_path, text, seen))
    assert ran.result.status is RunStatus.FAILED
    assert "broken" in str(ran.result.error)
    assert seen == (["one", "break"] if on_failure == "stop" else ["one", "break", "d"])
    assert {step.path: (step.status, step.skipped_by) for step in ran.steps if step.reason} == {
        "a:0/three:0": ("blocked", "a:0/two:0"),
        "b:0": ("blocked", "a:0"),
        "c:0": ("blocked", "b:0"),
    }


async def test_steps_of_a_job_run_in_their_order_or_by_their_data(tmp_path: Path) -> None:
    reached, order = asyncio.Event(), list[str]()

    async def first(wait: bool) -> None:
        if wait:
            reached.clear()
            await reached.wait()  # for the step that is written after it
        order.append("first")

    async def second() -> None:
        reached.set()
        order.append("second")

    text = "jobs: [{id: a, IN_ORDER, steps: [{id: x, use: first, with: {wait: WAIT}}, {id: y, use: second}]}]"
    for in_order, wait in (("in_order: true", "false"), ("in_order: false", "true")):
        whole = text.replace("IN_ORDER", in_order).replace("WAIT", wait)
        assert (await run(flow_of(tmp_path, whole, components={"first": first, "second": second}))).output
    assert order == ["first", "second", "second", "first"]


async def test_without_an_output_a_flow_gives_the_jobs_that_no_other_takes(tmp_path: Path) -> None:
    text = """
jobs:
  - {id: a, steps: [{id: x, use: value, with: 1}, {id: y, use: value, with: "${{ steps.x + 1 }}"}]}
  - {id: b, steps: [{id: z, use: value, with: "${{ jobs.a.x + 10 }}"}]}
"""
    assert (await run(flow_of(tmp_path, text))).output == {"b": {"z": 11}}


def test_what_is_wrong_with_jobs_is_told_with_its_place(tmp_path: Path) -> None:
    assert problems_of(
        tmp_path,
        """
jobs:
  - id: a
    steps: [{id: x, use: value, with: "${{ steps.y }}"}]
    needs: [c]
    in_order: maybe
  - id: b
    steps:
      - {id: x, use: value, with: "${{ jobs.b.y }}"}
      - {id: y, use: value, with: "${{ jobs.a.z }}", after: [z]}
      - {id: w, use: value, with: "${{ jobs.a }} ${{ steps.q }}"}
      - {id: w, use: value, with: 1}
    when: true or false
  - {id: a, steps: []}
  - {steps: {}, colour: red}
output: ${{ steps.x }} ${{ run.status }}
finally: [{id: x, use: value, with: "${{ jobs.a.x }}", on_no_data: skip_job}]
workspace: {cleanup: later}
""",
    ) == [
        "5:44 error F012 'y' is a step of another job: write jobs.b.y",
        "6:13 error F012 unknown job 'c' in needs; there are a, b",
        "7:15 error F002 this is true or false; this is text",
        "10:40 error F012 'b' is this job: write steps.y",
        "11:40 error F012 unknown step of the job a 'z' in ${{ jobs.a.z }}; there is none",
        "11:62 error F012 unknown step 'z' in after; there are w, x, y",
        "12:40 error F011 name the step that is meant, as in jobs.a.step",
        "12:54 error F012 unknown step 'q' in ${{ steps.q }}; there are w, x, y",
        f"13:14 error F003 duplicate id 'w'; first at {tmp_path}/flow.yaml:12:14",
        "14:11 error F010 when is an expression: write when: ${{ ... }}",
        f"15:10 error F003 duplicate id 'a'; first at {tmp_path}/flow.yaml:4:9",
        "15:20 error F002 a job has at least one step",
        "16:5 error F006 a job needs the key 'id'",
        "16:13 error F002 steps is a list, each with an id; this is an object",
        "16:17 error F005 a job has no key 'colour'; "
        "there are after, description, id, in_order, lock, needs, steps, when",
        "17:13 error F012 'x' is a step of another job: write jobs.a.x",
        "17:28 error F013 unknown value of a run 'status' in ${{ run.status }}; there are id, started_at",
        "18:42 error F012 unknown step of the job a 'x' in ${{ jobs.a.x }}; there is none",
        "18:68 error F002 on_no_data: skip_job is for the steps of a job",
        "19:12 error F006 workspace needs the key 'root'",
    ]


def test_a_job_may_not_wait_for_itself(tmp_path: Path) -> None:
    ring = """
jobs:
  - {id: a, needs: [b], steps: [{id: x, use: value, with: 1}]}
  - {id: b, steps: [{id: x, use: value, with: "${{ jobs.a.x }}"}]}
"""
    assert problems_of(tmp_path, ring) == ["4:10 error F016 these jobs wait for each other: a → b → a"]
    late = "jobs: [{id: a, steps: [{id: x, use: value, with: '${{ steps.y }}'}, {id: y, use: value, with: 1}]}]"
    assert problems_of(tmp_path, late) == ["3:29 error F016 these steps wait for each other: x → y → x"]
