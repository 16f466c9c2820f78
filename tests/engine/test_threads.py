"""Threads of `def` steps: how many there are, whose time counts when, and what happens when all of them wait."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from perdure import DeadlineExceeded, Engine, StepTimeout, UsageError, blocking, rule, step, workflow
from perdure.engine import steps, threads
from tests.engine.cpu_steps import waits_for
from tests.engine.harness import AT_ONCE, LASTING, LONG, PATIENCE, LoopTime, Recorded, eventually, run


class Gate:
    """What holds steps in threads until a test lets them go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.entered = 0

    def pass_through(self) -> None:
        self.entered += 1
        assert self.opened.wait(PATIENCE * 4)


def held_up(**options: Any) -> Any:
    """A run in which a step holds the only thread until the time of another one, which waits for it, would be up."""
    gate, time = Gate(), LoopTime()

    @step
    def holds() -> None:
        gate.pass_through()

    @step(**options)
    def waits() -> str:
        return "made"

    @step
    async def time_passes() -> None:
        await eventually(lambda: gate.entered == 1)
        await time.advance(2 * LONG)
        gate.opened.set()

    @workflow
    async def flow() -> str:
        held, waiting = asyncio.ensure_future(holds()), asyncio.ensure_future(waits())
        await time_passes()
        await held
        return await waiting

    return flow


@pytest.mark.parametrize("options", [{"timeout": LONG}, {"heartbeat": LONG}], ids=["timeout", "heartbeat"])
async def test_time_counts_from_when_the_function_begins(options: dict[str, Any]) -> None:
    assert (await run(held_up(**options)(), threads=1, recovery=LASTING)).output == "made"


async def test_it_does_in_an_executor_of_the_user() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert (await run(held_up(timeout=LONG)(), executor=pool, recovery=LASTING)).output == "made"


async def test_a_fallback_that_waits_for_a_thread_is_not_late_either() -> None:
    gate, time, broken = Gate(), LoopTime(), asyncio.Event()

    def mended(failed: Any) -> str:
        return "mended"

    @step
    def holds() -> None:
        gate.pass_through()

    @step(timeout=LONG)
    async def breaks() -> str:
        broken.set()
        raise ValueError("broken")

    @step
    async def time_passes() -> None:
        await eventually(lambda: gate.entered == 1)
        await broken.wait()
        await time.advance(2 * LONG)
        gate.opened.set()

    @workflow
    async def flow() -> str:
        held = asyncio.ensure_future(holds())
        waiting = asyncio.ensure_future(breaks())
        await time_passes()
        await held
        return await waiting

    ran = await run(flow(), threads=1, rules=[rule("breaks", fallback=mended)], recovery=LASTING)
    assert ran.output == "mended"


async def test_time_counts_from_when_a_process_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    time, recorded, go = LoopTime(), Recorded(), tmp_path / "go"

    @step
    async def time_passes() -> None:
        for op in ("waits_for:0", "waits_for:1"):
            await recorded.until_started(op)
        await time.advance(2 * LONG)
        go.touch()

    @workflow
    async def flow() -> list[int]:
        first = asyncio.ensure_future(waits_for(str(go)))
        second = asyncio.ensure_future(waits_for.options(timeout=LONG)(os.devnull))
        await time_passes()
        return [await first, await second]

    assert (await run(flow(), on_commit=recorded, recovery=LASTING)).output == [1, 1]


async def test_a_step_that_takes_too_long_once_it_began_is_timed_out() -> None:
    gate = Gate()

    @step(timeout=0.05)
    def holds() -> None:
        gate.pass_through()

    @workflow
    async def flow() -> str:
        try:
            await holds()
        except StepTimeout as error:
            return str(error)
        return ""

    assert "timeout of 0.05 s" in (await run(flow(), threads=1)).output
    gate.opened.set()


async def test_the_deadline_of_a_run_does_not_wait_for_a_thread() -> None:
    gate = Gate()

    @step
    def holds() -> None:
        gate.pass_through()

    @workflow
    async def first() -> None:
        await holds()

    @workflow
    async def second() -> None:
        await holds()

    async with Engine("memory://", [first, second], threads=1, recovery=AT_ONCE) as engine:
        _ = await engine.start(first())
        await eventually(lambda: gate.entered == 1)
        late = await engine.start(second(), deadline=timedelta(seconds=0.05))
        with pytest.raises(DeadlineExceeded):
            await late.result(PATIENCE)
        gate.opened.set()


# --- how many there are ----------------------------------------------------------------------------------------------


async def test_so_many_steps_run_at_once_and_no_more() -> None:
    gate = Gate()
    most = 0
    inside: set[int] = set()

    @step
    def holds(n: int) -> None:
        nonlocal most
        inside.add(n)
        most = max(most, len(inside))
        gate.pass_through()
        inside.discard(n)

    @workflow
    async def flow() -> None:
        await asyncio.gather(*(holds(n) for n in range(9)))

    async with Engine("memory://", [flow], threads=3, recovery=AT_ONCE) as engine:
        handle = await engine.start(flow())
        await eventually(lambda: gate.entered == 3)
        gate.opened.set()
        await handle.result(PATIENCE)
    assert most == 3


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "4"])
def test_what_is_no_number_of_threads_is_refused(threads: Any) -> None:
    with pytest.raises(UsageError, match="threads="):
        _ = Engine("memory://", [], threads=threads)


def test_a_number_of_threads_beside_an_executor_is_refused() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="no effect with executor"):
        _ = Engine("memory://", [], threads=4, executor=pool)


# --- when all of them wait -------------------------------------------------------------------------------------------


def test_steps_that_wait_for_other_runs_leave_their_threads_to_them() -> None:
    engine: blocking.Engine

    @step
    def leaf(n: int) -> int:
        return n

    @workflow
    async def child(n: int) -> int:
        return await leaf(n)

    @step
    def waits(n: int) -> int:
        return engine.start(child(n)).result(PATIENCE * 4)

    @workflow
    async def flow(count: int) -> list[int]:
        return await asyncio.gather(*(waits(n) for n in range(count)))

    @step
    def waits_deeper() -> int:
        return sum(engine.start(flow(4)).result(PATIENCE * 4))

    @workflow
    async def deep() -> list[int]:
        return await asyncio.gather(*(waits_deeper() for _ in range(3)))

    with blocking.Engine("memory://", [flow, child, deep], threads=2, recovery=AT_ONCE) as engine:
        assert engine.start(flow(10)).result(PATIENCE * 4) == list(range(10))
        assert engine.start(deep()).result(PATIENCE * 4) == [6, 6, 6]


async def test_threads_that_were_made_for_waiting_ones_do_not_stay() -> None:
    loop = asyncio.get_running_loop()
    pool = threads.Threads(loop, 1, "made", "Engine(threads=...)")
    gate = Gate()

    def waiting() -> str:
        with threads.waiting_for_perdure():
            gate.pass_through()
        return threading.current_thread().name

    first = [pool.submit(waiting, "w") for _ in range(3)]
    await eventually(lambda: gate.entered == 3)
    names = [(await pool.submit(lambda: threading.current_thread().name, "x"))[0] for _ in range(3)]
    gate.opened.set()
    names += [(await one)[0] for one in first]
    assert len(set(names)) == 4
    await eventually(lambda: sum(thread.name.startswith("made") for thread in threading.enumerate()) == 1)
    pool.close()


async def test_a_pool_in_which_nothing_moves_is_logged_with_what_to_do(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalling = partial(threads.Threads, config=threads.ThreadsConfig(stall=0.02))
    monkeypatch.setattr(steps, "Threads", stalling)
    gate = Gate()

    @step
    def holds(n: int) -> None:
        gate.pass_through()

    @workflow
    async def flow() -> None:
        await asyncio.gather(*(holds(n) for n in range(3)))

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "wait for a thread" in record.getMessage()]

    with caplog.at_level(logging.WARNING, logger="perdure"):
        async with Engine("memory://", [flow], threads=1, recovery=AT_ONCE) as engine:
            handle = await engine.start(flow(), id="stuck")
            await eventually(lambda: bool(said()))
            gate.opened.set()
            await handle.result(PATIENCE)
    assert said()[0].startswith("2 steps wait for a thread, and all 1 threads")
    assert "holds:0 of run 'stuck'" in said()[0]
    assert "Engine(threads=...)" in said()[0]


async def test_a_thread_outlives_whatever_its_call_raises() -> None:
    pool = threads.Threads(asyncio.get_running_loop(), 1, "stays", "x")

    def throws(error: BaseException) -> Callable[[], None]:
        def throw() -> None:
            raise error

        return throw

    for error in (SystemExit(1), KeyboardInterrupt(), GeneratorExit(), ValueError("x")):
        assert (await pool.submit(throws(error), "x"))[1] is error
    assert (await pool.submit(lambda: threading.current_thread().name, "x"))[0] == "stays-1"
    pool.close()
