"""Methods of a client that are those of one of its parts: written, typed and documented once, in the part."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


def delegated(
    part: str, method: Callable[Concatenate[S, P], Awaitable[T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A method that calls `method` of the object in the attribute `part`."""

    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(getattr(self, part), *args, **kwargs)

    functools.update_wrapper(call, method)
    return call
