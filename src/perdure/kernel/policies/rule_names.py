"""Find rules whose step name does not exist, usually a typo. Compares names, and reads no code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
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


def union(names_of_programs: Iterable[StepNames]) -> StepNames:
    """The names of the steps that any of several programs calls."""
    found = list(names_of_programs)
    return StepNames(
        frozenset().union(*(names.steps for names in found)),
        frozenset().union(*(names.texts for names in found)),
        all(names.complete for names in found),
    )


def check_program(program: Program) -> None:
    """Raise InvalidRule if a program has a rule for a step that it does not call."""
    rules = program.rules
    if rules.rules:
        check_names(rules, program.step_names(), f"@workflow {program.name}", f"the workflow {program.name!r}")


def run_rules(given: RulesLike, program: Program | None) -> dict[str, Any] | None:
    """The rules of a new run as its journal stores them; raises InvalidRule if one is wrong or can match nothing."""
    rules, where = rules_of(given, "start(rules=...)"), "start(rules=...)"
    if rules.rules and program is not None:
        check_names(rules, program.step_names(), where, f"the workflow {program.name!r}")
    return rules_data(rules, where)


def unknown_rule_names(rules: Rules, programs: Iterable[Program]) -> list[str]:
    """Warnings about an engine's rules for steps that none of its programs calls.

    Not an error, because several engines may share one list of rules. A name that certainly does not exist and is
    close to one that does raises InvalidRule.
    """
    names = union(program.step_names() for program in programs)
    warnings = []
    for place, name, near in _unmatched(rules, names, "Engine(rules=...)"):
        reason = _explain_unmatched(name, near, names, "this engine")
        if near and names.complete:
            raise InvalidRule(place, reason)
        warnings.append(f"{place}: {reason}")
    return warnings


def check_names(rules: Rules, names: StepNames, where: str, what: str) -> None:
    """Raise InvalidRule for a name that certainly no step has."""
    for place, name, near in _unmatched(rules, names, where):
        if names.complete:
            raise InvalidRule(place, _explain_unmatched(name, near, names, what))


def _unmatched(rules: Rules, names: StepNames, where: str) -> Iterable[tuple[str, str, str]]:
    """The rules for unknown step names: the place of the rule, the name, and a known name close to it, if any."""
    for number, rule in enumerate(rules.rules, 1):
        name = rule.matcher
        if isinstance(name, str) and name not in names.steps and name not in names.texts:
            near = difflib.get_close_matches(name, sorted(names.steps), 1, 0.8)
            yield f"{where}, rule {number}", name, near[0] if near else ""


def _explain_unmatched(name: str, near: str, names: StepNames, what: str) -> str:
    steps = ", ".join(sorted(names.steps)) or "none"
    cure = f"did you mean {near!r}?" if near else f"it calls {steps}"
    return f"{name!r} can match nothing: {what} calls no step of that name; {cure}"
