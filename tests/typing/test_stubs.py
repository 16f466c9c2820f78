"""The stubs are what the source says."""

from __future__ import annotations

from tests.typing.stubs import stubs


def test_stubs_are_what_make_stubs_writes() -> None:
    written = stubs()
    assert {path: path.read_text(encoding="utf-8") for path in written} == written
