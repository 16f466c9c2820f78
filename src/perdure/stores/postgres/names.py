"""Names of tables: validated, quoted, and put into statements in this one place.

Statements are written with the names of a default store, `perdure_runs`. Only names that passed the check replace
them, and in quotes, so that nothing else of a statement can change.
"""

from __future__ import annotations

import re
from functools import cache

PREFIX = "perdure_"
# PostgreSQL cuts identifiers at 63 bytes, silently: two names that differ only behind that would be one table.
MAX_BYTES = 63
# The longest name that follows a prefix; a test compares it with the migrations.
LONGEST = len("runs_by_approvals")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS = re.compile(r"\bperdure_([a-z_]+)\b")
# Only SQLite is told which index to use.
_INDEX = re.compile(r" indexed by \w+")


def check_schema(name: str) -> str | None:
    """The flaw of a schema's name; None if it is valid."""
    return _problem("schema", name, MAX_BYTES)


def check_prefix(name: str) -> str | None:
    """The flaw of a table prefix; None if it is valid."""
    return _problem("table_prefix", name, MAX_BYTES - LONGEST)


def _problem(option: str, name: str, limit: int) -> str | None:
    if not _IDENTIFIER.fullmatch(name):
        return (
            f"{option}={name[:80]!r} cannot name anything in a database; use letters, digits and underscores only, "
            "and no digit first"
        )
    if len(name) > limit:
        return f"{option}={name[:80]!r} has {len(name)} characters; use at most {limit}"
    return None


def quoted(name: str) -> str:
    """An identifier as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


class Names:
    """The names of one store's tables."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # Statements are constants, so there are as many as are written in this package.
        self.fill = cache(self._fill)

    def _fill(self, sql: str) -> str:
        """A statement with this store's tables in the place of the default ones."""
        return _OURS.sub(lambda found: quoted(self.prefix + found[1]), _INDEX.sub("", sql))
