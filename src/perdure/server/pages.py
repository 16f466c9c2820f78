"""The dashboard's files, as they were built into `ui/`, and the page that every deep link gets."""

from __future__ import annotations

import mimetypes
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

# What a page may load: files of this server. No inline script, no inline style, no other site.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'; manifest-src 'self'"
)
SECURITY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
# The placeholder in the page for its base address.
BASE = '<base href="./">'

_NO_BUNDLE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{BASE}<title>perdure</title></head>
<body><h1>perdure</h1><p>The dashboard is not built here; the API is at
<a href="api/v1/openapi.json">api/v1/openapi.json</a>.</p></body></html>
"""


@dataclass(frozen=True, slots=True)
class File:
    """One file of the dashboard."""

    name: str
    data: bytes
    media: str
    etag: str


@cache
def bundle() -> dict[str, File]:
    """The files of the dashboard by path. Read once, so that no request reaches the file system."""
    found: dict[str, File] = {}
    root = files("perdure.server").joinpath("ui")
    pending = [("", root)] if root.is_dir() else []
    while pending:
        prefix, folder = pending.pop()
        for one in folder.iterdir():
            name = f"{prefix}{one.name}"
            if one.is_dir():
                pending.append((f"{name}/", one))
            elif not one.name.startswith((".", "_")) and not one.name.endswith(".py"):
                data = one.read_bytes()
                media = mimetypes.guess_type(one.name)[0] or "application/octet-stream"
                found[name] = File(name, data, media, f'"{blake2b(data, digest_size=9).hexdigest()}"')
    return found


def static(request: Request, path: str) -> Response | None:
    """A file of the dashboard; None if there is none at this path."""
    file = bundle().get(path)
    if file is None or path == "index.html":
        return None
    # An address that contains the hash of its content never changes.
    lasting = "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"
    headers = {"ETag": file.etag, "Cache-Control": lasting, **SECURITY}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    charset = "; charset=utf-8" if file.media.startswith("text/") or file.media.endswith("javascript") else ""
    return Response(file.data, headers={**headers, "Content-Type": file.media + charset})


def page(depth: int) -> Response:
    """The page of the dashboard, for an address `depth` levels below the mount."""
    file = bundle().get("index.html")
    text = file.data.decode() if file is not None else _NO_BUNDLE
    base = "../" * depth or "./"
    text = text.replace(BASE, f'<base href="{base}">')
    return Response(text, media_type="text/html", headers={"Cache-Control": "no-cache", **SECURITY})
