"""What the corpus is written in: scenarios of a workflow, and changes of its source with what must follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKFLOWS, EDITS = Path(__file__).parent / "workflows", Path(__file__).parent / "edits"
# At the end of a line of changed source: an explanation must name this line. The comment itself is not deployed.
MARK = "  #!"


@dataclass(frozen=True)
class Scenario:
    """How a run of the old code goes: its arguments, and what it is sent when it asks."""

    program: str
    inputs: Mapping[str, Any]
    # By the name of a signal or an approval: what is sent, in this order.
    answers: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    by: str | None = None
    # Waits with a deadline that is let pass, by op path; sleeps pass unless they are held.
    expire: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    # The run is started by a schedule.
    scheduled: bool = False


@dataclass(frozen=True)
class Change:
    """An edit of the old source.

    `bites` is what a journal must hold for the change to be unsafe: the op path of an op that has begun, with a `!` of
    one that has ended, or `start`; one of several, with a `+` between them. A change without it is safe everywhere.
    `keeps` is what a journal must hold for a guarded change to leave the run on the old path.
    """

    name: str
    edits: tuple[tuple[str, str], ...]
    bites: str = ""
    kinds: tuple[str, ...] = ()
    keeps: str = ""
    scenario: str = "usual"

    def source(self, old: str) -> str:
        """The changed source, with its marks."""
        for before, _ in self.edits:
            assert old.count(before) == 1, f"{self.name}: {before!r} is {old.count(before)} times in the source"
        places = sorted(((old.index(before), before, after) for before, after in self.edits), reverse=True)
        for place, before, after in places:
            old = old[:place] + after + old[place + len(before) :]
        return old


def deployed(source: str) -> tuple[str, frozenset[int]]:
    """A source without its marks, and the numbers of the marked lines."""
    lines = source.splitlines()
    marked = frozenset(number for number, line in enumerate(lines, 1) if line.endswith(MARK))
    return "\n".join(line.removesuffix(MARK) for line in lines) + "\n", marked


@dataclass(frozen=True)
class Family:
    """A workflow with its scenarios and changes."""

    name: str
    scenarios: Mapping[str, Scenario]
    source: str
    changes: tuple[Change, ...]


def family(name: str, **scenarios: Scenario) -> Family:
    """The workflow of this name, as it was deployed first, and what is done to it."""
    source = (WORKFLOWS / f"{name}.py").read_text()
    changes = parsed((EDITS / f"{name}.changes").read_text())
    return Family(name, scenarios, source, tuple(changes))


# What is said of a change, under its name: `safe`, `safe, kept at OP`, `unsafe at OP as KIND, KIND`; `in SCENARIO`.
SAID = re.compile(
    r"(?:safe(?:, kept at (?P<keeps>\S+))?|unsafe at (?P<bites>\S+) as (?P<kinds>.+?))(?: in (?P<where>\w+))?"
)


def parsed(text: str) -> Iterator[Change]:
    """The changes of a file: `=== name`, what is said of it, and hunks of a diff without numbers."""
    for part in text.split("=== ")[1:]:
        head, *hunks = re.split(r"^@@\n", part.rstrip("\n") + "\n", flags=re.MULTILINE)
        name, said = head.strip().splitlines()
        found = SAID.fullmatch(said)
        assert found is not None, f"{name}: {said!r} says neither safe nor unsafe"
        kinds = tuple((found["kinds"] or "").split(", ")) if found["kinds"] else ()
        edits = tuple(edit(hunk.splitlines(keepends=True)) for hunk in hunks)
        yield Change(name, edits, found["bites"] or "", kinds, found["keeps"] or "", found["where"] or "usual")


def edit(hunk: list[str]) -> tuple[str, str]:
    """The text that a hunk is for, and what it becomes."""
    before = [line[1:] or line for line in hunk if not line.startswith("+")]
    after = [line[1:] or line for line in hunk if not line.startswith("-")]
    return "".join(before), "".join(after)
