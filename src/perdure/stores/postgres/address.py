"""A PostgreSQL URL taken apart: what is for the driver, what is ours, and what may be shown. Connects to nothing."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlencode

import msgspec

from perdure.errors import InvalidStoreUrl
from perdure.stores.masking import masked
from perdure.stores.postgres.names import PREFIX, Names, check_prefix, check_schema

POOL = 4


class Address(msgspec.Struct, frozen=True):
    """Where a store is. `shown` is the URL without its password, for messages; `dsn` is for the driver alone."""

    dsn: str
    shown: str
    names: Names
    schema: str | None
    pool: int


def parse(url: str) -> Address:
    """Take a URL apart, or raise InvalidStoreUrl, whose message never holds the password."""
    shown = masked(url)
    base, _, query = url.partition("#")[0].partition("?")
    try:
        options = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise InvalidStoreUrl(shown, "what follows '?' must be options such as schema=flows&pool=5") from None
    ours = {name: value for name, value in options if name in ("schema", "table_prefix", "pool")}
    rest = [(name, value) for name, value in options if name not in ours]
    schema = ours.get("schema")
    prefix = ours.get("table_prefix", PREFIX)
    problem = (check_schema(schema) if schema is not None else None) or check_prefix(prefix)
    if problem is not None:
        raise InvalidStoreUrl(shown, problem)
    pool = ours.get("pool", str(POOL))
    if not re.fullmatch(r"[1-9][0-9]{0,2}", pool):
        raise InvalidStoreUrl(shown, f"pool={pool[:20]!r} is not a number of connections from 1 to 999")
    dsn = base + ("?" + urlencode(rest) if rest else "")
    return Address(dsn, shown, Names(prefix), schema, int(pool))
