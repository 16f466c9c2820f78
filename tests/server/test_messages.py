"""Starting runs and telling them something over HTTP."""

from __future__ import annotations

import httpx2 as httpx
import pytest

from perdure import Engine
from perdure.kernel.events import RunStarted, SignalReceived
from perdure.server import Access
from tests.server.conftest import client_of
from tests.server.programs import fails, order, quick, signed, waits


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


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "recorded"),
    [
        ({"traceparent": TRACE}, TRACE),
        ({"traceparent": TRACE, "tracestate": "a=1,b=2"}, f"{TRACE} a=1,b=2"),
        ({"traceparent": TRACE, "tracestate": "é" * 10}, TRACE),
        ({"traceparent": TRACE, "tracestate": "x" * 2000}, TRACE),
        ({"traceparent": "00-nonsense"}, None),
        ({"traceparent": TRACE.upper()}, None),
        ({"tracestate": "a=1"}, None),
        ({}, None),
    ],
)
async def test_the_trace_of_a_caller_is_recorded_and_shown(
    engine: Engine, http: httpx.AsyncClient, headers: dict[str, str], recorded: str | None
) -> None:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    started = await http.post("runs", json={"program": "waits"}, headers=sent)
    run_id = started.json()["run_id"]
    assert (await http.post(f"runs/{run_id}/signals/other", json={}, headers=sent)).status_code == 200
    assert (await http.get(f"runs/{run_id}")).json()["trace"] == recorded
    events = [entry.event for entry in await engine.journal(started.json()["id"])]
    traces = [event.trace for event in events if isinstance(event, RunStarted | SignalReceived)]
    assert traces == [recorded or ""] * 2


async def test_who_retries_is_recorded(engine: Engine, http: httpx.AsyncClient) -> None:
    run = await engine.run(fails())
    retried = await http.post(f"runs/{run.run_id}/retry")
    assert retried.status_code == 201
    found = (await http.get(f"runs/{retried.json()['run_id']}/journal", params={"kind": "RunForked"})).json()["events"]
    assert [one["event"]["by"] for one in found] == ["local"]


WEAK = ["W/{}", "{}", '"x", {}', "W/{}, *", "*", "{}-gzip", "{};br", "W/{}--gzip"]


@pytest.mark.parametrize("form", WEAK)
async def test_an_etag_that_a_proxy_has_marked_is_the_same(engine: Engine, http: httpx.AsyncClient, form: str) -> None:
    """A proxy that compresses a response makes its ETag weak, or writes the encoding into it."""
    run = await engine.start(waits())
    bare = (await http.get(f"runs/{run.run_id}")).headers["etag"]
    etag = form.format(bare) if form[-1] not in "pr" else form.format(bare[:-1]) + '"'
    polled = await http.get(f"runs/{run.run_id}", headers={"If-None-Match": etag})
    assert (polled.status_code, polled.content, polled.headers["etag"]) == (304, b"", bare)
    assert (await http.post(f"runs/{run.run_id}/pause", headers={"If-Match": etag})).status_code == 200
    if form != "*" and "*" not in form:
        assert (await http.get(f"runs/{run.run_id}", headers={"If-None-Match": etag})).status_code == 200
        assert (await http.post(f"runs/{run.run_id}/resume", headers={"If-Match": etag})).status_code == 412


@pytest.mark.parametrize("op", ["ship:0", "ship", "approval:0"])
async def test_a_fork_answers_no_question_that_its_caller_may_not_answer(engine: Engine, op: str) -> None:
    asked = await engine.run(order(1), until="rest")
    path = asked.interrupts[0].path
    body = {"values": {path if op == "approval:0" else op: "yes"}}
    for may, status in ((("read", "run"), 403), (("read", "run", "approve"), 201)):
        access = Access("ann", may)
        async with client_of(engine.asgi(access=lambda request, access=access: access)) as http:
            answer = await http.post(f"runs/{asked.run_id}/fork", json=body)
            assert answer.status_code == status, answer.text
            if status == 403:
                assert (answer.json()["code"], "approve" in answer.json()["detail"]) == ("forbidden", True)
                # What is no answer takes no more than `run`.
                assert (await http.post(f"runs/{asked.run_id}/fork", json={"at": "charge:0"})).status_code == 201
                other = await http.post(f"runs/{asked.run_id}/fork", json={"values": {"charge:0": 5}})
                assert other.status_code == 201


async def test_a_fork_answers_only_for_its_approvers(engine: Engine) -> None:
    asked = await engine.run(signed(), until="rest")
    for name, status in (("eve", 422), ("ann", 201)):
        access = Access(name, ("read", "run", "approve"))
        async with client_of(engine.asgi(access=lambda request, access=access: access)) as http:
            answer = await http.post(f"runs/{asked.run_id}/fork", json={"values": {asked.interrupts[0].path: 1}})
            assert answer.status_code == status, answer.text
