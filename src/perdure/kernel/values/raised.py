"""What code that the engine calls may raise: told apart from Ctrl-C, and shown with care.

Codecs, `__post_init__`, properties and the like run in callbacks of the engine. A BaseException that got out of there
(a panic of a library in Rust, SystemExit, a stray CancelledError) would end the callback, and its run would stand
still: it is an error of that code, as any Exception.
"""

from __future__ import annotations

import dis


def pressed(error: BaseException) -> bool:
    """Whether a KeyboardInterrupt comes from the keyboard, and not from code that raises it."""
    if type(error) is not KeyboardInterrupt:
        return False
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return True
    frame = traceback.tb_frame
    # A handler of the interpreter leaves no frame: the code that it interrupted was at something else than raising.
    raising = dis.opname[frame.f_code.co_code[traceback.tb_lasti]] == "RAISE_VARARGS"
    return not raising or frame.f_globals.get("__name__") == "asyncio.runners"


def contained(error: BaseException) -> Exception:
    """An error as one that a future can hold and that ends no loop. Raises it where Ctrl-C was pressed."""
    if isinstance(error, Exception):
        return error
    if pressed(error):
        raise error
    plain = RuntimeError(brief(error))
    plain.__cause__ = error
    return plain


def brief(error: BaseException, most: int = 300) -> str:
    """An error in one line, whatever its own code does."""
    name = type(error).__name__
    try:
        said = str(error)[:most]
    except BaseException:
        said = "<its message cannot be read>"
    return f"{name}: {said}" if said else name
