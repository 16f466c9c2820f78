"""Values pass through the codec on the first execution too: what a body gets now is what it gets after a crash."""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure import (
    Engine,
    HistoryTooLarge,
    Limits,
    NotDecodable,
    NotSerializable,
    PayloadTooLarge,
    Retry,
    RunStatus,
    TypeCodec,
    call,
    step,
    workflow,
)
from perdure.kernel.events import RunFinished, RunStarted, StepSucceeded
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, go_on_from_everywhere, replay, run


@dataclass
class Order:
    id: str
    lines: list[Decimal] = field(default_factory=list)


class Payment(pydantic.BaseModel):
    order: str
    total: Decimal
    at: datetime


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    y: int


class Pair(NamedTuple):
    a: int
    b: str


# --- arguments -------------------------------------------------------------------------------------------------------


def values_in(store: MemoryStore) -> list[bytes]:
    """The blobs of a store, without the sources of programs."""
    return [data for data in store.blobs.blobs.values() if not data.startswith(b'{"parts":')]


async def test_a_step_gets_its_own_copy_of_its_arguments() -> None:
    @step
    async def mutate(items: list[int], order: Order) -> int:
        items.append(99)
        order.lines.clear()
        return len(items)

    @workflow
    async def flow() -> list[Any]:
        items, order = [1], Order("a", [Decimal(1)])
        return [await mutate(items, order), items, order.lines]

    assert (await run(flow())).output == [2, [1], ["1"]]


async def test_the_body_may_change_an_argument_after_the_call_without_changing_the_step_s() -> None:
    @step
    async def total(items: list[int]) -> int:
        return sum(items)

    @workflow
    async def flow() -> int:
        items = [1, 2]
        future = asyncio.ensure_future(total(items))
        items.append(100)
        return await future

    assert (await run(flow())).output == 3


async def test_arguments_are_decoded_by_the_annotations_of_the_step() -> None:
    @step
    async def kinds(
        order: Order, payment: Payment, colour: Colour, point: Point, when: datetime, key: UUID, pair: tuple[int, str]
    ) -> list[str]:
        return [type(x).__name__ for x in (order, payment, colour, point, when, key, pair, order.lines[0])]

    @workflow
    async def flow() -> list[str]:
        when = datetime(2030, 1, 1, tzinfo=UTC)
        return await kinds(
            Order("a", [Decimal("1.5")]),
            Payment(order="a", total=Decimal(1), at=when),
            Colour.RED,
            Point(1, 2),
            when,
            key=UUID(int=1),
            pair=(1, "x"),
        )

    expected = ["Order", "Payment", "Colour", "Point", "datetime", "UUID", "tuple", "Decimal"]
    assert (await run(flow())).output == expected


async def test_arguments_of_a_workflow_are_decoded_by_its_annotations() -> None:
    @workflow
    async def flow(order: Order, payment: Payment, *, pair: Pair, more: dict[int, Colour] | None = None) -> list[str]:
        return [type(x).__name__ for x in (order, payment, pair, next(iter((more or {}).items()), None))] + [
            repr(more),
            str(payment.total + 1),
        ]

    when = datetime(2030, 1, 1, tzinfo=UTC)
    invocation = flow(
        Order("a"), Payment(order="a", total=Decimal("0.10"), at=when), pair=Pair(1, "b"), more={1: Colour.RED}
    )
    assert (await run(invocation)).output == [
        "Order",
        "Payment",
        "Pair",
        "tuple",
        "{1: <Colour.RED: 'red'>}",
        "1.10",
    ]


async def test_an_argument_that_cannot_be_stored_raises_in_the_body_and_names_its_path() -> None:
    called: list[Any] = []

    @step
    async def take(value: Any) -> None:
        called.append(value)

    @workflow
    async def flow() -> list[str]:
        seen: list[str] = []
        for value in ({"items": [1, object()]}, [float("nan")], "\ud800"):
            try:
                await take(value)
            except NotSerializable as error:
                seen.append(error.path)
        return seen

    ran = await run(flow())
    assert ran.output == ["$[0].items[1]", "$[0][0]", "$[0]"]
    assert called == []
    await go_on_from_everywhere(flow(), ran)


# --- results ---------------------------------------------------------------------------------------------------------


async def test_a_result_has_the_type_that_the_annotation_says_on_the_first_run_as_on_replay() -> None:
    @step
    async def tuple_without() -> Any:
        return (1, 2)

    @step
    async def tuple_with() -> tuple[int, int]:
        return (1, 2)

    @step
    async def model() -> Payment:
        return Payment(order="a", total=Decimal("1.10"), at=datetime(2030, 1, 1, tzinfo=UTC))

    @step
    def data() -> Order:
        return Order("a", [Decimal("1.10")])

    @step
    def struct() -> list[Point]:
        return [Point(1, 2)]

    @step
    def many() -> dict[str, set[int]]:
        return {"a": {1, 2}}

    @step
    def when() -> timedelta:
        return timedelta(hours=1)

    @workflow
    async def flow() -> list[str]:
        results = [
            await tuple_without(),
            await tuple_with(),
            await model(),
            await data(),
            (await struct())[0],
            (await many())["a"],
            await when(),
        ]
        return [type(r).__name__ for r in results]

    ran = await run(flow())
    assert ran.output == ["list", "tuple", "Payment", "Order", "Point", "set", "timedelta"]
    await go_on_from_everywhere(flow(), ran)


async def test_the_body_and_the_step_do_not_share_a_result() -> None:
    kept: list[list[int]] = []

    @step
    async def make() -> list[int]:
        kept.append([1])
        return kept[0]

    @workflow
    async def flow() -> list[int]:
        value = await make()
        value.append(2)
        return kept[0]

    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow())).output == [1]


async def test_a_result_of_a_run_has_the_type_of_its_annotation() -> None:
    @workflow
    async def flow() -> Order:
        return Order("a", [Decimal(1)])

    @workflow
    async def untyped():  # type: ignore[no-untyped-def]
        return Order("a", [Decimal(1)])

    async with Engine("memory://", [flow, untyped]) as engine:
        assert (await engine.run(flow())).output == Order("a", [Decimal(1)])
        assert (await engine.run(untyped())).output == {"id": "a", "lines": ["1"]}


async def test_a_result_that_does_not_fit_its_annotation_fails_the_step_and_is_not_tried_again() -> None:
    calls = 0

    @step(retry=Retry(attempts=3, initial=0))
    async def lying() -> int:
        nonlocal calls
        calls += 1
        return "not a number"  # type: ignore[return-value]

    @workflow
    async def flow() -> str:
        try:
            await lying()
        except NotDecodable as error:
            return str(error)
        return ""

    ran = await run(flow())
    assert "lying:0" in ran.output
    assert calls == 1


async def test_a_result_that_cannot_be_stored_fails_the_step_with_the_path() -> None:
    @step
    async def bad() -> Any:
        return {"items": [{"price": 1.0}, {"price": float("nan")}]}

    @workflow
    async def flow() -> list[str]:
        try:
            await bad()
        except NotSerializable as error:
            return [error.path, error.what]
        return []

    ran = await run(flow())
    assert ran.output == ["$.items[1].price", "the result of bad:0"]
    await go_on_from_everywhere(flow(), ran)


@pytest.mark.parametrize("value", [object(), float("inf"), {"a": "\ud800"}])
async def test_a_result_of_a_workflow_that_cannot_be_stored_fails_the_run(value: Any) -> None:
    @workflow
    async def flow() -> Any:
        return value

    ran = await run(flow())
    assert ran.result.status is RunStatus.FAILED
    assert isinstance(ran.result.error, NotSerializable)


async def test_a_result_of_a_workflow_that_does_not_fit_its_annotation_fails_the_run() -> None:
    @workflow
    async def flow() -> int:
        return "seven"  # type: ignore[return-value]

    ran = await run(flow())
    assert isinstance(ran.result.error, NotDecodable)


async def test_arguments_that_do_not_fit_a_workflow_are_refused_when_it_is_started() -> None:
    @workflow
    async def flow(n: int) -> int:
        return n

    async with Engine("memory://", [flow]) as engine:
        with pytest.raises(NotDecodable, match="argument n"):
            _ = await engine.start(flow("many"), id="it")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _ = await engine.start(call("flow", 1, 2, 3), id="it")
        assert await engine.get("it") is None
        assert (await engine.run(flow(1), id="it")).output == 1


# --- large values ----------------------------------------------------------------------------------------------------


@step
async def big(size: int) -> str:
    return "x" * size


async def test_a_large_result_goes_to_the_blob_store_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def flow() -> int:
        return len(await big(300_000))

    with caplog.at_level(logging.WARNING, logger="perdure"):
        ran = await run(flow())
    assert ran.output == 300_000
    [event] = [e for e in await ran.events() if isinstance(e, StepSucceeded)]
    assert len(bytes(event.value)) < 100
    assert event.blob in ran.store.blobs.blobs
    [warning] = [r.getMessage() for r in caplog.records if "offloaded to a blob" in r.getMessage()]
    assert "the result of big:0" in warning
    assert "300,002 bytes" in warning
    await go_on_from_everywhere(flow(), ran)


async def test_a_small_result_stays_in_the_journal_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def flow() -> int:
        return len(await big(200_000))

    with caplog.at_level(logging.WARNING, logger="perdure"):
        ran = await run(flow())
    assert ran.output == 200_000
    assert not values_in(ran.store)
    assert not caplog.records


async def test_large_inputs_and_outputs_of_runs_go_to_the_blob_store() -> None:
    @workflow
    async def flow(text: str) -> str:
        await big(1)
        return text + "y"

    store = MemoryStore()
    async with Engine(store, [flow], recovery=AT_ONCE) as engine:
        handle = await engine.start(flow("x" * 300_000), id="it")
        assert await handle.result(PATIENCE) == "x" * 300_000 + "y"
        view = await engine.get("it")
        assert view is not None
        assert view.input == {"text": "x" * 300_000}
        assert view.output == "x" * 300_000 + "y"
        events = [e.event for e in await engine.journal("it")]
    started, finished = events[0], events[-1]
    assert isinstance(started, RunStarted)
    assert isinstance(finished, RunFinished)
    assert started.input_blob in store.blobs.blobs
    assert finished.blob in store.blobs.blobs
    await replay(flow, handle.run_id, store)


async def test_steps_show_large_results() -> None:
    @workflow
    async def flow() -> int:
        return len(await big(300_000))

    async with Engine("memory://", [flow]) as engine:
        await engine.run(flow(), id="it")
        [view] = await engine.steps("it")
    assert view.output == "x" * 300_000


async def test_a_result_above_the_limit_fails_the_step_and_the_body_may_go_on() -> None:
    @workflow
    async def flow() -> list[Any]:
        try:
            await big(3_000_000)
        except PayloadTooLarge as error:
            return [error.size, error.limit, len(await big(10))]
        return []

    ran = await run(flow())
    assert ran.output == [3_000_002, 2 * 1024 * 1024, 10]
    assert not values_in(ran.store)
    await go_on_from_everywhere(flow(), ran)


async def test_an_output_above_the_limit_fails_the_run() -> None:
    @workflow
    async def flow() -> str:
        return "x" * 3_000_000

    store = MemoryStore()
    async with Engine(store, [flow]) as engine:
        result = await engine.run(flow())
    assert isinstance(result.error, PayloadTooLarge)


async def test_an_input_above_the_limit_is_refused_and_nothing_is_written() -> None:
    @workflow
    async def flow(text: str) -> int:
        return len(text)

    store = MemoryStore()
    async with Engine(store, [flow]) as engine:
        with pytest.raises(PayloadTooLarge, match="input of flow"):
            _ = await engine.start(flow("x" * 3_000_000), id="it")
        assert await engine.get("it") is None
    assert not values_in(store)


async def test_limits_are_those_of_the_engine() -> None:
    @workflow
    async def flow() -> int:
        return len(await big(2_000))

    store = MemoryStore()
    async with Engine(store, [flow], limits=Limits(blob=1_000)) as engine:
        assert (await engine.run(flow())).output == 2_000
    assert len(values_in(store)) == 1
    async with Engine(MemoryStore(), [flow], limits=Limits(blob=100, payload=1_000)) as engine:
        assert isinstance((await engine.run(flow())).error, PayloadTooLarge)


async def test_a_journal_above_its_limit_fails_the_step_and_says_how_large_it_is() -> None:
    @workflow
    async def flow() -> list[Any]:
        for n in range(100):
            try:
                await big(1_000)
            except HistoryTooLarge as error:
                return [n, error.limit, error.size > error.limit]
        return []

    async with Engine("memory://", [flow], limits=Limits(history=20_000)) as engine:
        result = await engine.run(flow())
    assert result.output is not None
    count, limit, above = result.output
    assert 5 < count < 20
    assert (limit, above) == (20_000, True)


async def test_a_journal_above_its_limit_fails_a_run_that_does_not_catch_it() -> None:
    @workflow
    async def flow() -> None:
        while True:
            await big(1_000)

    async with Engine("memory://", [flow], limits=Limits(history=20_000)) as engine:
        result = await engine.run(flow())
    assert isinstance(result.error, HistoryTooLarge)


# --- custom codecs ---------------------------------------------------------------------------------------------------


class Money:
    """A class that no library knows."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


money = TypeCodec(Money, encode=lambda m: m.cents, decode=Money)


async def test_a_registered_codec_carries_arguments_and_results() -> None:
    @step
    async def twice(amount: Money) -> Money:
        return Money(2 * amount.cents)

    @workflow
    async def flow(amount: Money) -> Money:
        doubled = await twice(amount)
        assert type(doubled) is Money
        return Money(doubled.cents + 1)

    ran = await run(flow(Money(5)), codecs=[money])
    assert type(ran.output) is Money
    assert ran.output.cents == 11


async def test_without_its_codec_a_value_is_refused() -> None:
    @workflow
    async def flow() -> Any:
        return Money(1)

    ran = await run(flow())
    assert isinstance(ran.result.error, NotSerializable)
    assert "codecs" in str(ran.result.error)


async def test_a_result_type_that_cannot_be_decoded_is_an_error_when_the_engine_opens() -> None:
    @workflow
    async def flow() -> Money:
        return Money(1)

    engine = Engine("memory://", [flow])
    with pytest.raises(NotDecodable, match="Money"):
        _ = await engine.open()
