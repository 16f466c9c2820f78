"""`perdure runs diff`: two runs side by side."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.cli.clients import view_of
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import cut, note, pairs, span, table, value_text, write_json
from perdure.client.reader import Reader
from perdure.client.views import RunView
from perdure.kernel.events import moment

if TYPE_CHECKING:
    from perdure.kernel.history.diff import Diff, OpDiff, OpOutcome


def diff(a: RunId, b: RunId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Show where two runs first differ, and what each op came to in both."""
    first, second, found = asyncio.run(_read(store, a, b))
    if json:
        write_json(_document(first, second, found))
        return
    _conclude(first, second, found)
    rows = [_row(op) for op in found.ops]
    headings = ("", "op", f"{a}", f"{b}", "took", "attempts")
    print()
    table(headings, rows, cut=(headings[2], headings[3]), fold=("op",))


async def _read(store: str, a: str, b: str) -> tuple[RunView, RunView, Diff]:
    from perdure.kernel.history.diff import diff as compare

    async with Reader(opened(store)) as client:
        views = []
        for id in (a, b):
            view = await view_of(client, id)
            if view.root != view.run_id:
                raise Problem(f"{id} is a child, and is compared with the run at the top of its tree: {view.root}")
            views.append(view)
        journals = [await client.store.journal.read(view.run_id) for view in views]
        return views[0], views[1], compare(*journals)


def _conclude(first: RunView, second: RunView, found: Diff) -> None:
    differs = found.first
    if differs is None:
        note(f"{first.id!r} and {second.id!r} did the same")
        return
    pairs(
        [
            (name, value)
            for name, value in (
                ("first difference", f"{differs.path}: {', '.join(differs.changes)}"),
                (first.id, _side(differs.a, 500)),
                (second.id, _side(differs.b, 500)),
                ("added", ", ".join(found.added)),
                ("removed", ", ".join(found.removed)),
            )
            if value
        ]
    )


def _side(op: OpOutcome | None, width: int) -> str:
    if op is None:
        return "-"
    return " ".join(part for part in (op.status, _value(op, width), f"at {op.source}" if op.source else "") if part)


def _value(op: OpOutcome, width: int) -> str:
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


def _short(op: OpOutcome | None) -> str:
    return "" if op is None else f"{op.status} {_value(op, 40)}".strip()


def _both(a: str, b: str) -> str:
    return a if a == b else f"{a or '-'} / {b or '-'}"


def _span(op: OpOutcome | None) -> str:
    return "" if op is None or op.took is None or op.path in ("input", "result") else span(op.took)


def _attempts(op: OpOutcome | None) -> str:
    return str(op.attempts) if op is not None and op.attempts else ""


def _document(first: RunView, second: RunView, found: Diff) -> dict[str, Any]:
    differs = found.first
    return {
        "a": first.run_id,
        "b": second.run_id,
        "first": None if differs is None else differs.path,
        "added": found.added,
        "removed": found.removed,
        "ops": [{"path": op.path, "changes": op.changes, "a": _json(op.a), "b": _json(op.b)} for op in found.ops],
    }


def _json(op: OpOutcome | None) -> dict[str, Any] | None:
    if op is None:
        return None
    ended = None if op.ended is None else moment(op.ended)
    return {**msgspec.structs.asdict(op), "began": moment(op.began), "ended": ended, "took": op.took}
