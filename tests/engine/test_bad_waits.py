"""What a body asks for that makes no sense: told with the reason and the fix, where it was written; the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, approval, child, lock, sleep, wait_signal, workflow
from tests.engine.harness import PATIENCE, replay


@workflow
async def other() -> int:
    return 1


def function() -> int:
    return 1


ASKED: dict[str, tuple[Callable[[], Any], str]] = {
    "a negative delay": (lambda: sleep(-1), "sleep(): duration=-1 must not be negative or endless; give a number"),
    "a delay without an end": (lambda: sleep(float("inf")), "must not be negative or endless"),
    "a delay in words": (lambda: sleep("1h"), "a number of seconds or a timedelta, not '1h'"),  # type: ignore[arg-type]
    "a signal of no type": (lambda: wait_signal("go", type=7), "wait_signal(type=...) takes a type"),  # type: ignore[call-overload]
    "a signal of a function": (lambda: wait_signal("go", type=function), "takes a type, such as int or a dataclass"),  # type: ignore[call-overload]
    "an answer of no type": (lambda: approval("ok", schema="Order"), "approval(schema=...) takes a type"),  # type: ignore[call-overload]
    "a list of nobody": (lambda: approval("ok", approvers=[]), "is empty; leave it out if anyone may answer"),
    "somebody without a name": (lambda: approval("ok", approvers=["ann", ""]), "one of the names is empty"),
    "a lock of 10 KB": (lambda: lock("x" * 10_240).__aenter__(), "has 10,240 characters, and 255 is the limit"),
    "half a child": (lambda: child(other(), detached="yes"), "child(detached='yes') is True or False"),  # type: ignore[call-overload]
}


@workflow
async def asking(case: str) -> str:
    try:
        return f"{await ASKED[case][0]()!r} is no error"
    except Exception as error:
        return str(error)


@pytest.mark.parametrize("case", ASKED)
async def test_a_body_is_told_what_is_wrong_and_goes_on(case: str) -> None:
    async with Engine("memory://", [asking, other]) as engine:
        handle = await engine.start(asking(case))
        assert ASKED[case][1] in await handle.result(PATIENCE)
        await replay(asking, handle.run_id, engine.store)


@pytest.mark.parametrize("type", [int, int | None, list[int], dict[str, Any], Any])
async def test_whatever_is_a_type_may_be_waited_for(type: Any) -> None:
    @workflow
    async def waiting() -> Any:
        return await wait_signal("go", 0, type=type)

    async with Engine("memory://", [waiting]) as engine:
        with pytest.raises(TimeoutError):
            await (await engine.start(waiting())).result(PATIENCE)
