"""Why a run does not go on: each cause in words, for one run and for a page, and read with few statements."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Engine,
    Queue,
    Recovery,
    Retry,
    Start,
    Why,
    approval,
    call,
    connect,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import AttemptFailed, StepStarted, WaitOpened
from perdure.orchestrator.membership import REGISTRATION_SIZE
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, holder
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, Recorded, eventually
from tests.services.plugin import on_two_stores


@workflow
async def waits() -> Any:
    return await wait_signal("go")


@workflow
async def waits_for_a_while() -> Any:
    return await wait_signal("go", timeout=timedelta(hours=1))


@workflow
async def asks() -> Any:
    return await approval("ship", approvers=["group:legal", "ann"])


@workflow
async def naps() -> None:
    await sleep(timedelta(days=3))


@step(retry=Retry(attempts=5, initial=20, jitter=False))
async def charge() -> None:
    raise ConnectionError("the bank is closed")


@workflow
async def pays() -> None:
    await charge()


@workflow
async def parent() -> None:
    await waits()


@workflow
async def many() -> None:
    await asyncio.gather(waits(), asks(), naps())


@workflow
async def holds() -> Any:
    async with lock("till"):
        return await wait_signal("go")


@step
async def hang() -> None:
    await asyncio.Event().wait()


@workflow
async def works() -> None:
    await hang()


@step
async def refuse() -> None:
    raise ValueError("no stock\nat all")


@workflow
async def fails() -> None:
    await refuse()


ALL = [waits, waits_for_a_while, asks, naps, pays, parent, many, holds, works, fails]


async def registered(client: Any, name: str) -> None:
    """Wait until an orchestrator has said which programs it has; no start waits for that."""
    async with asyncio.timeout(PATIENCE):
        while not await client.store.leases.live(REGISTRATION + name, client.clock.now()):
            await asyncio.sleep(0.01)


async def said(client: Any, id: str) -> str:
    """Why a run does not go on; a page says the same."""
    why = await client.why(id)
    [run] = [run for run in await client.list(id_prefix=id) if run.id == id]
    assert (await client.reasons([run])).get(run.run_id) == why
    return str(why)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (waits, "for signal `go`"),
        (asks, "for approval `ship` from group:legal or ann"),
        (parent, "for signal `go` in waits:0"),
    ],
)
@on_two_stores
async def test_a_run_that_waits_says_what_for(any_store: Store, program: Any, text: str) -> None:
    recorded = Recorded()
    async with Engine(any_store, ALL, on_commit=recorded) as engine:
        _ = await engine.start(program(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        assert await said(engine, "it") == text


async def test_a_wait_says_until_when() -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine("memory://", ALL, clock=clock, on_commit=recorded) as engine:
        for program in (waits_for_a_while, naps):
            _ = await engine.start(program(), id=program.name)
        await eventually(lambda: sum(isinstance(e, WaitOpened) for e in recorded.events) == 2)
        why = await engine.why("waits_for_a_while")
        assert why is not None
        assert why.text.startswith("for signal `go`, at most until ")
        assert why.until is not None
        assert why.until.timestamp() == clock.now() + 3600
        nap = await engine.why("naps")
        assert nap is not None
        assert (nap.kind, nap.until) == ("timer", nap.until)
        assert nap.text.startswith("until 20")  # another day, with its date


async def test_a_retry_says_which_of_how_many_when_and_after_what(any_store: Store) -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine(any_store, ALL, clock=clock, on_commit=recorded) as engine:
        _ = await engine.start(pays(), id="it")
        await recorded.until(lambda e: isinstance(e, AttemptFailed))
        clock.advance(8)
        assert await said(engine, "it") == "retry 2 of 5 in 12 s after ConnectionError"


async def test_several_reasons_are_counted() -> None:
    recorded = Recorded()
    async with Engine("memory://", ALL, on_commit=recorded) as engine:
        _ = await engine.start(many(), id="it")
        await eventually(lambda: sum(isinstance(e, WaitOpened) for e in recorded.events) == 3)
        assert str(await engine.why("it")).endswith("(and 2 more)")
        by_child = {run.program: run for run in await engine.list(root="it")}
        reasons = await engine.reasons([*by_child.values()])
        assert str(reasons[by_child["asks"].run_id]) == "for approval `ship` from group:legal or ann"
        assert reasons[by_child["naps"].run_id].kind == "timer"


async def test_a_branch_is_named_only_if_the_program_has_named_it() -> None:
    async def audit() -> Any:
        return await wait_signal("checked")

    @workflow
    async def branches() -> None:
        await asyncio.gather(audit(), wait_signal("paid"))

    @workflow
    async def plain() -> None:
        await asyncio.gather(wait_signal("paid"), sleep(60))

    recorded = Recorded()
    async with Engine("memory://", [branches, plain], on_commit=recorded) as engine:
        _ = await engine.start(branches(), id="branches")
        _ = await engine.start(plain(), id="plain")
        await eventually(lambda: sum(isinstance(e, WaitOpened) for e in recorded.events) == 4)
        assert await said(engine, "branches") == "for signal `checked` in audit:0 (and 1 more)"
        assert await said(engine, "plain") == "for signal `paid` (and 1 more)"


async def test_a_run_that_waits_for_a_lock_says_who_holds_it(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, ALL, on_commit=recorded) as engine:
        first = await engine.start(holds(), id="first")
        await recorded.until(lambda e: isinstance(e, WaitOpened) and e.kind == "signal")
        _ = await engine.start(holds(), id="second")
        await eventually(lambda: sum(isinstance(e, WaitOpened) and e.kind == "lock" for e in recorded.events) == 2)
        assert await said(engine, "second") == "lock `till` held by run first"
        [held] = await engine.locks.list()
        assert (held.id, held.run_id) == ("first", first.run_id)
        assert await said(engine, "first") == "for signal `go`"
        assert held.owner.startswith(f"{first.run_id}/")


async def test_a_queued_run_says_how_many_come_before_it(any_store: Store) -> None:
    async with Engine(any_store, ALL, queues=[Queue("mail", concurrency=1)]) as engine:
        for n in range(4):
            _ = await engine.start(naps(), id=f"n{n}", queue="mail")
        while (await engine.queues())[0].running == 0:
            await asyncio.sleep(0)
        assert await said(engine, "n1") == "next in queue `mail` (1 running)"
        assert await said(engine, "n3") == "queued behind 2 in `mail`"
        _ = await engine.start(naps(), id="urgent", queue="mail", priority=9)
        assert await said(engine, "n3") == "queued behind 3 in `mail`"
        _ = await engine.start(naps(), id="later", queue="mail", delay=60)
        assert (await said(engine, "later")).startswith("delayed until ")


async def test_runs_that_were_queued_together_say_their_places(any_store: Store) -> None:
    async with Engine(any_store, ALL, queues=[Queue("mail", concurrency=1)]) as engine:
        await engine.start_many(Start(naps(), id=f"n{n}", queue="mail") for n in range(5))
        while (await engine.queues())[0].running == 0:
            await asyncio.sleep(0)
        page = await engine.list(status="queued")
        reasons = await engine.reasons(page)
        assert [str(reasons[run.run_id]) for run in page] == [
            "queued behind 3 in `mail`",
            "queued behind 2 in `mail`",
            "queued behind 1 in `mail`",
            "next in queue `mail` (1 running)",
        ]


async def test_a_queue_that_is_too_long_to_be_read_is_counted_as_far_as_it_was(
    any_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.client.queries.QUEUED_READ", 3)
    async with Engine(any_store, ALL, queues=[Queue("mail", concurrency=1)]) as engine:
        await engine.start_many(Start(naps(), id=f"n{n}", queue="mail") for n in range(10))
        while (await engine.queues())[0].running == 0:
            await asyncio.sleep(0)
        assert {id: await said(engine, id) for id in ("n1", "n3", "n5", "n9")} == {
            "n1": "next in queue `mail` (1 running)",
            "n3": "queued behind 2 in `mail`",
            "n5": "queued behind at least 3 in `mail`",
            "n9": "queued behind at least 3 in `mail`",
        }


async def test_a_run_whose_program_nobody_has_says_so(any_store: Store) -> None:
    async with Engine(any_store, []):
        pass
    async with connect(any_store) as client:
        _ = await client.start(call("fulfil"), id="it")
        assert await said(client, "it") == "no worker has `fulfil`: none is alive"
        _ = await client.start(call("fulfil"), id="queued", queue="mail")
        assert await said(client, "queued") == "no worker has `fulfil`: none is alive"


async def test_a_run_whose_program_no_living_worker_has_says_so(
    any_store: Store, request: pytest.FixtureRequest
) -> None:
    other = any_store
    if not isinstance(any_store, MemoryStore):
        # What a store says of its URL has no password.
        url = request.getfixturevalue("postgres_url") if "postgresql" in any_store.url else any_store.url
        other = open_store(url)
    async with Engine(any_store, [waits], name="w1"), connect(other) as client:
        await registered(client, "w1")
        _ = await client.start(call("fulfil"), id="it")
        assert await said(client, "it") == "no worker has `fulfil` (alive: w1)"
    async with connect(any_store) as client:
        assert await said(client, "it") == "no worker has `fulfil`: none is alive"


async def test_a_queue_that_no_worker_serves_is_named() -> None:
    store = MemoryStore()
    async with Engine(store, [waits], name="w1", serves=["mail"]) as engine:
        await registered(engine, "w1")
        _ = await engine.start(waits(), id="it", queue="films")
        assert await said(engine, "it") == "no worker has `waits` of queue `films` (alive: w1)"


async def test_of_a_worker_with_very_many_programs_nothing_is_claimed() -> None:
    def named(n: int) -> Any:
        @workflow(name=f"{n}" + "x" * 150)
        async def long_named() -> None: ...

        return long_named

    programs = [named(n) for n in range(REGISTRATION_SIZE // 150 + 1)]
    store = MemoryStore()
    async with Engine(store, programs, name="w1"), connect(store) as client:
        await registered(client, "w1")
        _ = await client.start(call("fulfil"), id="it")
        assert (await said(client, "it")).startswith("no worker has taken it for ")


async def test_a_run_whose_owner_is_gone_says_so(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, ALL, on_commit=recorded, name="w1", recovery=AT_ONCE) as engine:
        _ = await engine.start(works(), id="it")
        await recorded.until(lambda e: isinstance(e, StepStarted))
        assert await engine.why("it") is None
        # As if its process had been killed.
        session = engine._orchestrator.session.id  # type: ignore[union-attr]
        await engine.store.leases.release(ORCHESTRATOR + "w1", holder("w1", session))
        assert await said(engine, "it") == "owner w1 gone, no worker has `works`: none is alive"


async def test_an_owner_that_misses_heartbeats_is_gone_and_its_time_is_told() -> None:
    clock, store, recorded = FakeClock(), MemoryStore(), Recorded()
    recovery = Recovery(lease=30, grace=0)
    async with Engine(store, ALL, clock=clock, on_commit=recorded, name="w1", recovery=recovery) as engine:
        _ = await engine.start(works(), id="it")
        await recorded.until(lambda e: isinstance(e, StepStarted))
        await registered(engine, "w1")
        clock.advance(12)
        assert await engine.why("it") is None
        clock.advance(6)
        why = await engine.why("it")
        assert why == Why("owner", "owner w1 gone, 12 s left", why.until if why else None)


async def test_what_is_due_and_not_taken_up_says_so(any_store: Store) -> None:
    clock, recorded = FakeClock(), Recorded()
    async with Engine(any_store, ALL, clock=clock, on_commit=recorded, name="w1") as engine:
        _ = await engine.start(naps(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
    clock.advance(3 * 86400 + 40)
    async with connect(any_store, clock=clock) as client:
        assert await said(client, "it") == "due 40 s ago, no worker has `naps`: none is alive"
        await client.store.leases.acquire(ORCHESTRATOR + "w9", holder("w9", "s"), 30, clock.now())
        assert await said(client, "it") == "due 40 s ago, no worker has taken it"


async def test_a_parked_a_paused_and_a_failed_run_say_their_reason(any_store: Store) -> None:
    recorded = Recorded()
    async with Engine(any_store, ALL, on_commit=recorded, name="w") as engine:
        _ = await engine.start(waits(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        await engine.pause("it")
        assert await said(engine, "it") == "until it is resumed"
        await engine.run(fails(), id="failed")
        assert await said(engine, "failed") == "ValueError: no stock"
        await engine.cancel("it", "not wanted")
        await eventually_ended(engine, "it")
        assert await said(engine, "it") == "not wanted"

    @workflow(name="waits")
    async def changed() -> Any:
        await sleep(1)
        return await wait_signal("go")

    async with Engine(any_store, ALL, name="w") as engine:
        _ = await engine.start(waits(), id="old")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
    async with Engine(any_store, [changed], name="w") as engine:
        await engine.signal("old", "go")
        while (view := await engine.get("old")) is None or view.parked is None:
            await asyncio.sleep(0)
        assert (await said(engine, "old")).startswith("diverged: ")


async def eventually_ended(engine: Engine, id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (view := await engine.get(id)) is not None and not view.status.finished:
            await asyncio.sleep(0)


@step(queue="gpu")
async def render(frame: int) -> int:
    return frame


@workflow
async def film(frame: int) -> int:
    return await render(frame)


async def told(client: Any, id: str, text: str) -> Why:
    """The reason of a run, once it is this one."""
    async with asyncio.timeout(PATIENCE):
        while text not in str(why := await client.why(id)):
            await asyncio.sleep(0.01)
    return why  # type: ignore[no-any-return]


@on_two_stores
async def test_a_run_that_waits_for_a_remote_step_says_why_nothing_executes_it(any_store: Store) -> None:
    async with Engine(any_store, [film], name="w1") as engine:
        _ = await engine.start(film(1), id="it")
        await registered(engine, "w1")
        why = await told(engine, "it", ": ")
        assert str(why) == "for step render:0 in queue `gpu`: no worker has the step `render` (alive: w1)"
        assert why.kind == "remote"
        reasons = await engine.reasons(await engine.list())
        assert str(why) in map(str, reasons.values())


@on_two_stores
async def test_a_batch_says_what_its_rows_wait_for(any_store: Store) -> None:
    async with Engine(any_store, [*ALL, film], name="w1") as engine:
        _ = await engine.start_batch(waits_for_a_while, [[], []], id="rows")
        why = await told(engine, "rows", "(and 1 more)")
        assert str(why).startswith("for the items of row:0[0-1]: for signal `go` in row:0[0], at most until ")
        assert (why.kind, why.until is not None) == ("remote", True)
        # Through both: the run of the rows waits for the run of a step, which no worker has.
        _ = await engine.start_batch(film, [[1]], id="films")
        why = await told(engine, "films", "no worker has the step `render`")
        assert str(why).startswith("for the items of row:0[0-0]: for step row:0[0]/render:0 in queue `gpu`: ")


async def test_a_batch_without_a_worker_names_the_program_of_its_rows() -> None:
    store = MemoryStore()
    async with Engine(store, [], name="w1") as engine:
        await registered(engine, "w1")
        async with connect(store) as client:
            _ = await client.start_batch(film, [[1]], id="films")
            assert str(await told(client, "films", "no worker")) == "no worker has `film` (alive: w1)"


async def test_a_page_is_explained_with_few_statements_however_many_runs_it_has() -> None:
    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, ALL, on_commit=recorded) as engine:
        for n in range(30):
            _ = await engine.start(waits(), id=f"n{n}")
        await eventually(lambda: sum(isinstance(e, WaitOpened) for e in recorded.events) == 30)
        page = await engine.list()
        asked: list[str] = []
        for port, name in ((store.journal, "read_many"), (store.runs, "get"), (store.leases, "live")):
            _count(port, name, asked)
        reasons = await engine.reasons(page)
        assert asked == ["read_many", "live", "live"]
    assert {str(why) for why in reasons.values()} == {"for signal `go`"}
    assert len(reasons) == 30


async def test_journals_that_are_too_large_for_a_list_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    async with Engine("memory://", ALL, on_commit=recorded) as engine:
        _ = await engine.start(waits(), id="it")
        await recorded.until(lambda e: isinstance(e, WaitOpened))
        monkeypatch.setattr("perdure.client.queries.JOURNALS_READ", 10)
        reasons = await engine.reasons(await engine.list())
        assert ["was not read" in str(why) for why in reasons.values()] == [True]
        assert str(await engine.why("it")) == "for signal `go`"


def _count(port: Any, name: str, asked: list[str]) -> None:
    original = getattr(port, name)

    async def counted(*args: Any) -> Any:
        asked.append(name)
        return await original(*args)

    setattr(port, name, counted)
