"""Many runs at once over HTTP."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx

from perdure import Engine
from tests.server.programs import fails, quick, waits, with_waiting_child


async def waiting(engine: Engine, count: int) -> None:
    for number in range(count):
        _ = await engine.start(waits(), id=f"w{number}")


async def ended(engine: Engine, http: httpx.AsyncClient, begun: httpx.Response) -> dict[str, Any]:
    _ = await engine.handle(begun.json()["id"]).result()
    found: dict[str, Any] = (await http.get(f"bulk/{begun.json()['id']}")).json()
    return found


async def test_all_runs_that_match_are_cancelled_by_who_is_logged_in(engine: Engine, http: httpx.AsyncClient) -> None:
    await waiting(engine, 3)
    other = await engine.run(quick(1), id="other")
    asked = {"action": "cancel", "filter": {"program": "waits"}, "options": {"reason": "a mistake"}}
    tried = (await http.post("bulk", json={**asked, "dry_run": True})).json()
    assert (len(tried["ids"]), tried["more"]) == (3, False)
    begun = await http.post("bulk", json=asked)
    assert begun.status_code == 202
    found = await ended(engine, http, begun)
    assert (found["action"], found["done"], found["skipped"], found["failed"]) == ("cancel", 3, 0, 0)
    views = [await engine.get(f"w{number}") for number in range(3)]
    assert [view.reason for view in views if view is not None] == ["a mistake"] * 3
    (request,) = [e.event for e in await engine.journal("w0") if type(e.event).__name__ == "CancelRequested"]
    assert getattr(request, "by", None) == "local"
    assert other.status == "completed"


async def test_what_failed_is_reported_with_the_reason(engine: Engine, http: httpx.AsyncClient) -> None:
    await waiting(engine, 1)
    _ = await engine.run(quick(1), id="done")
    begun = await http.post("bulk", json={"action": "pause", "ids": ["w0", "done", "nothing"]})
    found = await ended(engine, http, begun)
    assert (found["done"], found["skipped"], found["failed"]) == (1, 1, 1)
    assert [one["id"] for one in found["failures"]] == ["nothing"]
    assert "nothing" in found["failures"][0]["error"]


async def test_a_bulk_action_that_is_sent_again_happens_once(engine: Engine, http: httpx.AsyncClient) -> None:
    for number in range(2):
        _ = await engine.run(fails(), id=f"f{number}")
    key = {"Idempotency-Key": "again"}
    asked = {"action": "retry", "filter": {"status": ["failed"]}}
    begun = [await http.post("bulk", json=asked, headers=key) for _ in range(2)]
    assert [one.status_code for one in begun] == [202, 200]
    assert begun[0].json()["id"] == begun[1].json()["id"]
    assert (await ended(engine, http, begun[0]))["done"] == 2
    runs = (await http.get("runs", params={"program": "fails"})).json()["runs"]
    assert sorted(run["incarnation"] for run in runs) == [1, 1, 2, 2]


async def test_a_request_that_would_mean_every_run_is_refused(http: httpx.AsyncClient) -> None:
    refused = await http.post("bulk", json={"action": "cancel"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
    both = await http.post("bulk", json={"action": "cancel", "ids": ["a"], "filter": {"program": "waits"}})
    assert both.status_code == 422
    unnamed = await http.post("bulk", json={"action": "signal", "ids": ["a"]})
    assert (unnamed.status_code, unnamed.json()["code"]) == (422, "invalid_name")


async def test_a_bulk_action_is_aborted(engine: Engine, http: httpx.AsyncClient) -> None:
    begun = (await http.post("bulk", json={"action": "cancel", "ids": ["nothing"]})).json()
    assert (await http.post(f"bulk/{begun['id']}/abort")).json()["answer"] in ("accepted", "finished")
    run = await engine.start(waits())
    assert (await http.get(f"bulk/{run.id}")).json()["code"] == "no_such_run"


async def test_only_roots_are_acted_on_where_only_roots_were_asked_for(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(with_waiting_child(), id="parent", until="rest")
    filter = {"program": "waits"}
    children = (await http.post("bulk", json={"action": "cancel", "filter": filter, "dry_run": True})).json()
    assert children["ids"] == [f"{run.run_id}/waits:0"]
    roots = {"action": "cancel", "filter": {**filter, "root": "true"}, "dry_run": True}
    assert (await http.post("bulk", json=roots)).json()["ids"] == []
