"""Values as SQLite takes them, and the statements of both SQL stores in its spelling."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from perdure.stores.sqlite.database import Database

# What PostgreSQL writes, and SQLite. A list is a parameter there, and a JSON text here.
_SPELLINGS = [
    (re.compile(r"= any\(\$(\d+)::text\[\]\)"), r"in (select value from json_each(?\1))"),
    (re.compile(r"<> all\(\$(\d+)::text\[\]\)"), r"not in (select value from json_each(?\1))"),
    (re.compile(r"unnest\(\$(\d+)::text\[\]\) as (\w+) \((\w+)\)"), r"(select value as \3 from json_each(?\1)) \2"),
    (re.compile(r"unnest\(\$(\d+)::text\[\]\) as (\w+)"), r"(select value as \2 from json_each(?\1)) \2"),
    (re.compile(r"::(text|bool|float8|bigint)(\[\])?"), ""),
    (re.compile(r"\$(\d+)"), r"?\1"),
    (re.compile(r"\bstrpos\("), "instr("),
    (re.compile(r"\bjson_agg\("), "json_group_array("),
]


@cache
def spelled(sql: str) -> str:
    """A statement of both SQL stores in SQLite's spelling. They are constants, so there are few of them."""
    for theirs, ours in _SPELLINGS:
        sql = theirs.sub(ours, sql)
    return sql


def as_json(values: Any) -> str | None:
    """A list or a mapping as one text, which `json_each` reads; None for a filter that is not given."""
    return None if values is None else msgspec.json.encode(values).decode()


class SpelledDatabase:
    """A database file that takes the statements of both SQL stores."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def query(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """The rows of a small query, on the loop."""
        return self._database.query(spelled(sql), _bindings(arguments))

    async def read(self, sql: str, *arguments: Any) -> list[tuple[Any, ...]]:
        """The rows of a large query, from a thread."""
        return await self._database.read(spelled(sql), _bindings(arguments))


def _bindings(arguments: tuple[Any, ...]) -> list[Any]:
    return [as_json(value) if isinstance(value, list) else value for value in arguments]
