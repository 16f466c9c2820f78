"""Signals, inputs, approvals and published state of a workflow body."""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from typing import Any, Generic, TypeVar, get_origin, overload

from msgspec import Raw

from perdure.authoring.code.body import Body, Wait, named, require_body, to_await
from perdure.authoring.code.step import seconds
from perdure.errors import SignalTimeout, UsageError
from perdure.kernel.ids import INPUT, check_name, check_text

T = TypeVar("T")


@overload
async def wait_signal(name: str, timeout: float | timedelta | None = None, type: None = None) -> Any: ...
@overload
async def wait_signal(name: str, timeout: float | timedelta | None, type: type[T]) -> T: ...
@overload
async def wait_signal(name: str, timeout: float | timedelta | None = None, *, type: type[T]) -> T: ...
def wait_signal(name: str, timeout: float | timedelta | None = None, type: Any = None) -> Coroutine[Any, Any, Any]:
    """Wait for a signal of this name, and return its payload. Signals that arrived before are consumed in order.

    Raises SignalTimeout, which is a TimeoutError, when none comes in time. While the run waits, the sender of a signal
    that is not of `type` gets SignalRejected. A signal that arrived before the wait and does not fit raises
    NotDecodable here; one that other code accepted, before a deploy, parks the run.
    """
    return to_await(_wait_signal(name, timeout, type), sys._getframe(1), "wait_signal(...)")


@named("wait_signal")
async def _wait_signal(name: str, timeout: float | timedelta | None, type: Any) -> Any:
    body = require_body("wait_signal()")
    name = check_name(name, "the name of a signal")
    wait = Wait("signal", name, Any if _checked(type, "wait_signal(type=...)") is None else type)
    question = {} if type is None else {"schema": body.codec.question_schema(type)}
    return await body.wait(wait, _deadline(body, timeout), **question)


class Inputs(Generic[T]):
    """The inputs of a run as an async iterator: `async for order in inputs(Order)`. `count` is how many have come."""

    def __init__(self, type: Any, name: str, idle: float | timedelta | None) -> None:
        self._type, self._name, self._idle = type, name, idle
        self.count = 0

    def __aiter__(self) -> Inputs[T]:
        return self

    async def __anext__(self) -> T:
        try:
            value: T = await wait_signal(self._name, self._idle, self._type)
        except SignalTimeout:
            raise StopAsyncIteration from None
        self.count += 1
        return value


@overload
def inputs(type: None = None, *, name: str = INPUT, idle: float | timedelta | None = None) -> Inputs[Any]: ...
@overload
def inputs(type: type[T], *, name: str = INPUT, idle: float | timedelta | None = None) -> Inputs[T]: ...
def inputs(type: Any = None, *, name: str = INPUT, idle: float | timedelta | None = None) -> Inputs[Any]:
    """The inputs that `engine.feed(id, input)` sends, in order and endless: `async for order in inputs(Order)`.

    With `idle` the loop ends when no input has come for that long. Many inputs make a long journal: check `.count`, and
    call `continue_as` from time to time; inputs that have not been consumed are carried over.
    """
    require_body("inputs()")
    name = check_name(name, "the name of an input")
    if idle is not None:
        seconds(idle, "inputs(idle=...)")
    return Inputs(_checked(type, "inputs(type)"), name, idle)


@overload
async def approval(
    name: str,
    request: Any = None,
    schema: None = None,
    timeout: float | timedelta | None = None,
    *,
    approvers: Sequence[str] = (),
    escalate: tuple[float | timedelta, Sequence[str]] | None = None,
) -> Any: ...
@overload
async def approval(
    name: str,
    request: Any,
    schema: type[T],
    timeout: float | timedelta | None = None,
    *,
    approvers: Sequence[str] = (),
    escalate: tuple[float | timedelta, Sequence[str]] | None = None,
) -> T: ...
@overload
async def approval(
    name: str,
    request: Any = None,
    *,
    schema: type[T],
    timeout: float | timedelta | None = None,
    approvers: Sequence[str] = (),
    escalate: tuple[float | timedelta, Sequence[str]] | None = None,
) -> T: ...
def approval(
    name: str,
    request: Any = None,
    schema: Any = None,
    timeout: float | timedelta | None = None,
    *,
    approvers: Sequence[str] = (),
    escalate: tuple[float | timedelta, Sequence[str]] | None = None,
) -> Coroutine[Any, Any, Any]:
    """Ask a person, and return the answer. `request` is what they are shown, `schema` the type of the answer.

    `approvers` may answer, anyone if there are none; `escalate=(after, people)` lets more people answer after a while.
    Raises SignalTimeout when no answer comes in time, and ApprovalRejected when a person rejects it.
    """
    asked = _approval(name, request, schema, timeout, approvers, escalate)
    return to_await(asked, sys._getframe(1), "approval(...)")


@named("approval")
async def _approval(
    name: str,
    request: Any,
    schema: Any,
    timeout: float | timedelta | None,
    approvers: Sequence[str],
    escalate: tuple[float | timedelta, Sequence[str]] | None,
) -> Any:
    body = require_body("approval()")
    name = check_name(name, "the name of an approval")
    question: dict[str, Any] = {
        "request": Raw(body.codec.encode(request, f"the request of {name!r}")),
        "schema": body.codec.question_schema(_checked(schema, "approval(schema=...)")),
        "approvers": _people(approvers, "approvers"),
    }
    if escalate is not None:
        if not isinstance(escalate, tuple | list) or len(escalate) != 2:
            raise UsageError(f"approval(escalate={escalate!r}): write escalate=(after, people), as in (3600, ['boss'])")
        question["escalate_at"] = _deadline(body, escalate[0], "escalate")
        question["escalate_to"] = _people(escalate[1], "escalate")
    wait = Wait("approval", name, Any if schema is None else schema)
    return await body.wait(wait, _deadline(body, timeout), **question)


def set_state(key: str, value: Any) -> None:
    """Publish a value that callers see in `get(id).state` while the run is open."""
    if not isinstance(key, str) or not key:
        raise ValueError(f"set_state({key!r}, ...): the key is a string that is not empty")
    require_body("set_state()").set_state(check_text(key, "the key of set_state()"), value)


def _deadline(body: Body, timeout: float | timedelta | None, what: str = "timeout") -> float | None:
    return None if timeout is None else body.loop.now + seconds(timeout, what)


def _people(given: Any, what: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"approval({what}=...): pass a list of names, as in ['ann'], not {given!r}")
    people = tuple(check_text(person, f"a name in {what}") for person in given)
    if not all(people):
        raise UsageError(f"approval({what}=...): one of the names is empty: {given!r:.80}")
    if not people and given != ():
        # A list that is empty by mistake must not let everyone answer.
        raise UsageError(f"approval({what}={given!r}) is empty; leave it out if anyone may answer")
    return people


def _checked(given: Any, where: str) -> Any:
    """The type, or UsageError for anything else."""
    alias = type(given).__name__ in ("NewType", "TypeVar", "TypeAliasType")
    if given is not None and not isinstance(given, type) and get_origin(given) is None and not alias:
        raise UsageError(f"{where} takes a type, such as int or a dataclass, not {given!r:.80}")
    return given
