"""The instructions of a function in one form for all versions of Python. Reads code, never runs it."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType


def instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Its instructions: those that stand for two (from 3.13 on) are two, and none borrows (from 3.14 on)."""
    for one in dis.get_instructions(code):
        name = one.opname.replace("_BORROW", "")
        parts = _PAIRS.get(name)
        if parts is not None and isinstance(one.argval, tuple):
            for part, argval in zip(parts, one.argval, strict=True):
                yield one._replace(opname=part, argval=argval)
        else:
            yield one if name == one.opname else one._replace(opname=name)


_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
