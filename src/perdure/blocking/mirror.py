"""Classes whose methods wait for those of an async class. Made from that class: nothing is written twice.

What type checkers see of them is in `__init__.pyi`, which `make stubs` writes from the async classes too.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from perdure.blocking.loop import Loop
from perdure.client.bulk import BulkReport

C = TypeVar("C", bound="type[Mirror]")

# What has no meaning for blocking code: what the async classes are built of, and what runs in the loop of a server.
LEFT_OUT = frozenset({"asgi", "lifespan", "metrics", "watch"})
# The blocking class of each async one.
_MIRRORS: dict[type, type[Mirror]] = {}


class Mirror:
    """An object of an async class, with the loop that its coroutines run on."""

    def __init__(self, awaited: Any, loop: Loop) -> None:
        self._awaited, self._loop = awaited, loop

    def __repr__(self) -> str:
        return repr(self._awaited)


def mirrors(*asynchronous: type) -> Callable[[C], C]:
    """Give a class every public method and property of async ones that it does not have itself."""

    def give(cls: C) -> C:
        for source in asynchronous:
            _MIRRORS[source] = cls
            for name in (name for base in reversed(source.__mro__) for name in vars(base)):
                if not name.startswith("_") and name not in LEFT_OUT and not hasattr(cls, name):
                    setattr(cls, name, _mirrored(source, name))
        return cls

    return give


def mirrored(value: Any, loop: Loop) -> Any:
    """The result of an async method, for blocking code: with handles, locks and blobs of the blocking kind."""
    cls = _MIRRORS.get(type(value))
    if cls is not None:
        return cls(value, loop)
    if isinstance(value, BulkReport):
        return BulkReport(
            [replace(item, result=mirrored(item.result, loop)) for item in value.items], value.cursor, value.dry_run
        )
    return value


def like(awaited: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a function the name, the docstring and the signature of the async one that it stands for."""

    def give(function: Callable[..., Any]) -> Callable[..., Any]:
        own = function.__doc__
        functools.update_wrapper(function, awaited)
        function.__doc__ = own or function.__doc__
        signature = inspect.signature(awaited)
        returns = str(signature.return_annotation).replace("AsyncIterator[", "Iterator[")
        function.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
        function.__annotations__ = {**awaited.__annotations__, "return": returns}
        return function

    return give


def _mirrored(source: type, name: str) -> Any:
    """A method or a property that stands for the one of this name."""
    found = inspect.getattr_static(source, name)
    if isinstance(found, property):
        return property(lambda self: mirrored(getattr(self._awaited, name), self._loop), doc=found.__doc__)
    if isinstance(found, classmethod):
        return found  # it makes an object, of whichever class it is called on
    awaited = getattr(source, name)
    if inspect.isasyncgenfunction(inspect.unwrap(awaited)) and hasattr(awaited, "__wrapped__"):
        return _block(awaited)

    @like(awaited)
    def call(self: Mirror, *args: Any, **kwargs: Any) -> Any:
        outcome = getattr(self._awaited, name)(*args, **kwargs)
        if inspect.iscoroutine(outcome):
            outcome = self._loop.wait(outcome)
        elif hasattr(outcome, "__anext__"):
            return self._loop.iterate(outcome)
        return mirrored(outcome, self._loop)

    return call


def _block(awaited: Callable[..., Any]) -> Callable[..., Any]:
    """A context manager that stands for an async one."""

    def block(self: Mirror, *args: Any, **kwargs: Any) -> Iterator[Any]:
        stack = AsyncExitStack()
        entered = self._loop.wait(stack.enter_async_context(awaited(self._awaited, *args, **kwargs)))
        try:
            yield entered
        except BaseException:
            self._loop.wait(stack.__aexit__(*sys.exc_info()))
            raise
        self._loop.wait(stack.aclose())

    return like(awaited)(contextmanager(block))
