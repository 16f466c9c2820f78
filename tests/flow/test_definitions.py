"""Definitions are data: a run keeps its own, also where the file has changed or never was."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, NoSuchFlow, Recovery, RunStatus, UsageError, call, connect, workflow
from perdure.config import Flows
from perdure.flow import Flow
from tests.flow.writing import flow_of

ASKING = """
inputs: {n: integer}
steps:
  - {id: first, use: value, with: {z: "${{ input.n + 1 }}", a: 1}}
  - {id: ask, use: signal, with: {name: go}, needs: [first]}
  - {id: last, use: value, with: {got: "${{ steps.ask }}", sum: "${{ steps.first.z * 10 }}"}}
output: {z: "${{ steps.last.sum }}", a: "${{ steps.last.got }}"}
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/s.db"


async def begun(store: str, flow: Flow, **inputs: Any) -> None:
    """A run that waits for `go`, of an engine that is gone."""
    async with Engine(store, [flow]) as engine:
        await engine.run(flow(**inputs), id="r")


async def continued(engine: Engine, id: str = "r") -> Any:
    await engine.signal(id, "go", "there")
    result = await engine.handle("r").outcome()
    assert result.status is RunStatus.COMPLETED, result.error
    return result.output


async def version_of(engine: Engine, id: str) -> str:
    found = await engine.get(id)
    assert found is not None
    return found.version


async def test_another_machine_without_the_file_continues_a_run(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flow_of(tmp_path, ASKING)
    await begun(store, flow, n=1)
    (tmp_path / "flow.yaml").unlink()
    caplog.set_level(logging.WARNING)
    async with Engine(store, []) as engine:
        assert await continued(engine) == {"z": 20, "a": "there"}
        assert [step.path for step in await engine.steps("r")] == ["first:0", "last:0"]
        assert await version_of(engine, "r") == flow.version
    assert not caplog.records


async def test_an_edited_file_touches_no_run_in_flight(tmp_path: Path, store: str) -> None:
    old = flow_of(tmp_path, ASKING)
    await begun(store, old, n=1)
    new = flow_of(tmp_path, ASKING.replace("* 10", "* 1000").replace("first", "begin"))
    assert new.version != old.version
    async with Engine(store, [new]) as engine:
        other = await engine.start(new(n=1), id="n")
        await engine.signal("n", "go", "new")
        assert await other == {"z": 2000, "a": "new"}
        assert await continued(engine) == {"z": 20, "a": "there"}
        # What is started by name begins with what the engine was given, and not with what runs needed besides.
        by_name = await engine.start(call("test", n=1), id="b")
        assert await version_of(engine, "b") == new.version
        await engine.cancel(by_name.id)


async def test_files_beside_a_flow_are_part_of_its_definition(tmp_path: Path, store: str) -> None:
    inner = ASKING.strip()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "deep.yaml").write_text("perdure: 1\nname: deep\nsteps: [{id: v, use: value, with: 7}]\n")
    (tmp_path / "in" / "inner.yaml").write_text(
        f"perdure: 1\nname: inner\n{inner}\n".replace(
            "output:", "  - {id: deep, use: 'flow:./deep.yaml'}\noutput:\n  d: ${{ steps.deep.v }}\n#"
        )
    )
    text = """
    steps:
      - {id: sub, use: "flow:./in/inner.yaml", with: {n: 4}}
      - {id: end, use: value, with: "${{ steps.sub }}"}
    output: ${{ steps.end }}
    """
    before = flow_of(tmp_path, text)
    await begun(store, before)
    (tmp_path / "in" / "deep.yaml").write_text("perdure: 1\nname: deep\nsteps: [{id: v, use: value, with: 8}]\n")
    after = flow_of(tmp_path, text)
    assert after.version != before.version
    async with Engine(store, [after]) as engine:
        assert await continued(engine, "r/sub:0") == {"d": 7}


async def test_flows_are_stored_and_found_by_name_and_version(tmp_path: Path, store: str) -> None:
    one = flow_of(tmp_path, "steps: [{id: v, use: value, with: 1}]")
    two = flow_of(tmp_path, "steps: [{id: v, use: value, with: 2}] # another")
    same = flow_of(tmp_path, "description: text\nsteps:\n- with: 2\n  use: value\n  id: v\n")
    assert one.version != two.version == same.version
    async with Engine(store, []) as engine:
        with pytest.raises(NoSuchFlow, match="it has none"):
            await engine.get_flow("test")
        assert await engine.store_flow(one) == one.version
        assert (await engine.get_flow("test")).version == one.version
        assert await engine.store_flow(two) == two.version
        assert await engine.store_flow(two) == two.version
        for name, version in {
            "test": two.version,
            f"test@{one.version}": one.version,
            one.version: one.version,
        }.items():
            assert (await engine.get_flow(name)).version == version
        # By name the latest: again the first, once it is stored again.
        assert await (await engine.start(call("test"))) == {"v": 2}
        await engine.store_flow(one)
        assert await (await engine.start(call("test"))) == {"v": 1}
        with pytest.raises(NoSuchFlow, match=r"no flow 'tset'.*it has test"):
            await engine.get_flow("tset")
        with pytest.raises(UsageError, match="store_flow"):
            await engine.store_flow("test")  # type: ignore[arg-type]
        assert await engine.list() == await engine.list(program="test")


async def test_a_client_starts_what_engines_make_of_the_definition(tmp_path: Path, store: str) -> None:
    flow = flow_of(tmp_path, "steps: [{id: v, use: value, with: 1}]")
    async with Engine(store, []), connect(store) as client:
        handle = await client.start(flow(), id="a", deadline=60)
        assert await handle == {"v": 1}


async def test_definitions_are_not_pruned(tmp_path: Path, store: str) -> None:
    flow = flow_of(tmp_path, ASKING)
    await begun(store, flow, n=1)
    async with connect(store) as client:
        report = await client.prune(timedelta(0), list(RunStatus)[-3:], grace=0)
        assert (report.runs, report.blobs) == (0, 0)
    async with Engine(store, []) as engine:
        assert await continued(engine) == {"z": 20, "a": "there"}


async def test_a_flow_that_may_not_run_here_is_left_to_engines_that_may(tmp_path: Path, store: str) -> None:
    flow = flow_of(
        tmp_path, "steps: [{id: ask, use: signal, with: {name: go}}, {id: s, use: shell, with: {argv: [echo]}}]"
    )
    await begun(store, flow)
    async with Engine(store, [], flows=Flows(shell=False)) as strict:
        await strict.signal("r", "go")
        await strict.sweep()
        found = await strict.get("r")
        assert found is not None
        assert found.status is RunStatus.WAITING
    async with Engine(store, []) as engine:
        result = await engine.handle("r").outcome()
        assert result.status is RunStatus.COMPLETED


async def test_two_engines_store_a_definition_once(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, "steps: [{id: v, use: value, with: 1}]")
    async with Engine("memory://", []) as engine:
        await asyncio.gather(*(engine.store_flow(flow) for _ in range(5)))
        found = await engine.list(program="perdure.flow")
        assert {run.id for run in found} == {"perdure.flow:test", f"perdure.flow:test@{flow.version}"}
        assert len(found) == 2


async def test_an_engine_that_is_open_continues_what_was_stored_and_started_since(tmp_path: Path, store: str) -> None:
    flow = flow_of(tmp_path, "steps: [{id: v, use: value, with: 1}]")
    async with Engine(store, [], recovery=Recovery(check_interval=0.5)) as engine, connect(store) as client:
        assert engine._service is not None
        _ = await client.start(call("test"), id="early")
        await engine.sweep()
        assert await engine._note_definitions()  # a run of a program that may be stored later
        await client.store_flow(flow)
        assert await client.handle("early").result() == {"v": 1}
        assert not await engine._note_definitions()


async def test_a_definition_that_was_stored_halfway_is_completed(tmp_path: Path, store: str) -> None:
    flow = flow_of(tmp_path, "steps: [{id: v, use: value, with: 1}]")
    async with Engine(store, []) as client:
        await client._definitions._write(flow, "perdure.flow:test")
    async with connect(store) as client:
        await client._definitions.keep(flow)
        assert (await client.get_flow(f"test@{flow.version}")).version == flow.version
        assert (await client.get_flow("test")).version == flow.version


async def test_code_runs_a_flow_as_a_child_and_another_machine_continues_it(tmp_path: Path, store: str) -> None:
    flow = flow_of(tmp_path, ASKING)

    @workflow
    async def outer() -> Any:
        return await flow(n=5)

    async with Engine(store, [outer, flow]) as engine:
        await engine.run(outer(), id="r", until="rest")
    async with Engine(store, [outer]) as engine:
        assert await continued(engine, "r/test:0") == {"z": 60, "a": "there"}
