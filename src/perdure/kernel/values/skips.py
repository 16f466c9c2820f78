"""A key in the result of a program that says which values were skipped. Callers never see it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

# Under this key, a result says which values it lacks, and why. A text means that there is no result at all.
SKIPS = "$skipped"
_KEY = b'"$skipped":'
_NO_RESULT = b'{"$skipped":"'


def no_result(reason: str) -> bytes:
    """The result of a program whose output was skipped."""
    return msgspec.json.encode({SKIPS: reason})


def why_no_result(result: bytes | Raw) -> str | None:
    """Why there is no result; None if there is one."""
    data = bytes(result)
    if not data.startswith(_NO_RESULT):
        return None
    reason: str = msgspec.json.decode(data)[SKIPS]
    return reason


def without_skips(result: bytes | Raw) -> bytes:
    """A result without this key; `null` if there is no result."""
    data = bytes(result)
    if data.startswith(_NO_RESULT):
        return b"null"
    if _KEY not in data or not data.startswith(b"{"):
        return data
    values = msgspec.json.decode(data, type=dict[str, Raw])
    return data if values.pop(SKIPS, None) is None else msgspec.json.encode(values)


def plain_result(result: bytes | Raw) -> Any:
    """A result as plain JSON, without this key."""
    return msgspec.json.decode(without_skips(result))
