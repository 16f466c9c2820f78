"""Names and reasons may be of any class that derives from `str`, as numpy, lxml and template engines have them."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import pytest

from perdure import (
    Accepted,
    Cancelled,
    Engine,
    RunStatus,
    approval,
    bail,
    call,
    child,
    lock,
    patched,
    set_state,
    step,
    step_inline,
    wait_signal,
    workflow,
)
from tests.patience import PATIENCE


class Text(str):
    """As `numpy.str_` and `markupsafe.Markup`."""


class Whole(int):
    """An integer that is not plain either."""


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


KINDS: dict[str, Any] = {"subclass": Text("red"), "enum": Colour.RED}


@step
async def seen(value: Any) -> Any:
    return value


@workflow
async def inner(value: str) -> str:
    return value


@workflow
async def names(kind: str) -> list[Any]:
    name = KINDS[kind]
    await seen(0)
    set_state(name, 1)
    async with lock(name) as held:
        key = held.key
    inside = await child(inner("x"), id=name)
    by_name = await call(Text("inner"), "y")
    inline = await step_inline(name, lambda: 1)
    await child(inner("z"), id=Text(f"{name}-2"), detached=True, tags={name: name})
    said = await wait_signal(name)
    answered = await approval(name, approvers=[name])
    return [key, inside, by_name, inline, patched(name), said, answered]


@workflow
async def gives_up(kind: str) -> None:
    await seen(0)
    bail(KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
async def test_a_body_may_use_any_text(url: str, kind: str) -> None:
    name = KINDS[kind]
    async with Engine(url, [names, inner, gives_up]) as engine:
        run = await engine.start(names(kind), id="r")
        assert await engine.signal("r", name, "payload", signal_id=name) == Accepted()
        async for entry in engine.follow("r"):
            if getattr(entry.event, "kind", "") == "approval":
                break
        assert await engine.approve("r", name, "yes", by=name) == Accepted()
        assert await run.result(PATIENCE) == ["red", "x", "y", 1, True, "payload", "yes"]
        view = await engine.get("r")
        assert view is not None
        assert view.state == {"red": 1}
        ended = await engine.run(gives_up(kind), id="g")
        assert ended.status is RunStatus.BAILED
        view = await engine.get("g")
        assert view is not None
        assert view.reason == "red"


@pytest.mark.parametrize("kind", KINDS)
async def test_callers_may_use_any_text(url: str, kind: str) -> None:
    name = KINDS[kind]
    async with Engine(url, [names, inner]) as engine:
        run = await engine.start(
            inner("x"),
            id=name,
            tags={name: name},
            queue=name,
            key=name,
            priority=Whole(2),
            max_concurrency=Whole(3),
            durability=Text("sync"),
        )
        assert await run.result(PATIENCE) == "x"
        view = await engine.get(name)
        assert view is not None
        assert (view.id, view.tags, view.queue) == ("red", {"red": "red"}, "red")
        _ = await engine.start(inner("x"), queue="q", priority=Level.HIGH, id="waits", delay=1000)
        assert await engine.pause("waits", reason=name) == Accepted()
        assert await engine.cancel("waits", reason=name) == Cancelled()
        await engine.schedule(name, inner("x"), every=1000, tags={name: name})
        assert [schedule.id for schedule in await engine.schedules()] == ["red"]
        async with engine.locks.hold(name) as held:
            assert held.key == "red"
