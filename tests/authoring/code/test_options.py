"""An invalid option is refused with a UsageError that names it, whatever the value is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Engine, Retry, UsageError, every, step, workflow

NASTY = [[], [1], {}, {"a": 1}, math.nan, math.inf, -1, True, b"x", object(), int, "\ud800"]


async def plain() -> None: ...


async def fails_not() -> None: ...


PLAIN, FLOW = step(plain), workflow(fails_not)

# What an option may be after all.
TAKEN: dict[str, tuple[Any, ...]] = {
    "at_most_once": (True,),
    "record_inputs": (True,),
    "jitter": (True,),
    "version": (-1,),
    "factor": (math.inf,),
    "max": (math.inf,),
}

CALLS: list[tuple[str, Callable[[Any], object]]] = [
    *(
        (f"step {option}", lambda value, option=option: step(**{option: value})(plain))
        for option in ("retry", "timeout", "at_most_once", "heartbeat", "stream", "queue", "record_inputs")
    ),
    *(
        (f"options {option}", lambda value, option=option: PLAIN.options(**{option: value}))
        for option in ("retry", "timeout", "at_most_once", "heartbeat", "stream", "queue")
    ),
    *((f"Retry {option}", lambda value, option=option: Retry(**{option: value})) for option in ("attempts", "factor")),
    *((f"Retry {option}", lambda value, option=option: Retry(**{option: value})) for option in ("backoff",)),
    ("workflow version", lambda value: workflow(version=value)(fails_not)),
    ("every n", lambda value: every(value)),
]


@pytest.mark.parametrize(("what", "call"), CALLS, ids=[what for what, _ in CALLS])
def test_a_value_that_an_option_cannot_have_is_refused(what: str, call: Callable[[Any], object]) -> None:
    option = what.rpartition(" ")[2]
    for value in NASTY:
        if any(value is one or (value == one and type(value) is type(one)) for one in TAKEN.get(option, ())):
            call(value)
            continue
        with pytest.raises(UsageError) as refused:
            call(value)
        assert "unhashable" not in str(refused.value)


@pytest.mark.parametrize("value", [math.nan, 1, True, object(), int, b"x", "\ud800"])
def test_what_names_no_exceptions_or_versions_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        Retry(on=value)
    with pytest.raises(UsageError):
        workflow(accepts=value)(fails_not)


@pytest.mark.parametrize("option", ["reuse", "durability", "queue", "delay", "deadline", "debounce", "rules"])
async def test_start_refuses_what_an_option_cannot_be(option: str) -> None:
    async with Engine("memory://", [FLOW]) as engine:
        for value in ([1], {"a": 1}, math.nan, object(), int, b"x", "\ud800"):
            given: dict[str, Any] = {option: value}
            with pytest.raises(UsageError) as refused:
                _run = await engine.start(FLOW(), **given)
            assert "unhashable" not in str(refused.value)
