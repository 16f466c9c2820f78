"""What a program says in its result about values that were skipped: one key of it, which callers never see."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

# Under this key, a result tells which values it has not, and why; a text there says that there is no result at all.
SKIPS = "$skipped"
_KEY = b'"$skipped":'
_NO_RESULT = b'{"$skipped":"'


def no_result(reason: str) -> bytes:
    """The result of a program whose output was skipped."""
    return msgspec.json.encode({SKIPS: reason})


def why_no_result(result: bytes | Raw) -> str | None:
    """Why there is no result, if that is what it says."""
    data = bytes(result)
    if not data.startswith(_NO_RESULT):
        return None
    reason: str = msgspec.json.decode(data)[SKIPS]
    return reason


def without_skips(result: bytes | Raw) -> bytes:
    """A result without what it says about skipped values; `null` if there is none."""
    data = bytes(result)
    if data.startswith(_NO_RESULT):
        return b"null"
    if _KEY not in data or not data.startswith(b"{"):
        return data
    values = msgspec.json.decode(data, type=dict[str, Raw])
    return data if values.pop(SKIPS, None) is None else msgspec.json.encode(values)


def plain_result(result: bytes | Raw) -> Any:
    """A result as plain JSON, without what it says about skipped values."""
    return msgspec.json.decode(without_skips(result))
