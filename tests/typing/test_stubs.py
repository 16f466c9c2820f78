"""The stubs are what the source says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.typing.stubs import PACKAGE, stubs

STUBS = stubs()


@pytest.mark.parametrize("path", STUBS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_stub_is_what_make_stubs_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == STUBS[path]
