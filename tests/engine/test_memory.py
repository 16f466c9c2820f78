"""What leaves memory leaves it at once: nothing of a run waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from perdure import Engine, Retry, step, step_context, wait_signal, workflow
from perdure.authoring.code.body import Body
from perdure.engine.attempts import Attempts
from perdure.engine.driver import Driver
from perdure.stores.memory.store import MemoryStore


@step(retry=Retry(attempts=2, initial=0.001, jitter=False))
async def fails_once() -> int:
    """Fail in the first attempt."""
    if step_context().attempt == 1:
        raise ConnectionError("not yet")
    return 1


@step
async def emits() -> AsyncIterator[int]:
    """Emit two chunks."""
    yield 1
    yield 2


@workflow
async def inner(n: int) -> int:
    """A child."""
    return n + await fails_once()


@workflow
async def outer(n: int) -> int:
    """Whatever a run may hold: attempts, chunks, tasks, children, waits."""
    await asyncio.gather(emits(), fails_once(), inner(n))
    return await wait_signal("go", type=int)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """References to what was made of a run, while the garbage collector is off."""
    found: list[weakref.ref[Any]] = []
    for cls in (Driver, Body):
        make = cls.__init__

        def noted(self: Any, *args: Any, make: Any = make, **kwargs: Any) -> None:
            make(self, *args, **kwargs)
            found.append(weakref.ref(self))

        monkeypatch.setattr(cls, "__init__", noted)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


async def test_a_run_that_has_left_memory_leaves_nothing_behind(made: list[weakref.ref[Any]]) -> None:
    async with Engine(MemoryStore(), [outer, inner]) as engine:
        handle = await engine.start(outer(1))
        await engine.signal(handle.id, "go", 7)
        assert await handle == 7
        _ = await engine.start(outer(2), id="left waiting")

    del handle, engine, _
    await asyncio.sleep(0)
    kinds = {type(one).__name__ for ref in made if (one := ref()) is not None}

    assert len(made) >= 6
    assert kinds == set()
    assert not [one for one in gc.get_objects() if type(one) is Attempts]
