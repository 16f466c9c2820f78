"""Engines do the same on every store: between engines and clients that share nothing but the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import (
    AlreadyFinished,
    Client,
    Engine,
    NotFound,
    Queue,
    Rate,
    Recovery,
    Retry,
    RunStatus,
    approval,
    call,
    child,
    connect,
    continue_as,
    lock,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, StepStarted
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.patience import PATIENCE

calls: list[str] = []
inside: list[str] = []
gates: dict[str, asyncio.Event] = {}

Place = str | Store


@pytest.fixture(autouse=True)
def fresh() -> None:
    calls.clear()
    inside.clear()
    gates.clear()


@step
async def note(what: str) -> str:
    calls.append(what)
    return what


@step
async def hold(what: str) -> str:
    calls.append(what)
    await gates.setdefault(what, asyncio.Event()).wait()
    return what


@step(retry=Retry(3, initial=0.001))
async def stumbling(what: str) -> str:
    calls.append(what)
    if len(calls) < 3:
        raise OSError("not yet")
    return what


@step
async def broken(what: str) -> str:
    raise ValueError(f"no {what}")


@step
async def alone(what: str) -> int:
    inside.append(what)
    await asyncio.sleep(0)
    together = len(inside)
    inside.remove(what)
    return together


@step
async def tokens(prompt: str) -> AsyncIterator[str]:
    for word in prompt.split():
        yield word


@step
async def bulk(size: int) -> str:
    return "x" * size


@workflow
async def quick(what: str) -> str:
    return await note(what)


@workflow
async def slow(what: str) -> str:
    return await hold(what)


@workflow
async def patient(name: str) -> str:
    await note(f"{name} begins")
    return f"{name}: {await wait_signal('go')}"


@workflow
async def family() -> list[Any]:
    first, second = await asyncio.gather(patient("a"), patient("b"))
    return [first, second, await child(quick("own"), id="kid"), bool(await child(quick("free"), detached=True))]


@workflow
async def asking() -> Any:
    return await approval("ship", request={"total": 3}, schema=bool)


@workflow
async def timed() -> str:
    await sleep(0.01)
    return await note("woken")


@workflow
async def answer(prompt: str) -> list[str]:
    return await tokens(prompt)


@workflow
async def large(size: int) -> int:
    text = await bulk(size)
    await wait_signal("go")
    return len(text)


@workflow
async def unsteady(what: str) -> str:
    return await stumbling(what)


@workflow
async def failing(what: str) -> str:
    return await broken(what)


@workflow
async def guarded(what: str) -> int:
    async with lock("till", timeout=PATIENCE):
        return await alone(what)


@workflow
async def counting(number: int, last: int) -> int:
    if number < last:
        continue_as(number + 1, last)
    return number


@workflow
async def two_steps(what: str) -> list[str]:
    return [await note(f"{what} 1"), await note(f"{what} 2")]


ALL: list[Any] = [quick, slow, patient, family, asking, timed, answer, large, unsteady, failing, guarded, counting]
ALL += [two_steps]


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


@asynccontextmanager
async def client_first(place: Place) -> AsyncIterator[Client]:
    """A client of a store that no engine serves yet; one has come and set it up."""
    async with Engine(place):
        pass
    async with connect(place) as client:
        yield client


async def test_signals_and_children_between_processes(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        run = await client.start(call("family"), id="it")
        await eventually(lambda: len(calls) == 2)
        _ = await client.signal("it/patient:0", "go", 1)
        _ = await client.signal("it/patient:1", "go", 2)
        assert await run.result(PATIENCE) == ["a: 1", "b: 2", "own", True]
        kid = await client.get("kid")
        assert kid is not None
        assert kid.output == "own"
        await eventually(lambda: "free" in calls)


async def test_a_signal_before_its_wait_is_kept(place: Place) -> None:
    async with client_first(place) as client:
        run = await client.start(call("patient", "it"), id="it")
        _ = await client.signal("it", "go", 5)
        async with Engine(place, ALL):
            assert await run.result(PATIENCE) == "it: 5"


async def test_approvals_are_seen_and_answered_elsewhere(place: Place) -> None:
    async with Engine(place, ALL) as engine, connect(place) as client:
        question = await engine.start(asking(), id="question")
        async with asyncio.timeout(PATIENCE):
            while not await client.approvals():
                await asyncio.sleep(0)
        _ = await client.approve("question", "ship", True)
        assert await question.result(PATIENCE) is True


async def test_timers_streams_and_large_values(place: Place) -> None:
    async with Engine(place, ALL) as engine, connect(place) as client:
        assert await (await client.start(call("timed"))).result(PATIENCE) == "woken"
        run = await engine.start(answer("one two three"), id="words")
        assert await run.result(PATIENCE) == ["one", "two", "three"]
        assert [chunk.value async for chunk in client.stream("words")] == ["one", "two", "three"]
        big = await client.start(call("large", 2_000_000), id="big")
        _ = await client.signal("big", "go")
        assert await big.result(PATIENCE) == 2_000_000


async def test_queues_hold_their_limits_between_engines(place: Place) -> None:
    two = Queue("mail", concurrency=2)
    async with (
        Engine(place, ALL, name="one", queues=[two]),
        Engine(place, ALL, name="two", queues=[two]),
        connect(place) as client,
    ):
        runs = [await client.start(call("slow", f"r{i}"), queue="mail", key="ab"[i % 2]) for i in range(6)]
        for done in range(6):
            await eventually(lambda done=done: len(calls) == min(6, done + 2))  # type: ignore[misc]
            [view] = await client.queues()
            assert (view.running, view.queued) == (min(2, 6 - done), max(0, 4 - done))
            gates[calls[done]].set()
            _ = await runs[int(calls[done][1:])].result(PATIENCE)


async def test_a_queue_begins_by_priority_and_keeps_its_rate(place: Place) -> None:
    async with client_first(place) as client:
        for number, priority in enumerate([0, 5, 1]):
            _ = await client.start(call("quick", f"r{number}"), queue="mail", priority=priority)
        async with Engine(place, ALL, queues=[Queue("mail", concurrency=1, rate=Rate(2, per=3600.0))]):
            await eventually(lambda: len(calls) == 2)
            async with asyncio.timeout(PATIENCE):
                while [(view.running, view.queued) for view in await client.queues()] != [(0, 1)]:
                    await asyncio.sleep(0)
    assert calls == ["r1", "r2"]


async def test_a_schedule_starts_runs(place: Place) -> None:
    async with Engine(place, ALL) as engine, connect(place) as client:
        _ = await engine.schedule("s", quick("tick"), every=0.05)
        await eventually(lambda: len(calls) >= 2)
        assert [view.id for view in await client.schedules()] == ["s"]
        runs = [run for run in await client.list(tags={"schedule": "s"}) if run.program == "quick"]
        assert len(runs) >= 2


async def test_a_lock_has_one_holder_among_engines(place: Place) -> None:
    async with Engine(place, ALL, name="one") as one, Engine(place, ALL, name="two") as two:
        runs = [await engine.start(guarded(f"{n}")) for n in range(4) for engine in (one, two)]
        assert [await run.result(PATIENCE) for run in runs] == [1] * 8


async def test_runs_of_an_engine_that_left_go_on_in_another(place: Place) -> None:
    async with Engine(place, ALL, name="one", recovery=Recovery(grace=0)) as first:
        _ = await first.start(slow("held"), id="it")
        await eventually(lambda: calls == ["held"])
    async with Engine(place, ALL, name="two") as second:
        await eventually(lambda: len(calls) == 2)
        gates["held"].set()
        handle = await second.start(slow("held"), id="it")
        assert await handle.result(PATIENCE) == "held"


async def test_an_engine_takes_over_from_one_that_leaves_beside_it(place: Place) -> None:
    async with Engine(place, ALL, name="two"):
        async with Engine(place, ALL, name="one", recovery=Recovery(grace=0)) as first:
            run_id = (await first.start(slow("held"), id="it")).run_id
            await eventually(lambda: calls == ["held"])
        await eventually(lambda: len(calls) == 2)
        gates["held"].set()
        async with connect(place) as client:
            assert (await client.watch.wait_for_end(run_id)).status is RunStatus.COMPLETED


async def test_a_run_is_cancelled_from_elsewhere(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        run = await client.start(call("slow", "held"), id="it")
        await eventually(lambda: calls == ["held"])
        _ = await client.cancel("it", "enough")
        assert (await run.outcome(PATIENCE)).status is RunStatus.CANCELLED
        view = await client.get("it")
        assert view is not None
        assert view.reason == "enough"
        assert isinstance(await client.cancel("it"), AlreadyFinished)
        assert await client.signal("nobody", "go") == NotFound()


async def test_a_run_is_paused_and_resumed_from_elsewhere(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        run = await client.start(call("patient", "it"), id="it")
        await eventually(lambda: len(calls) == 1)
        _ = await client.pause("it")
        _ = await client.signal("it", "go", 1)
        assert await run.status() is RunStatus.PAUSED
        _ = await client.resume("it")
        assert await run.result(PATIENCE) == "it: 1"


async def test_steps_are_tried_again_and_failures_are_told(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        assert await (await client.start(call("unsteady", "it"))).result(PATIENCE) == "it"
        assert len(calls) == 3
        outcome = await (await client.start(call("failing", "luck"))).outcome(PATIENCE)
        assert outcome.status is RunStatus.FAILED
        assert "no luck" in str(outcome.error)


async def test_an_id_is_started_once_whoever_starts_it(place: Place) -> None:
    async with Engine(place, ALL) as engine, connect(place) as client:
        starts = [(client if n % 2 else engine).start(quick("it"), id="it") for n in range(10)]
        runs = await asyncio.gather(*starts)
        assert len({run.run_id for run in runs}) == 1
        assert [await run.result(PATIENCE) for run in runs] == ["it"] * 10
    assert calls == ["it"]


async def test_a_run_is_followed_from_elsewhere_to_its_end(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        _ = await client.start(call("slow", "held"), id="it")
        seen = []
        async with asyncio.timeout(PATIENCE):
            async for entry in client.follow("it"):
                seen.append(entry)
                if isinstance(entry.event, StepStarted):
                    await eventually(lambda: "held" in gates)
                    gates["held"].set()
        assert [entry.seq for entry in seen] == list(range(len(seen)))
        assert isinstance(seen[-1].event, RunFinished)


async def test_a_run_goes_on_as_another_and_is_forked(place: Place) -> None:
    async with Engine(place, ALL), connect(place) as client:
        assert await (await client.start(call("counting", 0, 3), id="count")).result(PATIENCE) == 3
        assert await (await client.start(call("two_steps", "a"), id="original")).result(PATIENCE) == ["a 1", "a 2"]
        fork = await client.fork("original", values={"note:0": "other"}, new_id="fork")
        assert await fork.result(PATIENCE) == ["other", "a 2"]
    assert calls == ["a 1", "a 2", "a 2"]


async def test_a_capsule_of_a_run_goes_from_store_to_store(place: Place) -> None:
    async with Engine(place, ALL) as engine:
        _ = await (await engine.start(quick("it"), id="it")).result(PATIENCE)
        capsule = await engine.export("it")
    async with Engine(MemoryStore(), ALL) as elsewhere:
        view = await elsewhere.import_run(capsule)
        assert (view.id, view.output) == ("it", "it")


async def test_ended_runs_are_pruned_with_their_values(place: Place) -> None:
    async with Engine(place, ALL) as engine:
        for number in range(3):
            run = await engine.start(large(1_000_000 + number), id=f"r{number}")
            _ = await engine.signal(f"r{number}", "go")
            _ = await run.result(PATIENCE)
        open_run = await engine.start(patient("open"), id="open")
        report = await engine.prune(older_than=0)
        assert report.runs == 3
        assert [view.id for view in await engine.list()] == ["open"]
        _ = await engine.signal("open", "go", 1)
        assert await open_run.result(PATIENCE) == "open: 1"
