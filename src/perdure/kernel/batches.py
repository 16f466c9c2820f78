"""The input of a batch, and the results of its rows. Describes, never executes.

A batch is a run of a program that is one map over its rows: the row with number 17 is the op `row:0[17]`.
"""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.values.failures import Failure

# The input with the rows, the node that runs for each, and its op.
ROWS, ROW, OP = "rows", "row", "row:0"
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)%")


class BatchInput(msgspec.Struct, frozen=True):
    """The input of a batch. `tolerate` is how many rows may fail: a number, a share of them, or None for any number."""

    rows: Raw
    limit: int | None = None
    tolerate: int | float | None = None


class FailedRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The entry of a failed row, in place of its result."""

    error: Failure


def failed_row(failure: Failure) -> bytes:
    """The encoded entry of a failed row."""
    return msgspec.json.encode(FailedRow(Failure(failure.type, failure.message)))


def error_of(result: Raw) -> Failure | None:
    """The error in the entry of a failed row; None if the entry is a result."""
    try:
        return msgspec.json.decode(result, type=FailedRow).error
    except msgspec.MsgspecError:
        return None


def tolerance(given: float | str | None) -> float | None:
    """How many rows may fail: a number, a share, or a text such as `1%` or `20`. Raises UsageError."""
    if given is None:
        return None
    found: object = given
    if isinstance(given, str):
        share = _SHARE.fullmatch(given)
        found = float(share[1]) / 100 if share else int(given) if given.isdecimal() else None
    if isinstance(found, int | float) and not isinstance(found, bool) and found >= 0:
        if isinstance(found, int) or found <= 1:
            return found
    raise UsageError(f"tolerate={given!r:.80}: it is how many rows may fail: 20, or a share such as 0.01 or '1%'")
