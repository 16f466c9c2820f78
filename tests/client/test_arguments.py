# mypy: disable-error-code="unused-awaitable"
"""Arguments that do not fit are refused where the program is at hand, and named where they are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, NotDecodable, RunParked, RunStatus, UsageError, call, child, connect, step, workflow
from tests.engine.harness import AT_ONCE, PATIENCE


@dataclass
class Item:
    name: str
    cents: int


@dataclass
class Order:
    id: str
    items: list[Item]


@step
async def charge(cents: int) -> int:
    return cents


@workflow
async def fulfil(order: Order, *, gift: bool = False) -> int:
    return await charge(sum(item.cents for item in order.items))


GOOD = Order("o-1", [Item("tea", 300)])
WRONG: Any = {"id": "o-1", "items": [{"name": "tea", "cents": "three"}]}
NAMED = (
    r"the argument order of fulfil cannot be read as .*Order: Expected `int`, got `str` - at `\$\.items\[0\]\.cents`"
)

OPTIONS: list[dict[str, Any]] = [{}, {"delay": 60}, {"queue": "q"}, {"queue": "q", "key": "k", "debounce": 5}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("by_name", [True, False])
async def test_an_engine_refuses_arguments_that_do_not_fit_whenever_the_run_begins(
    options: dict[str, Any], by_name: bool
) -> None:
    invocation = call("fulfil", WRONG) if by_name else fulfil(WRONG)
    async with Engine("memory://", [fulfil], recovery=AT_ONCE) as engine:
        with pytest.raises(NotDecodable, match=NAMED):
            await engine.start(invocation, **options)
        assert not await engine.list()


async def test_a_client_that_has_the_program_refuses_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [fulfil], recovery=AT_ONCE) as engine, connect(url) as client:
        with pytest.raises(NotDecodable, match=NAMED):
            await client.start(fulfil(WRONG))
        with pytest.raises(NotDecodable, match="the argument gift of fulfil cannot be read as bool"):
            await client.start(fulfil(GOOD, gift=7))  # type: ignore[arg-type]
        report = await client.start_many([fulfil(GOOD), fulfil(WRONG)])
        assert len(report.done) == 1
        assert isinstance(report.failed[0].error, NotDecodable)
        assert await client.handle(report.done[0].id, fulfil).result(PATIENCE) == 300
        assert len(await engine.list()) == 1


async def test_a_schedule_refuses_them_before_it_has_ticked() -> None:
    async with Engine("memory://", [fulfil], recovery=AT_ONCE) as engine:
        with pytest.raises(NotDecodable, match=NAMED):
            await engine.schedule("s", fulfil(WRONG), every=3600)
        assert not await engine.schedules()


@pytest.mark.parametrize("how", ["awaited", "by name", "child", "child by name", "detached"])
async def test_a_child_refuses_them_in_the_body_that_asks_for_it(how: str) -> None:
    @workflow
    async def outer() -> str:
        try:
            match how:
                case "awaited":
                    await fulfil(WRONG)
                case "by name":
                    await call("fulfil", WRONG)
                case "child":
                    await child(fulfil(WRONG))
                case "child by name":
                    await child(call("fulfil", WRONG))
                case _:
                    await child(fulfil(WRONG), detached=True)
        except NotDecodable as error:
            return str(error)
        return "taken"

    async with Engine("memory://", [outer, fulfil], recovery=AT_ONCE) as engine:
        result = await (await engine.start(outer())).outcome(PATIENCE)
        assert result.status is RunStatus.COMPLETED
        assert "the argument order of fulfil" in str(result.output)
        assert "$.items[0].cents" in str(result.output)


@pytest.mark.parametrize(
    ("invocation", "told"),
    [
        (call("fulfil", WRONG), "the argument order of fulfil cannot be read as"),
        (call("fulfil", 7), "the argument order of fulfil cannot be read as"),
        (call("fulfil", order=WRONG), "`$.items[0].cents`"),
        (call("fulfil", GOOD, 5), "too many positional arguments"),
        (call("fulfil"), "missing a required argument: 'order'"),
        (call("fulfil", gift=True), "is missing its argument 'order'"),
        (call("fulfil", order=GOOD, colour="red"), "has no argument colour"),
    ],
)
async def test_a_worker_says_which_argument_does_not_fit_and_blames_no_other_code(
    invocation: Any, told: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [fulfil], recovery=AT_ONCE) as engine, connect(url) as client:
        handle = await client.start(invocation, id="it")
        result = await handle.outcome(PATIENCE)
        assert isinstance(result.error, RunParked)
        assert told in str(result.error)
        assert "other code" not in str(result.error)
        assert "Start it again with what fits" in str(result.error)
        _ = await engine.resolve("it", fail="wrong order")
        assert (await engine.run(fulfil(GOOD))).output == 300


async def test_arguments_of_a_program_that_is_not_at_hand_are_taken_as_they_are(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(url, [fulfil], recovery=AT_ONCE), connect(url) as client:
        handle = await client.start(call("fulfil", order=GOOD))
        assert await handle.result(PATIENCE) == 300
        with pytest.raises(UsageError, match="mixes positional and keyword"):
            await client.start(call("fulfil", GOOD, gift=True))
