"""Annotations of a function, resolved where it was written."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from typing import Any


def hints_of(fn: Callable[..., Any], depth: int) -> dict[str, Any]:
    """The annotations of `fn`; names local to the frame `depth` levels up are known too.

    A name that cannot be resolved raises at once, at the decorator: later it would only be a value of another type.
    """
    annotations = getattr(fn, "__annotations__", {})
    if not any(isinstance(value, str) for value in annotations.values()):
        return dict(typing.get_type_hints(fn, include_extras=True)) if annotations else {}
    local: dict[str, Any] = {}
    frame = sys._getframe(depth)
    while frame is not None and frame.f_code.co_name != "<module>":
        local = {**frame.f_locals, **local}
        if frame.f_back is None:
            break
        frame = frame.f_back
    try:
        return dict(typing.get_type_hints(fn, localns=local or None, include_extras=True))
    except NameError as error:
        raise NameError(
            f"{fn.__qualname__}: an annotation names {error.name!r}, which is not defined where the function is; "
            "import it for real, not only for type checkers",
            name=error.name,
        ) from None
