"""Runs without an end: one incarnation after the other under one id, with nothing lost between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import (
    Accepted,
    AlreadyFinished,
    Cancelled,
    Client,
    Duplicate,
    Engine,
    Finished,
    NotDecodable,
    NotFound,
    RunStatus,
    RunView,
    UsageError,
    approval,
    call,
    child,
    connect,
    continue_as,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, RunStarted, WaitOpened
from perdure.testing.simulation import STORMY, Crash, Simulation
from tests.patience import PATIENCE

called: list[int] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def note(n: int) -> int:
    called.append(n)
    return n


@workflow
async def count(n: int, until: int) -> int:
    await note(n)
    if n < until:
        continue_as(n + 1, until)
    return n


@workflow
async def gather_up(taken: list[Any], wanted: int) -> list[Any]:
    taken.append(await wait_signal("item"))
    if len(taken) < wanted:
        continue_as(taken, wanted)
    return taken


async def test_a_run_goes_on_as_its_next_incarnation() -> None:
    async with Engine("memory://", [count]) as engine:
        run = await engine.start(count(0, until=3), id="it", tags={"team": "a"})
        assert await run.result(PATIENCE) == 3
        assert called == [0, 1, 2, 3]
        view = await engine.get("it")
        assert view is not None
        assert (view.status, view.output, view.tags) == (RunStatus.COMPLETED, 3, {"team": "a"})
        assert view.input == {"n": 3, "until": 3}
        journal = [entry.event for entry in await engine.journal("it")]
        assert isinstance(journal[0], RunStarted)
        assert journal[0].incarnation == 4
        first = [entry.event for entry in await engine.journal(run.run_id)]
        assert isinstance(first[-1], RunFinished)
        assert first[-1].continued_as
        # Whoever asks under the id again gets the run that there is.
        assert await (await engine.start(count(0, until=3), id="it")).result(PATIENCE) == 3


async def test_signals_that_nobody_took_go_along() -> None:
    async with Engine("memory://", [gather_up]) as engine, connect(engine.store) as other:
        run = await engine.start(gather_up([], 6), id="it")
        for n in range(3):
            assert await engine.signal("it", "item", n, signal_id=f"s{n}") == Accepted()
            assert await other.signal("it", "item", 10 + n) == Accepted()
        assert await engine.signal("it", "item", 1, signal_id="s1") == Duplicate()
        assert await run.result(PATIENCE) == [0, 10, 1, 11, 2, 12]


async def test_a_signal_that_was_taken_before_is_still_known_as_a_duplicate() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 2), id="it")
        assert await engine.signal("it", "item", "a", signal_id="s") == Accepted()
        while (view := await engine.get("it")) is None or view.run_id == run.run_id or not view.waits:
            await asyncio.sleep(0)
        assert await engine.signal("it", "item", "again", signal_id="s") == Duplicate()
        assert await engine.signal("it", "item", "b", signal_id="t") == Accepted()
        assert await run.result(PATIENCE) == ["a", "b"]


async def test_cancelling_reaches_the_incarnation_that_there_is() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 3), id="it")
        await engine.signal("it", "item", "a")
        await engine.cancel("it", "enough")
        result = await run.outcome(PATIENCE)
        assert result.status is RunStatus.CANCELLED


async def test_arguments_that_the_workflow_does_not_take_fail_it_at_the_call() -> None:
    @workflow
    async def endless(n: int) -> int:
        continue_as("one")

    async with Engine("memory://", [endless]) as engine:
        result = await engine.run(endless(0), id="r")
        assert isinstance(result.error, NotDecodable)
        assert "the argument n of endless cannot be read as int" in str(result.error)
        view = await engine.get("r")
        assert view is not None
        assert (view.status, view.continued_as) == (RunStatus.FAILED, None)


async def test_an_awaited_child_cannot_continue_as_another() -> None:
    @workflow
    async def outer() -> int:
        return await count(0, until=3)

    async with Engine("memory://", [outer, count]) as engine:
        with pytest.raises(UsageError, match="detached"):
            await (await engine.start(outer())).result(PATIENCE)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_between_incarnations(seed: int) -> None:
    report = Simulation(seed, faults=STORMY).run(
        count(0, until=5), crashes=[Crash(seed % 12), Crash(seed % 12 + 5, "after")]
    )
    assert report.results["run-0"].output == 5


# --- a handle, and an id, mean the run that there is now ------------------------------------------------------------


@step
async def tell(n: int) -> AsyncIterator[str]:
    yield f"a{n}"
    yield f"b{n}"


@workflow
async def talk(n: int, until: int) -> int:
    """Shows two chunks, waits to be told to go on, and goes on as the next."""
    await tell(n)
    if n < until:
        await wait_signal("go")
        continue_as(n + 1, until)
    return n + await last(n)


@step
async def last(n: int) -> int:
    return n


@workflow
async def asks(n: int) -> Any:
    answer = await approval("ship")
    if n == 0:
        continue_as(1)
    return answer


async def gone_on(client: Client, id: str, incarnation: int) -> RunView:
    """The run under an id, once it is this incarnation and waits."""
    async with asyncio.timeout(PATIENCE):
        while True:
            view = await client.get(id)
            started = (await client.journal(id))[0].event
            assert isinstance(started, RunStarted)
            if view is not None and started.incarnation == incarnation and view.waits:
                return view
            await asyncio.sleep(0)


@pytest.mark.parametrize("id", ["it", None])
async def test_a_handle_speaks_to_the_run_that_goes_on(id: str | None) -> None:
    async with Engine("memory://", [gather_up]) as engine, connect(engine.store) as other:
        run = await engine.start(gather_up([], 5), id=id)
        elsewhere = await other.start(call("gather_up", [], 5), id=run.id)
        for n in range(3):
            assert await run.signal("item", n) == Accepted()
            assert not (await run.status()).finished
            view = await gone_on(engine, run.id, n + 2)
            assert view.run_id != run.run_id
            assert await elsewhere.status() is RunStatus.WAITING
        assert await elsewhere.signal("item", 3) == Accepted()
        assert await run.cancel("enough") == Cancelled()
        assert (await run.outcome(PATIENCE)).status is RunStatus.CANCELLED
        assert await run.status() is RunStatus.CANCELLED
        assert await run.cancel() == AlreadyFinished(RunStatus.CANCELLED)
        assert await run.signal("item", 1) == Finished(RunStatus.CANCELLED)


async def test_answers_reach_the_run_that_goes_on() -> None:
    async with Engine("memory://", [asks]) as engine:
        run = await engine.start(asks(0), id="it")
        _ = await gone_on(engine, "it", 1)
        assert await run.approve("ship", "yes") == Accepted()
        _ = await gone_on(engine, "it", 2)
        assert await run.reject("shop") == NotFound()
        assert await run.approve("ship", "again") == Accepted()
        assert await run.result(PATIENCE) == "again"


async def test_views_name_the_runs_before_and_after() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 2), id="it")
        _ = await run.signal("item", 0)
        latest = await gone_on(engine, "it", 2)
        first = await engine.get(run.run_id)
        assert first is not None
        assert (first.continued_from, first.continued_as) == (None, latest.run_id)
        assert (latest.continued_from, latest.continued_as) == (run.run_id, None)
        listed = {view.run_id: view.continued_as for view in await engine.list()}
        assert listed == {run.run_id: latest.run_id, latest.run_id: None}


async def test_pausing_and_resuming_by_id_reach_the_run_that_there_is() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 2), id="it")
        _ = await run.signal("item", 0)
        _ = await gone_on(engine, "it", 2)
        assert await engine.pause("it") == Accepted()
        assert await run.status() is RunStatus.PAUSED
        assert await engine.resume("it") == Accepted()
        _ = await engine.signal("it", "item", 1)
        assert await run.result(PATIENCE) == [0, 1]


@pytest.mark.parametrize("by", ["id", "handle", "other"])
async def test_a_stream_goes_on_over_the_next_run(by: str) -> None:
    async with Engine("memory://", [talk]) as engine, connect(engine.store) as other:
        run = await engine.start(talk(0, 2), id="it")
        streams = {"id": engine.stream("it"), "handle": run.stream(), "other": other.stream("it")}
        seen = []
        async with asyncio.timeout(PATIENCE):
            async for chunk in streams[by]:
                seen.append((chunk.index, chunk.value))
                if chunk.value in ("b0", "b1"):
                    _ = await run.signal("go")
        assert seen == list(enumerate(["a0", "b0", "a1", "b1", "a2", "b2"]))
        assert await run.result(PATIENCE) == 4
        assert [chunk.value async for chunk in run.stream(start=3)] == ["b1", "a2", "b2"]
        assert [chunk.value async for chunk in engine.stream(run.run_id)] == ["a0", "b0"], "a run_id is one run"
        assert [chunk.value async for chunk in engine.stream("it")] == ["a2", "b2"], "the run that there is"


async def test_a_step_of_a_later_run_can_be_streamed_from_the_beginning() -> None:
    async with Engine("memory://", [talk]) as engine:
        run = await engine.start(talk(0, 1), id="it")
        _ = await run.signal("go")
        async with asyncio.timeout(PATIENCE):
            assert [chunk.value async for chunk in run.stream("last")] == []
            assert [chunk.value async for chunk in run.stream("tell")] == ["a0", "b0"]
            with pytest.raises(UsageError, match=r"without a step 'sing'; its steps: tell:0, last:0"):
                _ = [chunk async for chunk in run.stream("sing")]


async def test_following_by_id_goes_on_over_the_next_run() -> None:
    async with Engine("memory://", [count]) as engine:
        run = await engine.start(count(0, until=2), id="it")
        _ = await run.result(PATIENCE)
        kinds = [(entry.run_id == run.run_id, entry.seq) async for entry in engine.follow("it")]
        assert kinds[0] == (False, 0)

    async with Engine("memory://", [gather_up]) as engine:
        gathering = await engine.start(gather_up([], 2), id="it")
        ends: list[str] = []
        async with asyncio.timeout(PATIENCE):
            async for entry in engine.follow("it"):
                if isinstance(entry.event, WaitOpened):
                    _ = await gathering.signal("item", 0)
                if isinstance(entry.event, RunFinished):
                    ends.append(entry.run_id)
        assert len(ends) == 2
        assert ends[0] == gathering.run_id
        one = [entry.event async for entry in engine.follow(gathering.run_id)]
        assert isinstance(one[-1], RunFinished)


async def test_an_old_handle_keeps_to_its_own_run_when_the_id_is_used_again() -> None:
    """What was started anew under an id is a stranger; what the handle's own run goes on as is not."""

    @workflow
    async def moody(n: int, fails: bool) -> str:
        await wait_signal("go")
        if n == 0:
            continue_as(1, fails)
        if fails:
            raise ValueError("moody")
        return "done"

    async with Engine("memory://", [moody]) as engine:
        old = await engine.start(moody(0, True), id="it")
        _ = await old.signal("go")
        _ = await gone_on(engine, "it", 2)
        _ = await old.signal("go")
        assert (await old.outcome(PATIENCE)).status is RunStatus.FAILED
        new = await engine.start(moody(0, False), id="it", reuse="allow_if_failed")
        _ = await gone_on(engine, "it", 3)
        assert await old.status() is RunStatus.FAILED
        assert await old.signal("go") == Finished(RunStatus.FAILED)
        assert await old.cancel() == AlreadyFinished(RunStatus.FAILED)
        assert await new.status() is RunStatus.WAITING
        newest = await engine.start(moody(0, False), id="it", reuse="terminate_running")
        _ = await gone_on(engine, "it", 4)
        assert await new.status() is RunStatus.CANCELLED
        assert await new.cancel() == AlreadyFinished(RunStatus.CANCELLED)
        assert await engine.handle("it").status() is RunStatus.WAITING, "by its id it is whichever is the latest"
        _ = await newest.signal("go")
        _ = await gone_on(engine, "it", 5)
        _ = await newest.signal("go")
        assert await newest.result(PATIENCE) == "done"


async def test_a_handle_finds_its_run_though_those_before_were_pruned() -> None:
    async with Engine("memory://", [gather_up]) as engine:
        run = await engine.start(gather_up([], 4), id="it")
        for n in range(2):
            _ = await engine.signal("it", "item", n)
            _ = await gone_on(engine, "it", n + 2)
        report = await engine.prune(older_than=0, statuses="completed")
        assert report.runs == 2
        assert await run.status() is RunStatus.WAITING
        assert await run.signal("item", 2) == Accepted()
        _ = await gone_on(engine, "it", 4)
        assert await run.cancel() == Cancelled()


async def test_a_detached_child_that_goes_on_is_found_by_its_id() -> None:
    @workflow
    async def outer() -> str:
        return await child(gather_up([], 2), id="kid", detached=True)

    async with Engine("memory://", [outer, gather_up]) as engine:
        _ = await (await engine.start(outer())).result(PATIENCE)
        handle = engine.handle("kid", gather_up)
        assert await handle.signal("item", 0) == Accepted()
        view = await gone_on(engine, "kid", 2)
        assert view.continued_from is not None
        assert await handle.signal("item", 1) == Accepted()
        assert await handle.result(PATIENCE) == [0, 1]
