"""`--set` and `--overrides` of `perdure flow run`: changes of steps, for one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from perdure.authoring.flow.overrides import target_of
from perdure.cli.exits import Problem

if TYPE_CHECKING:
    from perdure.authoring.flow.flow import Flow


def overridden(flow: Flow, assigned: list[str], overrides: str | None) -> Flow:
    """The flow with the changes of --overrides, and then of each --set. Raises FlowInvalid."""
    if overrides is not None:
        flow = flow.override(_read(overrides))
    if assigned:
        flow = flow.override(_assigned(flow, assigned))
    return flow


def _read(given: str) -> dict[str, Any]:
    from perdure.cli.inputs import read

    value = read(given, "--overrides")
    if isinstance(value, dict) and value.keys() == {"steps"} and isinstance(value["steps"], dict):
        value = value["steps"]  # as Stepflow writes them
    if not isinstance(value, dict):
        raise Problem('--overrides gives changes by step: a JSON object, as in \'{"book": {"timeout": "5s"}}\'')
    return value


def _assigned(flow: Flow, given: list[str]) -> dict[str, Any]:
    root, found = msgspec.json.decode(flow.definition), dict[str, Any]()
    for one in given:
        place, equals, text = one.partition("=")
        path = place.split(".")
        if not equals or not all(path) or len(path) < 2:
            raise Problem(f"--set {one!r} is not STEP.KEY=VALUE, as in --set book.timeout=5s")
        target, keys = target_of(root, path)
        if not keys:
            raise Problem(f"--set {one!r} names no key of {target}, as in --set {target}.timeout=5s")
        inner = found.setdefault(target, {})
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise Problem(f"--set {one!r}: another --set gives {key} a value that is not an object")
        inner[keys[-1]] = _value(text)
    return found


def _value(text: str) -> Any:
    """JSON, or else text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
