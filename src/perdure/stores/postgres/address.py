"""A PostgreSQL URL taken apart: what is for the driver, what is ours, and what may be shown. Connects to nothing."""

from __future__ import annotations

from difflib import get_close_matches
from urllib.parse import urlencode

import msgspec

from perdure.errors import InvalidStoreUrl
from perdure.stores.options import connections, flag, pairs
from perdure.stores.postgres.names import PREFIX, Names, check_prefix, check_schema
from perdure.stores.url import masked

POOL = 4
OURS = ("schema", "table_prefix", "pool", "migrate")
# Options of the driver. It passes all others on as settings of the session, which the server accepts or refuses.
DRIVERS = (
    *("host", "port", "user", "password", "dbname", "database", "passfile", "service", "servicefile"),
    *("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslpassword", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs", "krbsrvname", "gsslib"),
)
# Options that would have no effect, or break what the store relies on.
INSTEAD = {
    "search_path": "use schema=NAME",
    "client_encoding": "texts are always sent in UTF-8; leave it out",
    "max_size": "use pool=NUMBER",
    "pool_size": "use pool=NUMBER",
}


class Address(msgspec.Struct, frozen=True):
    """The address of a store. `shown` is the URL without its password, for messages; `dsn` is for the driver alone."""

    dsn: str
    shown: str
    names: Names
    schema: str | None
    pool: int
    # Whether an engine may change the schema; None: it only sets up an empty database.
    migrate: bool | None = None
    # The session settings that the URL gives; they take precedence over ours.
    given: frozenset[str] = frozenset()


def parse(url: str) -> Address:
    """Take a URL apart, or raise InvalidStoreUrl, whose message never holds the password."""
    shown = masked(url)
    if "#" in url:
        raise InvalidStoreUrl(shown.partition("#")[0], "a '#' has no meaning in it; in a password write it as %23")
    base, _, query = url.partition("?")
    options = pairs(shown, query)
    ours = {name: options[name] for name in OURS if name in options}
    rest = {name: value for name, value in options.items() if name not in ours}
    for name in rest:
        if name in INSTEAD:
            raise InvalidStoreUrl(shown, f"it has no option {name!r}; {INSTEAD[name]}")
        if name not in DRIVERS and (near := get_close_matches(name, [*OURS, *DRIVERS], 1, 0.8)):
            raise InvalidStoreUrl(shown, f"it has no option {name!r}; did you mean {near[0]!r}?")
    schema = ours.get("schema")
    prefix = ours.get("table_prefix", PREFIX)
    problem = (check_schema(schema) if schema is not None else None) or check_prefix(prefix)
    if problem is not None:
        raise InvalidStoreUrl(shown, problem)
    dsn = base + ("?" + urlencode(rest) if rest else "")
    return Address(
        dsn,
        shown,
        Names(prefix),
        schema,
        connections(shown, ours, POOL),
        flag(shown, ours, "migrate"),
        frozenset(rest) - frozenset(DRIVERS),
    )
