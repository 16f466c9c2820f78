"""What a workflow body waits for from outside, and what it shows: signals, approvals, published state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from perdure.authoring.code.body import Body, Wait, require_body
from perdure.authoring.code.step import seconds
from perdure.kernel.ids import check_name

T = TypeVar("T")


@overload
async def wait_signal(name: str, timeout: float | timedelta | None = None, type: None = None) -> Any: ...
@overload
async def wait_signal(name: str, timeout: float | timedelta | None, type: type[T]) -> T: ...
@overload
async def wait_signal(name: str, timeout: float | timedelta | None = None, *, type: type[T]) -> T: ...
async def wait_signal(name: str, timeout: float | timedelta | None = None, type: Any = None) -> Any:
    """Wait for a signal of this name, and return what it carries. Signals that came before are taken in their order.

    Raises SignalTimeout, which is a TimeoutError, when none comes in time; NotDecodable when it does not fit `type`.
    """
    body = require_body("wait_signal()")
    check_name(name, "the name of a signal")
    return await body.wait(Wait("signal", name, Any if type is None else type), _deadline(body, timeout))


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
async def approval(
    name: str,
    request: Any = None,
    schema: Any = None,
    timeout: float | timedelta | None = None,
    *,
    approvers: Sequence[str] = (),
    escalate: tuple[float | timedelta, Sequence[str]] | None = None,
) -> Any:
    """Ask a person, and return the answer. `request` is what they are shown, `schema` the type of the answer.

    `approvers` may answer, anyone if there are none; `escalate=(after, people)` lets others answer too after a while.
    Raises SignalTimeout when no answer comes in time.
    """
    body = require_body("approval()")
    check_name(name, "the name of an approval")
    question: dict[str, Any] = {
        "request": Raw(body.codec.encode(request, f"the request of {name!r}")),
        "schema": Raw(msgspec.json.encode(_json_schema(schema))),
        "approvers": tuple(approvers),
    }
    if escalate is not None:
        question["escalate_at"] = _deadline(body, escalate[0])
        question["escalate_to"] = tuple(escalate[1])
    wait = Wait("approval", name, Any if schema is None else schema)
    return await body.wait(wait, _deadline(body, timeout), **question)


def set_state(key: str, value: Any) -> None:
    """Publish a value that callers see in `get(id).state` while the run goes on."""
    if not isinstance(key, str) or not key:
        raise ValueError(f"set_state({key!r}, ...): the key is a string that is not empty")
    require_body("set_state()").set_state(key, value)


def _deadline(body: Body, timeout: float | timedelta | None) -> float | None:
    return None if timeout is None else body.loop.now + seconds(timeout, "timeout")


def _json_schema(type: Any) -> Any:
    """The JSON Schema of a type; None for one that has none, whose answers are then checked by the body alone."""
    if type is None:
        return None
    of_model = getattr(type, "model_json_schema", None)
    if of_model is not None:
        return of_model()
    try:
        return msgspec.json.schema(type)
    except TypeError:
        return None
