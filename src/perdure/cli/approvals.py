"""`perdure approvals`: the open approvals, with the commands that answer them."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from perdure.cli.clients import with_reader
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import note, pairs, value_text, when, write_json
from perdure.client.views import ApprovalView

app = App(name="approvals", help="List open approvals.")


@app.command(sort_key=1)
def ls(
    *,
    name: Annotated[str | None, Parameter(help="Only approvals of this name.")] = None,
    approver: Annotated[str | None, Parameter(help="Only approvals that this person may answer now.")] = None,
    program: Annotated[str | None, Parameter(help="Only approvals of runs of this program.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """List open approvals, the oldest first, with the commands that answer them."""
    found = with_reader(opened(store), lambda c: c.approvals(name=name, approver=approver, program=program))
    if json:
        write_json({"approvals": found})
        return
    if not found:
        note("no open approval matches" if name or approver or program else "no approval is open")
        return
    where = [] if store == DEFAULT_STORE else ["--store", store]
    for number, asked in enumerate(found):
        if number:
            print()
        pairs([fact for fact in _facts(asked, approver, where) if fact[1]], whole=("to accept", "to reject"))


def _facts(asked: ApprovalView, approver: str | None, store: list[str]) -> list[tuple[str, str]]:
    person = approver or next(iter(asked.approvers), None)
    by = ["--by", person] if person is not None else []
    given = [] if asked.schema is None else ["--input", msgspec.json.encode(example(asked.schema)).decode()]
    return [
        ("approval", f"{asked.name} ({asked.path})"),
        ("run", asked.id),
        ("program", asked.program),
        ("request", value_text(asked.request, 1000) if asked.request is not None else ""),
        ("answer", value_text(asked.schema, 1000) if asked.schema is not None else "any JSON value"),
        ("asked", when(asked.asked_at)),
        ("approvers", ", ".join(asked.approvers) or "anyone"),
        ("escalates", when(asked.escalates_at)),
        ("expires", when(asked.deadline)),
        ("to accept", shlex.join(["perdure", "approve", asked.id, asked.path, *given, *by, *store])),
        ("to reject", shlex.join(["perdure", "reject", asked.id, asked.path, "--reason", "...", *by, *store])),
    ]


def example(schema: Any) -> Any:
    """A value that fits a JSON Schema, for a person to fill in."""
    return _example(schema, schema, 0)


def _example(schema: Any, root: Any, depth: int) -> Any:
    if not isinstance(schema, dict) or depth > 8:
        return None
    if "$ref" in schema:
        found = root
        for part in str(schema["$ref"]).removeprefix("#/").split("/"):
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return _example(found, root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _example(schema[key][0], root, depth + 1)
    if schema.get("type") == "object":
        required = schema.get("required", ())
        return {k: _example(v, root, depth + 1) for k, v in schema.get("properties", {}).items() if k in required}
    return {"boolean": True, "integer": 0, "number": 0, "string": "...", "array": []}.get(str(schema.get("type")))
