"""Rules choose the policy of a step: they are ordered, and the first that matches wins. Decides, never executes.

A rule is a matcher and a policy. There are three levels: the rules of a run come before those of its program, and those
before the engine's, unless a level replaces the ones behind it. The policy of the first match is merged over the step's
own. Rules change how a step is tried, never which step it is, so they may change while a run is open.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from perdure.errors import InvalidRule
from perdure.kernel.commands import RunStep, StepSpec
from perdure.kernel.events import RunStarted
from perdure.kernel.policies.policy import CODE, CODE_FOR_WORKER, Policy, apply, check_policy, policy_data, suggest
from perdure.kernel.policies.retry import ONCE
from perdure.kernel.values.raised import brief, contained

if TYPE_CHECKING:
    from perdure.kernel.program import Program

KINDS = ("step", "async", "thread", "cpu", "remote")


class StepInfo(msgspec.Struct, frozen=True):
    """A step, as a predicate sees it."""

    name: str
    kind: str
    """Where it runs: `async`, `thread`, `cpu` or, in a queue of another process, `remote`."""
    program: str
    tags: Mapping[str, str]
    """The tags of the run."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Matches steps by where they run. Made by `kind`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Default:
    """Matches every step."""


Predicate = Callable[[StepInfo], bool]
Matcher = str | re.Pattern[str] | Kind | Default | Predicate

default = Default()


def kind(*names: str) -> Kind:
    """Matches steps that run as one of `async`, `thread`, `cpu` or `remote`; `step` is any of them."""
    return Kind(names)


@dataclass(frozen=True, slots=True)
class Rule:
    """A matcher, and the policy for the steps that match. Made by `rule`."""

    matcher: Matcher
    policy: Mapping[str, Any]

    def matches(self, step: StepInfo) -> bool:
        """Whether the step gets this policy, unless a rule before this one matches too."""
        matcher = self.matcher
        if isinstance(matcher, str):
            return matcher == step.name
        if isinstance(matcher, re.Pattern):
            return matcher.search(step.name) is not None
        if isinstance(matcher, Kind):
            return "step" in matcher.names or step.kind in matcher.names
        return True if isinstance(matcher, Default) else bool(matcher(step))


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one level, and whether it replaces the levels behind it."""

    rules: tuple[Rule, ...] = ()
    replaces: bool = False


NONE = Rules()
RuleLike = Rule | tuple[Any, Policy | Mapping[str, Any]]
RulesLike = Rules | Iterable[RuleLike] | Mapping[str, Any]


def rule(matcher: Any, preset: Policy | None = None, /, **policy: Unpack[Policy]) -> Rule:
    """A policy for the steps that match: `rule("charge", timeout=5)`, `rule(re.compile("^llm_"), llm, timeout=60)`.

    The matcher is a step or its name, a compiled regular expression that is searched for in the name, `kind(...)`, a
    function that is given a StepInfo, or `default`.
    """
    where = f"rule({_show(matcher)})"
    return Rule(_matcher(matcher, where), check_policy({**(preset or {}), **policy}, where))


def prepend(rules: RulesLike) -> Rules:
    """These rules, then those of the levels behind. A plain list means the same."""
    return Rules(rules_of(rules, "prepend").rules)


def replace(rules: RulesLike) -> Rules:
    """These rules, and none of the levels behind: `start(..., rules=replace([...]))` leaves out all others."""
    return Rules(rules_of(rules, "replace").rules, replaces=True)


# --- checking -------------------------------------------------------------------------------------------------------


def rules_of(given: RulesLike, where: str = "rules") -> Rules:
    """Rules in their final form; raises InvalidRule when one of them is wrong or can never match."""
    if isinstance(given, Rules):
        return given
    replaces = False
    if isinstance(given, Mapping):
        given, replaces = _from_mapping(given, where)
    if isinstance(given, str | Rule) or not isinstance(given, Iterable):
        raise InvalidRule(where, f"rules are a list, as in [rule('charge', timeout=5)], not {given!r}")
    found: list[Rule] = []
    for number, one in enumerate(given, 1):
        found.append(_rule(one, f"{where}, rule {number}"))
    _check_covered(found, where)
    return Rules(tuple(found), replaces) if found or replaces else NONE


def _from_mapping(given: Mapping[str, Any], where: str) -> tuple[Any, bool]:
    for key in given:
        if key not in ("mode", "rules"):
            raise InvalidRule(where, f"there is no {key!r} here; {suggest(key, ('mode', 'rules'))}")
    mode = given.get("mode", "prepend")
    if mode not in ("prepend", "replace"):
        raise InvalidRule(where, f"mode={mode!r}: {suggest(str(mode), ('prepend', 'replace'))}")
    return given.get("rules", ()), mode == "replace"


def _rule(given: Any, where: str) -> Rule:
    if isinstance(given, Rule):
        return given
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise InvalidRule(where, f"a rule is rule(matcher, ...) or a pair of a matcher and a policy, not {given!r}")
    return Rule(_matcher(given[0], where), check_policy(given[1], f"{where} ({_show(given[0])})"))


def _matcher(given: Any, where: str) -> Matcher:
    spec = getattr(given, "spec", None)
    if isinstance(spec, StepSpec):
        return spec.name
    if isinstance(given, str):
        if not given:
            raise InvalidRule(where, "the name of a step is not empty; write `default` for every step")
        return given
    if isinstance(given, Mapping):
        return _matcher_of_data(given, where)
    if isinstance(given, re.Pattern):
        if not isinstance(given.pattern, str):
            raise InvalidRule(where, "names of steps are text; write re.compile('...') without the b")
        return given
    if isinstance(given, Kind):
        if not given.names:
            raise InvalidRule(where, f"kind() needs at least one of {', '.join(KINDS)}")
        for name in given.names:
            if name not in KINDS:
                raise InvalidRule(where, f"there is no kind {name!r}; {suggest(name, KINDS)}")
        return given
    if isinstance(given, Default):
        return given
    if hasattr(given, "open") and hasattr(given, "name"):
        raise InvalidRule(where, f"{given!r} is not a step; give its rules to it: @workflow(rules=[...])")
    if callable(given) and not isinstance(given, type):
        predicate: Predicate = given
        return predicate
    raise InvalidRule(
        where,
        f"a matcher is a step or its name, a compiled regular expression, kind(...), a function of a StepInfo, or "
        f"`default`, not {given!r}",
    )


def _matcher_of_data(given: Mapping[str, Any], where: str) -> Matcher:
    """A matcher as JSON and YAML have it, such as `{"regex": "^llm_"}`."""
    words = ("name", "regex", "kind", "default")
    keys = set(given) - {"flags"}
    for key in keys:
        if key not in words:
            raise InvalidRule(where, f"there is no matcher {key!r}; {suggest(key, words)}")
    if len(keys) != 1 or ("flags" in given and "regex" not in given):
        raise InvalidRule(where, f"a matcher is one of {', '.join(words)}, as in {{'regex': '^llm_'}}")
    (key,) = keys
    value = given[key]
    if key == "default":
        return default
    if key == "kind":
        names = (value,) if isinstance(value, str) else tuple(value)
        return _matcher(Kind(names), where)
    if not isinstance(value, str):
        raise InvalidRule(where, f"{key} is a text, not {value!r}")
    if key == "name":
        return _matcher(value, where)
    try:
        return re.compile(value, given.get("flags", 0))
    except re.error as error:
        raise InvalidRule(where, f"{value!r} is not a regular expression: {error}") from None


def _check_covered(rules: list[Rule], where: str) -> None:
    """Raise InvalidRule for a rule that can never match because an earlier one covers it."""
    for number, one in enumerate(rules):
        for earlier, before in enumerate(rules[:number]):
            if _covers(before.matcher, one.matcher):
                raise InvalidRule(
                    f"{where}, rule {number + 1}",
                    f"{_show(one.matcher)} can match nothing: rule {earlier + 1}, {_show(before.matcher)}, comes first "
                    "and matches all of it; put the narrower one before it, or leave one out",
                )


def _covers(before: Matcher, one: Matcher) -> bool:
    """Whether `before` certainly matches everything that `one` matches."""
    if isinstance(before, Default) or (isinstance(before, Kind) and "step" in before.names):
        return True
    if isinstance(before, Kind) and isinstance(one, Kind):
        return set(one.names) <= set(before.names)
    if isinstance(before, re.Pattern) and isinstance(one, str):
        return before.search(one) is not None
    return before == one


def _show(matcher: Any) -> str:
    if isinstance(matcher, re.Pattern):
        return f"re.compile({matcher.pattern!r})"
    if isinstance(matcher, Kind):
        return f"kind({', '.join(map(repr, matcher.names))})"
    if isinstance(matcher, Default):
        return "default"
    return repr(getattr(matcher, "__name__", None) or matcher)


# --- as data --------------------------------------------------------------------------------------------------------


def rules_data(rules: Rules, where: str = "rules") -> dict[str, Any] | None:
    """The rules of a run as its journal stores them; raises InvalidRule if they hold code."""
    if rules == NONE:
        return None
    pairs = []
    for number, one in enumerate(rules.rules, 1):
        place = f"{where}, rule {number} ({_show(one.matcher)})"
        pairs.append([_matcher_data(one.matcher, place), policy_data(one.policy, place)])
    return {"mode": "replace" if rules.replaces else "prepend", "rules": pairs}


def sent_rules(spec: StepSpec) -> dict[str, Any] | None:
    """The policy of a remote step, as rules for the run in which a worker executes it."""
    if not spec.sent:
        return None
    policy = policy_data(dict(spec.sent), f"the remote step {spec.name!r}", CODE_FOR_WORKER)
    return {"mode": "prepend", "rules": [[spec.name, policy]]}


def _matcher_data(matcher: Matcher, where: str) -> Any:
    if isinstance(matcher, str):
        return matcher
    if isinstance(matcher, re.Pattern):
        flags = matcher.flags & ~re.UNICODE
        return {"regex": matcher.pattern, **({"flags": flags} if flags else {})}
    if isinstance(matcher, Kind):
        return {"kind": list(matcher.names)}
    if isinstance(matcher, Default):
        return {"default": True}
    raise InvalidRule(where, CODE.format("a predicate", "is"))


# --- resolving ------------------------------------------------------------------------------------------------------


class Resolver:
    """The rules that apply to one run, nearest level first."""

    __slots__ = ("_known", "_program", "_rules", "_tags")

    def __init__(self, levels: Iterable[Rules], program: str, tags: Mapping[str, str]) -> None:
        self._rules = combine(levels)
        self._program, self._tags = program, tags
        self._known: dict[StepSpec, StepSpec] = {}

    def __call__(self, command: RunStep) -> RunStep:
        """The same call with the policy that the rules give its step."""
        if command.op.startswith("<"):  # the engine's own, such as the report of a remote step
            return command
        spec = command.spec
        found = self._known.get(spec)
        if found is None:
            if len(self._known) > 1000:  # steps with options of one call
                self._known.clear()
            found = self._known[spec] = self.spec(spec)
        return command if found is spec else msgspec.structs.replace(command, spec=found)

    def spec(self, spec: StepSpec) -> StepSpec:
        """A step under the policy of the first rule that matches."""
        step = StepInfo(spec.name, kind_of(spec), self._program, self._tags)
        for one in self._rules:
            try:
                matches = one.matches(step)
            except BaseException as error:
                reason = f"its predicate raised {brief(error)} for the step {spec.name!r}"
                return _refusing(spec, InvalidRule(f"rule({_show(one.matcher)})", reason), contained(error))
            if matches:
                where = f"rule({_show(one.matcher)}) for the remote step {spec.name!r}"
                try:
                    if spec.queue:
                        policy_data(one.policy, where, CODE_FOR_WORKER)
                except InvalidRule as error:
                    return _refusing(spec, error)
                return apply(one.policy, spec)
        return spec


def combine(levels: Iterable[Rules]) -> tuple[Rule, ...]:
    """All rules that apply, in order."""
    found: list[Rule] = []
    for level in levels:
        found += level.rules
        if level.replaces:
            break
    return tuple(found)


def resolver(engine: Rules, program: Rules, started: RunStarted, name: str = "") -> Resolver | None:
    """The resolver for a run or one of its children; None if there are no rules.

    `started` belongs to the root run, whose rules apply to its children too; `name` is the program of a child.
    """
    if started.rules is None and program is NONE and engine is NONE:
        return None
    run = NONE if started.rules is None else rules_of(started.rules, "the rules of the run")
    levels = (run, program, engine)
    if not combine(levels):
        return None
    return Resolver(levels, name or started.program, started.tags or {})


def kind_of(spec: StepSpec) -> str:
    """Where a step runs."""
    if getattr(spec, "queue", ""):
        return "remote"
    return "cpu" if spec.cpu else "async" if spec.asynchronous else "thread"


def _refusing(spec: StepSpec, error: InvalidRule, cause: Exception | None = None) -> StepSpec:
    """A step that fails with the error of its rule; other steps are not affected."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error from cause

    return StepSpec(spec.name, refuse, retry=ONCE, types=spec.types)


class StepNames(msgspec.Struct, frozen=True):
    """The names of the steps that a program calls, as found in its code."""

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
    if given == ():
        return None
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
