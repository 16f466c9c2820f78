"""Plain asyncio in a body: it does what asyncio does, its journal replays to the same end, and so does any prefix."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

import perdure
from perdure import RunFailed, RunStatus, StepTimeout, Workflow, now, sleep, step, step_inline, workflow
from tests.engine.harness import go_on_from_everywhere, run

var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="unset")


class Declined(Exception):
    """An exception of the user's."""


class TooBusy(Exception):
    """Another one."""


@step
async def double(x: int) -> int:
    return 2 * x


@step
def triple(x: int) -> int:
    return 3 * x


@step
async def decline(message: str) -> int:
    raise Declined(message)


@step
async def never() -> int:
    """A step that ends only by being cancelled."""
    await asyncio.Event().wait()
    return 0


Body = Callable[[], Coroutine[Any, Any, Any]]
CASES: list[Any] = []


def gives(expected: object) -> Callable[[Body], Body]:
    """Register a body and what it returns."""

    def register(body: Body) -> Body:
        CASES.append(pytest.param(workflow(body), expected, id=body.__name__))
        return body

    return register


# --- gather ----------------------------------------------------------------------------------------------------------


@gives([2, 6, 4])
async def gather_gives_results_in_the_order_of_its_arguments() -> list[int]:
    return list(await asyncio.gather(double(1), triple(2), double(2)))


@gives([])
async def gather_of_nothing_is_an_empty_list() -> list[int]:
    return await asyncio.gather(*[])


@gives("no")
async def gather_raises_the_first_exception() -> str:
    try:
        await asyncio.gather(never(), decline("no"))
    except Declined as error:
        return str(error)
    return "nothing raised"


@gives([2, "Declined('no')", 9])
async def gather_returns_exceptions_when_asked() -> list[Any]:
    results = await asyncio.gather(double(1), decline("no"), triple(3), return_exceptions=True)
    return [r if isinstance(r, int) else repr(r) for r in results]


@gives([12, 18])
async def gather_runs_coroutines_side_by_side() -> list[int]:
    async def branch(x: int) -> int:
        return await triple(await double(x))

    return list(await asyncio.gather(branch(2), branch(3)))


@gives([[2, 4], [6, 9]])
async def gathers_nest() -> list[Any]:
    async def pair(f: Any, a: int, b: int) -> list[int]:
        return list(await asyncio.gather(f(a), f(b)))

    return list(await asyncio.gather(pair(double, 1, 2), pair(triple, 2, 3)))


@gives("given up")
async def cancelling_a_gather_gives_all_of_it_up() -> str:
    waiting = asyncio.gather(never(), never())
    await double(1)
    waiting.cancel()
    try:
        await waiting
    except asyncio.CancelledError:
        return "given up"
    return "went on"


# --- task groups -----------------------------------------------------------------------------------------------------


@gives([2, 6])
async def a_task_group_takes_steps_themselves() -> list[int]:
    async with asyncio.TaskGroup() as group:
        a = group.create_task(double(1))
        b = group.create_task(triple(2))
    return [a.result(), b.result()]


@gives([8, 12])
async def a_task_group_takes_coroutines() -> list[int]:
    async def branch(x: int) -> int:
        return await double(await double(x))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(x)) for x in (2, 3)]
    return [task.result() for task in tasks]


@gives([["Declined('a')"], ["sibling cancelled"]])
async def a_task_group_raises_a_group_and_cancels_the_siblings() -> list[list[str]]:
    raised: list[str] = []
    seen: list[str] = []

    async def sibling() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            seen.append("sibling cancelled")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            group.create_task(decline("a"))
    except* Declined as errors:
        raised = sorted(repr(e) for e in errors.exceptions)
    return [raised, seen]


@gives(["cleaned 2", "Declined"])
async def a_cancelled_sibling_may_run_steps_in_its_finally() -> list[str]:
    seen: list[str] = []

    async def sibling() -> None:
        try:
            await never()
        finally:
            seen.append(f"cleaned {await double(1)}")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(sibling())
            group.create_task(decline("a"))
    except ExceptionGroup as errors:
        seen.append(type(errors.exceptions[0]).__name__)
    return seen


# --- timeouts --------------------------------------------------------------------------------------------------------


@gives("timed out")
async def timeout_gives_up_a_step_that_takes_too_long() -> str:
    try:
        async with asyncio.timeout(0.01):
            await never()
    except TimeoutError:
        return "timed out"
    return "in time"


@gives(4)
async def timeout_that_is_not_reached_has_no_effect() -> int:
    async with asyncio.timeout(3600):
        return await double(2)


@gives("timed out")
async def timeout_at_takes_a_time_of_the_loop() -> str:
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.01):
            await never()
    except TimeoutError:
        return "timed out"
    return "in time"


@gives("timed out")
async def timeout_in_the_past_ends_at_once() -> str:
    try:
        async with asyncio.timeout(-1):
            await never()
    except TimeoutError:
        return "timed out"
    return "in time"


@gives([2, "outer"])
async def timeouts_nest() -> list[Any]:
    value = await double(1)
    try:
        async with asyncio.timeout(0.01):
            async with asyncio.timeout(3600):
                await never()
    except TimeoutError:
        return [value, "outer"]
    return [value, "none"]


@gives(2)
async def timeout_can_be_moved() -> int:
    async with asyncio.timeout(0.01) as scope:
        scope.reschedule(None)
        return await double(1)


@gives(["timed out", 6])
async def wait_for_gives_up_what_takes_too_long() -> list[Any]:
    try:
        await asyncio.wait_for(never(), timeout=0.01)
    except TimeoutError:
        return ["timed out", await asyncio.wait_for(double(3), timeout=3600)]
    return []


@gives(["timed out", "cancelled inside"])
async def wait_for_cancels_a_coroutine() -> list[str]:
    seen: list[str] = []

    async def branch() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            seen.append("cancelled inside")
            raise

    try:
        await asyncio.wait_for(branch(), timeout=0.01)
    except TimeoutError:
        seen.insert(0, "timed out")
    return seen


# --- wait, shield, as_completed --------------------------------------------------------------------------------------


@gives([2, 1])
async def wait_first_completed_leaves_the_rest_pending() -> list[int]:
    slow, fast = asyncio.ensure_future(never()), asyncio.ensure_future(double(1))
    done, pending = await asyncio.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
    assert done == {fast}
    slow.cancel()
    return [fast.result(), len(pending)]


@gives(["Declined('x')", 1])
async def wait_first_exception_ends_at_the_exception() -> list[Any]:
    slow, bad = asyncio.ensure_future(never()), asyncio.ensure_future(decline("x"))
    done, pending = await asyncio.wait([slow, bad], return_when=asyncio.FIRST_EXCEPTION)
    for task in pending:
        task.cancel()
    return [repr(done.pop().exception()), len(pending)]


@gives([2, 4, 6])
async def wait_all_completed_waits_for_all() -> list[int]:
    tasks = [asyncio.ensure_future(double(x)) for x in (1, 2, 3)]
    done, pending = await asyncio.wait(tasks)
    assert not pending
    assert done == set(tasks)
    return [task.result() for task in tasks]


@gives([0, 1])
async def wait_with_a_timeout_cancels_nothing() -> list[int]:
    slow = asyncio.ensure_future(never())
    done, pending = await asyncio.wait([slow], timeout=0.01)
    assert not slow.cancelled()
    return [len(done), len(pending)]


@gives([0, 2, 4, 6, 8, 10, 12, 14])
async def sets_of_tasks_iterate_in_the_order_the_tasks_were_made() -> list[int]:
    async def branch(x: int) -> int:
        return x

    done, _ = await asyncio.wait([asyncio.create_task(branch(x)) for x in range(8)])
    return [await double(task.result()) for task in done]


@gives(list(range(0, 96, 6)))
async def sets_of_gathers_iterate_the_same_way_on_every_replay() -> list[int]:
    done, _ = await asyncio.wait([asyncio.gather(double(x)) for x in range(16)])
    return sorted([await triple(future.result()[0]) for future in done])


@gives(["given up outside", 4])
async def shield_keeps_what_it_holds_alive() -> list[Any]:
    inner = asyncio.ensure_future(double(2))
    outer = asyncio.shield(inner)
    outer.cancel()
    try:
        await outer
    except asyncio.CancelledError:
        return ["given up outside", await inner]
    return []


@gives(["timed out", 2])
async def shield_holds_against_a_timeout() -> list[Any]:
    async def branch() -> int:
        await sleep(0.02)
        return await double(1)

    inner = asyncio.create_task(branch())
    try:
        await asyncio.wait_for(asyncio.shield(inner), timeout=0.005)
    except TimeoutError:
        return ["timed out", await inner]
    return []


@gives([2, 4, 6])
async def as_completed_takes_tasks_and_steps() -> list[int]:
    async def branch(x: int) -> int:
        return await double(x)

    futures: list[asyncio.Future[int]] = [asyncio.create_task(branch(x)) for x in (1, 2)]
    futures.append(asyncio.ensure_future(double(3)))
    return sorted([await future for future in asyncio.as_completed(futures)])


# --- sleeping --------------------------------------------------------------------------------------------------------


@gives("done")
async def sleeping_for_nothing_lets_others_run() -> str:
    order: list[str] = []

    async def other() -> None:
        order.append("other")

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    order.append("self")
    await task
    return "done" if order == ["other", "self"] else str(order)


@gives(True)
async def asyncio_sleep_takes_durable_time() -> bool:
    before = now()
    await asyncio.sleep(0.01)
    return (now() - before).total_seconds() >= 0.01


@gives("the result of sleep")
async def asyncio_sleep_has_a_result() -> str:
    return await asyncio.sleep(0.01, "the result of sleep")


@gives(["short", "long"])
async def sleeps_end_in_the_order_of_their_length() -> list[str]:
    order: list[str] = []

    async def nap(name: str, seconds: float) -> None:
        await sleep(seconds)
        order.append(name)

    await asyncio.gather(nap("long", 0.03), nap("short", 0.01))
    return order


@gives("called back")
async def call_later_is_a_durable_timer() -> str:
    loop = asyncio.get_running_loop()
    called = loop.create_future()
    loop.call_later(0.01, called.set_result, "called back")
    never_called = loop.call_later(0.001, called.set_result, "cancelled timer fired")
    never_called.cancel()
    return str(await called)


# --- primitives ------------------------------------------------------------------------------------------------------


@gives(["set", 2])
async def an_event_wakes_its_waiters() -> list[Any]:
    event = asyncio.Event()

    async def waiter() -> str:
        await event.wait()
        return "set"

    task = asyncio.create_task(waiter())
    value = await double(1)
    event.set()
    return [await task, value]


@gives([2, 4, 6, 8])
async def a_queue_feeds_workers() -> list[int]:
    queue: asyncio.Queue[int | None] = asyncio.Queue(maxsize=2)
    results: list[int] = []

    async def worker() -> None:
        while (item := await queue.get()) is not None:
            results.append(await double(item))
            queue.task_done()

    workers = [asyncio.create_task(worker()) for _ in range(2)]
    for x in (1, 2, 3, 4):
        await queue.put(x)
    await queue.join()
    for _ in workers:
        await queue.put(None)
    await asyncio.gather(*workers)
    return sorted(results)


@gives(["a in", "a out", "b in", "b out"])
async def a_lock_is_held_by_one_task_over_its_steps() -> list[str]:
    lock = asyncio.Lock()
    order: list[str] = []

    async def branch(name: str) -> None:
        async with lock:
            order.append(f"{name} in")
            await double(1)
            order.append(f"{name} out")

    await asyncio.gather(branch("a"), branch("b"))
    return order


@gives(2)
async def a_semaphore_bounds_how_many_steps_are_under_way() -> int:
    semaphore = asyncio.Semaphore(2)
    inside = most = 0

    async def branch(x: int) -> None:
        nonlocal inside, most
        async with semaphore:
            inside += 1
            most = max(most, inside)
            await double(x)
            inside -= 1

    await asyncio.gather(*(branch(x) for x in range(6)))
    return most


@gives(["told", "told"])
async def a_condition_notifies_its_waiters() -> list[str]:
    condition = asyncio.Condition()
    ready = False

    async def waiter() -> str:
        async with condition:
            await condition.wait_for(lambda: ready)
            return "told"

    tasks = [asyncio.create_task(waiter()) for _ in range(2)]
    await double(1)
    async with condition:
        ready = True
        condition.notify_all()
    return list(await asyncio.gather(*tasks))


@gives([0, 2, 4])
async def a_barrier_lets_all_through_together() -> list[int]:
    barrier = asyncio.Barrier(3)

    async def branch(x: int) -> int:
        value = await double(x)
        async with barrier:
            return value

    return list(await asyncio.gather(*(branch(x) for x in range(3))))


@gives("by hand")
async def a_future_of_the_body_is_resolved_by_another_task() -> str:
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def resolver() -> None:
        await double(1)
        future.set_result("by hand")

    task = asyncio.create_task(resolver())
    value = await future
    await task
    return value


# --- tasks -----------------------------------------------------------------------------------------------------------


@gives([4, 6])
async def tasks_make_tasks() -> list[int]:
    async def leaf(x: int) -> int:
        return await double(x)

    async def branch() -> list[int]:
        return [await asyncio.create_task(leaf(2)), await asyncio.create_task(leaf(3))]

    return await asyncio.create_task(branch())


@gives("ended first")
async def a_task_that_is_not_awaited_ends_with_the_run() -> str:
    _ = asyncio.create_task(never.fn())  # noqa: RUF006 - that is the point
    return "ended first"


@gives([2, ["background 4"]])
async def a_task_that_is_not_awaited_works_in_the_background() -> list[Any]:
    seen: list[str] = []

    async def background() -> None:
        seen.append(f"background {await double(2)}")

    task = asyncio.create_task(background())
    value = await double(1)
    while not task.done():
        await sleep(0.001)
    return [value, seen]


@gives(2)
async def an_exception_of_a_task_that_is_not_awaited_has_no_effect() -> int:
    async def failing() -> None:
        raise Declined("never raised")

    task = asyncio.create_task(failing())
    value = await double(1)
    del task
    return value


@gives("Declined('heard')")
async def an_exception_of_a_task_comes_out_where_it_is_awaited() -> str:
    async def failing() -> None:
        await double(1)
        raise Declined("heard")

    task = asyncio.create_task(failing())
    await double(2)
    try:
        await task
    except Declined as error:
        return repr(error)
    return "silent"


@gives(["cancelled", True, 2])
async def cancelling_a_task_gives_up_its_step() -> list[Any]:
    async def branch() -> None:
        await never()

    task = asyncio.create_task(branch())
    value = await double(1)
    task.cancel("enough")
    try:
        await task
    except asyncio.CancelledError:
        return ["cancelled", task.cancelled(), value]
    return []


@gives("refused to go, then went with 2")
async def a_task_may_refuse_to_be_cancelled() -> str:
    async def stubborn() -> str:
        try:
            await never()
        except asyncio.CancelledError:
            return f"refused to go, then went with {await double(1)}"
        return "never"

    task = asyncio.create_task(stubborn())
    await triple(1)
    task.cancel()
    return await task


@gives("cancelled before it began")
async def a_task_cancelled_before_it_begins_calls_nothing() -> str:
    async def branch() -> int:
        return await double(1)

    task = asyncio.create_task(branch())
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return "cancelled before it began"
    return "went on"


@gives("called and given up")
async def a_step_called_and_given_up_in_one_breath_never_happens() -> str:
    future = asyncio.ensure_future(never())
    future.cancel()
    await double(1)
    return "called and given up"


# --- the rest of Python ----------------------------------------------------------------------------------------------


@gives([2, 4, 6])
async def async_generators_call_steps() -> list[int]:
    async def doubles() -> AsyncIterator[int]:
        for x in (1, 2, 3):
            yield await double(x)

    return [x async for x in doubles()]


@gives([2, "closed with 3"])
async def an_async_generator_that_is_closed_early_runs_its_finally() -> list[Any]:
    seen: list[Any] = []

    async def doubles() -> AsyncGenerator[int, None]:
        try:
            yield await double(1)
            yield await double(2)
        finally:
            seen.append(f"closed with {await triple(1)}")

    async with aclosing(doubles()) as values:
        async for value in values:
            seen.append(value)
            break
    return seen


@gives(["enter 2", "inside", "exit 3"])
async def async_context_managers_call_steps_on_both_ends() -> list[str]:
    seen: list[str] = []

    @asynccontextmanager
    async def around() -> AsyncIterator[None]:
        seen.append(f"enter {await double(1)}")
        yield
        seen.append(f"exit {await triple(1)}")

    async with around():
        seen.append("inside")
    return seen


@gives(["unset", "root", "branch", "root"])
async def context_variables_belong_to_their_task() -> list[str]:
    before = var.get()
    var.set("root")

    async def branch() -> list[str]:
        inherited = var.get()
        var.set("branch")
        await double(1)
        return [inherited, var.get()]

    inherited, changed = await asyncio.create_task(branch())
    return [before, inherited, changed, var.get()]


@gives("compensated 2")
async def a_finally_block_runs_steps_after_a_failure() -> str:
    undone = ""
    try:
        try:
            await decline("x")
        finally:
            undone = f"compensated {await double(1)}"
    except Declined:
        return undone
    return "no failure"


@gives(120)
async def recursion_calls_steps_at_every_depth() -> int:
    async def factorial(n: int) -> int:
        return n * await factorial(n - 1) if n > 1 else await double(1) // 2

    return await factorial(5)


async def helper(x: int) -> int:
    return await double(x) + await triple(x)


@gives([5, 10])
async def steps_are_called_by_helper_functions() -> list[int]:
    return [await helper(1), await helper(2)]


@gives([1, 1, 2, 3, 5])
async def loops_and_branches_follow_results() -> list[int]:
    values = [1, 1]
    while values[-1] < 5:
        values.append(await step_inline("add", lambda a, b: a + b, values[-1], values[-2]))
    return values


@gives(["StepTimeout", 2])
async def the_timeout_of_a_step_is_caught_by_type() -> list[Any]:
    try:
        await never.options(timeout=0.01)()
    except StepTimeout as error:
        return [type(error).__name__, await double(1)]
    return []


@gives([["TooBusy('b')"], ["Declined('a')"]])
async def groups_of_exceptions_are_split_by_type() -> list[list[str]]:
    async def busy() -> None:
        raise TooBusy("b")

    seen: list[list[str]] = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(decline.fn("a"))
            group.create_task(busy())
    except* TooBusy as errors:
        seen.append([repr(e) for e in errors.exceptions])
    except* Declined as errors:
        seen.append([repr(e) for e in errors.exceptions])
    return seen


@pytest.mark.parametrize(("flow", "expected"), CASES)
async def test_asyncio_does_what_it_does_elsewhere_and_replays(flow: Workflow[[], Any], expected: object) -> None:
    ran = await run(flow())
    assert ran.output == expected
    await go_on_from_everywhere(flow(), ran)


# --- bodies that fail ------------------------------------------------------------------------------------------------


async def raising_from_the_body() -> None:
    await double(1)
    raise Declined("at the end")


async def raising_from_a_step() -> None:
    await double(1)
    await decline("in a step")


async def raising_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(decline("in a group"))


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (raising_from_the_body, Declined("at the end")),
        (raising_from_a_step, Declined("in a step")),
    ],
)
async def test_an_exception_that_leaves_the_body_is_the_run_s_own(body: Body, error: Exception) -> None:
    flow = workflow(body)
    ran = await run(flow())
    assert ran.result.status is RunStatus.FAILED
    assert type(ran.result.error) is type(error)
    assert str(ran.result.error) == str(error)
    await go_on_from_everywhere(flow(), ran)


async def test_an_exception_group_that_leaves_the_body_keeps_its_exceptions() -> None:
    ran = await run(workflow(raising_a_group)())
    error = ran.result.error
    assert isinstance(error, ExceptionGroup)
    assert [repr(e) for e in error.exceptions] == ["Declined('in a group')"]


async def test_a_body_that_cancels_itself_fails() -> None:
    @workflow
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await double(1)

    ran = await run(suicidal())
    assert ran.result.status is RunStatus.FAILED
    assert isinstance(ran.result.error, RunFailed)
    assert "CancelledError" in str(ran.result.error)


async def test_a_step_cancelled_before_it_was_planned_is_not_in_the_journal() -> None:
    ran = await run(workflow(a_step_called_and_given_up_in_one_breath_never_happens)())
    assert await ran.ops() == ["double:0"]


async def test_an_open_step_is_cancelled_when_the_run_ends() -> None:
    @workflow
    async def leaving() -> int:
        left = asyncio.ensure_future(never())
        value = await double(1)
        assert not left.done()
        return value

    store_ran = await run(leaving())
    assert store_ran.output == 2
    kinds = [(type(e).__name__, getattr(e, "op", "")) for e in await store_ran.events()]
    assert kinds[-2:] == [("StepFailed", "never:0"), ("RunFinished", "")]


async def test_the_body_runs_in_a_context_of_its_own_not_the_callers() -> None:
    @workflow
    async def look() -> str:
        await double(1)
        return var.get()

    var.set("of the caller")
    assert (await run(look())).output == "unset"


async def test_bodies_of_many_runs_do_not_see_each_others_tasks() -> None:
    @workflow
    async def tasks(n: int) -> int:
        async def branch() -> int:
            return await double(n)

        running = [asyncio.create_task(branch()) for _ in range(n)]
        count = len(asyncio.all_tasks())
        await asyncio.gather(*running)
        return count

    async with perdure.Engine("memory://", [tasks]) as engine:
        results = await asyncio.gather(*(engine.run(tasks(n)) for n in range(1, 20)))
    assert [r.output for r in results] == [n + 1 for n in range(1, 20)]
