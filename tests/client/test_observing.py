"""Observers of commits may do what they like: no run notices, and the log says it once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from perdure import Engine, RunStatus, UsageError, assembly, step, workflow
from perdure.client.observing import Observers, ObserversConfig
from perdure.kernel.events import RunFinished
from perdure.ports.journal import Append
from tests.engine.harness import AT_ONCE, PATIENCE
from tests.kernel.awkward import AWKWARD


@step
async def add(n: int) -> int:
    return n + 1


@workflow
async def count() -> int:
    total = 0
    for _ in range(5):
        total = await add(total)
    return total


async def check_runs(on_commit: Any) -> None:
    async with Engine("memory://", [count], recovery=AT_ONCE, on_commit=on_commit) as engine:
        async with asyncio.timeout(PATIENCE):
            handles = [await engine.start(count()) for _ in range(3)]
            results = [await handle.outcome() for handle in handles]
        assert [result.status for result in results] == [RunStatus.COMPLETED] * 3
        assert [result.output for result in results] == [5] * 3


RAISED: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("of the observer"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "stop": StopIteration,
    "cancelled": asyncio.CancelledError,
    "no message": AWKWARD["exits"],
}


@pytest.mark.parametrize("kind", RAISED)
async def test_an_observer_that_raises_is_logged_once_and_no_run_notices(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(id: str, append: Append) -> None:
        raise RAISED[kind]()

    await check_runs(observe)
    assert len([r for r in caplog.records if "on_commit of run" in r.getMessage()]) == 1


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("kind", RAISED)
async def test_an_async_observer_that_raises_is_logged_once_and_no_run_notices(
    kind: str, lazily: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def observe(id: str, append: Append) -> None:
        seen.append(id)
        raise RAISED[kind]()

    # A plain function that returns a coroutine is called in a thread, and the coroutine is awaited on the loop.
    await check_runs((lambda id, append: observe(id, append)) if lazily else observe)
    assert len(set(seen)) == 3
    assert len([r for r in caplog.records if "on_commit of run" in r.getMessage()]) == 1


async def test_an_observer_that_takes_the_wrong_arguments_is_logged_and_no_run_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await check_runs(lambda: None)
    assert "<lambda> raised TypeError" in caplog.text


async def test_an_observer_that_blocks_holds_up_neither_runs_nor_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "Observers", partial(Observers, config=ObserversConfig(closing=0.01)))
    over = threading.Event()
    try:
        await check_runs(lambda id, append: over.wait())
        assert "the engine waits no longer" in caplog.text
    finally:
        over.set()


async def test_an_async_observer_that_never_returns_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Observers", partial(Observers, config=ObserversConfig(closing=0.01)))

    async def observe(id: str, append: Append) -> None:
        await asyncio.Event().wait()

    await check_runs(observe)


async def test_an_async_observer_lets_its_loop_end() -> None:
    reached, observed = asyncio.Event(), asyncio.Event()

    async def observe(id: str, append: Append) -> None:
        reached.set()
        await observed.wait()

    async def arguments(append: Append) -> tuple[str, Append]:
        return append.run_id, append

    observer = Observers("on_commit", [observe], arguments)
    observer.notify("r", Append("r", 0, ()))
    await reached.wait()
    # As asyncio.run() does with the tasks that are left.
    observer._task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(observer._task, PATIENCE)


class Counting:
    """An object that is called like an async function."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def __call__(self, id: str, append: Append) -> None:
        self.seen.append((id, append.expected_next))


async def test_observers_are_told_of_every_commit_in_order_before_the_engine_is_left() -> None:
    plain: list[tuple[str, int]] = []
    object_, later = Counting(), Counting()
    for observe in (
        lambda id, append: plain.append((id, append.expected_next)),
        object_,
        lambda id, append: later(id, append),
    ):
        async with Engine("memory://", [count], recovery=AT_ONCE, on_commit=observe) as engine:
            await (await engine.start(count(), id="it")).result(PATIENCE)
    assert [seq for _, seq in plain] == sorted(seq for _, seq in plain)
    assert len(plain) >= 6
    assert plain == object_.seen == later.seen


async def test_an_observer_that_is_too_far_behind_misses_commits_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(assembly, "Observers", partial(Observers, config=ObserversConfig(most_behind=2)))
    over, seen = threading.Event(), []

    def observe(id: str, append: Append) -> None:
        over.wait()
        seen.append(append)

    async with Engine("memory://", [count], recovery=AT_ONCE, on_commit=observe) as engine:
        assert await (await engine.start(count())).result(PATIENCE) == 5
        over.set()
    assert not any(isinstance(event, RunFinished) for append in seen for b in append.batches for event in b.events)
    assert len([r for r in caplog.records if "commits behind" in r.getMessage()]) == 1


async def test_an_observer_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(UsageError, match="on_commit takes a function"):
        _ = Engine("memory://", [count], on_commit=[1])  # type: ignore[arg-type]


async def test_without_an_observer_there_is_no_thread_for_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    before = threading.active_count()
    async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
        assert await (await engine.start(count())).result(PATIENCE) == 5
        assert threading.active_count() == before
