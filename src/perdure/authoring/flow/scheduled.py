"""Schedules in the file of a flow: the inputs of their runs, which may depend on the tick. Starts nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from perdure.authoring.dataflow.values import Value
from perdure.authoring.flow.expressions import Path, Reference, Wrong
from perdure.authoring.flow.tree import Item, Problems, read
from perdure.authoring.flow.values import template
from perdure.errors import ExpressionFailed
from perdure.kernel.hints import did_you_mean
from perdure.kernel.schedules.cron import zone

# The parts of `schedule`.
KEYS = ("id", "date", "at")
# A tick for trying an input.
SAMPLE = datetime(2026, 1, 1, tzinfo=UTC)


class _Scope:
    """The scope of expressions that see only the tick."""

    def slot(self, reference: Reference) -> tuple[int, Path]:
        """The position of the only value, and the path inside it."""
        if reference.root != "schedule":
            raise Wrong("F011", reference.at, f"there is no {reference.root!r} to refer to here; there is schedule")
        name = reference.path[0] if reference.path else ""
        if reference.path and name not in KEYS:
            shown = f"unknown value of a schedule {name!r} in ${{{{ {reference.text} }}}}"
            raise Wrong("F013", reference.at, f"{shown}; {did_you_mean(str(name), KEYS)}")
        return 0, reference.path

    def parts(self, reference: Reference) -> None:
        """None: a tick has no such parts."""

    def secret(self, reference: Reference) -> None:
        """None: inputs are stored, so they may not contain secrets."""
        if reference.root == "secrets":
            raise Wrong("F014", reference.at, "secrets are used in `with` of steps alone, and not in what runs keep")


def input_at(item: Item, problems: Problems, id: str, at: datetime) -> bytes:
    """The input of a tick's run, as JSON. Problems are noted. Raises ExpressionFailed if it has no value."""
    tick = {"id": id, "date": at.date().isoformat(), "at": at.isoformat()}
    return template(item, _Scope(), problems).evaluate([Value(msgspec.json.encode(tick))])


def filled(input: str, id: str, at: float, timezone: str) -> bytes:
    """The input of a tick's run, for a schedule that was deployed. Raises ExpressionFailed or FlowInvalid."""
    problems = Problems(f"schedule {id}")
    item = read(input.encode(), "input.json", problems)
    found = input_at(item, problems, id, datetime.fromtimestamp(at, zone(timezone)))
    problems.stop()
    return found


def tried(item: Item, problems: Problems, id: str) -> dict[str, object] | None:
    """The input for an arbitrary tick, as a check; None if it has a problem, which is noted."""
    before = len(problems.found)
    try:
        data = input_at(item, problems, id, SAMPLE)
    except ExpressionFailed as error:
        problems.add(item.mark, "F010", str(error))
        return None
    if any(one.level == "error" for one in problems.found[before:]):
        return None
    found: dict[str, object] = msgspec.json.decode(data)
    return found
