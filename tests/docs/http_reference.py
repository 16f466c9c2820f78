"""docs/openapi.json, and the table of routes in docs/http-api.md: written from the routes. `make api` writes both."""

from __future__ import annotations

import sys

import msgspec

from perdure.server.application import ROUTES
from perdure.server.openapi import openapi
from perdure.server.routing import Route
from tests.docs.markdown import ROOT

DOCUMENT = ROOT / "docs" / "openapi.json"
PAGE = ROOT / "docs" / "http-api.md"
BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->\n"


def document() -> str:
    """The description of the API, as it is committed."""
    return msgspec.json.format(msgspec.json.encode(openapi(ROUTES)), indent=1).decode() + "\n"


def table() -> str:
    """The routes as a table."""
    lines = ["| method and path | what it does | permission |", "| --- | --- | --- |"]
    lines += [f"| `{route.method} {_path(route)}` | {route.summary} | {route.role} |" for route in ROUTES]
    return "\n".join(lines) + "\n"


def _path(route: Route) -> str:
    return route.path.replace(":path}", "}")


def page() -> str:
    """The page with the table in its place."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def main() -> int:
    DOCUMENT.write_text(document(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write("docs/openapi.json and docs/http-api.md written\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
