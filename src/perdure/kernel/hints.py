"""Hints for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_COMPARED, LONGEST = 100, 200


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint with the most similar name, or with all names."""
    names = sorted(set(known))
    # Comparing is slow: among many names, those that begin alike.
    compared = names if len(names) <= MOST_COMPARED else [one for one in names if one[:1] == name[:1]][:MOST_COMPARED]
    near = difflib.get_close_matches(name[:LONGEST], compared, 1, 0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    return f"there {'are' if len(names) > 1 else 'is'} {shown or 'none'}"
