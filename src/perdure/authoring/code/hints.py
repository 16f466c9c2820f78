"""Resolve the annotations of a function in the scope where it was defined."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import FrameType
from typing import Any

from perdure.kernel.values.failures import type_name
from perdure.kernel.values.raised import is_a


def hints_of(fn: Callable[..., Any], depth: int) -> dict[str, Any]:
    """The annotations of `fn`, resolved with the local names of the frame `depth` levels up.

    Raises NameError at the decorator for an unknown name; ignoring it would silently decode to another type.
    """
    annotations = getattr(fn, "__annotations__", {})
    if not any(isinstance(value, str) for value in annotations.values()):
        return dict(typing.get_type_hints(fn, include_extras=True)) if annotations else {}
    local = _locals(fn, sys._getframe(depth))
    try:
        return dict(typing.get_type_hints(fn, localns=local or None, include_extras=True))
    except NameError as error:
        raise NameError(
            f"{fn.__qualname__}: an annotation names {error.name!r}, which is not defined where the function is; "
            "import it at run time, not only for type checkers",
            name=error.name,
        ) from None


def local_errors(fn: Callable[..., Any], depth: int) -> dict[str, type[BaseException]]:
    """Exception classes defined beside `fn` inside another function, which cannot be found through a module."""
    if "<locals>" not in getattr(fn, "__qualname__", ""):
        return {}
    found = _locals(fn, sys._getframe(depth)).values()
    return {type_name(c): c for c in found if is_a(c, type) and issubclass(c, Exception)}


def _locals(fn: Callable[..., Any], frame: FrameType | None) -> dict[str, Any]:
    """The local names of a frame and of the functions and classes that enclose `fn`; the nearest wins."""
    local = {} if frame is None or frame.f_code.co_name == "<module>" else dict(frame.f_locals)
    name: str = getattr(fn, "__qualname__", "")
    while frame is not None and (code := frame.f_code).co_name != "<module>":
        # Only enclosing scopes: copying the locals of every caller would dominate the cost of a declaration.
        if name.startswith(f"{code.co_qualname}."):
            local = {**frame.f_locals, **local}
            if "<locals>" not in code.co_qualname:
                break
        frame = frame.f_back
    return local
