"""Where runs of a test are stored, and what tests of locks share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine import lock_parts


def _url(kind: str, tmp_path: Path) -> str:
    return "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture(params=["memory", "sqlite"])
def local_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return _url(request.param, tmp_path)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return _url(request.param, tmp_path)


@pytest.fixture
def no_locks_left() -> None:
    lock_parts.inside.clear()
    lock_parts.most.clear()
    lock_parts.gates.clear()
