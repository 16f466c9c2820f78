"""Cursors of pages: opaque, and bound to the filters of the page."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

import msgspec

from perdure.server.problems import Problem

# How many bytes of a cursor are a hash of its filters, and how many tell whether it is whole.
_HASH, _SUM = 6, 4


def _digest(query: msgspec.Struct) -> bytes:
    plain = msgspec.structs.replace(query, cursor=None, limit=1)
    return blake2b(msgspec.json.encode([type(query).__name__, plain]), digest_size=_HASH).digest()


def cursor(key: str, query: msgspec.Struct) -> str:
    """The cursor of the page that begins after this key."""
    data = _digest(query) + key.encode()
    return urlsafe_b64encode(_sum(data) + data).decode().rstrip("=")


def _sum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_SUM).digest()


def key_of(cursor: str | None, query: msgspec.Struct) -> str | None:
    """The key in a cursor. Raises a Problem for a cursor from another filter, or one that no page has given."""
    if cursor is None:
        return None
    try:
        whole = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        check, data = whole[:_SUM], whole[_SUM:]
        digest, key = data[:_HASH], data[_HASH:].decode()
        if check != _sum(data):
            raise ValueError("it was changed")
    except ValueError:
        raise Problem(400, "invalid_cursor", "this is no cursor that a page gave", hint="begin without one") from None
    if digest != _digest(query):
        raise Problem(
            400,
            "cursor_of_another_filter",
            "the cursor comes from a page with other filters",
            hint="begin without a cursor, or use the filters of the page that it comes from",
        )
    return key
