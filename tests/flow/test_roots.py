"""What expressions find beside inputs and steps: the run itself, the environment, values kept in the store."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import Engine, NotDecodable, call, connect
from perdure.client import base
from perdure.client.signatures import Signatures, SignaturesConfig
from perdure.kernel.events import StepSucceeded
from perdure.testing.simulation import every_crash
from tests.flow.writing import flow_of, problems_of, run
from tests.patience import PATIENCE

RUN = """
variables: {home: {env: FLOW_HOME}, where: {env: FLOW_WHERE, default: {dir: [here]}}}
jobs:
  - id: one
    steps:
      - {id: own, use: value, with: {run: "${{ run.id }}", at: "${{ run.started_at }}", home: "${{ env.FLOW_HOME }}"}}
      - {id: inner, use: "flow:./inner.yaml"}
finally:
  - {id: end, use: value, with: "${{ run.started_at }} ${{ run.status }} ${{ env.FLOW_WHERE.dir[0] }}"}
output: ["${{ jobs.one.own }}", "${{ jobs.one.inner }}"]
"""


def test_a_run_knows_its_id_and_when_it_began_also_after_it_was_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOW_HOME", "/home/me")
    flow_of(tmp_path, "steps: [{id: at, use: value, with: '${{ run.started_at }} of ${{ run.id }}'}]", "inner.yaml")
    flow = flow_of(tmp_path, RUN)
    deaths = 0
    for report in every_crash(flow(), seed=7):
        output: Any = report.results["run-0"].output
        own, inner = output
        assert datetime.fromisoformat(own["at"]).tzinfo is UTC
        assert own == {"run": "run-0", "at": own["at"], "home": "/home/me"}
        assert inner["at"].endswith(" of run-0/one:0/inner:0")
        events = (event for batch in report.journals["run-0"] for event in batch.events)
        last = [event.value for event in events if isinstance(event, StepSucceeded) and event.op == "finally:0/end:0"]
        assert [msgspec.json.decode(value) for value in last] == [f"{own['at']} succeeded here"]
        deaths += report.crashes
    assert deaths > 20


async def test_a_fork_has_an_id_of_its_own_for_what_it_does_itself(tmp_path: Path) -> None:
    text = """
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: before, use: value, with: "${{ run.id }} ${{ run.started_at }}"}
  - {id: inner, use: "flow:./inner.yaml", after: [before]}
  - {id: n, use: value, with: "${{ input.n }}", after: [inner]}
  - {id: after, use: value, with: "${{ run.id }} ${{ run.started_at }}", after: [n]}
output: ["${{ steps.before }}", "${{ steps.inner }}", "${{ steps.after }}"]
"""
    flow_of(tmp_path, "steps: [{id: a, use: value, with: '${{ run.id }}'}]", "inner.yaml")
    flow = flow_of(tmp_path, text)
    async with Engine("memory://", [flow]) as engine:
        first = await (await engine.start(flow(), id="r")).result()
        began = first[0].removeprefix("r ")
        assert first == [f"r {began}", {"a": "r/inner:0"}, f"r {began}"]
        fork = await engine.fork("r", at="n:0", values={"before:0": first[0]}, inputs={"n": 2}, new_id="f")
        assert await fork.result() == [*first[:2], f"f {began}"]
        again = await engine.fork("f", at="after:0", new_id="g")
        assert (await again.result())[:2] == first[:2]
        other = await engine.time_travel("r", "n:0", new_id="t")
        assert (await other.result())[1:] == first[1:]  # they do not depend on it
        _ = await engine.update_state("r", {"n": 3})
        assert (await engine.handle("r").result())[2] == f"r {began}"


async def test_a_flow_says_how_often_its_steps_are_repeated(tmp_path: Path) -> None:
    text = """
max_rounds: 3
steps:
  - {id: own, use: value, with: "${{ last | default(0) + 1 }}", repeat: {until: "${{ last > 3 }}", max: 5}}
  - {id: all, use: value, with: "${{ last | default(0) + 1 }}", repeat: {until: "${{ last > 3 }}"}, after: [own]}
"""
    ran = await run(flow_of(tmp_path, text))
    assert [step.output for step in ran.steps if step.name == "own"] == [1, 2, 3, 4]
    assert "the loop that begins at 'all' has had 3 rounds" in str(ran.result.error)


async def test_a_value_is_kept_in_the_store_under_its_hash(tmp_path: Path) -> None:
    text = """
inputs: {x: {}}
steps:
  - {id: kept, use: blob, with: {put: "${{ input.x }}"}}
  - {id: again, use: blob, with: {put: "${{ input.x }}"}}
  - {id: got, use: blob, with: {get: "${{ steps.kept.id }}"}}
output: {same: "${{ steps.kept.id == steps.again.id }}", got: "${{ steps.got }}"}
"""
    flow = flow_of(tmp_path, text)
    for value in ({"a": [1, None]}, None, "text"):
        assert (await run(flow, x=value)).output == {"same": True, "got": value}
    for wrong, said in (
        ("{get: none}", "there is no blob 'none' in this store"),
        ("{put: 1, get: a}", "blob takes `put`, a value to keep, or `get`, the id of one"),
        ("{get: '${{ 1 }}'}", "the argument get of a:0 cannot be read as str"),
    ):
        failing = flow_of(tmp_path, f"steps: [{{id: a, use: blob, with: {wrong}}}]")
        assert said in str((await run(failing)).result.error)
    flow = flow_of(tmp_path, "inputs: {id: string}\nsteps: [{id: a, use: blob, with: {get: '${{ input.id }}'}}]")
    async with Engine("memory://", [flow]) as engine:
        id = await engine.blobs.put(b"\xff")
        assert "holds no JSON" in str((await engine.run(flow(id=id))).error)


async def test_formats_of_schemas_are_validated_by_clients_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "Signatures", partial(Signatures, config=SignaturesConfig(wait=PATIENCE)))
    text = "inputs: {d: {type: string, format: date}}\nsteps: [{id: a, use: value, with: '${{ input.d }}'}]"
    flow, url = flow_of(tmp_path, text), f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [flow]), connect(url) as client:
        with pytest.raises(NotDecodable, match='"soon" is not a "date"; worker'):
            _ = await client.start(call(flow.name, d="soon"))
        run = await client.start(call(flow.name, d="2026-02-28"))
        await run.result(PATIENCE)


async def test_formats_of_schemas_are_validated(tmp_path: Path) -> None:
    text = "inputs: {d: {type: string, format: date}}\nsteps: [{id: a, use: value, with: '${{ input.d }}'}]"
    flow = flow_of(tmp_path, text)
    async with Engine("memory://", [flow]) as engine:
        with pytest.raises(NotDecodable, match='"soon" is not a "date"'):
            _ = await engine.start(flow(d="soon"))
    assert problems_of(
        tmp_path, "inputs: {d: {type: string, format: email, default: me}}\nsteps: [{id: a, use: value}]"
    )


def test_the_version_of_the_format_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "flow.json"
    flow = flow_of(tmp_path, '{"name": "n", "perdure": 1, "steps": [{"id": "a", "use": "value"}]}', path.name)
    assert [str(one) for one in flow.warnings] == [
        f"{path}:1:15 warning F006 `perdure: 1` comes first, so that a reader knows the rest"
    ]
