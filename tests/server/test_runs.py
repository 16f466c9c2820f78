"""Reading runs over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine, Program, RunParked, call, wait_signal, workflow
from perdure.client.client import Client
from tests.server.conftest import client_of
from tests.server.programs import (
    BIG,
    charge,
    fails,
    long_text,
    order,
    patient,
    pipeline,
    quick,
    streams,
    waits,
    with_graph,
)


async def test_a_list_has_pages_and_a_cursor_belongs_to_its_filter(engine: Engine, http: httpx.AsyncClient) -> None:
    for number in range(5):
        await engine.run(quick(number), id=f"q{number}", tags={"n": str(number)})
    await engine.run(long_text(3), id="other")
    first = (await http.get("runs", params={"program": "quick", "limit": 3})).json()
    rest = (await http.get("runs", params={"program": "quick", "limit": 3, "cursor": first["next"]})).json()
    assert [run["id"] for run in first["runs"] + rest["runs"]] == ["q4", "q3", "q2", "q1", "q0"]
    assert rest["next"] is None
    assert "input" not in first["runs"][0]
    assert [run["id"] for run in (await http.get("runs", params={"tag": "n:3"})).json()["runs"]] == ["q3"]
    wrong = await http.get("runs", params={"program": "long_text", "cursor": first["next"]})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "cursor_of_another_filter")


async def test_a_run_has_an_etag_and_exact_integers(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(order(4), id="order/1 é%", until="rest")
    got = await http.get(f"runs/{run.run_id}")
    body = got.json()
    assert (body["id"], body["status"], body["state"]) == ("order/1 é%", "waiting", {"phase": "asked"})
    assert f'"exact":{BIG}' in got.text
    assert body["why"]["kind"] == "approval"
    again = await http.get(f"runs/{run.run_id}", headers={"If-None-Match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await http.get("runs/by-id", params={"id": "order/1 é%"})).json()["run_id"] == run.run_id


async def test_ops_come_in_columns(engine: Engine, http: httpx.AsyncClient) -> None:
    await engine.run(fails(), id="f")
    run = (await http.get("runs/by-id", params={"id": "f"})).json()
    assert run["failure"]["message"] == "<script>no stock</script>"
    ops = (await http.get(f"runs/{run['run_id']}/ops")).json()
    assert (ops["path"], ops["kind"], ops["status"], ops["group"]) == (["refuse:0"], ["step"], ["failed"], ["refuse"])
    assert ops["owned"][0][3] == 1
    op = (await http.get(f"runs/{run['run_id']}/ops/refuse:0")).json()
    assert [attempt["error"]["type"] for attempt in op["attempts"]] == ["builtins.ValueError"]
    assert (await http.get(f"runs/{run['run_id']}/ops/nothing:0")).json()["code"] == "no_such_op"


async def test_ops_say_when_a_wait_ends_by_itself(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(patient(3600), id="p", until="rest")
    ops = (await http.get(f"runs/{run.run_id}/ops")).json()
    assert ops["kind"] == ["step", "signal"]
    assert ops["due"][0] is None
    assert ops["due"][1] == pytest.approx(ops["start"][1] + 3600)


async def test_a_run_says_whether_it_can_be_drawn(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(with_graph(3), id="g")
    own = (await http.get(f"runs/{run.run_id}")).json()
    child = (await http.get(f"runs/{run.run_id}", params={"child": "pipeline:0"})).json()
    assert (own["graph"], child["graph"], child["status"]) == (False, True, "completed")
    assert (await http.get(f"runs/{run.run_id}/graph", params={"child": "pipeline:0"})).json()["nodes"]
    assert (await http.get(f"runs/{(await engine.run(pipeline(amount=2))).run_id}")).json()["graph"]


async def test_a_long_value_is_had_by_its_url(engine: Engine, http: httpx.AsyncClient) -> None:
    await engine.run(long_text(300_000), id="long")
    run = (await http.get("runs/by-id", params={"id": "long"})).json()
    assert run["output"]["bytes"] == 300_002
    value = await http.get(run["output"]["$value"], params={"download": "true"})
    assert json.loads(value.text) == "x" * 300_000
    assert "attachment" in value.headers["content-disposition"]
    journal = (await http.get(f"runs/{run['run_id']}/journal", params={"kind": "StepSucceeded"})).json()
    (event,) = journal["events"]
    assert (await http.get(event["event"]["value"]["$value"])).text == value.text
    op = (await http.get(f"runs/{run['run_id']}/ops/text:0")).json()
    assert (await http.get(op["output"]["$value"])).text == value.text


async def test_a_stream_of_events_goes_on_after_the_last_one_and_ends(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.start(quick(1))
    assert await run.result() == 2
    whole = (await http.get(f"runs/{run.run_id}/events")).text
    assert whole.startswith("retry: 2000\n\n")
    ids = [line for line in whole.splitlines() if line.startswith("id: ")]
    assert ids == [f"id: {number}" for number in range(len(ids))]
    rest = (await http.get(f"runs/{run.run_id}/events", headers={"Last-Event-ID": "2"})).text
    assert [line for line in rest.splitlines() if line.startswith("id: ")] == ids[3:]
    assert rest.endswith('event: end\ndata: {"status":"completed","continued_as":null}\n\n')


async def test_chunks_are_streamed(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.start(streams(3))
    await run.result()
    stream = (await http.get(f"runs/{run.run_id}/stream", params={"step": "tokens", "after": 0})).text
    values = [json.loads(line[6:])["value"] for line in stream.splitlines() if '"value"' in line]
    assert values == [1, 2]


async def test_counts_are_by_status_and_program(engine: Engine, http: httpx.AsyncClient) -> None:
    await engine.run(quick(1))
    await engine.run(fails())
    found = (await http.get("runs/counts", params={"by": "status,program"})).json()["counts"]
    assert {(one["status"], one["program"], one["count"]) for one in found} == {
        ("completed", "quick", 1),
        ("failed", "fails", 1),
    }


async def test_counts_are_of_after_they_were_asked_for_and_made_once_for_many(
    engine: Engine, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.run(quick(1))
    first = (await http.get("runs/counts")).json()["counts"]
    await engine.run(quick(2))
    made: list[None] = []
    counts = Client.counts

    async def counted(client: Client) -> Any:
        made.append(None)
        return await counts(client)

    monkeypatch.setattr(Client, "counts", counted)
    answers = await asyncio.gather(*(http.get("runs/counts") for _ in range(8)))
    assert [one["count"] for one in first] == [1]
    assert [[one["count"] for one in answer.json()["counts"]] for answer in answers] == [[2]] * 8
    assert len(made) <= 2


async def test_a_histogram_has_whole_buckets(engine: Engine, http: httpx.AsyncClient) -> None:
    await engine.run(quick(1))
    await engine.run(fails())
    found = (await http.get("runs/histogram", params={"bucket": "minute"})).json()
    assert len(found["buckets"]) == 60
    assert {
        status: sum(one["counts"].get(status, 0) for one in found["buckets"]) for status in ("completed", "failed")
    } == {
        "completed": 1,
        "failed": 1,
    }
    assert all(one["at"].endswith(":00Z") for one in found["buckets"])
    only = (await http.get("runs/histogram", params={"bucket": "hour", "program": "fails"})).json()
    assert [one["counts"] for one in only["buckets"] if one["counts"]] == [{"failed": 1}]
    far = {"bucket": "minute", "since": "2020-01-01T00:00:00Z", "until": "2021-01-01T00:00:00Z"}
    assert (await http.get("runs/histogram", params=far)).json()["code"] == "invalid_request"


async def test_the_beginning_of_an_id_and_a_value_find_runs(engine: Engine, http: httpx.AsyncClient) -> None:
    for number in range(3):
        await engine.run(quick(number), id=f"order-{number}")
    assert len((await http.get("runs", params={"q": "order-"})).json()["runs"]) == 3
    (found,) = (await http.get("runs", params={"q": "input.amount=2"})).json()["runs"]
    assert found["id"] == "order-2"


@pytest.fixture
async def parked(tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine with a run that its code does not fit, and one that was imported."""
    url = f"sqlite:///{tmp_path}/parked.db"

    def programs(changed: bool) -> list[Program]:
        @workflow
        async def changing() -> Any:
            return await (charge(1) if changed else wait_signal("go"))

        return [changing, waits]

    async with Engine("memory://", [waits]) as elsewhere:
        _ = await elsewhere.run(waits(), id="imported", until="rest")
        capsule = await elsewhere.export("imported")
    async with Engine(url, programs(changed=False)) as before:
        _ = await before.run(call("changing"), id="diverged", until="rest")
    async with Engine(url, programs(changed=True)) as engine:
        _ = await engine.import_run(capsule)
        with pytest.raises(RunParked):
            _ = await engine.handle("diverged").result()
        yield engine


async def test_parked_runs_are_found_by_the_kind_of_their_reason(parked: Engine) -> None:
    async with client_of(parked.asgi()) as http:

        async def found(query: str) -> list[str]:
            return sorted(run["id"] for run in (await http.get(f"runs?{query}")).json()["runs"])

        assert await found("parked=true") == ["diverged", "imported"]
        assert await found("parked=diverged") == ["diverged"]
        assert await found("parked=imported&root=true&limit=1") == ["imported"]
        assert await found("parked=no_program") == []
        assert await found("parked=true&status=parked,failed") == ["diverged", "imported"]
        assert await found("parked=true&status=failed") == []
        for parked_as, ids in (("diverged", ["diverged"]), ("true", ["diverged", "imported"])):
            asked = {"action": "cancel", "filter": {"parked": parked_as}, "dry_run": True}
            meant = (await http.post("bulk", json=asked)).json()["ids"]
            views = [await parked.get(run_id) for run_id in meant]
            assert sorted(view.id for view in views if view is not None) == ids
        refused = await http.post("bulk", json={"action": "cancel", "filter": {"parked": "true", "status": ["failed"]}})
        assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/filter/parked")


async def test_moments_in_the_reason_of_a_run_have_their_zone(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(patient(3600), id="p", until="rest")
    _ = await engine.start(quick(1), id="later", delay=timedelta(days=1))
    why = (await http.get(f"runs/{run.run_id}")).json()["why"]
    assert why["text"] == f"for signal `go`, at most until {why['until'][:19]}Z"
    reasons = (await http.get("runs?why=true")).json()["why"].values()
    assert sorted(one["text"] for one in reasons) == sorted(
        [why["text"], *(f"delayed until {one['until'][:19]}Z" for one in reasons if one["kind"] == "delay")]
    )


async def test_ops_say_before_when_a_run_was_not_to_begin(engine: Engine, http: httpx.AsyncClient) -> None:
    later = await engine.start(quick(1), id="later", delay=timedelta(days=1))
    ops = (await http.get(f"runs/{later.run_id}/ops")).json()
    assert ops["not_before"] == pytest.approx(ops["began"] + 86_400)
    at_once = await engine.run(quick(1), id="now")
    assert (await http.get(f"runs/{at_once.run_id}/ops")).json()["not_before"] is None


async def test_the_run_whose_id_is_searched_for_is_told_whatever_has_its_beginning(
    engine: Engine, http: httpx.AsyncClient
) -> None:
    run = await engine.run(with_graph(3), id="a")
    for number in range(3):
        _ = await engine.run(quick(1), id=f"a{number}")

    async def exact(**query: Any) -> str | None:
        found = (await http.get("runs", params={"limit": 1, **query})).json()
        return found["exact"] and str(found["exact"]["run_id"])

    child = f"{run.run_id}/pipeline:0"
    assert [await exact(q=q) for q in ("a", run.run_id, child, "A", "", "input=3")] == [
        *(run.run_id, run.run_id, child),
        *(None, None, None),
    ]
    first = (await http.get("runs?q=a&limit=1")).json()
    assert await exact(q="a", cursor=first["next"]) is None
