"""What tests of callers share: an empty store of every kind."""

from __future__ import annotations

import pytest

from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.stores.sqlshared.schema import migrations_of


@pytest.fixture
async def any_store(any_url: str) -> Store:
    """An empty store, not open yet; the test runs once on each kind."""
    store = open_store(any_url)
    migrations = migrations_of(store)
    if migrations is not None:
        await migrations.apply()
    return store
