"""What a body cannot do durably raises NotDurable, which names the line of the user's code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import NotDurable, RunStatus, now, step, workflow
from tests.engine.harness import Ran, run

Body = Callable[[], Coroutine[Any, Any, Any]]


@step
async def double(x: int) -> int:
    return 2 * x


LINES: dict[str, str] = {}


def mark(name: str) -> None:
    """Marks a place: the error must name the next line."""
    LINES[name] = f"test_not_durable.py:{sys._getframe(1).f_lineno + 1}"


async def open_connection() -> None:
    mark("open_connection")
    await asyncio.open_connection("127.0.0.1", 9)


async def start_server() -> None:
    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    mark("start_server")
    await asyncio.start_server(served, "127.0.0.1", 0)


async def to_thread() -> None:
    mark("to_thread")
    await asyncio.to_thread(len, "abc")


async def run_in_executor() -> None:
    loop = asyncio.get_running_loop()
    mark("run_in_executor")
    await loop.run_in_executor(None, len, "abc")


async def subprocess_exec() -> None:
    mark("subprocess_exec")
    await asyncio.create_subprocess_exec("true")


async def subprocess_shell() -> None:
    mark("subprocess_shell")
    await asyncio.create_subprocess_shell("true")


async def getaddrinfo() -> None:
    mark("getaddrinfo")
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def sock_recv() -> None:
    with socket.socket() as sock:
        mark("sock_recv")
        await asyncio.get_running_loop().sock_recv(sock, 1)


async def add_reader() -> None:
    mark("add_reader")
    asyncio.get_running_loop().add_reader(0, print)


async def add_signal_handler() -> None:
    mark("add_signal_handler")
    asyncio.get_running_loop().add_signal_handler(2, print)


async def call_soon_threadsafe() -> None:
    mark("call_soon_threadsafe")
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def run_until_complete() -> None:
    future = asyncio.get_running_loop().create_future()
    mark("run_until_complete")
    asyncio.get_running_loop().run_until_complete(future)


async def in_a_helper() -> None:
    async def helper() -> None:
        await double(1)
        mark("in_a_helper")
        await asyncio.to_thread(len, "abc")

    await helper()


async def in_a_task() -> None:
    async def helper() -> None:
        await double(1)
        mark("in_a_task")
        await asyncio.to_thread(len, "abc")

    await asyncio.gather(helper())


REFUSED: list[Body] = [
    open_connection,
    start_server,
    to_thread,
    run_in_executor,
    subprocess_exec,
    subprocess_shell,
    getaddrinfo,
    sock_recv,
    add_reader,
    add_signal_handler,
    call_soon_threadsafe,
    run_until_complete,
    in_a_helper,
    in_a_task,
]


@pytest.mark.parametrize("body", REFUSED)
async def test_not_durable_names_the_line_and_the_cure(body: Body) -> None:
    ran = await run(workflow(body)())
    error = ran.result.error
    assert isinstance(error, NotDurable)
    assert LINES[body.__name__] in str(error)
    assert "put this in a @step" in str(error)


async def test_the_body_may_catch_not_durable_and_continue() -> None:
    @workflow
    async def flow() -> int:
        try:
            await asyncio.to_thread(len, "abc")
        except NotDurable:
            return await double(1)
        return 0

    assert (await run(flow())).output == 2


async def test_waiting_for_a_future_of_another_loop_is_not_durable() -> None:
    foreign: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @workflow
    async def flow() -> int:
        await double(1)
        mark("foreign")
        return await foreign

    error = (await run(flow())).result.error
    assert isinstance(error, NotDurable)
    assert "another event loop" in str(error)
    assert LINES["foreign"] in str(error)
    foreign.cancel()


async def test_a_nested_task_that_awaits_another_loop_is_not_durable() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    foreign = asyncio.create_task(forever())

    @workflow
    async def flow() -> None:
        async def branch() -> None:
            mark("foreign task")
            await foreign

        await asyncio.create_task(branch())

    error = (await run(flow())).result.error
    assert isinstance(error, NotDurable)
    assert LINES["foreign task"] in str(error)
    assert not foreign.done()
    foreign.cancel()


async def test_awaiting_an_awaitable_of_another_library_is_not_durable() -> None:
    class Trap:
        def __await__(self) -> Any:
            mark("trap")
            yield "something a library of its own would understand"

    @workflow
    async def flow() -> None:
        await Trap()

    error = (await run(flow())).result.error
    assert isinstance(error, NotDurable)
    assert LINES["trap"] in str(error)


# --- deadlocks -------------------------------------------------------------------------------------------------------


async def an_event_that_is_never_set() -> None:
    await double(1)
    event = asyncio.Event()
    mark("an_event_that_is_never_set")
    await event.wait()


async def a_queue_that_is_never_filled() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    mark("a_queue_that_is_never_filled")
    await queue.get()


async def a_lock_taken_twice() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    mark("a_lock_taken_twice")
    await lock.acquire()


async def a_future_of_a_thread() -> None:
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    mark("a_future_of_a_thread")
    await asyncio.wrap_future(future)


async def in_a_function_below() -> None:
    async def below() -> None:
        mark("in_a_function_below")
        await asyncio.Event().wait()

    await below()


async def tasks_that_wait_for_each_other() -> None:
    a, b = asyncio.Event(), asyncio.Event()

    async def one(mine: asyncio.Event, other: asyncio.Event) -> None:
        await other.wait()
        mine.set()

    mark("tasks_that_wait_for_each_other")
    await asyncio.gather(one(a, b), one(b, a))


STUCK: list[Body] = [
    an_event_that_is_never_set,
    a_queue_that_is_never_filled,
    a_lock_taken_twice,
    a_future_of_a_thread,
    in_a_function_below,
    tasks_that_wait_for_each_other,
]


@pytest.mark.parametrize("body", STUCK)
async def test_a_wait_that_nothing_can_end_fails_the_run_and_names_its_line(body: Body) -> None:
    ran = await run(workflow(body)())
    assert ran.result.status is RunStatus.FAILED
    error = ran.result.error
    assert isinstance(error, NotDurable)
    assert LINES[body.__name__] in str(error)


async def test_a_wait_that_a_step_under_way_will_end_is_no_deadlock() -> None:
    @workflow
    async def flow() -> int:
        event = asyncio.Event()
        future = asyncio.ensure_future(double(1))
        future.add_done_callback(lambda _: event.set())
        await event.wait()
        return future.result()

    assert (await run(flow())).output == 2


async def test_a_deadlock_is_found_when_the_last_step_ends_not_before() -> None:
    @workflow
    async def flow() -> None:
        left = asyncio.ensure_future(double(1))
        await asyncio.Event().wait()
        await left

    ran = await run(flow())
    assert isinstance(ran.result.error, NotDurable)
    kinds = [type(e).__name__ for e in await ran.events()]
    assert kinds.index("StepSucceeded") < kinds.index("RunFinished")


# --- as_completed ----------------------------------------------------------------------------------------------------


async def test_as_completed_over_coroutines_is_refused() -> None:
    async def branch(x: int) -> int:
        return await double(x)

    @workflow
    async def flow() -> list[int]:
        coroutines = [branch(1)]
        try:
            mark("as_completed")
            return [await future for future in asyncio.as_completed(coroutines)]
        finally:
            for coroutine in coroutines:
                coroutine.close()

    error = (await run(flow())).result.error
    assert isinstance(error, NotDurable)
    assert "pass it tasks instead" in str(error)
    assert LINES["as_completed"] in str(error)


async def test_as_completed_over_tasks_and_steps_is_not_refused() -> None:
    @workflow
    async def flow() -> list[int]:
        steps = [double(x) for x in (1, 2)]
        return sorted([await future for future in asyncio.as_completed(steps)])

    assert (await run(flow())).output == [2, 4]


# --- what happens after it -------------------------------------------------------------------------------------------


async def test_not_durable_comes_out_the_same_on_replay() -> None:
    @workflow
    async def flow() -> str:
        try:
            await asyncio.to_thread(len, "abc")
        except NotDurable as error:
            await double(1)
            return str(error)
        return ""

    ran: Ran = await run(flow())
    assert "thread" in ran.output


async def test_an_event_loop_cannot_be_started_inside_a_body() -> None:
    @workflow
    async def flow() -> None:
        now()
        coroutine = double.fn(1)
        try:
            asyncio.run(coroutine)
        finally:
            coroutine.close()

    ran = await run(flow())
    assert isinstance(ran.result.error, RuntimeError)
