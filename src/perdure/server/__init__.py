"""The HTTP server: an API over a client or an engine, and the dashboard's files. Executes nothing itself.

`engine.asgi(access=...)` mounts it into an application; `perdure serve` serves it alone. Needs `perdure[server]`.

To develop against it: `.venv/bin/perdure serve --store sqlite:///flows.db --port 8500`, and the routes are listed at
`http://127.0.0.1:8500/api/v1/openapi.json`. A development server of the dashboard passes `/api` on to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

# Loaded when they are first used: `Access` alone needs neither Starlette nor msgspec's schemas.
_HOMES = {"Access": "perdure.server.access", "Tokens": "perdure.server.tokens", "app": "perdure.server.application"}

__all__ = ["Access", "Tokens", "app"]

if TYPE_CHECKING:
    from perdure.server.access import Access
    from perdure.server.application import app
    from perdure.server.tokens import Tokens
else:

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(home), name)
