"""Find rules whose step name does not exist, usually a typo. Compares names, and reads no code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.errors import InvalidRule
from perdure.kernel.policies.rules import Rules, RulesLike, rules_data, rules_of

if TYPE_CHECKING:
    from perdure.kernel.program import Program


class StepNames(msgspec.Struct, frozen=True):
    """The names of the steps that a program calls, as far as its code shows."""

    steps: frozenset[str]
    # String literals in its code: each may be the name of a step created there, as by `step_inline`.
    texts: frozenset[str] = frozenset()
    # Whether the program can call no other step.
    complete: bool = True


UNKNOWN = StepNames(frozenset(), complete=False)


def check_program(program: Program) -> None:
    """Raise InvalidRule if a program has a rule for a step that it does not call."""
    _check(program.rules, program, f"{'@workflow' if program.dataflow is None else 'Graph'} {program.name}")


def run_rules(given: RulesLike, program: Program | None) -> dict[str, Any] | None:
    """The rules of a new run as its journal stores them; raises InvalidRule if one is wrong or can match nothing."""
    rules, where = rules_of(given, "start(rules=...)"), "start(rules=...)"
    if program is not None:
        _check(rules, program, where)
    return rules_data(rules, where)


def unknown_rule_names(rules: Rules, programs: Iterable[Program]) -> list[str]:
    """Warnings about an engine's rules for steps that none of its programs calls.

    Not an error, because several engines may share one list of rules. A name that certainly does not exist and is
    close to one that does raises InvalidRule.
    """
    found = [program.step_names() for program in programs]
    names = StepNames(
        frozenset().union(*(names.steps for names in found)),
        frozenset().union(*(names.texts for names in found)),
        all(names.complete for names in found),
    )
    warnings = []
    for error, near in _unmatched(rules, names, "Engine(rules=...)", "this engine"):
        if near and names.complete:
            raise error
        warnings.append(str(error))
    return warnings


def _check(rules: Rules, program: Program, where: str) -> None:
    """Raise InvalidRule for a name that certainly no step has."""
    if rules.rules and (names := program.step_names()).complete:
        kind = "workflow" if program.dataflow is None else "graph"
        for error, _ in _unmatched(rules, names, where, f"the {kind} {program.name!r}"):
            raise error


def _unmatched(rules: Rules, names: StepNames, where: str, what: str) -> Iterator[tuple[InvalidRule, bool]]:
    """An error for each rule with an unknown step name, and whether a known name is close to it."""
    for number, rule in enumerate(rules.rules, 1):
        name = rule.matcher
        if isinstance(name, str) and name not in names.steps and name not in names.texts:
            near = difflib.get_close_matches(name, sorted(names.steps), 1, 0.8)
            cure = f"did you mean {near[0]!r}?" if near else f"it calls {', '.join(sorted(names.steps)) or 'none'}"
            reason = f"{name!r} can match nothing: {what} calls no step of that name; {cure}"
            yield InvalidRule(f"{where}, rule {number}", reason), bool(near)
