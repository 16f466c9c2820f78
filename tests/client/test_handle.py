"""A handle on a run: its result, its status, and errors as the run raised them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    Accepted,
    AlreadyFinished,
    Engine,
    InvalidId,
    NoSuchRun,
    NotDecodable,
    NotFound,
    RunFailed,
    RunHandle,
    RunResult,
    RunStatus,
    UsageError,
    bail,
    child,
    connect,
    step,
    wait_signal,
    workflow,
)
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, holding
from tests.services.plugin import on_two_stores


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined: {code}")
        self.code = code


@step
async def charge(n: int) -> int:
    if n < 0:
        raise Declined(n)
    return n


@workflow
async def pay(n: int) -> int:
    return await charge(n)


@workflow
async def give_up() -> str:
    bail("no stock", "sorry")


async def test_awaiting_a_handle_is_awaiting_its_result() -> None:
    async with Engine("memory://", [pay]) as engine:
        handle = await engine.start(pay(3))
        assert await handle == 3
        assert await handle == await handle.result() == 3
        assert repr(handle) == f"<run {handle.id!r}>"


async def test_many_may_wait_for_one_result() -> None:
    gates, flow = holding()
    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow())
        waiting = [asyncio.create_task(handle.result(PATIENCE)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[3].cancel()
        gates.open("hold")
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [r for r in results if r == "held"] == ["held"] * 9


async def test_a_timeout_leaves_the_run_going() -> None:
    gates, flow = holding()
    async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)
        assert await handle.status() is RunStatus.RUNNING
        gates.open("hold")
        assert await handle.result(PATIENCE) == "held"
        assert await handle.status() is RunStatus.COMPLETED


async def test_result_raises_what_the_run_raised_and_says_where() -> None:
    async with Engine("memory://", [pay]) as engine:
        handle = await engine.start(pay(-5), id="it")
        with pytest.raises(Declined, match="declined: -5") as caught:
            await handle.result(PATIENCE)
    assert caught.value.code == -5
    assert any("in run 'it'" in note and "test_handle.py" in note for note in caught.value.__notes__)


async def test_run_never_raises_for_how_a_run_ended() -> None:
    async with Engine("memory://", [pay, give_up]) as engine:
        good = await engine.run(pay(1))
        bad = await engine.run(pay(-1))
        bailed = await engine.run(give_up())
    assert isinstance(good, RunResult)
    assert (good.status, good.output, good.error) == (RunStatus.COMPLETED, 1, None)
    assert (bad.status, repr(bad.output)) == (RunStatus.FAILED, "None")
    assert isinstance(bad.error, Declined)
    assert (bailed.status, bailed.output, bailed.error) == (RunStatus.BAILED, "sorry", None)


async def test_every_caller_gets_an_exception_of_its_own() -> None:
    async with Engine("memory://", [pay]) as engine:
        handle = await engine.start(pay(-5))
        first, second = (await handle.outcome(PATIENCE)).error, (await handle.outcome(PATIENCE)).error
    assert isinstance(first, Declined)
    assert first is not second


async def test_an_error_whose_class_is_not_known_here_is_run_failed() -> None:
    @workflow
    async def flow() -> None:
        class Hidden(Exception):
            pass

        raise Hidden("secret") from KeyError("k")

    async with Engine("memory://", [flow]) as engine:
        handle = await engine.start(flow(), id="it")
        with pytest.raises(RunFailed, match="secret") as caught:
            await handle
    assert (caught.value.id, caught.value.message) == ("it", "secret")
    assert caught.value.type.endswith("Hidden")
    assert isinstance(caught.value.__cause__, KeyError)
    assert "test_handle.py" in caught.value.traceback


async def test_a_result_that_no_longer_fits_the_annotation_is_told_to_the_caller() -> None:
    @workflow(name="evolving")
    async def before() -> str:
        return "seven"

    @workflow(name="evolving")
    async def after() -> int:
        return 7

    store = MemoryStore()
    async with Engine(store, [before]) as engine:
        await engine.run(before(), id="it")
    async with Engine(store, [after]) as engine:
        handle = await engine.start(after(), id="it")
        with pytest.raises(NotDecodable, match="the result of run 'it'"):
            await handle.result(PATIENCE)


# --- runs that others execute ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_client_starts_a_run_that_an_engine_executes(where: str, tmp_path: Any) -> None:
    memory = MemoryStore()
    url = f"sqlite:///{tmp_path}/x.db"

    def store() -> Any:
        return memory if where == "memory" else url

    async with Engine(store(), [pay], name="worker"), connect(store()) as client:
        handle = await client.start(pay(4), id="it")
        assert isinstance(handle, RunHandle)
        assert await handle.result(PATIENCE) == 4
        view = await client.get("it")
        assert view is not None
        assert (view.status, view.owner) == (RunStatus.COMPLETED, "worker")
        failing = await client.start(pay(-4))
        with pytest.raises(Declined):
            await failing.result(PATIENCE)
        assert len(await client.list()) == 2
        assert [s.path for s in await client.steps("it")] == ["charge:0"]


async def test_a_client_gets_the_result_of_a_run_that_an_engine_started() -> None:
    gates, flow = holding()
    store = MemoryStore()
    async with Engine(store, [flow]) as engine, connect(store) as client:
        _ = await engine.start(flow(), id="it")
        handle = await client.start(flow(), id="it")
        waiting = asyncio.create_task(handle.result(PATIENCE))
        gates.open("hold")
        assert await waiting == "held"


async def test_a_run_of_a_client_waits_for_an_engine_that_has_its_program() -> None:
    store = MemoryStore()
    async with connect(store) as client:
        handle = await client.start(pay(4), id="it")
        assert await handle.status() is RunStatus.QUEUED
    async with Engine(store, [pay]) as engine:
        assert await (await engine.start(pay(4), id="it")).result(PATIENCE) == 4


async def test_a_client_may_be_awaited_and_closed() -> None:
    store = MemoryStore()
    client = await connect(store)
    _ = await client.start(pay(1), id="it")
    await client.close()
    with pytest.raises(UsageError, match="not open"):
        _ = await client.start(pay(1))
    assert store.journal.latest.keys() == {"it"}


async def test_a_client_ends_a_run_that_an_engine_executes() -> None:
    gates = Gates()

    @step
    async def hold(name: str) -> str:
        gates.open(f"{name} runs")
        await gates.wait(name)
        return name

    @workflow
    async def flow(name: str) -> str:
        return await hold(name)

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine, connect(store) as client:
        first = await engine.start(flow("a"), id="it")
        waiting = asyncio.create_task(first.outcome(PATIENCE))
        await gates.wait("a runs")
        second = await client.start(flow("b"), id="it", reuse="terminate_running")
        assert await first.status() is RunStatus.CANCELLED
        gates.open("a")
        assert (await waiting).status is RunStatus.CANCELLED
        gates.open("b")
        assert await second.result(PATIENCE) == "b"


async def test_a_run_that_a_client_ended_stops_without_another_event_of_its_own() -> None:
    """Nothing of it happens any more, so its owner has to notice by itself."""
    gates = Gates()
    cancelled = asyncio.Event()

    @step
    async def hold() -> None:
        gates.open("runs")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @workflow
    async def flow() -> None:
        await hold()

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine, connect(store) as client:
        handle = await engine.start(flow(), id="it")
        waiting = asyncio.create_task(handle.outcome(PATIENCE))
        await gates.wait("runs")
        _ = await client.start(flow(), id="it", reuse="terminate_running")
        async with asyncio.timeout(PATIENCE):
            await cancelled.wait()
        assert (await waiting).status is RunStatus.CANCELLED


# --- of a run that was started elsewhere ----------------------------------------------------------------------------


@workflow
async def two_signals() -> list[str]:
    return [await wait_signal("a", type=str), await wait_signal("b", type=str)]


@workflow
async def outer() -> str:
    return await child(inner(), id="the-child")


@workflow
async def inner() -> str:
    return await wait_signal("go", type=str)


@on_two_stores
async def test_a_handle_by_id_does_all_that_one_of_a_start_does(any_store: Store) -> None:
    async with Engine(any_store, [two_signals]) as engine:
        started = await engine.start(two_signals(), id="r")
        handle = engine.handle("r", two_signals)
        assert (handle.id, repr(handle)) == ("r", "<run 'r'>")
        assert await handle.status() in (RunStatus.RUNNING, RunStatus.WAITING)
        assert await handle.signal("a", "x") == Accepted()
        assert await handle.signal("b", "y", signal_id="1") == Accepted()
        assert await handle.result(PATIENCE) == await handle == ["x", "y"]
        result = await handle.outcome(PATIENCE)
        assert (result.run_id, result.status) == (started.run_id, RunStatus.COMPLETED)
        assert await handle.cancel() == AlreadyFinished(RunStatus.COMPLETED)


async def test_a_handle_of_a_client_waits_for_a_run_of_an_engine(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [pay]) as engine, connect(url) as client:
        _ = await engine.start(pay(3), id="r")
        assert await client.handle("r", pay).result(PATIENCE) == 3
        assert await client.handle("r").result(PATIENCE) == 3


async def test_a_handle_by_id_raises_what_the_run_raised() -> None:
    async with Engine("memory://", [pay]) as engine:
        _ = await engine.start(pay(-7), id="r")
        for handle in (engine.handle("r"), engine.handle("r", pay)):
            with pytest.raises(Declined) as raised:
                await handle.result(PATIENCE)
            assert raised.value.code == -7


async def test_a_handle_by_id_knows_the_types_of_a_program_that_the_engine_has() -> None:
    @workflow
    async def pair() -> tuple[int, set[str]]:
        return 1, {"a"}

    async with Engine("memory://", [pair]) as engine:
        _ = await engine.start(pair(), id="r")
        assert await engine.handle("r").result(PATIENCE) == (1, {"a"})


async def test_a_handle_by_id_means_the_latest_run_under_it() -> None:
    fails = [True]

    @step
    async def flaky() -> str:
        if fails[0]:
            raise ValueError("no")
        return "yes"

    @workflow
    async def tries() -> str:
        return await flaky()

    async with Engine("memory://", [tries]) as engine:
        handle = engine.handle("r", tries)
        first = await engine.start(tries(), id="r")
        with pytest.raises(ValueError, match="no"):
            await handle.result(PATIENCE)
        fails[0] = False
        again = await engine.retry("r")
        assert await handle.result(PATIENCE) == "yes"
        assert (await handle.outcome()).run_id == again.run_id != first.run_id


async def test_what_is_asked_of_a_run_that_does_not_exist_says_so() -> None:
    async with Engine("memory://", [pay]) as engine:
        handle = engine.handle("missing", pay)
        for asked in (handle.result(), handle.outcome(), handle.status(), handle.cancel()):
            with pytest.raises(NoSuchRun, match="there is no run with id 'missing'"):
                await asked
        assert await handle.signal("a") == NotFound()
        assert await handle.approve("a", 1) == NotFound()
        with pytest.raises(NoSuchRun):
            await anext(aiter(handle.stream()))


async def test_a_handle_by_id_has_no_run_id_and_says_where_it_is_found() -> None:
    async with Engine("memory://", [pay]) as engine:
        with pytest.raises(
            UsageError, match=r"means the latest run under it; `await engine\.get\('r'\)` has the run_id"
        ):
            _ = engine.handle("r").run_id


async def test_a_handle_with_another_workflow_than_the_runs_own_is_refused() -> None:
    async with Engine("memory://", [pay, give_up]) as engine:
        _ = await engine.start(pay(3), id="r")
        with pytest.raises(UsageError, match="'r' is a run of 'pay' and not of 'give_up'"):
            await engine.handle("r", give_up).result()
        with pytest.raises(UsageError, match="takes the workflow that was started"):
            _ = engine.handle("r", pay(3))  # type: ignore[call-overload]
        with pytest.raises(InvalidId):
            _ = engine.handle("")


async def test_a_handle_of_a_child_speaks_to_the_child() -> None:
    async with Engine("memory://", [outer, inner]) as engine:
        parent = await engine.start(outer(), id="parent")
        handle = engine.handle("the-child", inner)
        while True:
            try:
                assert not (await handle.status()).finished
                break
            except NoSuchRun:
                await asyncio.sleep(0)
        assert await handle.signal("go", "went") == Accepted()
        assert await handle.result(PATIENCE) == await parent.result(PATIENCE) == "went"
