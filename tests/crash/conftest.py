"""Fixtures of the crash tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.harness import Children


@pytest.fixture(scope="session")
def children() -> Iterator[Children]:
    """Processes to kill. All of them are gone when the session ends."""
    children = Children()
    yield children
    children.close()
