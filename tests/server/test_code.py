"""The code of runs over HTTP: where they stand, their graphs, how two differ, and whether they fit."""

from __future__ import annotations

import json

import httpx2 as httpx

from perdure import Engine, connect
from tests.server.conftest import client_of
from tests.server.programs import looping, order, pipeline, quick


async def test_the_source_has_its_executed_lines_and_the_variables(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(looping(3))
    found = (await http.get(f"runs/{run.run_id}/source")).json()
    (part,) = found["parts"]
    first = part["line"]
    lines = dict(enumerate(part["text"].splitlines(), first))
    counts = {lines[int(line)].strip(): count for line, count in found["executed"][part["file"]].items()}
    assert counts == {
        "total = 0": 1,
        "for number in range(count):": 4,
        "total += await charge(number)": 3,
        "return total": 1,
    }
    before = (await http.get(f"runs/{run.run_id}/source", params={"at": "charge:1"})).json()
    (task,) = before["tasks"]
    assert task["waits_for"] == "charge:1"
    assert task["frames"][0]["variables"] == {"count": "3", "total": "0", "number": "1"}


async def test_without_the_code_the_source_is_that_of_the_execution(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(quick(3))
    async with connect(engine.store) as client, client_of(client.asgi()) as there:
        found = (await there.get(f"runs/{run.run_id}/source")).json()
    assert found["parts"][0]["name"] == "quick"
    assert (found["executed"], found["tasks"]) == (None, None)
    assert "no programs" in found["problem"]


async def test_a_place_that_the_run_does_not_have_is_a_problem(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(quick(3))
    missing = await http.get(f"runs/{run.run_id}/source", params={"at": "nothing:0"})
    assert (missing.status_code, missing.json()["code"]) == (404, "no_such_op")


async def test_a_graph_is_drawn_with_the_way_that_the_run_took(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(pipeline(amount=4))
    drawn = (await http.get(f"runs/{run.run_id}/graph")).json()
    nodes = {node["label"]: node for node in drawn["nodes"]}
    assert {label: node["status"] for label, node in nodes.items()} == {
        "amount": "",
        "doubled": "succeeded",
        "small": "succeeded",
        "large": "skipped",
        "by_size": "succeeded",
    }
    edges = {(edge["source"], edge["target"]): edge["taken"] for edge in drawn["edges"]}
    assert edges[nodes["by_size"]["id"], nodes["small"]["id"]] is True
    assert edges[nodes["by_size"]["id"], nodes["large"]["id"]] is False
    source = (await http.get(f"runs/{run.run_id}/source")).json()
    assert source["values"] == {"amount": 4, "doubled": 8, "small": "small"}
    code = await engine.run(quick(1))
    assert (await http.get(f"runs/{code.run_id}/graph")).json()["code"] == "no_graph"


async def test_two_runs_are_compared(engine: Engine, http: httpx.AsyncClient) -> None:
    a, b = await engine.run(quick(3)), await engine.run(quick(4))
    found = (await http.get(f"runs/{a.run_id}/diff/{b.run_id}")).json()
    assert (found["a"], found["b"], found["first"]) == (a.run_id, b.run_id, "input")
    charge = next(op for op in found["ops"] if op["path"] == "charge:0")
    assert (charge["changes"], charge["a"]["value"], charge["b"]["value"]) == (["inputs", "value"], 6, 8)
    assert (await http.get(f"runs/{a.run_id}/diff/nothing")).json()["code"] == "no_such_run"


async def test_open_runs_are_held_against_the_code_line_by_line(engine: Engine, http: httpx.AsyncClient) -> None:
    for number in range(2):
        _ = await engine.run(order(number), id=f"o{number}", until="rest")
    answer = await http.post("upgrade-check")
    assert answer.headers["content-type"] == "application/x-ndjson"
    checked = [json.loads(line) for line in answer.text.splitlines()]
    assert {(one["id"], one["fit"]) for one in checked} == {("o0", "safe"), ("o1", "safe")}
    async with connect(engine.store) as client, client_of(client.asgi()) as there:
        assert (await there.post("upgrade-check")).json()["code"] == "no_code"
