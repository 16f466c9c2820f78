"""`perdure backup`: a copy of an SQLite store while engines work on it."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl
from perdure.cli.output import note, write_json
from perdure.stores.open import open_store
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.url import masked

# What else copies a store, by the beginning of its URL.
INSTEAD = {
    "postgresql": "use pg_dump, which makes a consistent copy while engines work",
    "postgres": "use pg_dump, which makes a consistent copy while engines work",
    "redis": "copy the files that the server writes, after `redis-cli BGSAVE`",
    "rediss": "copy the files that the server writes, after `redis-cli BGSAVE`",
    "file": "stop every process that uses it, and copy the directory",
    "memory": "nothing in it outlives its process",
}


def backup(
    file: Annotated[str, Parameter(help="The file to write, in a directory that exists.")],
    /,
    *,
    force: Annotated[bool, Parameter(negative="", help="Replace the file if it exists.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Copy an SQLite store while engines work on it.

    The copy has everything that was acknowledged before the command began. It
    is checked, and gets its name when it is complete. To restore it, stop every
    process that uses the store, and put the copy in its place.
    """
    opened = open_store(store)
    if not isinstance(opened, SqliteStore):
        raise Problem(f"backup copies SQLite stores, and this is {masked(store)}; {INSTEAD[store.partition(':')[0]]}")
    made = asyncio.run(opened.backup(file, overwrite=force))
    if json:
        write_json(made)
    else:
        runs = f"{made.runs:,} run{'' if made.runs == 1 else 's'}"
        note(f"{runs} copied to {made.path} ({made.bytes:,} bytes), and checked")
    return Exit.OK
