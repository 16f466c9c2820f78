"""Options in the query of a store URL. Each must be known to the store, and given once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from urllib.parse import parse_qsl

from perdure.errors import InvalidStoreUrl

FLAGS = {"true": True, "false": False}


def read_options(
    shown: str, query: str, known: Sequence[str], hints: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a URL; raises InvalidStoreUrl for one without effect. `hints` say what to use instead."""
    given = pairs(shown, query)
    for name in given:
        if name not in known:
            hint = (hints or {}).get(name) or meant(name, known)
            raise InvalidStoreUrl(shown, f"it has no option {name!r}; {hint}")
    return given


def pairs(shown: str, query: str) -> dict[str, str]:
    """The query of a URL, by name."""
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidStoreUrl(shown, "what follows '?' must be options such as pool=5&migrate=true") from None
    given: dict[str, str] = {}
    for name, value in options:
        if name in given:
            raise InvalidStoreUrl(shown, f"its option {name!r} is given twice; keep one of them")
        given[name] = value
    return given


def meant(name: str, known: Sequence[str]) -> str:
    """A close match, or the list of known options."""
    near = get_close_matches(name, known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(known)}" if known else "this store has none"


def flag(shown: str, given: Mapping[str, str], name: str) -> bool | None:
    """A boolean option; None when it is not given."""
    if name not in given:
        return None
    if given[name].lower() not in FLAGS:
        raise InvalidStoreUrl(shown, f"its option {name}={given[name][:40]!r} must be true or false")
    return FLAGS[given[name].lower()]


def connections(shown: str, given: Mapping[str, str], default: int) -> int:
    """The option `pool`."""
    pool = given.get("pool", str(default))
    if not re.fullmatch(r"[1-9][0-9]{0,2}", pool):
        raise InvalidStoreUrl(shown, f"pool={pool[:20]!r} is not a number of connections from 1 to 999")
    return int(pool)
