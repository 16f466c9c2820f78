"""Rows of runs to and from PostgreSQL: the bindings of both SQL stores, with NUL escaped, which texts cannot hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from perdure.kernel.projection import COLUMNS, Kind, RunRow
from perdure.stores.sqlshared import rows as sql

RUN, RUN_AND_HEAD = sql.selects(", ".join(f"r.{name}" for name in sql.TABLE))
WITHOUT_VALUES = sql.selects(", ".join("'null'::text" if name in sql.VALUES else f"r.{name}" for name in sql.TABLE))[1]
_TYPES = {Kind.TEXT: "text", Kind.JSON: "text", Kind.INTEGER: "bigint", Kind.TIME: "float8"}
# The only free text. All others are checked names, or JSON, which escapes NUL.
REASON = sql.position("reason")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def arrays(first: int) -> str:
    """Parameters for rows, one array for each column of the table: the first has this number."""
    types = [*(_TYPES[column.kind] for column in COLUMNS), "bigint"]
    return ", ".join(f"${number}::{of}[]" for number, of in enumerate(types, first))


def bindings(row: RunRow) -> Sequence[Any]:
    """The values of a row, in the order of the columns."""
    values = sql.run_bindings(row)
    if "\0" not in row.reason and "\\" not in row.reason:
        return values
    escaped = row.reason.replace("\\", "\\\\").replace("\0", "\\0")
    return *values[:REASON], escaped, *values[REASON + 1 :]


def by_column(rows: Iterable[Sequence[Any]], width: int) -> list[Sequence[Any]]:
    """Values row by row, turned into arrays column by column."""
    found = list(zip(*rows, strict=True))
    return [list(column) for column in found] if found else [[] for _ in range(width)]


def columns(found: Sequence[Any]) -> tuple[Any, ...]:
    """Texts as bytes, as other backends read them."""
    values = [value.encode() if isinstance(value, str) else value for value in found]
    if isinstance(found[REASON], str) and "\\" in found[REASON]:
        values[REASON] = _ESCAPED.sub(lambda m: "\0" if m[1] == "0" else m[1], found[REASON]).encode()
    return tuple(values)
