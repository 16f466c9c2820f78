"""Lengths of time as callers give them. Refuses none: whoever was given one says what is wrong with it."""

from __future__ import annotations

from datetime import timedelta

Duration = float | timedelta

# From here on a length of time is no use: three thousand years.
ENDLESS = 1e11


def duration(value: object) -> float | None:
    """The seconds of a number or a timedelta, as they are; None for what is neither."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    try:
        return float(number)
    except OverflowError:  # an int with hundreds of digits
        return ENDLESS if number > 0 else -ENDLESS
