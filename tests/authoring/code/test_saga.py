"""Compensations: run in reverse, durably, when the block fails or is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import (
    Cancelled,
    CompensationFailed,
    Engine,
    PerdureError,
    Retry,
    RunStatus,
    Saga,
    UsageError,
    bail,
    saga,
    sleep,
    step,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, StepStarted
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Ran, Recorded, go_on_from_everywhere, left_by_a_crash, run

UNDONE = "compensate:0/"


@step
async def book(what: str) -> str:
    return f"{what}-1"


@step
async def cancel_booking(booking: str, reason: str = "") -> str:
    return booking


@step
async def broken(what: str) -> None:
    raise ConnectionError(what)


class NoRoom(Exception):
    """What makes compensations necessary."""


async def undone(ran: Ran) -> list[str]:
    return [op.removeprefix(UNDONE) for op in await ran.ops() if op.startswith(UNDONE)]


async def test_nothing_is_undone_when_the_block_succeeds() -> None:
    @workflow
    async def trip() -> str:
        async with saga() as s:
            flight = await book("flight")
            s.compensate(cancel_booking, flight)
        return flight

    ran = await run(trip())
    assert ran.output == "flight-1"
    assert await ran.ops() == ["book:0"]
    await go_on_from_everywhere(trip(), ran)


async def test_compensations_run_in_reverse_and_the_error_propagates() -> None:
    @workflow
    async def trip() -> list[str]:
        seen: list[str] = []

        async def cancel(booking: str) -> None:
            seen.append(await cancel_booking(booking, reason="no hotel"))

        try:
            async with saga() as s:
                for what in ("flight", "car", "train"):
                    s.compensate(cancel, await book(what))
                raise NoRoom("hotel")
        except NoRoom as error:
            return [*seen, str(error)]

    ran = await run(trip())
    assert ran.output == ["train-1", "car-1", "flight-1", "hotel"]
    assert await undone(ran) == ["cancel_booking:0", "cancel_booking:1", "cancel_booking:2"]
    await go_on_from_everywhere(trip(), ran)


async def test_the_error_of_a_step_fails_the_run_after_its_compensations() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(cancel_booking, await book("flight"))
            await broken("hotel")

    ran = await run(trip())
    assert repr(ran.result.error) == "ConnectionError('hotel')"
    assert await ran.ops() == ["book:0", "broken:0", f"{UNDONE}cancel_booking:0"]
    await go_on_from_everywhere(trip(), ran)


async def test_a_failed_compensation_does_not_stop_the_others_and_the_error_has_all() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(cancel_booking, "flight")
            s.compensate(broken, "car")
            s.compensate(cancel_booking, "train")
            s.compensate(broken, "bus")
            raise NoRoom("hotel")

    ran = await run(trip())
    assert await undone(ran) == ["broken:0", "cancel_booking:0", "broken:1", "cancel_booking:1"]
    error = ran.result.error
    assert isinstance(error, CompensationFailed)
    assert isinstance(error, PerdureError)
    assert [repr(inner) for inner in error.exceptions] == ["ConnectionError('bus')", "ConnectionError('car')"]
    assert repr(error.__cause__) == "NoRoom('hotel')"
    assert str(error).startswith(
        "2 of 4 compensations failed (broken raised ConnectionError: bus; broken raised ConnectionError: car) "
        "after NoRoom: hotel"
    )
    await go_on_from_everywhere(trip(), ran)


async def test_some_of_what_failed_can_be_handled() -> None:
    failed = CompensationFailed("2 of 2", [ValueError("a"), KeyError("b")])
    found, rest = failed.split(ValueError)
    assert isinstance(found, CompensationFailed)
    assert isinstance(rest, CompensationFailed)
    assert [repr(e) for e in rest.exceptions] == ["KeyError('b')"]


async def test_compensations_have_the_policy_of_their_step() -> None:
    tries: list[str] = []

    @step(retry=Retry(attempts=3, initial=0.0))
    async def stubborn(what: str) -> None:
        tries.append(what)
        if len(tries) < 3:
            raise ConnectionError

    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(stubborn, "flight")
            raise NoRoom

    ran = await run(trip())
    assert isinstance(ran.result.error, NoRoom)
    assert tries == ["flight"] * 3


async def test_an_inner_saga_is_undone_before_the_outer_one() -> None:
    @workflow
    async def trip() -> list[str]:
        seen: list[str] = []

        async def undo(what: str) -> None:
            await cancel_booking(what)
            seen.append(what)

        try:
            async with saga() as outer:
                outer.compensate(undo, "flight")
                async with saga() as inner:
                    inner.compensate(undo, "hotel")
                    raise NoRoom
        except NoRoom:
            return seen
        return []

    ran = await run(trip())
    assert ran.output == ["hotel", "flight"]
    await go_on_from_everywhere(trip(), ran)


async def test_an_inner_saga_that_succeeded_is_not_undone_by_a_later_error() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as outer:
            outer.compensate(cancel_booking, "flight")
            async with saga() as inner:
                inner.compensate(cancel_booking, "hotel")
            raise NoRoom

    ran = await run(trip())
    assert len(await undone(ran)) == 1


async def test_branches_give_compensations_to_one_saga() -> None:
    @workflow
    async def trip() -> list[str]:
        seen: list[str] = []

        async def undo(what: str) -> None:
            seen.append(await cancel_booking(what))

        async def leg(s: Saga, what: str) -> None:
            s.compensate(undo, await book(what))
            if what == "car":
                await broken(what)

        try:
            async with saga() as s:
                await asyncio.gather(leg(s, "flight"), leg(s, "car"))
        except ConnectionError:
            return sorted(seen)
        return []

    ran = await run(trip())
    assert ran.output == ["car-1", "flight-1"]
    await go_on_from_everywhere(trip(), ran)


async def test_a_timeout_around_a_saga_undoes_it_first() -> None:
    @workflow
    async def trip() -> str:
        flight = await book("flight")
        try:
            async with asyncio.timeout(0.5):
                async with saga() as s:
                    s.compensate(cancel_booking, flight)
                    await sleep(3600)
        except TimeoutError:
            return "late"
        return "in time"

    ran = await run(trip())
    assert ran.output == "late"
    assert await undone(ran) == ["cancel_booking:0"]
    await go_on_from_everywhere(trip(), ran)


async def test_bail_is_no_failure_and_undoes_nothing() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(cancel_booking, await book("flight"))
            bail("good enough", 7)

    ran = await run(trip())
    assert ran.result.status is RunStatus.BAILED
    assert await undone(ran) == []


async def test_a_workflow_can_be_a_compensation() -> None:
    @workflow
    async def take_back(booking: str) -> str:
        return await cancel_booking(await cancel_booking(booking))

    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(take_back, await book("flight"))
            raise NoRoom("hotel")

    store = MemoryStore()
    async with Engine(store, [trip, take_back], recovery=AT_ONCE) as engine:
        result = await (await engine.start(trip(), id="it")).outcome(PATIENCE)
    assert repr(result.error) == "NoRoom('hotel')"
    ran = Ran(result, store)
    ops = [f"{UNDONE}take_back:0/cancel_booking:0", f"{UNDONE}take_back:0/cancel_booking:1"]
    assert await ran.ops() == ["book:0", *ops]
    for seq, _, _ in store.journal.batches[ran.run_id][1:]:
        left = left_by_a_crash(store, seq)
        async with Engine(left, [trip, take_back], recovery=AT_ONCE) as engine:
            again = await (await engine.start(trip(), id="it")).outcome(PATIENCE)
        assert repr(again.error) == "NoRoom('hotel')"
        assert (await Ran(again, left).ops())[-2:] == ops


# --- cancelling -----------------------------------------------------------------------------------------------------


async def finished(store: MemoryStore, run_id: str) -> RunFinished:
    events = [event for batch in await store.journal.read(run_id) for event in batch.events]
    assert isinstance(events[-1], RunFinished)
    return events[-1]


async def test_a_cancelled_run_is_undone_and_is_cancelled_then() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(cancel_booking, await book("flight"))
            await wait_signal("never")

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [trip], on_commit=recorded, recovery=AT_ONCE) as engine:
        handle = await engine.start(trip(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        assert await engine.cancel("it", "changed my mind") == Cancelled()
        result = await handle.outcome(PATIENCE)
    assert result.status is RunStatus.CANCELLED
    ran = Ran(result, store)
    assert await undone(ran) == ["cancel_booking:0"]
    assert (await finished(store, ran.run_id)).reason == "changed my mind"
    # And from wherever it is taken up after a crash.
    for seq, _, _ in store.journal.batches[ran.run_id][2:]:
        left = left_by_a_crash(store, seq)
        async with Engine(left, [trip], recovery=AT_ONCE) as engine:
            handle = await engine.start(trip(), id="it")
            await engine.cancel("it", "changed my mind")
            assert (await handle.outcome(PATIENCE)).status is RunStatus.CANCELLED
        assert await undone(Ran(result, left)) == ["cancel_booking:0"]


async def test_a_cancel_in_the_middle_of_compensating_does_not_stop_it() -> None:
    gates = Gates()
    done: list[str] = []

    @step
    async def undo(what: str) -> None:
        await gates.wait(what)
        done.append(what)

    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(undo, "flight")
            s.compensate(undo, "car")
            raise NoRoom("hotel")

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [trip], on_commit=recorded, recovery=AT_ONCE) as engine:
        handle = await engine.start(trip(), id="it")
        await recorded.until_started(f"{UNDONE}undo:0")
        assert await engine.cancel("it") == Cancelled()
        gates.open("car")
        gates.open("flight")
        result = await handle.outcome(PATIENCE)
    assert done == ["car", "flight"]
    assert result.status is RunStatus.CANCELLED


async def test_a_cancelled_run_whose_compensation_fails_is_failed() -> None:
    @workflow
    async def trip() -> None:
        async with saga() as s:
            s.compensate(broken, "flight")
            await wait_signal("never")

    recorded = Recorded()
    async with Engine("memory://", [trip], on_commit=recorded, recovery=AT_ONCE) as engine:
        handle = await engine.start(trip(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
        await engine.cancel("it")
        result = await handle.outcome(PATIENCE)
    assert result.status is RunStatus.FAILED
    assert isinstance(result.error, CompensationFailed)
    assert "broken raised ConnectionError: flight" in str(result.error)


async def test_a_run_that_leaves_memory_inside_a_saga_undoes_nothing() -> None:
    @workflow
    async def trip() -> str:
        async with saga() as s:
            s.compensate(cancel_booking, await book("flight"))
            await wait_signal("go")
        return "gone"

    store, recorded = MemoryStore(), Recorded()
    async with Engine(store, [trip], on_commit=recorded, recovery=AT_ONCE) as engine:
        _ = await engine.start(trip(), id="it")
        await recorded.until(lambda e: type(e).__name__ == "WaitOpened")
    async with Engine(store, [trip], recovery=AT_ONCE) as engine:
        handle = await engine.start(trip(), id="it")
        await engine.signal("it", "go")
        assert await handle.result(PATIENCE) == "gone"
        started = [e.event for e in await engine.journal("it") if isinstance(e.event, StepStarted)]
    assert [e.op for e in started] == ["book:0"]


# --- wrong use ------------------------------------------------------------------------------------------------------


async def outcome_of(body: Any) -> BaseException | None:
    @workflow
    async def flow() -> None:
        await body()

    return (await run(flow())).result.error


async def test_a_plain_function_is_refused_where_it_is_given() -> None:
    def plain() -> None: ...

    async def body() -> None:
        async with saga() as s:
            s.compensate(plain)  # type: ignore[arg-type]

    error = await outcome_of(body)
    assert isinstance(error, TypeError)
    assert "make it a @step" in str(error)


async def test_wrong_arguments_are_refused_where_they_are_given() -> None:
    async def body() -> None:
        async with saga() as s:
            s.compensate(cancel_booking, "a", "b", "c")  # type: ignore[call-arg]

    assert isinstance(await outcome_of(body), TypeError)


async def test_something_that_cannot_be_called_is_refused() -> None:
    async def body() -> None:
        async with saga() as s:
            s.compensate(cancel_booking("flight"))  # type: ignore[arg-type]

    error = await outcome_of(body)
    assert isinstance(error, TypeError)
    assert "s.compensate(refund, payment)" in str(error)


async def test_a_compensation_after_the_block_is_refused() -> None:
    async def body() -> None:
        async with saga() as s:
            pass
        s.compensate(cancel_booking, "flight")

    assert isinstance(await outcome_of(body), UsageError)


async def test_a_lambda_that_returns_nothing_to_await_is_reported() -> None:
    async def body() -> None:
        async with saga() as s:
            s.compensate(lambda: 7)  # type: ignore[arg-type, return-value]
            raise NoRoom

    error = await outcome_of(body)
    assert isinstance(error, CompensationFailed)
    assert "cannot be awaited" in str(error)


async def test_a_saga_outside_of_a_workflow_is_refused() -> None:
    with pytest.raises(PerdureError, match="only inside a workflow"):
        async with saga():
            pass
