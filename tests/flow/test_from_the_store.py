"""What a process shows of a flow that has only the store: no file, no code."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Engine, connect
from tests.flow.writing import flow_of

FLOWS = {
    "a map over a default": """
inputs: {n: {type: integer, default: 2}, all: {type: array, default: [1, 2]}}
steps:
  - {id: ranged, map: {over: "${{ range(input.n) }}"}, use: value, with: "${{ item }}"}
  - {id: given, map: {over: "${{ input.all }}"}, use: value, with: "${{ item + input.n }}"}
  - {id: none, map: {over: []}, use: value, with: "${{ item }}"}
  - {id: behind, use: value, with: "${{ steps.ranged | sum + steps.given | sum }}"}
""",
    "an open map": """
inputs: {n: {type: integer, default: 2}}
steps:
  - {id: ranged, map: {over: "${{ range(input.n) }}"}, use: value, with: "${{ item }}"}
  - {id: ask, use: approval, with: {request: "${{ steps.ranged }}"}}
  - {id: never, use: value, with: "${{ steps.ask }}"}
""",
    "defaults of inputs everywhere": """
inputs: {n: {type: integer, default: 2}, gone: {type: integer, required: false}, text: {type: string, default: x}}
variables: {fixed: 3}
steps:
  - {id: when, use: value, with: 1, when: "${{ input.n > 1 }}"}
  - {id: not, use: value, with: 1, when: "${{ input.n > vars.fixed }}"}
  - {id: instead, use: value, with: "${{ steps.not | default(input.gone | default(4)) }}"}
  - {id: behind, use: value, with: "${{ steps.not }}"}
  - {id: whole, use: value, with: "${{ input }}"}
  - {id: nap, use: sleep, with: {for: "${{ input.n / 1000 }}"}}
  - {id: locked, use: value, with: 1, lock: "${{ input.text }}", after: [nap]}
""",
    "rounds": """
inputs: {most: {type: integer, default: 3}}
steps:
  - {id: count, use: value, with: "${{ last | default(0) + 1 }}", repeat: {until: "${{ last >= input.most }}"}}
  - {id: behind, use: value, with: "${{ steps.count }}"}
""",
    "failures": """
inputs: {n: {type: integer, default: 2}}
on_failure: continue
steps:
  - {id: skipped, use: fails, with: {n: "${{ input.n }}"}, on_error: skip}
  - {id: valued, use: fails, with: {n: "${{ input.n }}"}, on_error: {value: "${{ input.n }}"}}
  - {id: instead, use: fails, with: {n: 1}, on_error: {use: value, with: "${{ input.n }}"}}
  - {id: fine, use: value, with: 1, on_error: {use: value, with: 2}}
  - {id: after, use: value, with: 1, after: [skipped, instead]}
  - {id: needs, use: value, with: "${{ steps.skipped }}"}
  - {id: takes, use: value, with: "${{ steps.valued + steps.instead }}"}
  - {id: fails, use: fails, with: {n: 1}}
  - {id: blocked, use: value, with: "${{ steps.fails }}"}
  - {id: wrong, use: value, with: "${{ input.n.x }}"}
  - {id: behind_wrong, use: value, with: "${{ steps.wrong }}"}
finally: [{id: told, use: value, with: "${{ run.status }} ${{ steps.takes }}"}]
""",
    "jobs": """
inputs: {n: {type: integer, default: 2}}
on_failure: continue
jobs:
  - id: one
    steps:
      - {id: a, use: value, with: "${{ input.n }}"}
      - {id: b, map: {over: "${{ range(input.n) }}"}, use: value, with: "${{ item + steps.a }}"}
  - id: empty
    when: ${{ input.n > 1 }}
    steps:
      - {id: a, use: value, with: {status: no_data}, on_no_data: skip_job}
      - {id: b, use: value, with: 1}
  - {id: blocked, needs: [empty], steps: [{id: a, use: value, with: 1}]}
  - {id: skipped, when: "${{ input.n > 2 }}", steps: [{id: a, use: value, with: 1}]}
  - {id: two, needs: [one], steps: [{id: a, use: fails, with: {n: "${{ jobs.one.b | sum }}"}}]}
  - {id: three, needs: [two], steps: [{id: a, use: value, with: 1}]}
finally: [{id: told, use: value, with: "${{ run.status }} ${{ jobs.one.a }}"}]
""",
    "flows in flows": """
steps:
  - {id: page, use: "flow:./inner.yaml", with: {}}
  - {id: pages, map: {over: [1, 2]}, use: "flow:./inner.yaml", with: {n: "${{ item }}"}}
""",
}
INNER = """
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: big, use: value, with: 1, when: "${{ input.n > 1 }}"}
  - {id: out, use: value, with: "${{ steps.big | default(input.n) }}"}
"""


def fails(n: int) -> int:
    raise ValueError(n)


@pytest.mark.parametrize("text", FLOWS.values(), ids=FLOWS)
async def test_a_process_that_has_only_the_store_shows_the_same_steps(tmp_path: Path, text: str) -> None:
    flow_of(tmp_path, INNER, "inner.yaml")
    flow = flow_of(tmp_path, text, components={"fails": fails})
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow]) as engine, connect(url) as client:
        await engine.run(flow(), id="r")

        async def shown(by: object) -> dict[str, tuple[object, ...]]:
            return {one.path: (one.status, one.skipped_by) for one in await by.steps("r")}  # type: ignore[attr-defined]

        assert await shown(client) == await shown(engine)


async def test_rows_of_a_batch_are_shown_as_well(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, INNER)
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow]) as engine, connect(url) as client:
        await (await engine.start_batch(flow, [{"n": 1}, {"n": 2}, {}], id="b")).result()
        assert await client.steps("b") == await engine.steps("b")
        for run in await engine.list():
            assert [(one.path, one.status) for one in await client.steps(run.run_id)] == [
                (one.path, one.status) for one in await engine.steps(run.run_id)
            ]
