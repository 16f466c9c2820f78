"""What a step and a run cost, counted and not timed: calls of the package's functions, and statements of the store.

The walk of `await charge(order)` goes from the call through the journal on disk and the step, and back to the body.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import perdure
from perdure import Engine, step, workflow
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.value_versions import Versions
from perdure.stores.sqlite import database

SOURCE = str(Path(perdure.__file__).parent) + "/"
# What one step may touch of the package, where its run is in memory and SQLite commits on the loop; and what a run of
# one step may, from the call of `start` to its result. A commit that raises a figure says why.
MOST_FILES = 24
MOST_CALLS = 105
MOST_CALLS_OF_A_RUN = 379
# Statements of one step, and of a run of one step, with those that begin and end transactions.
MOST_STATEMENTS = {"sqlite": (4, 11), "postgresql": (1, 3)}


@dataclass
class Order:
    """What the step takes and returns: a value with a type of its own."""

    id: str
    amount: int


class Walk:
    """The calls of the package's functions while it is recording."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record every call from here on."""
        sys.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, argument: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(SOURCE):
            self.calls.append((file.removeprefix(SOURCE), frame.f_code.co_qualname))

    @property
    def files(self) -> Counter[str]:
        """How many calls there were in each file."""
        return Counter(file for file, _ in self.calls)

    def __str__(self) -> str:
        return "\n".join(f"{file}: {function}" for file, function in self.calls)


@step
async def charge(order: Order) -> Order:
    """Charge an order."""
    return Order(order.id, order.amount + 1)


async def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    """The shortest walk of ten steps of a run: the engine's own polling falls into some of them."""
    # Not in the thread of the store, whichever the disk is.
    monkeypatch.setattr(database, "INLINE_SECONDS", math.inf)
    # As in a process in which no type has declared a version of its values.
    monkeypatch.setattr(Versions, "anywhere", False)
    walks: list[Walk] = []

    @workflow
    async def shop(order: Order) -> Order:
        order = await charge(order)
        for _ in range(10):
            walks.append(Walk())
            with walks[-1].recorded():
                order = await charge(order)
        return order

    async with Engine(f"sqlite:///{tmp_path}/walk.db", [shop]) as engine:
        await engine.run(shop(Order("a", 1)))
        assert (await engine.run(shop(Order("b", 1)))).output == Order("b", 12)
    return min(walks, key=lambda walk: len(walk.calls))


async def test_a_step_walks_through_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = await walked(tmp_path, monkeypatch)

    assert len(walk.files) <= MOST_FILES, f"{sorted(walk.files)}\n{walk}"
    assert len(walk.calls) <= MOST_CALLS, str(walk)


async def test_a_run_of_one_step_takes_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "INLINE_SECONDS", math.inf)
    monkeypatch.setattr(Versions, "anywhere", False)
    walks: list[Walk] = []

    @workflow
    async def shop(order: Order) -> Order:
        return await charge(order)

    async with Engine(f"sqlite:///{tmp_path}/walk.db", [shop]) as engine:
        await engine.run(shop(Order("a", 1)))
        for number in range(10):
            walks.append(Walk())
            with walks[-1].recorded():
                run = await engine.start(shop(Order("b", 1)), id=f"order-{number}")
                assert await run.result() == Order("b", 2)
    walk = min(walks, key=lambda walk: len(walk.calls))

    assert len(walk.calls) <= MOST_CALLS_OF_A_RUN, str(walk)


@pytest.mark.parametrize("any_url", ["sqlite", "postgres"], indirect=True)
async def test_a_step_and_a_run_take_few_statements(any_url: str) -> None:
    asked: list[str] = []
    in_step: list[int] = []
    in_run: list[int] = []

    @workflow
    async def shop(order: Order) -> Order:
        for _ in range(10):
            before = len(asked)
            order = await charge(order)
            in_step.append(len(asked) - before)
        return order

    @workflow
    async def buy(order: Order) -> Order:
        return await charge(order)

    async with Engine(any_url, [shop, buy]) as engine:
        await engine.run(shop(Order("a", 1)))
        in_step.clear()
        engine.store.trace(asked.append)
        await engine.run(shop(Order("b", 1)))
        for number in range(10):
            before = len(asked)
            await engine.run(buy(Order("c", 1)), id=f"order-{number}")
            in_run.append(len(asked) - before)
        engine.store.trace(None)

    # The engine's own polling falls into some of them.
    assert (min(in_step), min(in_run)) == MOST_STATEMENTS[any_url.partition(":")[0]], asked


async def test_a_typed_result_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    decode = Codec.decode

    def noted(codec: Codec, data: Any, type: Any, what: str) -> Any:
        decoded.append(what)
        return decode(codec, data, type, what)

    monkeypatch.setattr(Codec, "decode", noted)
    await walked(tmp_path, monkeypatch)

    # In each of two runs.
    of_step = [what for what in decoded if what.endswith("charge:2")]
    assert of_step == ["the arguments of charge:2", "the result of charge:2"] * 2
