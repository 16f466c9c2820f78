"""Runs that a workflow begins: awaited, side by side, or detached; and the next incarnation of its own."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Literal, Never, NoReturn, TypeVar, overload

from perdure.authoring.code.body import Called, check_awaited, require_body, to_await
from perdure.authoring.code.step import seconds
from perdure.errors import UsageError
from perdure.kernel.commands import StartOptions
from perdure.kernel.ids import MAX_ID, check_id, flaw_of, plain
from perdure.kernel.invocation import Invocation, check_invocation
from perdure.kernel.policies.rules import RulesLike, run_rules
from perdure.kernel.policies.start_options import at_least_one, checked_tags, placed

T = TypeVar("T")


def call(name: str, /, *args: Any, **kwargs: Any) -> Invocation[Any]:
    """An invocation of a program known only by name."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"call() needs the name of a program, not {name!r}")
    flaw = flaw_of(name, MAX_ID)
    if flaw is not None:
        raise UsageError(f"call({name[:60]!r}): the name of the program {flaw}; give the name of a workflow")
    return to_await(Called(plain(name), None, args, kwargs), sys._getframe(1), f"call({name!r}, ...)")


@overload
def child(
    invocation: Invocation[T],
    id: str | None = None,
    detached: Literal[False] = False,
    *,
    deadline: float | timedelta | None = None,
) -> Coroutine[object, Never, T]: ...
@overload
def child(
    invocation: Invocation[Any],
    id: str | None = None,
    *,
    detached: Literal[True],
    deadline: float | timedelta | None = None,
    tags: dict[str, str] | None = None,
    queue: str | None = None,
    key: str | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    max_concurrency: int | None = None,
    rules: RulesLike = (),
) -> Coroutine[object, Never, str]: ...
def child(
    invocation: Invocation[Any],
    id: str | None = None,
    detached: bool = False,
    *,
    deadline: float | timedelta | None = None,
    tags: dict[str, str] | None = None,
    queue: str | None = None,
    key: str | None = None,
    priority: int = 0,
    delay: float | timedelta | None = None,
    max_concurrency: int | None = None,
    rules: RulesLike = (),
) -> Coroutine[object, Never, Any]:
    """Start a child run, optionally with an id of its own; awaiting it returns its result.

    It is in the journal of this run, ends with it, and is cancelled when its awaiter is. With `detached=True` it is an
    independent run: awaiting it returns its run_id once it is started, and it takes the options of `start`.
    """
    body = require_body("child()")
    site = check_awaited(sys._getframe(1), "child(...)")
    check_invocation(invocation, "child")
    if isinstance(invocation, Called):
        invocation.begun = True
    if id is not None:
        id = check_id(id)
    if not isinstance(detached, bool):
        raise UsageError(f"child(detached={detached!r}) is True or False")
    due = None if deadline is None else body.loop.now + seconds(deadline, "deadline")
    options = None
    given = (tags, queue, key, priority or None, delay, max_concurrency, rules or None)
    if any(one is not None for one in given):
        if not detached:
            raise UsageError(
                "child(tags=, queue=, key=, priority=, delay=, max_concurrency=, rules=) are for independent runs: "
                "add detached=True. An awaited child is part of its parent's journal, and shares the parent's"
            )
        place = placed(queue, key, priority)
        options = StartOptions(
            checked_tags(tags),
            place.queue,
            place.key,
            place.priority,
            None if delay is None else body.loop.now + seconds(delay, "delay"),
            at_least_one(max_concurrency),
            run_rules(rules, invocation.program),
        )
    # Typed as a coroutine, as a call of a step is, so that create_task and task groups accept it.
    future = body.start_child(invocation, id or "", detached, due, options)
    future.site = site
    return future  # type: ignore[return-value]


def continue_as(*args: Any, **kwargs: Any) -> NoReturn:
    """End this run and continue as a new incarnation under the same id, with these arguments and an empty journal.

    For workflows without an end. Signals that no wait has consumed are carried over.
    """
    body = require_body("continue_as()")
    if len(args) == 1 and isinstance(args[0], Invocation) and not kwargs:
        inner = ", ".join([*map(repr, args[0].args), *(f"{name}={value!r}" for name, value in args[0].kwargs.items())])
        raise UsageError(
            f"continue_as() takes the arguments of the next incarnation, not an invocation: it is the same workflow. "
            f"Write continue_as({inner})"
        )
    body.continue_as(args, kwargs)
    raise AssertionError("unreachable")
