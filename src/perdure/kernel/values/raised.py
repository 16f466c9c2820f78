"""Contain exceptions of user code that the engine calls, and distinguish them from Ctrl-C.

Codecs, `__post_init__`, properties and the like run in callbacks of the engine. A BaseException from there (a panic of
a Rust library, SystemExit, a stray CancelledError) would end the callback and stall its run, so it is treated as an
error of that code, like any Exception.
"""

from __future__ import annotations

import dis
from typing import TypeGuard, TypeVar

T = TypeVar("T")


def pressed(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt comes from the keyboard, not from code that raises it."""
    if type(error) is not KeyboardInterrupt:
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    frame = traceback.tb_frame
    # The interpreter's handler leaves no frame: the interrupted code was not at a `raise`.
    raising = dis.opname[frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
    return not raising or frame.f_globals.get("__name__") == "asyncio.runners"


def contained(error: BaseException) -> Exception:
    """The error as an Exception, which a future can hold and which ends no loop. Raises it if Ctrl-C was pressed."""
    if is_a(error, Exception) and not is_a(error, StopIteration):
        return error
    if pressed(error):
        raise error
    plain = RuntimeError(brief(error))
    plain.__cause__ = error
    return plain


def is_a(value: object, cls: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """As isinstance, by the type alone: the `__class__` of a proxy is code, which may raise."""
    return issubclass(type(value), cls)


def brief(error: BaseException, most: int = 300) -> str:
    """An error in one line, even if its `__str__` raises."""
    name = type(error).__name__
    try:
        said = str(error)[:most]
    except BaseException:
        said = "<its message cannot be read>"
    return f"{name}: {said}" if said else name
