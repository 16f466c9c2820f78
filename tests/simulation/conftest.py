"""What all simulations share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Faults are logged by the thousand, and here they are the purpose."""
    log = logging.getLogger("perdure")
    level = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(level)
