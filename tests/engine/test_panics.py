"""Code that the engine calls on its loop may raise anything at all: its step or run fails, as with any Exception."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import (
    Engine,
    NotDecodable,
    NotSerializable,
    RunStatus,
    SignalRejected,
    TypeCodec,
    approval,
    set_state,
    step,
    wait_signal,
    workflow,
)
from tests.engine.harness import AT_ONCE, PATIENCE


class Panic(BaseException):
    """As libraries raise that are written in Rust."""


class Mute(BaseException):
    def __str__(self) -> str:
        raise Panic("not even that")


KINDS: list[type[BaseException]] = [
    ValueError,
    Panic,
    Mute,
    SystemExit,
    KeyboardInterrupt,
    asyncio.CancelledError,
    GeneratorExit,
]


class Arm:
    """What a codec raises from now on."""

    def __init__(self) -> None:
        self.encode: type[BaseException] | None = None
        self.decode: type[BaseException] | None = None


arm = Arm()


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


def encode(money: Money) -> int:
    if arm.encode is not None:
        raise arm.encode("boom")
    return money.cents


def decode(cents: int) -> Money:
    if arm.decode is not None:
        raise arm.decode("boom")
    return Money(cents)


@dataclass
class Odd:
    n: int

    def __post_init__(self) -> None:
        if self.n == 13 and arm.decode is not None:
            raise arm.decode("boom")


@step
async def price(which: str, kind: str) -> Money:
    setattr(arm, which, BY_NAME[kind])
    return Money(1)


@step
def price_in_thread(which: str, kind: str) -> Money:
    setattr(arm, which, BY_NAME[kind])
    return Money(1)


@step
async def odd(kind: str) -> Odd:
    arm.decode = BY_NAME[kind]
    return Odd.__new__(Odd) if kind == "never" else _thirteen()


def _thirteen() -> Odd:
    made = Odd(1)
    made.n = 13
    return made


@step
async def takes(money: Money) -> int:
    return money.cents


BY_NAME = {kind.__name__: kind for kind in KINDS}


@workflow
async def encodes(kind: str) -> int:
    await price("encode", kind)
    return 1


@workflow
async def decodes(kind: str) -> int:
    await price("decode", kind)
    return 1


@workflow
async def encodes_in_thread(kind: str) -> int:
    await price_in_thread("encode", kind)
    return 1


@workflow
async def post_init(kind: str) -> int:
    await odd(kind)
    return 1


@workflow
async def returns(kind: str) -> Money:
    arm.encode = BY_NAME[kind]
    return Money(1)


@workflow
async def shows(kind: str) -> int:
    arm.encode = BY_NAME[kind]
    set_state("money", Money(1))
    return 1


@workflow
async def argument(kind: str) -> int:
    arm.decode = BY_NAME[kind]
    return await takes(Money(1))


@workflow
async def child(kind: str) -> Money:
    arm.decode = BY_NAME[kind]
    return Money(1)


@workflow
async def parent(kind: str) -> int:
    await child(kind)
    return 1


@workflow
async def signalled() -> Odd:
    return await wait_signal("s", type=Odd)


@workflow
async def approved() -> Odd:
    return await approval("ok?", schema=Odd)


@workflow
async def given(money: Money) -> int:
    return 1


@workflow
async def other() -> int:
    return await takes(Money(5))


WORKFLOWS: list[Any] = [encodes, decodes, encodes_in_thread, post_init, returns, shows, argument, parent]
PROGRAMS: list[Any] = [*WORKFLOWS, child, signalled, approved, given, other]


@pytest.fixture(autouse=True)
def _disarmed() -> None:
    arm.encode = arm.decode = None


def engine() -> Engine:
    return Engine("memory://", PROGRAMS, codecs=[TypeCodec(Money, encode=encode, decode=decode)], recovery=AT_ONCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flow", WORKFLOWS, ids=lambda flow: str(flow.name))
async def test_whatever_a_codec_raises_fails_its_run_and_stops_no_other(
    flow: Any, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with engine() as running:
        ended = await (await running.start(flow(kind.__name__))).outcome(PATIENCE)
        assert ended.status is RunStatus.FAILED
        assert isinstance(ended.error, NotSerializable | NotDecodable)
        # A ValueError of a type's own code is told by msgspec, which leaves its name out.
        assert kind.__name__ in str(ended.error) or kind is ValueError
        assert kind is Mute or "boom" in str(ended.error)
        arm.encode = arm.decode = None
        assert await (await running.start(other())).result(PATIENCE) == 5
    assert not caplog.records


@pytest.mark.parametrize("kind", KINDS)
async def test_a_signal_whose_type_raises_is_refused_while_the_run_waits_and_fails_a_run_that_got_it_before(
    kind: type[BaseException],
) -> None:
    async with engine() as running:
        handle = await running.start(signalled())
        async with asyncio.timeout(PATIENCE):
            arm.decode = kind
            with pytest.raises(SignalRejected):
                await handle.signal("s", {"n": 13})
            await running.pause(handle.id)
            arm.decode = None
            await handle.signal("s", {"n": 13})
            arm.decode = kind
            await running.resume(handle.id)
            ended = await handle.outcome()
        assert isinstance(ended.error, NotDecodable)
        arm.decode = None
        assert await (await running.start(other(), id="x")).result(PATIENCE) == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_an_input_whose_type_raises_is_refused_or_fails_the_run(kind: type[BaseException]) -> None:
    async with engine() as running:
        arm.decode = kind
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(NotDecodable):
                await (await running.start(given(Money(1)))).result()
        arm.encode = kind
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(NotSerializable):
                _ = await running.start(given(Money(1)))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_result_that_cannot_be_read_later_is_an_error_of_its_reader(kind: type[BaseException]) -> None:
    async with engine() as running:
        handle = await running.start(child("ValueError"), id="r")
        with pytest.raises(NotDecodable):
            arm.decode = kind
            await handle.result(PATIENCE)
