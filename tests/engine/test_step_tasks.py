"""The task that a step sees: one of its own, from its beginning to its end, whether or not it suspends."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from perdure import Engine, step, step_context, workflow
from perdure.ports.journal import Append
from tests.engine.harness import run


def this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.mark.parametrize("name", ["wait_for", "timeout", "group", "sleep", "bare"])
async def test_a_step_has_one_task_from_its_first_line_to_its_last(name: str) -> None:
    seen: list[tuple[bool, str]] = []

    async def suspend() -> None:
        if name == "wait_for":
            await asyncio.wait_for(asyncio.sleep(0.001), 60)
        elif name == "timeout":
            async with asyncio.timeout(60):
                await asyncio.sleep(0.001)
        elif name == "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0.001))
        elif name == "sleep":
            await asyncio.sleep(0.001)
        else:
            await asyncio.sleep(0)

    @step
    async def work() -> None:
        first = this_task()
        await suspend()
        seen.append((first is this_task(), first.get_name()))

    @workflow
    async def flow() -> None:
        for _ in range(2):
            await work()

    await run(flow())
    assert seen == [(True, "work:0"), (True, "work:1")]


KEPT: dict[str, Callable[[list[Any]], None]] = {
    "a reference": lambda kept: kept.append(this_task()),
    "a weak reference": lambda kept: kept.append(weakref.ref(this_task(), lambda _: None)),
    "a callback": lambda kept: this_task().add_done_callback(lambda _: kept.append("called")),
}


@pytest.mark.parametrize("what", KEPT)
async def test_a_step_that_leaves_something_on_its_task_shares_it_with_no_other(what: str) -> None:
    kept: list[Any] = []
    tasks: list[int] = []

    @step
    async def leaves() -> int:
        KEPT[what](kept)
        tasks.append(id(this_task()))
        return 1

    @step
    async def follows() -> int:
        if what == "a callback":
            assert kept == ["called"]
        elif what == "a reference":
            assert kept[0] is not this_task()
            assert (kept[0].done(), kept[0].result(), kept[0].get_name()) == (True, 1, "leaves:0")
        else:
            assert kept[0]() is not this_task()
        return 2

    @workflow
    async def flow() -> list[int]:
        return [await leaves(), await follows(), await follows()]

    assert (await run(flow())).output == [1, 2, 2]


async def test_steps_that_end_at_once_leave_no_task_behind() -> None:
    @step
    async def work(i: int) -> int:
        if i % 3 == 0:
            await asyncio.sleep(0)
        return i

    @workflow
    async def flow() -> int:
        return sum(await asyncio.gather(*[work(i) for i in range(20)]))

    before = asyncio.all_tasks()
    for _ in range(2):
        async with Engine("memory://", [flow]) as engine:
            assert (await engine.run(flow())).output == 190
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_a_step_that_cancels_itself_is_cancelled_and_the_next_one_is_not() -> None:
    awaited: list[bool] = []

    @step
    async def returns() -> None:
        this_task().cancel()

    @step
    async def raises() -> None:
        this_task().cancel()
        raise ValueError("first")

    @step
    async def takes_it_back() -> None:
        this_task().cancel()
        this_task().uncancel()

    @step
    async def waits() -> None:
        this_task().cancel()
        future = asyncio.get_running_loop().create_future()
        try:
            await future
        finally:
            awaited.append(future.cancelled())

    @step
    async def yields() -> None:
        this_task().cancel()
        await asyncio.sleep(0)

    @step
    async def survives() -> str:
        this_task().cancel()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            this_task().uncancel()
        await asyncio.sleep(0)
        return "survived"

    @step
    async def follows() -> str:
        assert not this_task().cancelling()
        await asyncio.sleep(0)
        return "followed"

    @workflow
    async def flow() -> list[str]:
        said = []
        for work in (returns, raises, takes_it_back, waits, yields):
            try:
                await work()
                said.append("returned")
            except Exception as error:
                said.append(str(error).rpartition(": ")[2])
            said.append(await follows())
        return [*said, await survives(), await follows()]

    said = (await run(flow())).output
    cancelled = "the step was cancelled from within"
    assert said[1:10:2] == ["followed"] * 5
    assert said[10:] == ["survived", "followed"]
    # Python 3.13 takes a cancellation back.
    assert said[4] in (cancelled, "returned")
    assert [said[0], said[2], said[6], said[8]] == [cancelled, "first", cancelled, cancelled]
    assert awaited == [True]


async def test_timeouts_and_groups_inside_a_step_end_as_in_any_task() -> None:
    @step
    async def late() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        except TimeoutError:
            return f"late, {this_task().cancelling()}"
        return "not late"

    @step
    async def broken() -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                raise ValueError("first")
        except ExceptionGroup as errors:
            return f"{errors.exceptions}, {this_task().cancelling()}"

    @workflow
    async def flow() -> list[str]:
        return [await late(), await broken(), await late()]

    assert (await run(flow())).output == ["late, 0", "(ValueError('first'),), 0", "late, 0"]


async def test_context_variables_belong_to_one_step_and_last_over_its_waits() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    @step
    async def work(name: str, waits: int) -> list[str]:
        seen = [variable.get()]
        variable.set(name)
        for _ in range(waits):
            await asyncio.sleep(0)
            seen.append(variable.get())
            variable.set(f"{variable.get()}+")
        return [*seen, variable.get(), step_context().id.rpartition("/")[2]]

    @workflow
    async def flow() -> list[list[str]]:
        together = await asyncio.gather(work("a", 2), work("b", 0), work("c", 1))
        return [*together, await work("d", 0), await work("e", 1)]

    assert (await run(flow())).output == [
        ["unset", "a", "a+", "a++", "work:0"],
        ["unset", "b", "work:1"],
        ["unset", "c", "c+", "work:2"],
        ["unset", "d", "work:3"],
        ["unset", "e", "e+", "work:4"],
    ]


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("raised"), GeneratorExit("gone")], ids=repr)
async def test_an_error_that_ends_other_tasks_fails_the_step_alone(error: BaseException, suspends: bool) -> None:
    @step
    async def work() -> None:
        if suspends:
            await asyncio.sleep(0)
        raise error

    @step
    async def follows() -> str:
        return "followed"

    @workflow
    async def flow() -> list[str]:
        try:
            await work()
        except Exception as failed:
            return [getattr(failed, "type", type(failed).__name__), await follows()]
        return []

    name, said = (await run(flow())).output
    assert name.rpartition(".")[2] == type(error).__name__
    assert said == "followed"


async def test_all_that_ends_in_one_turn_shares_a_commit_and_the_loop_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, steps = 50, 4
    written: list[int] = []
    turns = 0

    @step
    async def work(i: int) -> int:
        return i

    @workflow
    async def flow() -> int:
        return sum([await work(i) for i in range(steps)])

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Engine("memory://", [flow]) as engine:
        append = engine.store.journal.append

        def counted(appends: list[Append]) -> Any:
            written.append(len(appends))
            return append(appends)

        monkeypatch.setattr(engine.store.journal, "append", counted)
        counting = asyncio.create_task(count())
        await asyncio.gather(*[engine.run(flow()) for _ in range(runs)])
        # Their start, and one commit for each of their steps.
        assert written == [runs] * (steps + 1)
        before = turns
        await engine.run(flow())
        assert turns - before >= steps
        counting.cancel()


async def test_a_cancelled_idle_task_is_replaced() -> None:
    @step
    async def work() -> str:
        return this_task().get_name()

    @workflow
    async def flow() -> list[str]:
        return [await work(), await work()]

    async with Engine("memory://", [flow]) as engine:
        for _ in range(3):
            assert (await engine.run(flow())).output == ["work:0", "work:1"]
            for task in asyncio.all_tasks():
                if task.get_name().startswith("work:"):
                    task.cancel()
