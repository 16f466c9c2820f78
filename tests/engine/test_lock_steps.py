"""Locks that steps take."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import Engine, HeldBy, LockLost, LockTimeout, Retry, UsageError, lock, step, step_context, workflow
from tests.engine.harness import LASTING, LONG, PATIENCE, LoopTime
from tests.engine.lock_parts import free, gates, guarded_step, many_steps, most, until

pytestmark = pytest.mark.usefixtures("no_locks_left")


async def test_steps_on_the_loop_and_in_threads_take_turns(local_url: str) -> None:
    async with Engine(local_url, [many_steps]) as engine:
        tokens = await (await engine.start(many_steps())).result(PATIENCE)
        assert sorted(tokens) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert await free(engine)
    assert most == [1] * 8


async def test_a_step_that_fails_or_is_cancelled_gives_its_lock_back() -> None:
    time = LoopTime()

    @step(timeout=LONG)
    async def stuck() -> None:
        async with lock("room"):
            await time.advance(2 * LONG)
            await gates.wait("never")

    @step
    async def fails() -> None:
        async with lock("room"):
            raise ValueError("no")

    @workflow
    async def both() -> int:
        for call in (stuck, fails):
            try:
                await call()
            except (TimeoutError, ValueError):
                pass
        return await guarded_step("after")

    async with Engine("memory://", [both], recovery=LASTING) as engine:
        assert await (await engine.start(both())).result(PATIENCE) == 3
        assert await free(engine)


async def test_the_next_attempt_takes_over_from_a_thread_that_does_not_notice_its_end() -> None:
    stop, tokens, time = threading.Event(), [], LoopTime()

    @step(timeout=LONG, retry=Retry(attempts=2, initial=0.01))
    def stubborn() -> int:
        with lock("room") as held:
            tokens.append(held.token)
            if step_context().attempt == 1:
                time.advance_from_thread(2 * LONG)
                stop.wait(PATIENCE)
            return held.token

    @workflow
    async def calls() -> int:
        return await stubborn()

    async with Engine("memory://", [calls], recovery=LASTING) as engine:
        assert await (await engine.start(calls())).result(PATIENCE) == 2
        stop.set()
        async with engine.locks.hold("room") as held:
            assert held.token == 3
    assert tokens == [1, 2]


async def test_a_thread_that_waits_for_a_lock_ends_with_its_step() -> None:
    ended = threading.Event()

    @step(timeout=0.05)
    def waits() -> None:
        try:
            with lock("room"):
                pass
        finally:
            ended.set()

    @workflow
    async def calls() -> None:
        await waits()

    async with Engine("memory://", [calls]) as engine, engine.locks.hold("room"):
        with pytest.raises(TimeoutError):
            await (await engine.start(calls())).result(PATIENCE)
        assert await asyncio.to_thread(ended.wait, PATIENCE)


async def test_a_step_that_lost_its_lock_is_told_at_the_end_of_its_block() -> None:
    @step
    async def robbed() -> None:
        async with lock("room", ttl=30):
            await gates.wait("go")

    @workflow
    async def calls() -> None:
        await robbed()

    async with Engine("memory://", [calls]) as engine:
        run = await engine.start(calls())
        await until(lambda: _held(engine))
        assert await engine.locks.force_release("room") is not None
        assert not isinstance(await engine.locks.acquire("room", "thief"), HeldBy)
        gates.open("go")
        with pytest.raises(LockLost):
            await run.result(PATIENCE)


async def _held(engine: Engine) -> bool:
    return not await free(engine)


async def test_a_step_that_waits_in_vain_fails_with_lock_timeout_in_the_body() -> None:
    @step
    async def impatient() -> None:
        async with lock("room", timeout=0):
            pass

    @workflow
    async def calls() -> list[Any]:
        try:
            await impatient()
        except LockTimeout as error:
            return [error.key, error.seconds]
        return []

    async with Engine("memory://", [calls]) as engine, engine.locks.hold("room"):
        assert await (await engine.start(calls())).result(PATIENCE) == ["room", 0.0]


async def test_a_step_that_takes_a_lock_inside_itself_is_told_so() -> None:
    @step
    async def nested() -> None:
        async with lock("room"), lock("room"):
            pass

    @step
    async def wrong() -> None:
        with lock("room"):
            pass

    @workflow
    async def calls() -> list[str]:
        errors = []
        for call in (nested, wrong):
            try:
                await call()
            except UsageError as error:
                errors.append(str(error))
        return errors

    async with Engine("memory://", [calls]) as engine:
        first, second = await (await engine.start(calls())).result(PATIENCE)
        assert "would deadlock" in first
        assert "async with" in second
        assert await free(engine)
