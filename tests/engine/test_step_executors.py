"""Where steps run: on the loop, in threads, in an executor of the user's."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from perdure import Engine, step, step_context, workflow
from tests.engine.harness import PATIENCE, only, run

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


async def test_async_steps_run_on_the_loop_and_plain_steps_in_threads() -> None:
    main = threading.get_ident()

    @step
    async def asynchronous() -> bool:
        return threading.get_ident() == main

    @step
    def plain() -> bool:
        return threading.get_ident() == main

    @workflow
    async def flow() -> list[bool]:
        return [await asynchronous(), await plain()]

    assert (await run(flow())).output == [True, False]


async def test_plain_steps_run_side_by_side() -> None:
    barrier = threading.Barrier(8, timeout=PATIENCE)

    @step
    def meet(n: int) -> int:
        barrier.wait()
        return n

    @workflow
    async def flow() -> list[int]:
        return list(await asyncio.gather(*(meet(n) for n in range(8))))

    assert (await run(flow())).output == list(range(8))


async def test_many_plain_steps_all_end() -> None:
    @step
    def one(n: int) -> int:
        return n

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*(one(n) for n in range(500))))

    assert (await run(flow())).output == sum(range(500))


async def test_a_thread_sees_a_copy_of_the_context_and_changes_nothing_of_it() -> None:
    @step
    def look() -> str:
        before = var.get()
        var.set("changed by the step")
        return before

    @workflow
    async def flow() -> list[str]:
        return [await look(), await look()]

    var.set("of the engine")
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow())
    assert result.output == ["of the engine", "of the engine"]
    assert var.get() == "of the engine"


async def test_steps_of_one_run_do_not_see_the_context_of_another_runs_caller() -> None:
    @step
    async def look() -> str:
        return var.get()

    @step
    def look_in_a_thread() -> str:
        return var.get()

    @workflow
    async def flow() -> list[str]:
        return [await look(), await look_in_a_thread(), await look()]

    async with Engine("memory://", [flow]) as engine:

        async def caller(name: str) -> list[str]:
            var.set(name)
            return (await engine.run(flow())).output or []

        seen = await asyncio.gather(*(caller(name) for name in ("alice", "bob", "carol")))
    for name, values in zip(("alice", "bob", "carol"), seen, strict=True):
        assert set(values) <= {name, "unset"}


class Inline(Executor):
    """An executor of the user's own: calls at once."""

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


async def test_a_custom_executor_runs_plain_steps_and_no_others() -> None:
    @step
    def plain(x: int) -> str:
        if x < 0:
            raise ValueError("negative")
        return f"{step_context().attempt}: {x}"

    @step
    async def asynchronous(x: int) -> int:
        return x

    @workflow
    async def flow() -> list[Any]:
        try:
            await plain(-1)
        except ValueError as error:
            return [str(error), await plain(1), await asynchronous(2)]
        return []

    executor = Inline()
    assert (await run(flow(), executor=executor)).output == ["negative", "1: 1", 2]
    assert executor.calls == 2


async def test_a_thread_pool_of_the_user_runs_plain_steps_and_is_left_open() -> None:
    @step
    def where() -> str:
        return threading.current_thread().name

    with ThreadPoolExecutor(1, thread_name_prefix="mine") as pool:
        assert (await run(only(where)(), executor=pool)).output.startswith("mine")
        assert pool.submit(len, "abc").result() == 3


async def test_an_executor_that_refuses_work_fails_the_step() -> None:
    class Broken(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            raise RuntimeError("no workers left")

    @step
    def plain() -> int:
        return 1

    @workflow
    async def flow() -> str:
        try:
            await plain()
        except RuntimeError as error:
            return str(error)
        return ""

    assert "no workers left" in (await run(flow(), executor=Broken())).output
