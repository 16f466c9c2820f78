"""How much of a search every change pays for; `make soak` does the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], count: int) -> list[Any]:
    """What a test is parametrized with: the first `count` values always, the others when there is time."""
    return [value if n < count else pytest.param(value, marks=pytest.mark.soak) for n, value in enumerate(values)]
