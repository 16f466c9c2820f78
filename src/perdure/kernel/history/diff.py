"""Compare two runs op by op. Reads journals, decides nothing.

Ops are matched by path. They differ when their inputs, status, value or error differ; duration and attempts are
reported, but are not a difference.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.kernel.events import NULL, Batch, InputReplaced, RunFinished, RunStarted, RunStatus, numbered
from perdure.kernel.history.ops import Op, ops
from perdure.kernel.ids import inputs_hash
from perdure.kernel.values.failures import Failure

# The input and the result of the runs are compared like ops, under these paths.
INPUT, RESULT = "input", "result"


class OpDiff(msgspec.Struct):
    """An op in two runs. `changes` are the fields that differ; empty when the op is the same in both."""

    path: str
    a: Op | None
    b: Op | None
    changes: tuple[str, ...]


class Diff(msgspec.Struct):
    """Every op of two runs, in the order they began."""

    ops: list[OpDiff]

    @property
    def first(self) -> OpDiff | None:
        """The first op that differs, or None when the runs are the same. In a child, the op that made it differ."""
        found = next((op for op in self.ops if op.changes), None)
        while found is not None:
            inside = f"{found.path}/"
            inner = next((op for op in self.ops if op.changes and op.path.startswith(inside)), None)
            if inner is None:
                break
            found = inner
        return found

    @property
    def added(self) -> list[str]:
        """Ops that only the second run has."""
        return [op.path for op in self.ops if op.a is None]

    @property
    def removed(self) -> list[str]:
        """Ops that only the first run has."""
        return [op.path for op in self.ops if op.b is None]


def diff(a: Sequence[Batch], b: Sequence[Batch]) -> Diff:
    """Compare two journals op by op."""
    first, second = outcomes(a), outcomes(b)
    return Diff([_compare(path, first.get(path), second.get(path)) for path in _merged([*first], [*second])])


def _compare(path: str, a: Op | None, b: Op | None) -> OpDiff:
    if a is None or b is None:
        return OpDiff(path, a, b, ("added" if a is None else "removed",))
    changes = [name for name in ("kind", "inputs", "status") if getattr(a, name) != getattr(b, name)]
    if (bytes(a.value), a.blob) != (bytes(b.value), b.blob):
        changes.append("value")
    if _without_traceback(a.error) != _without_traceback(b.error):
        changes.append("error")
    return OpDiff(path, a, b, tuple(changes))


def _without_traceback(error: Failure | None) -> tuple[str, str] | None:
    # Lines in a traceback change with every edit of a file.
    return None if error is None else (error.type, error.message)


def _merged(a: Sequence[str], b: Sequence[str]) -> list[str]:
    """The paths of both, in the order of `a`; paths only in `b` come after their predecessor in `b`."""
    known, after = set(a), dict[str, list[str]]()
    predecessor = ""
    for path in b:
        if path in known:
            predecessor = path
        else:
            after.setdefault(predecessor, []).append(path)
    merged = [*after.get("", ()), *(one for path in a for one in (path, *after.get(path, ())))]
    if RESULT in merged:
        merged.remove(RESULT)
        merged.append(RESULT)
    return merged


def outcomes(batches: Sequence[Batch]) -> dict[str, Op]:
    """The ops of a journal by path, in the order they began, with the input and the result of the run."""
    found: dict[str, Op] = {}
    end: dict[str, Op] = {}
    for seq, at, event in numbered(batches):
        if isinstance(event, RunStarted | InputReplaced):
            given = event.input_blob or inputs_hash(bytes(event.input))
            value, blob = event.input, event.input_blob
            found[INPUT] = Op(INPUT, "run", seq, at, status="given", inputs=given, value=value, blob=blob)
        elif isinstance(event, RunFinished):
            status = event.status.value if not event.continued_as else "continued"
            value = NULL if event.status is RunStatus.CANCELLED else event.value
            end[RESULT] = Op(RESULT, "run", seq, at, seq, at, status, value=value, blob=event.blob, error=event.error)
    return found | ops(batches) | end
