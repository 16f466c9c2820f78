"""What tests of callers share: an empty store of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.stores.sql.schema import migrations_of


@pytest.fixture(params=["memory", "file", "sqlite", "postgres", "redis"])
async def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, not open yet; the test runs once on each kind."""
    urls = {"memory": "memory://", "file": f"file:///{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    store = open_store(urls.get(request.param) or request.getfixturevalue(f"{request.param}_url"))
    migrations = migrations_of(store)
    if migrations is not None:
        await migrations.apply()
    return store
