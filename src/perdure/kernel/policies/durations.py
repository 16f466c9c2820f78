"""Lengths of time as callers give them, in code and as text. Refuses none: callers know their bounds and errors."""

from __future__ import annotations

import math
import re
from datetime import timedelta

Duration = float | timedelta

# From here on a length of time is no use: three thousand years.
ENDLESS = 1e11

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_TEXT = re.compile(r"(-?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]+)?)\s*([a-z]*)")


def duration(value: object) -> float | None:
    """The seconds of a number or a timedelta, as they are; None for what is neither."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        return float(number)
    except OverflowError:  # an int with hundreds of digits
        return ENDLESS if number > 0 else -ENDLESS


def parse_duration(text: str, *, bare: bool) -> float | None:
    """The seconds of a text such as `90m`; None for what is no length of time. `bare`: a number alone is seconds."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or (found[2] or "s") not in UNITS or not (bare or found[2]):
        return None
    seconds = float(found[1]) * UNITS[found[2] or "s"]
    return seconds if math.isfinite(seconds) else None


def span(seconds: float) -> str:
    """A duration in its largest fitting unit."""
    seconds = max(0.0, seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
