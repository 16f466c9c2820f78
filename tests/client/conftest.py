"""What tests of callers share: an empty store of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.stores.sqlshared.schema import migrations_of


@pytest.fixture(params=["memory", "file", "sqlite", "postgres", "redis"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store of each kind is."""
    urls = {"memory": "memory://", "file": f"file:///{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    return urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
async def any_store(any_url: str) -> Store:
    """An empty store, not open yet; the test runs once on each kind."""
    store = open_store(any_url)
    migrations = migrations_of(store)
    if migrations is not None:
        await migrations.apply()
    return store
