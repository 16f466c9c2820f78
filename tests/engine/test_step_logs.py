"""Log records of steps as chunks of their streams: only of steps that ask for it, and bounded."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from perdure import Engine, Retry, UsageError, step, step_context, workflow
from perdure.engine.step_logs import MOST_BYTES
from tests.engine.harness import AT_ONCE, PATIENCE

log = logging.getLogger("of.the.steps")


@step(logs="INFO")
async def talks(name: str) -> str:
    log.debug("too low")
    log.info("hello %s", name)
    step_context().emit({"own": 1})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    await asyncio.to_thread(log.warning, "from a thread")
    return name


@step(logs="warning")
def talks_in_thread() -> None:
    log.info("too low")
    log.error("high enough")


@step(logs="INFO")
async def talks_much() -> None:
    for number in range(300):
        log.info("%d %s", number, "x" * 1000)


@step(logs="INFO", retry=Retry(attempts=2, initial=0.0))
async def talks_twice() -> None:
    log.info("attempt %d", step_context().attempt)
    if step_context().attempt == 1:
        raise ValueError("once more")


@step
async def says_nothing() -> None:
    log.error("only in the log")


@workflow
async def flow(name: str) -> Any:
    await says_nothing()
    if name == "a":
        return await talks("ann")
    return await {"thread": talks_in_thread, "much": talks_much, "twice": talks_twice}[name]()


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "of.the.steps")


async def chunks(name: str) -> list[Any]:
    async with asyncio.timeout(PATIENCE):
        async with Engine("memory://", [flow], recovery=AT_ONCE) as engine:
            await engine.run(flow(name), id="it")
            op = {"a": "talks:0", "thread": "talks_in_thread:0", "much": "talks_much:0", "twice": "talks_twice:0"}
            found = [item.value async for item in engine.stream("it", op[name])]
            assert [item async for item in engine.stream("it", "says_nothing:0")] == []
    assert not [handler for handler in logging.getLogger().handlers if type(handler).__name__ == "StepLogs"]
    return found


async def test_records_become_chunks_beside_those_of_the_step() -> None:
    first, own, failed, thread = await chunks("a")
    assert first == {"log": "INFO", "logger": "of.the.steps", "text": "hello ann"}
    assert own == {"own": 1}
    assert failed["log"] == "ERROR"
    assert failed["text"].startswith("it failed\nTraceback")
    assert thread["text"] == "from a thread"


async def test_steps_in_threads_have_theirs() -> None:
    assert [one["text"] for one in await chunks("thread")] == ["high enough"]


async def test_an_attempt_has_a_limit() -> None:
    found = await chunks("much")
    assert sum(len(one["text"]) for one in found) < MOST_BYTES
    assert 80 < len(found) < 110
    assert found[-1]["text"].startswith("more than 100 KiB")


async def test_each_attempt_has_its_own() -> None:
    assert [one and one["text"] for one in await chunks("twice")] == ["attempt 1", None, "attempt 2"]


def test_what_cannot_have_them_is_refused() -> None:
    with pytest.raises(UsageError, match="DEBUG, INFO"):
        step(logs="loud")
    with pytest.raises(TypeError, match="its stream is its result"):

        @step(logs="INFO")
        async def yields() -> Any:
            yield 1

    with pytest.raises(TypeError, match="another process"):

        @step(logs="INFO", cpu=True)
        def heavy() -> None: ...
