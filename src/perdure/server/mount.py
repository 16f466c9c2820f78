"""Find the path below the mount. ASGI hosts report it in different ways, and proxies do not report it at all."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from starlette.types import Scope


def inner_path(scope: Scope) -> str:
    """The path of a request below the mount, with its leading slash; empty for the mount without a slash.

    The mount is the longest suffix of `root_path` with which the path begins. A host may have put a prefix of its own
    before it, which a proxy has removed from the path; or it may not have removed the mount from the path.
    """
    path = _as_sent(scope)
    root: str = scope.get("root_path", "").rstrip("/")
    at = 0
    while at < len(root):
        end = root[at:]
        if path == end or path.startswith(f"{end}/"):
            return path[len(end) :]
        at = root.find("/", at + 1)
        if at < 0:
            break
    return path


def _as_sent(scope: Scope) -> str:
    """The path without a trailing slash that the host has added, as Litestar does."""
    path: str = scope["path"]
    raw = _raw(scope)
    return path[:-1] if path.endswith("/") and raw and not unquote_to_bytes(raw).endswith(b"/") else path


def _raw(scope: Scope) -> bytes:
    raw: bytes = scope.get("raw_path") or b""
    return raw.split(b"?")[0]


def depth(scope: Scope, inner: str) -> int:
    """How many levels an inner path is below the mount, as the browser counts them: an encoded slash does not count."""
    return max(0, inner.count("/") - 1 - _raw(scope).lower().count(b"%2f"))


def last_part(scope: Scope) -> str:
    """The last segment of the address of a request; relative addresses are resolved against it."""
    raw = _raw(scope)
    return raw.rpartition(b"/")[2].decode("ascii", "replace") if raw else scope["path"].rpartition("/")[2]
