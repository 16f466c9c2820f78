"""`perdure runs diff`: two runs side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.cli.clients import reader_of, view_of
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import cut, note, pairs, table, value_text, write_json
from perdure.client.reader import Reader
from perdure.client.views import RunView
from perdure.kernel.events import Batch, moment
from perdure.kernel.policies.durations import span
from perdure.ports.blobs import sources_of

if TYPE_CHECKING:
    from perdure.kernel.history.diff import Diff, OpDiff
    from perdure.kernel.history.ops import Op


def diff(a: RunId, b: RunId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Show where two runs first differ, and the outcome of each op in both."""
    first, second, found, takes = asyncio.run(_read(store, a, b))
    if json:
        write_json(_document(first, second, found, takes))
        return
    _conclude(first, second, found, takes)
    rows = [_row(op) for op in found.ops]
    headings = ("", "op", f"{a}", f"{b}", "took", "attempts")
    print()
    table(headings, rows, cut=(headings[2], headings[3]), fold=("op",))


async def _read(store: str, a: str, b: str) -> tuple[RunView, RunView, Diff, tuple[str, str] | None]:
    """Two runs, what differs, and where an op took its values from in each, if that differs."""
    from perdure.kernel.history.diff import diff as compare

    async with reader_of(opened(store)) as client:
        views = []
        for id in (a, b):
            view = await view_of(client, id)
            if view.root != view.run_id:
                raise Problem(f"{id} is a child run; compare the root of its tree: {view.root}")
            views.append(view)
        journals = [await client.store.journal.read(view.run_id) for view in views]
        found = compare(*journals)
        takes = await _sources(client, journals, found)
        return views[0], views[1], found, takes


async def _sources(client: Reader, journals: Sequence[Sequence[Batch]], found: Diff) -> tuple[str, str] | None:
    """Where the first op of both that differs takes its values from, in each run, if that differs."""
    from perdure.kernel.divergence.recorded_source import code_at

    op = next((op.path for op in found.ops if op.changes and op.a is not None and op.b is not None), "")
    structures = []
    for batches in journals:
        stored = await sources_of(client.store.blobs, batches)
        code = code_at(batches, batches[-1].seq + len(batches[-1].events))
        structures.append(stored[code].structure if code in stored else b"")
    if not op or not all(structures):
        return None
    from perdure.authoring.dataflow.changes import sources

    taken = sources(structures[0], structures[1], op)
    return None if taken is None else (f"{op}  {taken[0]}", f"{op}  {taken[1]}")


def _conclude(first: RunView, second: RunView, found: Diff, takes: tuple[str, str] | None) -> None:
    differs = found.first
    if differs is None:
        note(f"{first.id!r} and {second.id!r} do not differ")
        return
    pairs(
        [
            (name, value)
            for name, value in (
                ("first difference", f"{differs.path}: {', '.join(differs.changes)}"),
                (first.id, _side(differs.a, 500)),
                (second.id, _side(differs.b, 500)),
                (f"{first.id} takes", takes[0] if takes is not None else ""),
                (f"{second.id} takes", takes[1] if takes is not None else ""),
                ("added", ", ".join(found.added)),
                ("removed", ", ".join(found.removed)),
            )
            if value
        ]
    )


def _side(op: Op | None, width: int) -> str:
    if op is None:
        return "-"
    return " ".join(part for part in (op.status, _value(op, width), f"at {op.source}" if op.source else "") if part)


def _value(op: Op, width: int) -> str:
    if op.error is not None:
        return cut(str(op.error), width)
    if op.blob:
        return f"blob {op.blob[:12]}…"
    nothing = bytes(op.value) == b"null" and op.status not in ("succeeded", "completed")
    return "" if nothing else value_text(op.value, width)


def _row(op: OpDiff) -> tuple[str, ...]:
    mark = "+" if op.a is None else "-" if op.b is None else "≠" if op.changes else ""
    took = _both(_span(op.a), _span(op.b))
    attempts = _both(_attempts(op.a), _attempts(op.b))
    a, b = _short(op.a), _short(op.b)
    if op.changes == ("inputs",):
        b += " (other inputs)"
    return mark, op.path, a, b, took, attempts


def _short(op: Op | None) -> str:
    return "" if op is None else f"{op.status} {_value(op, 40)}".strip()


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a or '-'} / {b or '-'}"


def _span(op: Op | None) -> str:
    return "" if op is None or op.took is None or op.path in ("input", "result") else span(op.took)


def _attempts(op: Op | None) -> str:
    return str(op.attempts) if op is not None and op.attempts else ""


def _document(first: RunView, second: RunView, found: Diff, takes: tuple[str, str] | None) -> dict[str, Any]:
    differs = found.first
    return {
        "a": first.run_id,
        "b": second.run_id,
        "first": None if differs is None else differs.path,
        "added": found.added,
        "removed": found.removed,
        "takes": None if takes is None else {"a": takes[0], "b": takes[1]},
        "ops": [{"path": op.path, "changes": op.changes, "a": _json(op.a), "b": _json(op.b)} for op in found.ops],
    }


def _json(op: Op | None) -> dict[str, Any] | None:
    if op is None:
        return None
    same = ("path", "kind", "status", "inputs", "value", "blob", "error", "attempts", "source", "took")
    ended = None if op.ended_at is None else moment(op.ended_at)
    return {**{name: getattr(op, name) for name in same}, "began": moment(op.began_at), "ended": ended}
