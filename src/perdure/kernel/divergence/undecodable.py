"""Explain why a recorded value cannot be decoded: which value, asked for at which line, of which type then and now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import NotDecodable
from perdure.kernel.divergence.model import Divergence, LostField, OpView
from perdure.kernel.divergence.source_map import SourceMap
from perdure.kernel.events import NULL, AnyEvent, WaitOpened
from perdure.kernel.state import OpenOp
from perdure.kernel.values.schemas import narrowed_at

_WORDS = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
# What is wrong with an input that a run was started without, after its name.
NOT_GIVEN = " is not given"
_THEN = "The run then continues by itself."
_TYPE = (
    f"Let the type accept it (a field with a default, a union with the old type), or put the old type back.\n{_THEN}"
)
_INPUT = (
    "The caller did not have the program and could not check the value, or the program accepted it then. Start\n"
    "the run again with a value that fits, and end this one with `perdure resolve ID --fail REASON`; or let the\n"
    "parameter accept it: the run then continues by itself."
)
_CALL = (
    "It was called with that, and is to be called again: its process ended before it did. Let its parameters take\n"
    f"the call (the name, the type, or a default for a new one), or put the old step back. {_THEN}"
)

_CHILD = f"""\
Let the parameters of {{name}} take the recorded call: the old name, a default for a new one, a type that takes both.
Or keep the old {{name}} beside the new one: give the new one a version, @workflow(version="..."). Runs that have begun
keep the old one. {_THEN}
Or, where the code calls {{name}} with what it takes now:
  perdure resolve ID --before {{op}}
      keeps what was done before {{op}}; the rest is executed again
  perdure runs fork ID --at {{op}}
      the same in another run; this one stays as it is
  perdure resolve ID --fail REASON
      ends it; what was done stays done"""
_REMOTE = f"""\
It is in its queue with the arguments that it was called with then. Let the parameters of {{name}} take them: the old
name, a default for a new one, a type that takes both; or put the old step back. {_THEN}"""


def explain_undecodable(
    error: NotDecodable, recorded: OpView | None, event: AnyEvent | None, current: OpView | None, source_map: SourceMap
) -> NotDecodable:
    """The same error with both sides. `event` began the op that the value was recorded for."""
    if current is not None:
        current = msgspec.structs.replace(current, code=source_map.code.get(current.source, ""))
    was = _accepted_as(event.schema) if isinstance(event, WaitOpened) else ""
    title = f"{error.what} cannot be read as {error.type}: {error.reason}"
    if was:
        title = f"{title}. It was accepted as {was}."
    if recorded is None:
        name = "" if current is None else current.name
        recorded = OpView("input", error.op or name, name)
    change = "undecodable" if error.lost is None else "renamed"
    found = Divergence(change, recorded.path, title, recorded, current, _fix(error, was, recorded))
    return error.explained(found)


def explain_narrowed(op: str, wait: OpenOp, source_map: SourceMap) -> Divergence:
    """An open wait whose type has changed, and no longer takes everything that it took."""
    assert wait.opened is not None
    asked = wait.opened
    path, old, new = narrowed_at(msgspec.json.decode(asked.schema), msgspec.json.decode(wait.recorded or NULL) or {})
    was, now = _named(old) or "anything", _named(new)
    now, it = now if now != was else f"another {now.removeprefix('an ')}", "it"
    if path:
        was, it = f"something whose {path} is {was}", "that"
    title = f"The run waits for the {asked.kind} {asked.name!r} as {was}, and the code now reads {it} as {now}."
    return Divergence(
        "undecodable",
        op,
        title,
        OpView(asked.kind, op, asked.name, source=asked.source),
        OpView(asked.kind, op, asked.name, source=wait.source, code=source_map.code.get(wait.source, "")),
        "What is sent in the old form is refused, or parks the run. Let the type accept the old form too, as long as\n"
        "such runs are open: a field with a default, a union with the old type.",
    )


def _fix(error: NotDecodable, was: str, recorded: OpView) -> str:
    if error.lost is not None:
        return _fix_lost(error.lost)
    if error.taker is not None and error.reason.endswith(NOT_GIVEN):
        name, node = error.reason.removesuffix(NOT_GIVEN), error.taker.name
        return (
            f"The run was started before {node} took it. Give the parameter of {node} a default, or the graph a value\n"
            f"for it, `bind({name}=...)`, as long as such runs are open. {_THEN}"
        )
    if error.what.startswith("the input of the step "):
        return _REMOTE.format(name=error.what.removeprefix("the input of the step "))
    if error.what.startswith(("the argument ", "the input of ")) and error.taker is None and recorded.kind == "child":
        return _CHILD.format(name=recorded.name, op=recorded.path)
    if error.what.startswith(("the argument ", "the input of ")) and recorded.kind == "input":
        return _INPUT
    if error.what.startswith("the arguments of "):
        return _CALL
    _, missing, field = error.reason.partition("missing required field ")
    if missing:
        return f"Give the field {field.partition(' ')[0]} a default, or put the old type back. {_THEN}"
    if not was and error.taker is not None and error.reason.startswith("Expected `") and " - at " not in error.reason:
        was = error.reason.partition(", got `")[2].rstrip("`")
    if was in _WORDS.values() and error.type.isidentifier():
        both = f"{error.type} | {was}"
        return f"Let the code accept both, `{both}`, or put the old type back. {_THEN}"
    return _TYPE


def _fix_lost(lost: LostField) -> str:
    if not lost.version:
        return f"Keep the field `{lost.stored}` in {lost.type}, and read either of the two. {_THEN}"
    following = int(lost.version) + 1 if lost.version.isdecimal() else "..."
    return (
        f"If `{lost.default}` is the new name of `{lost.stored}`, say so above the class:\n\n"
        f'    @versioned("{following}", renamed_from={{"{lost.default}": "{lost.stored}"}})'
        "  # from perdure import versioned\n"
        f"    class {lost.type}: ...\n\n"
        f"If `{lost.stored}` was removed and `{lost.default}` is another field, write renamed_from={{}}. Any\n"
        f'other change needs a migration: @migrates({lost.type}, from_="{lost.version}"). {_THEN}'
    )


def at_path(ops: Iterable[OpView], path: str) -> OpView | None:
    """The last of some ops at a path."""
    return next((op for op in reversed(list(ops)) if op.path == path), None)


def _accepted_as(schema: Raw) -> str:
    """The type that a recorded schema is of, in a word or two; empty if none says it."""
    return "" if schema == NULL else _named(msgspec.json.decode(schema))


def _named(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    if "$ref" in schema:
        schema = {**schema, **(schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2]) or {})}
    if isinstance(parts := schema.get("anyOf") or schema.get("oneOf"), list):
        defined = {"$defs": schema.get("$defs", {})}
        return " | ".join(_named({**part, **defined}) for part in parts)
    kind = schema.get("type")
    if kind == "object":
        fields = [*schema.get("properties", {})]
        return f"an object with {_listed(fields)}" if fields else "an object"
    if kind == "array":
        return "an array"
    if isinstance(kind, str):
        return _WORDS.get(kind, kind)
    if isinstance(kind, list):
        return " | ".join(_WORDS.get(str(one), str(one)) for one in kind)
    return f"one of {_listed([repr(one) for one in schema['enum']])}" if "enum" in schema else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6])
    return shown if len(names) <= 6 else f"{shown}, …"
