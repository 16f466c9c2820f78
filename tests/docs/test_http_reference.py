"""The HTTP API is described as it is."""

from __future__ import annotations

from tests.docs.http_reference import DOCUMENT, PAGE, document, page


def test_the_description_of_the_api_is_that_of_the_routes() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "docs/openapi.json is out of date; run make api"


def test_the_table_of_routes_is_that_of_the_routes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/http-api.md is out of date; run make api"
