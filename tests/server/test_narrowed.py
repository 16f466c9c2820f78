"""A caller who may see some programs only: what they are told of the others, and what they can do to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest

from perdure import Engine, Queue, approval, child, lock, step, wait_signal, workflow
from perdure.kernel.schedules.schedule import CONTROL
from perdure.server import Access
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.listener import Listener

EVERYTHING = ("read", "run", "approve", "debug", "admin")


@step
async def look(thing: str) -> str:
    return thing


@workflow
async def mine(thing: str) -> Any:
    async with lock("lock-of-mine"):
        return await wait_signal("go")


@workflow
async def inner(thing: str) -> Any:
    await look(thing)
    return await wait_signal("go")


@workflow
async def theirs(thing: str) -> Any:
    secret = f"hidden {thing}"
    await look(secret)
    async with lock("lock-of-theirs"):
        return [await child(inner("shown")), await approval("hidden question", request=secret)]


@workflow
async def asking(thing: str) -> Any:
    asked = asyncio.create_task(approval("hidden question", request=f"hidden {thing}"))
    return [await child(inner("shown")), await asked]


@workflow
async def holding() -> Any:
    async with lock("shared"):
        return await wait_signal("go")


@workflow
async def contending() -> Any:
    async with lock("shared"):
        return await wait_signal("go")


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    queues = [Queue("ours", concurrency=1), Queue("hidden-queue", concurrency=1)]
    async with Engine("memory://", [mine, inner, theirs, asking, holding, contending], queues=queues) as engine:
        yield engine


@asynccontextmanager
async def seeing(engine: Engine, *programs: str, may: Any = EVERYTHING) -> AsyncIterator[httpx.AsyncClient]:
    """A caller who sees these programs."""
    access = Access("ann", may, programs=programs or None)
    async with client_of(engine.asgi(access=lambda request: access)) as http:
        yield http


async def test_the_source_of_a_child_is_that_of_its_root(engine: Engine) -> None:
    run = await engine.run(theirs("thing"), id="t", until="rest")
    async with seeing(engine, "inner") as http:
        assert (await http.get(f"runs/{run.run_id}?child=inner:0")).json()["program"] == "inner"
        for at in ({}, {"at": "1"}, {"at": "look:0"}):
            answer = await http.get(f"runs/{run.run_id}/source", params={"child": "inner:0", **at})
            assert (answer.status_code, answer.json()["code"]) == (404, "no_such_run"), at
            assert "hidden" not in answer.text
    async with seeing(engine, "inner", "theirs") as http:
        shown = await http.get(f"runs/{run.run_id}/source?child=inner:0")
        assert (shown.status_code, "secret" in shown.text) == (200, True)


async def test_a_child_shows_nothing_of_its_root(engine: Engine) -> None:
    run = await engine.run(asking("thing"), id="t", until="rest")
    address = f"runs/{run.run_id}"
    async with seeing(engine, "inner") as http:
        paths = ["", "/ops", "/journal", "/journal?whole=true", "/graph", "/values/run/input", "/values/run/output"]
        paths += [f"/values/run/request:{one.path}" for one in run.interrupts if one.kind == "approval"]
        paths += [f"/values/{seq}/{field}" for seq in range(20) for field in ("request", "input", "value", "op")]
        paths += [f"/ops/{one.path}" for one in run.interrupts]
        assert len(paths) > 85
        for path in paths:
            answer = await http.get(f"{address}{path}", params={"child": "inner:0"})
            assert "hidden thing" not in answer.text, (path, answer.text)
        for one in run.interrupts:
            if one.kind == "approval":
                told = await http.post(f"{address}/approvals/{one.path}/approve?child=inner:0", json={"payload": 1})
                assert told.json()["code"] == "not_asked", told.text
    async with seeing(engine, "asking") as http:
        (asked,) = [one.path for one in run.interrupts if one.kind == "approval"]
        assert "hidden" in (await http.get(f"{address}/values/run/request:{asked}")).text


async def test_locks_and_queues_are_those_of_runs_that_are_seen(engine: Engine) -> None:
    _ = await engine.run(mine("a"), id="a", until="rest", queue="ours", key="key-of-mine")
    _ = await engine.run(theirs("b"), id="b", until="rest", queue="hidden-queue", key="hidden-key")
    _ = await engine.start(theirs("c"), id="c", queue="ours", key="hidden-key")
    async with seeing(engine, "mine") as http:
        assert [one["key"] for one in (await http.get("locks")).json()["locks"]] == ["lock-of-mine"]
        assert [one["name"] for one in (await http.get("queues")).json()["queues"]] == ["ours"]
        ours = (await http.get("queues/ours")).json()
        assert ([one["key"] for one in ours["keys"]], ours["next"]) == (["key-of-mine"], [])
        assert (ours["queue"]["queued"], ours["queue"]["running"]) == (1, 1)
        other = (await http.get("queues/hidden-queue")).json()
        assert (other["keys"], other["queue"]["running"], other["queue"]["limits"]) == ([], 0, None)
        assert (await http.delete("locks/lock-of-theirs")).json() == {"locks": []}
        for path in ("locks", "queues", "queues/ours", "approvals", "orchestrators", "runs", "schedules", "programs"):
            assert "hidden" not in (await http.get(path)).text, path
            assert "theirs" not in (await http.get(path)).text, path
        assert (await http.get("doctor")).status_code == 403
    async with seeing(engine) as http:
        assert [one["key"] for one in (await http.get("locks")).json()["locks"]] == ["lock-of-mine", "lock-of-theirs"]
        assert [one["name"] for one in (await http.get("queues")).json()["queues"]] == ["hidden-queue", "ours"]
        assert (await http.delete("locks/lock-of-theirs")).json()["locks"][0]["key"] == "lock-of-theirs"


async def test_why_a_run_waits_names_no_run_that_is_not_seen(engine: Engine) -> None:
    _ = await engine.run(holding(), id="hidden-holder", until="rest")
    run = await engine.start(contending(), id="mine")
    for programs, seen in ((("contending",), False), ((), True)):
        async with seeing(engine, *programs) as http:
            async with asyncio.timeout(PATIENCE):
                while (why := (await http.get(f"runs/{run.run_id}")).json()["why"] or {}).get("kind") != "lock":
                    await asyncio.sleep(0)
            listed = (await http.get("runs", params={"why": "true", "program": "contending"})).json()["why"]
            for text in (why["text"], listed[run.run_id]["text"]):
                assert ("`shared`" in text, "hidden-holder" in text) == (True, seen), text


async def test_why_a_batch_waits_names_no_run_that_is_not_seen(engine: Engine) -> None:
    _ = await engine.run(holding(), id="hidden-holder", until="rest")
    batch = await engine.start_batch(contending, [[]])
    for programs, seen in ((("contending", "contending[]"), False), ((), True)):
        async with seeing(engine, *programs) as http:
            async with asyncio.timeout(PATIENCE):
                while "`shared`" not in (await http.get(f"runs/{batch.run_id}")).text:
                    await asyncio.sleep(0)
            listed = (await http.get("runs", params={"why": "true", "program": "contending[]"})).json()["why"]
            assert ("`shared`" in listed[batch.run_id]["text"]) is True
            assert ("hidden-holder" in listed[batch.run_id]["text"]) is seen


@pytest.mark.parametrize("reuse", ["return_existing", "reject_duplicate", "allow_if_failed", "terminate_running", None])
async def test_an_id_of_a_run_that_is_not_seen_is_taken(engine: Engine, reuse: str | None) -> None:
    run = await engine.run(theirs("thing"), id="t", until="rest")
    async with seeing(engine, "mine") as http:
        refused = await http.post("runs", json={"program": "mine", "args": ["x"], "id": "t", "reuse": reuse})
        assert (refused.status_code, refused.json()["code"]) == (409, "already_exists")
        assert run.run_id not in refused.text
        assert "theirs" not in refused.text
    assert (await engine.get("t")).run_id == run.run_id  # type: ignore[union-attr]
    assert (await engine.get("t")).status == "running"  # type: ignore[union-attr]


async def test_a_schedule_of_a_program_that_is_not_seen_is_not_replaced(engine: Engine) -> None:
    async with seeing(engine) as http:
        assert (await http.put("schedules/s", json=scheduled("theirs"))).status_code == 201
    async with seeing(engine, "mine") as http:
        refused = await http.put("schedules/s", json=scheduled("mine"))
        assert (refused.status_code, refused.json()["code"], "theirs" in refused.text) == (409, "already_exists", False)
        for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/trigger"), ("GET", "/next")):
            assert (await http.request(method, f"schedules/s{rest}")).status_code == 404, (method, rest)
        assert (await http.put("schedules/new", json=scheduled("theirs"))).status_code == 403
        assert (await http.put("schedules/s2", json=scheduled("mine"))).status_code == 201
        assert (await http.put("schedules/s2", json={**scheduled("mine"), "every": 7200})).status_code == 200
    assert (await (await engine.schedule("s")).view()).program == "theirs"


def scheduled(program: str) -> dict[str, Any]:
    return {"program": program, "args": ["x"], "every": 3600}


async def test_runs_of_perdure_itself_are_not_a_way_round(engine: Engine) -> None:
    """The run of a schedule takes messages that change the schedule; a bulk run has a caller of its own."""
    async with seeing(engine) as http:
        assert (await http.put("schedules/s", json=scheduled("theirs"))).status_code == 201
    _ = await engine.run(theirs("thing"), id="t", until="rest")
    run_id = (await engine.list(program="perdure.schedule"))[0].run_id
    async with seeing(engine, may=("read", "run", "approve", "debug")) as http:
        sent = {"payload": {"type": "Pause", "at": 0}}
        for what, body in ((f"signals/{CONTROL}", sent), ("cancel", {}), ("pause", {}), ("retry", {}), ("fork", {})):
            answer = await http.post(f"runs/{run_id}/{what}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (what, answer.text)
        asked = {"action": "cancel", "filter": {"program": "perdure.schedule"}, "dry_run": True}
        assert (await http.post("bulk", json=asked)).json()["ids"] == []
        named = {"action": "cancel", "ids": [run_id], "dry_run": True}
        assert (await http.post("bulk", json=named)).json()["ids"] == []
        for program in ("perdure.bulk", "perdure.schedule", "perdure.token", "perdure.step.x", "perdure."):
            for method, path in (("POST", "runs"), ("PUT", "schedules/x")):
                started = {"program": program} if path == "runs" else scheduled(program)
                answer = await http.request(method, path, json=started)
                assert answer.status_code in (403, 422), (program, path, answer.text)
    assert (await (await engine.schedule("s")).view()).paused is False


async def test_figures_of_all_runs_are_for_those_who_see_all(engine: Engine) -> None:
    access = Access("ann", (*EVERYTHING, "metrics"), programs=["mine"])
    async with client_of(engine.asgi(access=lambda request: access, metrics=True)) as http:
        for path in ("doctor", "metrics"):
            assert (await http.get(path)).status_code == 403, path


async def test_a_bulk_action_tells_of_no_secret(engine: Engine) -> None:
    _ = await engine._credentials.issue("token", "ci", may=["read"])
    async with seeing(engine) as http:
        for status in ([], ["running"], ["waiting"], ["completed"], ["queued"]):
            asked = {"action": "cancel", "filter": {"program": "perdure.token", "status": status}, "dry_run": True}
            assert (await http.post("bulk", json=asked)).json()["ids"] == []


async def test_a_stream_ends_when_what_its_caller_may_see_changes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.server.streams import StreamLimits

    seen = {"programs": ["mine", "theirs"]}
    application = engine.asgi(access=lambda request: Access("ann", programs=seen["programs"]))
    application.service.streams.limits = StreamLimits(comment_every=0.01)
    run = await engine.run(mine("a"), id="a", until="rest")
    for path in ("events", f"runs/{run.run_id}/events"):
        seen["programs"] = ["mine", "theirs"]
        async with Listener(application, path) as heard:
            await heard.until(lambda heard: b": still here" in heard.body)
            seen["programs"] = ["mine"]
            await heard.until(lambda heard: heard.ended)
            assert heard.events[-1][2]["code"] == "access_changed"
