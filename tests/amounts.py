"""How much of a search every change pays for; `make soak` does the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], count: int) -> list[Any]:
    """What a test is parametrized with: the first `count` values always, the others by `make soak`.

    A tuple has a value for each name.
    """
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=[pytest.mark.soak] * (n >= count)) for n, row in enumerate(rows)]
