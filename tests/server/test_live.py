"""Streams: which runs change, what happens in one; nothing is missed, nothing comes twice, and all of it has limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from perdure import Engine, connect
from perdure.server import Access, Tokens, app
from perdure.server.changes import Changes, ChangesConfig
from perdure.server.streams import EventStream, Message, StreamLimits, Streams
from tests.patience import PATIENCE
from tests.server.conftest import client_of
from tests.server.listener import Listener
from tests.server.programs import order, quick, waits

AT_ONCE = ChangesConfig(interval=0.0, longest=1e9)


def at_once(application: Any) -> Any:
    """An application that tells of changes without a pause."""
    service = application.service
    service.changes = Changes(service.client, AT_ONCE)
    return application


async def test_the_store_tells_which_runs_have_changed(engine: Engine) -> None:
    server = at_once(engine.asgi())
    async with Listener(server, "events") as heard:
        await heard.until(lambda heard: len(heard.events) == 2)
        assert heard.kinds() == ["hello", "changed"]
        assert heard.events[1][2] == {"run_ids": [], "more": True}  # at the first look nothing is known
        run = await engine.start(waits())
        await heard.until(lambda heard: any(run.run_id in data.get("run_ids", ()) for _, _, data in heard.events))
        before = len(heard.events)
        _ = await run.signal("go")
        await heard.until(
            lambda heard: any(run.run_id in data.get("run_ids", ()) for _, _, data in heard.events[before:])
        )
    assert heard.headers["cache-control"] == "no-store, no-transform"
    assert heard.headers["x-accel-buffering"] == "no"
    assert heard.body.startswith(b"retry: 2000\n\n")


async def test_a_listener_that_comes_back_misses_no_change(engine: Engine) -> None:
    server = at_once(engine.asgi())
    async with Listener(server, "events") as other:
        await other.until(lambda heard: len(heard.events) == 2)
        async with Listener(server, "events") as heard:
            await heard.until(lambda heard: heard.kinds() == ["hello"])
        last = heard.events[-1][0]
        run = await engine.start(quick(1))
        await run.result()
        await other.until(lambda heard: any(run.run_id in data.get("run_ids", ()) for _, _, data in heard.events))
        async with Listener(server, "events", last_event_id=last) as again:
            await again.until(lambda heard: any(run.run_id in data.get("run_ids", ()) for _, _, data in heard.events))
            assert "reset" not in again.kinds()
        for forgotten in ("00000000-1", "nothing", f"{last.partition('-')[0]}-999"):
            async with Listener(server, "events", last_event_id=forgotten) as late:
                await late.until(lambda heard: "reset" in heard.kinds())


async def test_a_listener_hears_only_of_programs_that_it_may_see(engine: Engine) -> None:
    server = at_once(engine.asgi(access=lambda request: Access("ann", programs=["quick"])))
    async with Listener(server, "events") as heard:
        await heard.until(lambda heard: len(heard.events) == 2)
        hidden = await engine.start(waits())
        shown = await engine.start(quick(1))
        await heard.until(lambda heard: any(shown.run_id in data.get("run_ids", ()) for _, _, data in heard.events))
        assert hidden.run_id.encode() not in heard.body


async def test_all_listeners_cost_one_watcher_and_none_of_them_none(engine: Engine) -> None:
    server = at_once(engine.asgi())
    looks: list[str] = []
    engine.store.trace(lambda what: looks.append(what) if what == "list" else None)
    _ = await engine.run(quick(1))
    assert looks == []
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(Listener(server, "events")) for _ in range(20)]
        for heard in listeners:
            await heard.until(lambda heard: "changed" in heard.kinds())
        assert len(looks) == 1
        run = await engine.run(quick(2))
        for heard in listeners:
            await heard.until(lambda heard: run.run_id.encode() in heard.body)
        assert len(looks) <= 4
    before = len(looks)
    subscription = server.service.changes._subscription
    async with asyncio.timeout(PATIENCE):
        while subscription in subscription._feed._subscriptions:
            await asyncio.sleep(0.01)
    _ = await engine.run(quick(3))
    assert len(looks) == before


async def test_what_another_process_writes_is_told_too(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [quick, waits]) as engine, connect(url) as client:
        server = at_once(client.asgi())
        async with Listener(server, "events") as heard:
            await heard.until(lambda heard: "changed" in heard.kinds())
            run = await engine.start(waits())
            await heard.until(lambda heard: run.run_id.encode() in heard.body)
            async with Listener(server, f"runs/{run.run_id}/events") as followed:
                _ = await engine.signal(run.id, "go", 7)
                await followed.until(lambda heard: heard.ended)
            assert followed.events[-1] == ("", "end", {"status": "completed", "continued_as": None})


# --- one run ---------------------------------------------------------------------------------------------------------


async def test_a_stream_that_is_resumed_anywhere_has_every_event_once(engine: Engine) -> None:
    run = await engine.run(order(1), until="rest")
    server = engine.asgi()
    seen: list[str] = []
    for _ in range(4):
        query = f"after={seen[-1]}" if seen else ""
        async with Listener(server, f"runs/{run.run_id}/events", query) as heard:
            await heard.until(lambda heard: bool(heard.events))
        seen.append(heard.events[0][0])
    async with Listener(server, f"runs/{run.run_id}/events", last_event_id=seen[-1]) as heard:
        _ = await engine.approve(run.id, "ship", 1)
        await heard.until(lambda heard: heard.ended)
    seen += [id for id, kind, _ in heard.events if kind == "entry"]
    assert seen == [str(number) for number in range(len(seen))]
    assert seen[-1] == str(len(await engine.journal(run.id)) - 1)


async def test_a_listener_that_leaves_leaves_nothing_behind(engine: Engine) -> None:
    run = await engine.run(order(1), until="rest")
    server = engine.asgi()
    tasks = len(asyncio.all_tasks())
    async with AsyncExitStack() as stack:
        for _ in range(50):
            heard = await stack.enter_async_context(Listener(server, f"runs/{run.run_id}/events"))
            await heard.until(lambda heard: bool(heard.events))
        assert server.service.streams.open == 50
    assert server.service.streams.open == 0
    assert engine._base.followers.followed == {}
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) <= tasks + 1


# --- limits ----------------------------------------------------------------------------------------------------------


async def test_there_are_so_many_streams_at_once_and_the_rest_is_told_to_wait(engine: Engine) -> None:
    run = await engine.run(order(1), until="rest")
    server = engine.asgi()
    async with AsyncExitStack() as stack:
        listeners = [Listener(server, f"runs/{run.run_id}/events") for _ in range(1000)]
        for one in listeners:
            _ = await stack.enter_async_context(one)
        for one in listeners:
            await one.until(lambda heard: heard.status != 0)
        served = [one for one in listeners if one.status == 200]
        refused = [one for one in listeners if one.status == 503]
        assert (len(served), len(refused)) == (256, 744)
        assert {one.headers["retry-after"] for one in refused} == {"5"}
        async with client_of(server) as http:
            assert (await http.get("runs")).status_code == 200
        _ = await engine.run(quick(1))
    async with Listener(server, f"runs/{run.run_id}/events") as heard:
        await heard.until(lambda heard: heard.status == 200)


async def test_one_caller_does_not_take_the_streams_of_the_others(engine: Engine) -> None:
    server = engine.asgi(access=lambda request: Access(request.headers["x-user"]))
    async with AsyncExitStack() as stack:
        greedy = [Listener(server, "events", x_user="eve") for _ in range(70)]
        for one in greedy:
            _ = await stack.enter_async_context(one)
            await one.until(lambda heard: heard.status != 0)
        assert [one.status for one in greedy] == [200] * 64 + [503] * 6
        other = await stack.enter_async_context(Listener(server, "events", x_user="ann"))
        await other.until(lambda heard: heard.status == 200)
    async with Listener(server, "events", x_user="eve") as heard:
        await heard.until(lambda heard: heard.status == 200)


async def test_a_stream_shows_that_it_is_alive_and_ends_in_time(engine: Engine) -> None:
    run = await engine.run(order(1), until="rest")
    server = engine.asgi()
    server.service.streams = Streams(StreamLimits(comment_every=0.001, longest=0.1))
    async with Listener(server, f"runs/{run.run_id}/events") as heard:
        await heard.until(lambda heard: heard.ended)
    assert b": still here\n\n" in heard.body
    assert "end" not in heard.kinds()


async def test_a_stream_ends_when_its_caller_may_no_longer_see_it(engine: Engine) -> None:
    run = await engine.run(order(1), until="rest")
    token = await engine._credentials.issue("token", "ann", may=["read"])
    server = app(engine, access=Tokens(engine))
    server.service.streams = Streams(StreamLimits(comment_every=0.001))
    path, bearer = f"runs/{run.run_id}/events", f"Bearer {token.text}"
    async with Listener(server, path, authorization=bearer) as heard:
        await heard.until(lambda heard: bool(heard.events))
        _ = await engine._credentials.revoke("token", "ann")
        await heard.until(lambda heard: heard.ended)
    assert (heard.events[-1][1], heard.events[-1][2]["code"]) == ("problem", "unauthorized")


async def test_a_client_that_does_not_read_holds_up_the_reading_of_the_store() -> None:
    made = 0

    async def messages() -> AsyncIterator[Message]:
        nonlocal made
        while True:
            made += 1
            yield Message(b"{}")
            await asyncio.sleep(0)

    async def admit() -> None:
        pass

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        streams.take()
        await EventStream(streams, messages(), admit)(scope, receive, send)

    streams = Streams(StreamLimits(behind=10))
    async with Listener(stream, "x") as heard:
        await heard.until(lambda heard: len(heard.events) > 3)
        heard.reads.clear()
        before = -1
        while made != before:
            before = made
            for _ in range(50):
                await asyncio.sleep(0)
        assert made <= len(heard.events) + 13
        heard.reads.set()
        await heard.until(lambda heard: len(heard.events) > before)


async def test_an_error_in_a_stream_is_a_problem_in_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await engine.run(order(1), until="rest")
    server = engine.asgi()

    def broken(id: str, start: int = 0) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(server.service.client, "follow", broken)
    async with Listener(server, f"runs/{run.run_id}/events") as heard:
        await heard.until(lambda heard: heard.ended)
    assert (heard.events[-1][1], heard.events[-1][2]["code"]) == ("problem", "bug")
    assert b"Traceback" not in heard.body


async def test_streams_end_when_the_engine_is_left() -> None:
    async with Engine("memory://", [order]) as engine:
        run = await engine.run(order(1), until="rest")
        heard = await Listener(engine.asgi(), f"runs/{run.run_id}/events").__aenter__()
        await heard.until(lambda heard: bool(heard.events))
    await heard.until(lambda heard: heard.ended)
    assert heard.kinds()[-1] == "problem"
    await heard.__aexit__()
