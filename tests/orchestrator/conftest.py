"""What tests of orchestrators share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.ports.store import Store
from perdure.stores.open import open_store
from tests.client.conftest import any_store
from tests.orchestrator.steps import called

__all__ = ["any_store"]


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@pytest.fixture
def store(place: str | Store) -> Callable[[], Store]:
    """The same store, opened by another process each time."""
    return lambda: open_store(place)
