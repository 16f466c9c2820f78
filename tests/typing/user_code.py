"""Code as a user writes it, checked with `mypy --strict`: every `type: ignore` here is an error that must be found.

`warn_unused_ignores` (part of --strict) turns an error that is no longer found into one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NoReturn, assert_type
from uuid import UUID

import perdure
from perdure import (
    Accepted,
    AlreadyFinished,
    ApprovalView,
    BulkReport,
    Cancelled,
    Chunk,
    Client,
    Duplicate,
    Engine,
    FailedStep,
    Finished,
    HeldBy,
    Interrupt,
    Invocation,
    LockView,
    NotFound,
    Queue,
    QueueView,
    Rate,
    Retry,
    RunContext,
    RunHandle,
    RunResult,
    RunStatus,
    RunSummary,
    RunView,
    Schedule,
    ScheduleHandle,
    ScheduleView,
    Start,
    Step,
    SweepReport,
    Workflow,
    all_ticks,
    approval,
    batched,
    call,
    child,
    connect,
    continue_as,
    default,
    every,
    inputs,
    instead,
    kind,
    llm,
    lock,
    now,
    per_process,
    prepend,
    random,
    replace,
    resource,
    retry_with,
    rule,
    run_context,
    saga,
    set_state,
    sleep,
    sleep_until,
    step,
    step_context,
    step_inline,
    uuid4,
    wait_signal,
    workflow,
)


@dataclass
class Order:
    id: str


@dataclass
class Payment:
    total: int


@dataclass
class Receipt:
    order: Order
    payment: Payment


# --- steps -----------------------------------------------------------------------------------------------------------


@step
async def charge(order: Order, *, currency: str = "EUR") -> Payment:
    return Payment(len(order.id))


@step(retry=Retry(attempts=5, on=(ConnectionError,)), timeout=timedelta(seconds=10))
async def ship(order: Order, priority: int = 0) -> str:
    return step_context().id


@step
def render(receipt: Receipt) -> bytes:
    return b""


@step(cpu=True, name="crunch")
def crunch(numbers: list[int]) -> int:
    return sum(numbers)


def functions_as_they_were_written(order: Order, receipt: Receipt) -> None:
    assert_type(render.fn(receipt), bytes)
    assert_type(crunch.fn([1, 2]), int)
    assert_type(crunch.options(timeout=3).fn([1, 2]), int)
    assert_type(tokens.fn("hello"), AsyncIterator[str])
    render.fn(order)  # type: ignore[arg-type]


async def coroutines_as_they_were_written(order: Order) -> None:
    assert_type(await charge.fn(order, currency="USD"), Payment)
    assert_type(await fulfil.fn(order), Receipt)


@step
async def tokens(prompt: str) -> AsyncIterator[str]:
    yield prompt


@step(stream=batched(20, 0.5), heartbeat=10)
async def numbers(n: int) -> AsyncIterator[int]:
    step_context().heartbeat({"done": n})
    yield n


@step
def rows(path: str) -> Iterator[bytes]:
    yield path.encode()


@step(stream="on_complete")
def pages(path: str) -> Generator[str, None, None]:
    yield path


@step
def anything(path: str) -> Any:
    return path


async def steps_that_are_generators_give_the_list_of_what_they_yield() -> None:
    assert_type(await tokens("a"), list[str])
    assert_type(await numbers(1), list[int])
    assert_type(await rows("a"), list[bytes])
    assert_type(await pages("a"), list[str])
    assert_type(await tokens.options(stream="on_complete", heartbeat=timedelta(seconds=5))("a"), list[str])
    tokens(1)  # type: ignore[arg-type, unused-coroutine]
    numbers("1")  # type: ignore[arg-type, unused-coroutine]
    step(stream=3)  # type: ignore[call-overload]


async def streams_are_typed(engine: Engine, handle: RunHandle[int]) -> None:
    async for chunk in engine.stream("order-123", "tokens", 3):
        assert_type(chunk, Chunk)
    async for chunk in handle.stream("tokens"):
        assert_type(chunk.index, int)


async def steps_have_the_types_of_their_functions(order: Order, receipt: Receipt) -> None:
    assert_type(await charge(order), Payment)
    assert_type(await charge(order, currency="USD"), Payment)
    assert_type(await ship(order, 1), str)
    assert_type(await render(receipt), bytes)
    assert_type(await crunch([1]), int)
    assert_type(await charge.options(timeout=5)(order), Payment)
    both = await asyncio.gather(charge(order), ship(order))
    assert_type(both, tuple[Payment, str])
    many = await asyncio.gather(*(charge(o) for o in [order]))
    assert_type(many, list[Payment])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charge(order))
    assert_type(task.result(), Payment)
    assert_type(await asyncio.wait_for(ship(order), 5), str)


async def wrong_calls_of_steps_are_errors(order: Order) -> None:
    charge("an order")  # type: ignore[arg-type, unused-coroutine]
    charge(order, "USD")  # type: ignore[call-arg, unused-coroutine]
    charge()  # type: ignore[call-arg, unused-coroutine]
    ship(order, priority="high")  # type: ignore[arg-type, unused-coroutine]
    crunch(["1"])  # type: ignore[list-item, unused-coroutine]
    charge.options(timeout="5")  # type: ignore[arg-type]
    charge.options(timeout=5)(1)  # type: ignore[arg-type, unused-coroutine]
    step(retry=3)  # type: ignore[call-overload]


async def a_step_is_typed(given: Step[[Order], Payment]) -> None:
    assert_type(await given(Order("a")), Payment)


# --- workflows -------------------------------------------------------------------------------------------------------


@workflow
async def fulfil(order: Order, express: bool = False) -> Receipt:
    payment = await charge(order)
    await sleep(timedelta(days=1))
    assert_type(now(), datetime)
    assert_type(uuid4(), UUID)
    assert_type(random(), float)
    return Receipt(order, payment)


@workflow(name="count", version="3")
async def count(n: int) -> int:
    return n


def invocations_carry_the_result_type(order: Order) -> None:
    _ = assert_type(fulfil(order), Invocation[Receipt])
    _ = assert_type(fulfil(order, express=True), Invocation[Receipt])
    _ = assert_type(count(3), Invocation[int])
    _ = fulfil("an order")  # type: ignore[arg-type]
    _ = fulfil()  # type: ignore[call-arg]
    _ = fulfil(order, fast=True)  # type: ignore[call-arg]
    _ = count("3")  # type: ignore[arg-type]


def the_plain_functions_keep_their_types() -> None:
    assert_type(asyncio.run(fulfil.fn(Order("a"))), Receipt)
    fulfil.fn("an order")  # type: ignore[arg-type, unused-coroutine]
    charge.fn("an order")  # type: ignore[arg-type, unused-coroutine]


def a_workflow_needs_an_async_def() -> None:
    @workflow  # type: ignore[arg-type]
    def plain() -> int:
        return 1


async def a_workflow_is_typed(given: Workflow[[int], int]) -> None:
    _ = assert_type(given(3), Invocation[int])


# --- children --------------------------------------------------------------------------------------------------------


@workflow
async def family(order: Order) -> int:
    assert_type(await fulfil(order), Receipt)
    assert_type(await asyncio.gather(fulfil(order), count(1)), tuple[Receipt, int])
    assert_type(await asyncio.gather(*(count(n) for n in range(3))), list[int])
    assert_type(await asyncio.gather(charge(order), count(1)), tuple[Payment, int])
    made = asyncio.create_task(count(1))
    assert_type(await made, int)
    async with asyncio.TaskGroup() as group:
        receipt, number = group.create_task(fulfil(order)), group.create_task(count(2))
    assert_type(receipt.result(), Receipt)
    assert_type(number.result(), int)
    assert_type(await asyncio.wait_for(count(1), 5), int)
    assert_type(await child(fulfil(order), id="order-1", deadline=timedelta(hours=1)), Receipt)
    assert_type(await asyncio.gather(child(count(1)), child(fulfil(order))), tuple[int, Receipt])
    async with asyncio.TaskGroup() as group:
        named = group.create_task(child(fulfil(order), id="order-2"))
        apart = group.create_task(child(count(1), detached=True))
    assert_type(named.result(), Receipt)
    assert_type(apart.result(), str)
    assert_type(await child(fulfil(order), detached=True), str)
    assert_type(await child(fulfil(order), "order-1", detached=True), str)
    text: str = await count(1)  # type: ignore[assignment]
    del text
    await child(fulfil)  # type: ignore[call-overload]
    await child(count("1"))  # type: ignore[arg-type]
    return await count(1)


def what_follows_continue_as_is_never_reached() -> NoReturn:
    continue_as(3, balance=7)


# --- waiting ---------------------------------------------------------------------------------------------------------


@workflow
async def waiting(order: Order) -> Payment:
    assert_type(await wait_signal("paid"), Any)
    assert_type(await wait_signal("paid", 5), Any)
    assert_type(await wait_signal("paid", type=Payment), Payment)
    assert_type(await wait_signal("paid", timedelta(days=1), Payment), Payment)
    assert_type(await wait_signal("paid", timeout=5, type=int), int)
    assert_type(await asyncio.gather(wait_signal("a", type=int), wait_signal("b", type=str)), tuple[int, str])
    assert_type(await approval("ship"), Any)
    assert_type(await approval("ship", {"total": 3}, Receipt), Receipt)
    assert_type(await approval("ship", schema=Receipt, approvers=["ann"], escalate=(3600, ["boss"])), Receipt)
    async with asyncio.TaskGroup() as group:
        asked = group.create_task(approval("ship", schema=Receipt, timeout=timedelta(days=3)))
        group.create_task(sleep_until(now() + timedelta(days=1)))
    assert_type(asked.result(), Receipt)
    async with lock("account:7", ttl=60, timeout=timedelta(minutes=1)) as held:
        assert_type(held.token, int)
    set_state("at", "sea")
    assert_type(await step_inline("roll", lambda: 6), int)
    assert_type(await step_inline("read", len, "abc"), int)
    assert_type(await step_inline("charge", charge.fn, order), Payment)
    step_inline("read", 3)  # type: ignore[call-overload]
    set_state(3, "sea")  # type: ignore[arg-type]
    await wait_signal("paid", timeout="5")  # type: ignore[call-overload]
    await approval("ship", approvers=3)  # type: ignore[call-overload]
    await approval("ship", escalate=3600)  # type: ignore[call-overload]
    return await wait_signal("paid", type=Payment)


# --- engines and clients ---------------------------------------------------------------------------------------------


async def handles_and_results_carry_the_result_type(order: Order) -> None:
    async with Engine("memory://", [fulfil, count], durability=every(5)) as engine:
        _ = assert_type(engine, Engine)
        handle = await engine.start(fulfil(order), id="order-123", tags={"a": "b"}, reuse="allow_if_failed")
        _ = assert_type(handle, RunHandle[Receipt])
        assert_type(await handle.result(), Receipt)
        assert_type(await handle.result(timeout=5), Receipt)
        assert_type(await handle, Receipt)
        assert_type(await handle.status(), RunStatus)
        known = engine.handle("order-123", fulfil)
        _ = assert_type(known, RunHandle[Receipt])
        assert_type(await known.result(), Receipt)
        _ = assert_type(engine.handle("order-123"), RunHandle[Any])
        _ = engine.handle("order-123", fulfil(order))  # type: ignore[call-overload]
        result = await engine.run(count(3), id="c")
        assert_type(result, RunResult[int])
        assert_type(result.output, int)
        assert_type(await engine.get("c"), RunView | None)
        for view in await engine.list(status="completed"):
            assert_type(view, RunSummary)
        number: int = await (await engine.start(count(1)))
        text: str = await (await engine.start(count(1)))  # type: ignore[arg-type]
        del number, text
        _ = await engine.start(fulfil)  # type: ignore[arg-type]
        _ = await engine.start(count(1), reuse="replace")  # type: ignore[arg-type]
        _ = await engine.start(count(1), tags={"a": 1})  # type: ignore[dict-item]
        _ = await engine.start(count(1), delay="1s")  # type: ignore[arg-type]


async def clients_are_typed_like_engines() -> None:
    async with connect("memory://") as client:
        _ = assert_type(client, Client)
        handle = await client.start(count(3))
        _ = assert_type(handle, RunHandle[int])
        known_by_name = await client.start(call("count", 3))
        await known_by_name.result()


async def runs_are_told_and_asked(engine: Engine, handle: RunHandle[int]) -> None:
    sent = await engine.signal("order-1", "paid", {"cents": 3}, signal_id="s")
    assert_type(sent, Accepted | Duplicate | NotFound | Finished)
    assert_type(await handle.signal("paid"), Accepted | Duplicate | NotFound | Finished)
    answered = await engine.approve("order-1", "ship", {"ok": True}, approval_id="a", by="ann")
    assert_type(answered, Accepted | Duplicate | NotFound | Finished)
    assert_type(await handle.cancel("enough"), Cancelled | AlreadyFinished)
    assert_type(await engine.pause("order-1"), Accepted | Finished)
    for asked in await engine.approvals(approver="ann"):
        assert_type(asked, ApprovalView)
    for queue in await engine.queues():
        assert_type(queue, QueueView)
    await engine.signal("order-1", "paid", signal_id=7)  # type: ignore[arg-type]
    await engine.signal("order-1")  # type: ignore[call-arg]


async def schedules_are_typed(engine: Engine, client: Client) -> None:
    nightly = await engine.schedule(
        "nightly", count(3), cron="30 2 * * *", timezone="Europe/Berlin", overlap="buffer_one", catch_up=all_ticks(3)
    )
    assert_type(nightly, ScheduleHandle)
    await client.schedule("often", count(3), every=timedelta(minutes=15), jitter=5, pause=True)
    assert_type(await nightly.view(), ScheduleView)
    assert_type((await nightly.next(3))[0], datetime)
    assert_type(await nightly.trigger(), str)
    for view in await client.schedules():
        assert_type(view.next_tick, datetime | None)
    await engine.schedule("wrong", count("3"), every=5)  # type: ignore[arg-type]
    await engine.schedule("wrong", count, every=5)  # type: ignore[arg-type]
    await engine.schedule("wrong", count(3), every="5")  # type: ignore[arg-type]
    await engine.schedule("wrong", count(3), every=5, overlap="buffer")  # type: ignore[arg-type]


@step(queue="gpu")
async def remote(frame: int) -> bytes:
    return bytes(frame)


async def queues_locks_and_sweeps_are_typed(order: Order) -> None:
    emails = Queue("emails", concurrency=5, per_key=1, rate=Rate(100, per=1.0))
    async with Engine("memory://", [fulfil], queues=[emails], serves=("emails",), steps=[remote]) as engine:
        queued = await engine.start(fulfil(order), queue="emails", key="tenant-7", priority=3, debounce=0.5)
        assert_type(await queued, Receipt)
        assert_type(await remote(3), bytes)
        async with engine.locks.hold("deploy", ttl=30) as held:
            assert_type(held, LockView)
        assert_type(await engine.locks.acquire("deploy", "host-1"), LockView | HeldBy)
        assert_type(await engine.sweep(max_timers=5, until=timedelta(seconds=50)), SweepReport)
        _ = await engine.start(fulfil(order), priority="high")  # type: ignore[arg-type]
        Queue("emails", concurrency="5")  # type: ignore[arg-type]


def run_returns_the_result_type(order: Order) -> None:
    assert_type(perdure.run(fulfil(order), id="order-123", store="sqlite:///flows.db"), Receipt)
    assert_type(perdure.run(count(1)), int)
    perdure.run(count("1"))  # type: ignore[arg-type]
    perdure.run(fulfil)  # type: ignore[arg-type]


# --- sagas ----------------------------------------------------------------------------------------------------------


async def give_back(payment: Payment, reason: str = "") -> None: ...


@workflow
async def undoing(order: Order) -> Payment:
    async with saga() as s:
        payment = await charge(order)
        s.compensate(give_back, payment, reason="no stock")
        s.compensate(charge, order, currency="USD")
        s.compensate(fulfil, order, express=True)
        s.compensate(fulfil, 7)  # type: ignore[arg-type]
        s.compensate(charge, 7)  # type: ignore[arg-type]
        s.compensate(charge, order, country="FR")  # type: ignore[call-arg]
        s.compensate(give_back)  # type: ignore[call-arg]
        s.compensate(len, "abc")  # type: ignore[arg-type]
        return payment


# --- rules ----------------------------------------------------------------------------------------------------------


def cheaper(failed: FailedStep) -> object:
    if isinstance(failed.error, TimeoutError):
        return instead(charge, Order("cheap"), currency="USD")
    instead(charge, 7)  # type: ignore[arg-type]
    return retry_with(*failed.args)


RULES = [
    rule("charge", timeout=5, retry=Retry(attempts=3, backoff="linear")),
    rule(charge, llm, timeout=timedelta(minutes=1)),
    rule(kind("cpu"), **llm),
    rule(lambda info: info.tags.get("tier") == "gold", fallback=cheaper, on_failure="skip"),
    rule("charge", timout=5),  # type: ignore[call-arg]
    rule("charge", on_failure="stop"),  # type: ignore[arg-type]
    rule("charge", attempts="3"),  # type: ignore[arg-type]
    rule(default, attempts=2, backoff="none"),
]


@workflow(rules=RULES)
async def ruled(order: Order) -> Payment:
    return await charge(order)


async def with_rules(engine: Engine) -> None:
    assert_type(await engine.run(ruled(Order("1")), rules=RULES), RunResult[Payment])
    first = await engine.start(ruled(Order("1")), rules=replace(RULES))
    assert_type(await first, Payment)
    third = await engine.start(ruled(Order("1")), rules=prepend([rule(default, attempts=1)]))
    assert_type(await third, Payment)
    second = await engine.start(ruled(Order("1")), rules=[("charge", {"timeout": 5})])
    assert_type(await second, Payment)
    _ = await engine.start(ruled(Order("1")), rules=[7])  # type: ignore[list-item]


# --- many at once, inputs, resources ----------------------------------------------------------------------------------


@step
async def uses(order: Order) -> Payment:
    pool = resource("pool", Receipt)
    assert_type(pool, Receipt)
    assert_type(resource("pool"), Any)
    assert_type(run_context(), RunContext)
    assert_type(run_context().scheduled_at, datetime | None)
    assert_type(step_context().run.tags, dict[str, str])
    return Payment(1)


@workflow
async def fed() -> int:
    async for order in inputs(Order, idle=timedelta(hours=1)):
        assert_type(order, Order)
    async for anything in inputs():
        assert_type(anything, Any)
    assert_type(await child(count(1), detached=True, tags={"a": "b"}, queue="q", delay=5), str)
    await child(count(1), tags={"a": "b"})  # type: ignore[call-overload]
    return 1


async def many_runs_are_typed(engine: Engine, orders: list[Order]) -> None:
    report = await engine.start_many([fulfil(order) for order in orders])
    assert_type(report, BulkReport[RunHandle[Receipt]])
    assert_type(await report.done[0].result(), Receipt)
    named = await engine.start_many(Start(fulfil(order), id=order.id, tags={"a": "b"}) for order in orders)
    assert_type(named.failed[0].error, Exception | None)
    cancelled = await engine.cancel_many("enough", program="fulfil", status="running", limit=5)
    assert_type(cancelled.done[0], Cancelled | AlreadyFinished)
    await engine.cancel_many(programme="fulfil")  # type: ignore[call-arg]
    mixed = await engine.start_many([fulfil(orders[0]), Start(fulfil(orders[1]), id="b")])
    assert_type(mixed, BulkReport[RunHandle[Any]])
    _ = await engine.start_many([fulfil])  # type: ignore[list-item]
    resting = await engine.run(fulfil(orders[0]), until="rest", answers={"ship": True})
    assert_type(resting.interrupts, tuple[Interrupt, ...])
    assert_type(resting.interrupt_name, str | None)
    await engine.run(fulfil(orders[0]), until="later")  # type: ignore[arg-type]
    assert_type(await engine.feed("order-1", orders[0]), Accepted | Duplicate | NotFound | Finished)
    assert_type(await engine.checkpoint("order-1"), int)


def what_ends_is_told(result: RunResult[Any]) -> None:
    assert_type(result.program, str)


def engines_take_their_settings() -> None:
    _ = Engine(
        "memory://",
        [fulfil, "shop.flows:other"],
        reuse="reject_duplicate",
        stream=batched(20, 0.5),
        schedules=[Schedule("nightly", count(3), cron="30 2 * * *", deadline=timedelta(hours=1))],
        resources={"pool": 1, "model": per_process(what_makes_it)},
        on_complete=[what_ends_is_told, print],
    )
    _ = Engine("memory://", reuse="sometimes")  # type: ignore[arg-type]


def what_makes_it() -> int:
    return 1
