"""Values as SQLite takes them."""

from __future__ import annotations

from typing import Any

import msgspec


def as_json(values: Any) -> str | None:
    """A list or a mapping as one text, which `json_each` reads; None for a filter that is not given."""
    return None if values is None else msgspec.json.encode(values).decode()
