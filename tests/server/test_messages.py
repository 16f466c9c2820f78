"""Starting runs and telling them something over HTTP."""

from __future__ import annotations

import httpx2 as httpx

from perdure import Engine
from tests.server.programs import order, quick, waits


async def test_a_start_is_deduplicated_by_its_idempotency_key(engine: Engine, http: httpx.AsyncClient) -> None:
    key = {"Idempotency-Key": "order 7"}
    first = await http.post("runs", json={"program": "quick", "args": [3], "tags": {"a": "b"}}, headers=key)
    again = await http.post("runs", json={"program": "quick", "args": [3]}, headers=key)
    assert (first.status_code, first.json()["duplicate"]) == (201, False)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    assert again.json()["run_id"] == first.json()["run_id"]
    assert await engine.handle(first.json()["id"], quick).result() == 6
    assert (await http.post("runs", json={"program": "nothing"})).json()["code"] == "unknown_program"


async def test_a_signal_counts_once_and_its_integers_are_exact(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.start(waits())
    path, key = f"runs/{run.run_id}/signals/go", {"Idempotency-Key": "s"}
    sent = [await http.post(path, content=b'{"payload": 9007199254740993}', headers=key | JSON) for _ in range(2)]
    assert sent[0].json()["answer"] == "accepted"
    assert await run.result() == 9007199254740993
    assert sent[1].json()["answer"] in ("duplicate", "finished")


async def test_an_answer_is_by_who_is_logged_in(engine: Engine, http: httpx.AsyncClient) -> None:
    asked = await engine.run(order(1), until="rest")
    run = engine.handle(asked.id)
    path = f"runs/{asked.run_id}/approvals/ship:0/approve"
    assert (await http.post(path, json={"payload": 1, "by": "eve"})).status_code == 422
    assert (await http.post(path, json={"payload": {"ok": True}})).json()["answer"] == "accepted"
    assert await run.result() == {"ok": True}
    answers = [e for e in await engine.journal(run.id) if getattr(e.event, "by", "").startswith("answer:")]
    assert [entry.event.person for entry in answers] == ["local"]  # type: ignore[union-attr]


async def test_an_action_on_a_run_that_has_moved_on_is_refused(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.start(waits())
    seen = (await http.get(f"runs/{run.run_id}")).headers["etag"]
    assert (await http.post(f"runs/{run.run_id}/pause", json={"reason": "look"})).status_code == 200
    late = await http.post(f"runs/{run.run_id}/cancel", headers={"If-Match": seen})
    assert (late.status_code, late.json()["code"]) == (412, "moved_on")
    assert (await http.post(f"runs/{run.run_id}/resume")).status_code == 200
    assert (await http.post(f"runs/{run.run_id}/cancel")).json()["answer"] == "accepted"


async def test_a_fork_is_deduplicated(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.start(quick(1))
    await run.result()
    key = {"Idempotency-Key": "f"}
    forks = [await http.post(f"runs/{run.run_id}/fork", json={"at": "charge:0"}, headers=key) for _ in range(2)]
    assert [fork.status_code for fork in forks] == [201, 200]
    assert forks[0].json()["run_id"] == forks[1].json()["run_id"]
    assert forks[0].json()["forked_from"] == run.run_id


JSON = {"Content-Type": "application/json"}
