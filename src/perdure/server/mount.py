"""Where an application is mounted. Hosts say so in different ways, and proxies say nothing."""

from __future__ import annotations

from starlette.types import Scope


def inner_path(scope: Scope) -> str:
    """The path of a request below the mount, with its leading slash; empty for the mount without a slash.

    The mount is the longest end of `root_path` that the path begins with: a host may have put its own prefix before it,
    which a proxy has taken off the path, or may not have taken the mount off it.
    """
    path: str = scope["path"]
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


def depth(scope: Scope, inner: str) -> int:
    """How many levels an inner path is below the mount, as the browser counts them: an encoded slash is none."""
    raw: bytes = scope.get("raw_path") or b""
    below = inner.count("/")
    extra = scope["path"].count("/") - raw.split(b"?")[0].count(b"/") if raw else 0
    return max(0, below - 1 - max(0, extra))
