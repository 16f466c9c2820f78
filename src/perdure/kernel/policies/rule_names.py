"""Whether a rule's name is that of a step at all. Decides from names, never looks at code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidRule
from perdure.kernel.policies.rules import Rules, RulesLike, rules_data, rules_of

if TYPE_CHECKING:
    from perdure.kernel.program import Program


class Reach(msgspec.Struct, frozen=True):
    """The steps that a program can be seen to call."""

    steps: frozenset[str]
    # Texts in its code: any of them may be the name of a step that is made there.
    texts: frozenset[str] = frozenset()
    # Whether there can be no others.
    complete: bool = True


UNKNOWN = Reach(frozenset(), complete=False)


def together(reaches: Iterable[Reach]) -> Reach:
    """The steps that any of several programs can be seen to call."""
    found = list(reaches)
    return Reach(
        frozenset().union(*(reach.steps for reach in found)),
        frozenset().union(*(reach.texts for reach in found)),
        all(reach.complete for reach in found),
    )


def check_program(program: Program) -> None:
    """Raise InvalidRule where a program has a rule for a step that it does not call."""
    rules = program.rules
    if rules.rules:
        check_names(rules, program.reach(), f"@workflow {program.name}", f"the workflow {program.name!r}")


def run_rules(given: RulesLike, program: Program | None) -> dict[str, Any] | None:
    """The rules of a new run as its journal keeps them; raises InvalidRule where one is wrong or matches nothing."""
    rules, where = rules_of(given, "start(rules=...)"), "start(rules=...)"
    if rules.rules and program is not None:
        check_names(rules, program.reach(), where, f"the workflow {program.name!r}")
    return rules_data(rules, where)


def engine_strangers(rules: Rules, programs: Iterable[Program]) -> list[str]:
    """What to say of an engine's rules for names that none of its programs is seen to call.

    One list may serve several engines, so that is no error. A name that is surely not here and much like one that is
    raises InvalidRule.
    """
    reach = together(program.reach() for program in programs)
    told = []
    for place, name, near in strangers(rules, reach, "Engine(rules=...)"):
        reason = unmatched(name, near, reach, "this engine")
        if near and reach.complete:
            raise InvalidRule(place, reason)
        told.append(f"{place}: {reason}")
    return told


def check_names(rules: Rules, reach: Reach, where: str, what: str) -> None:
    """Raise InvalidRule for a name that surely no step has."""
    for place, name, near in strangers(rules, reach, where):
        if reach.complete:
            raise InvalidRule(place, unmatched(name, near, reach, what))


def strangers(rules: Rules, reach: Reach, where: str) -> Iterable[tuple[str, str, str]]:
    """The rules for names that no step is seen to have: their place, the name, and a name that is like it."""
    for number, rule in enumerate(rules.rules, 1):
        name = rule.matcher
        if isinstance(name, str) and name not in reach.steps and name not in reach.texts:
            near = difflib.get_close_matches(name, sorted(reach.steps), 1, 0.8)
            yield f"{where}, rule {number}", name, near[0] if near else ""


def unmatched(name: str, near: str, reach: Reach, what: str) -> str:
    """That a rule matches nothing, and what it could."""
    steps = ", ".join(sorted(reach.steps)) or "none"
    cure = f"did you mean {near!r}?" if near else f"it calls {steps}"
    return f"{name!r} can match nothing: {what} calls no step of that name; {cure}"
