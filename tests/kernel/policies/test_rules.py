"""Ordered rules: which one matches a step, how its policy is merged, and which are refused."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from perdure import (
    InvalidRule,
    Retry,
    Rule,
    Rules,
    StepInfo,
    default,
    fast_fail,
    instead,
    io,
    kind,
    llm,
    prepend,
    replace,
    rule,
    step,
    workflow,
)
from perdure.errors import UsageError
from perdure.kernel.commands import RunStep, StepSpec
from perdure.kernel.events import RunStarted
from perdure.kernel.policies.policy import apply
from perdure.kernel.policies.retry import ONCE, backoff
from perdure.kernel.policies.rules import NONE, Resolver, combine, resolver, rules_data, rules_of


def work() -> None: ...


@step(retry=Retry(attempts=2, initial=5.0), timeout=7)
async def charge(n: int) -> int:
    return n


@workflow
async def shop() -> None: ...


def spec(name: str = "work", **changes: Any) -> StepSpec:
    return StepSpec(name, work, **changes)


def info(name: str = "work", kind: str = "async", program: str = "shop", **tags: str) -> StepInfo:
    return StepInfo(name, kind, program, tags)


def under(*levels: Any, of: StepSpec | None = None, **tags: str) -> StepSpec:
    """A step under rules, nearest level first."""
    return Resolver([rules_of(level) for level in levels], "shop", tags).spec(of or spec())


# --- matching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matcher", "step", "expected"),
    [
        ("charge", info("charge"), True),
        ("charge", info("charge_card"), False),
        (charge, info("charge"), True),
        (re.compile("^llm_"), info("llm_ask"), True),
        (re.compile("_ask$"), info("llm_ask"), True),
        (re.compile("LLM", re.I), info("llm_ask"), True),
        (re.compile("^llm_"), info("my_llm_ask"), False),
        (kind("step"), info(kind="cpu"), True),
        (kind("cpu"), info(kind="cpu"), True),
        (kind("cpu", "thread"), info(kind="thread"), True),
        (kind("cpu", "thread"), info(kind="async"), False),
        (default, info("anything"), True),
        (lambda step: step.tags.get("tier") == "gold", info(tier="gold"), True),
        (lambda step: step.tags.get("tier") == "gold", info(), False),
        (lambda step: step.program == "shop", info(), True),
        ({"name": "charge"}, info("charge"), True),
        ({"regex": "^ch"}, info("charge"), True),
        ({"regex": "^CH", "flags": int(re.I)}, info("charge"), True),
        ({"kind": "cpu"}, info(kind="cpu"), True),
        ({"kind": ["cpu", "thread"]}, info(kind="async"), False),
        ({"default": True}, info(), True),
    ],
)
def test_what_a_matcher_matches(matcher: Any, step: StepInfo, expected: bool) -> None:
    assert rule(matcher).matches(step) is expected
    assert rules_of([(matcher, {})]).rules[0].matches(step) is expected


def test_a_step_is_of_the_kind_of_the_place_it_runs_in() -> None:
    rules = [rule(kind("cpu"), timeout=1), rule(kind("async"), timeout=2), rule(kind("thread"), timeout=3)]
    assert under(rules, of=spec(cpu=True)).timeout == 1
    assert under(rules, of=spec(asynchronous=True)).timeout == 2
    assert under(rules, of=spec()).timeout == 3


NAMES = st.sampled_from(["charge", "refund", "ship", "llm_ask"])


@given(st.lists(NAMES, unique=True), NAMES)
def test_the_first_rule_that_matches_wins(names: list[str], name: str) -> None:
    rules = [rule(each, timeout=1 + n) for n, each in enumerate(names)] + [rule(default, timeout=99)]
    expected = 1 + names.index(name) if name in names else 99
    assert under(rules, of=spec(name)).timeout == expected


@given(st.lists(st.sets(NAMES), max_size=5), NAMES)
def test_the_first_matching_predicate_wins_and_no_other_is_merged(sets: list[set[str]], name: str) -> None:
    def in_set(names: set[str]) -> Callable[[StepInfo], bool]:
        return lambda step: step.name in names

    rules = [rule(in_set(names), timeout=1 + n, attempts=2 + n) for n, names in enumerate(sets)]
    found = under([*rules, rule(default, at_most_once=True)], of=spec(name))
    first = next((n for n, names in enumerate(sets) if name in names), None)
    if first is None:
        assert (found.timeout, found.retry, found.at_most_once) == (None, ONCE, True)
    else:
        assert (found.timeout, found.retry.attempts, found.at_most_once) == (1 + first, 2 + first, False)


def test_a_step_that_no_rule_matches_stays_what_it_is() -> None:
    own = spec("refund", timeout=3)
    assert under([rule("charge", timeout=5)], of=own) is own


def test_a_rule_without_a_policy_keeps_later_rules_away() -> None:
    own = charge.spec
    assert under([rule("charge"), rule(default, timeout=1)], of=own) is own


# --- merging --------------------------------------------------------------------------------------------------------


POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "attempts": st.integers(1, 9),
        "backoff": st.sampled_from(["exponential", "linear", "none"]),
        "initial": st.floats(0, 60),
        "factor": st.floats(1, 10),
        "max": st.floats(60, 1000),
        "jitter": st.booleans(),
        "timeout": st.none() | st.floats(0.001, 1000),
        "at_most_once": st.booleans(),
        "on_failure": st.sampled_from(["halt", "skip"]),
        "fallback": st.none() | st.just(lambda failed: 0),
    },
)
RETRY = ("attempts", "backoff", "initial", "factor", "max", "jitter")


@given(POLICIES, POLICIES)
def test_the_policy_of_a_rule_is_merged_over_the_steps_own(own: dict[str, Any], policy: dict[str, Any]) -> None:
    before = apply(rules_of([("work", own)]).rules[0].policy, spec())
    after = under([("work", policy)], of=before)
    merged = {**own, **policy}
    for key in (*RETRY, "timeout", "at_most_once", "on_failure", "fallback"):
        plain = getattr(ONCE if key in RETRY else spec(), key)
        assert getattr(after.retry if key in RETRY else after, key) == merged.get(key, plain)
    assert (after.name, after.fn, after.types, after.returns) == (before.name, before.fn, before.types, before.returns)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.sampled_from(["initial", "max"]))
def test_a_wait_that_a_rule_names_holds_over_the_other_limit_of_the_step(first: float, second: float, key: str) -> None:
    own = dataclasses.replace(spec(), retry=Retry(initial=min(first, second), max=max(first, second)))
    given = second + 1 if key == "initial" else min(first, second) / 2
    found = under([("work", {key: given})], of=own).retry
    assert getattr(found, key) == given
    assert found.initial <= found.max


def test_a_rule_whose_waits_exclude_each_other_is_refused() -> None:
    with pytest.raises(InvalidRule, match="the first wait is longer than the longest"):
        rule("work", initial=3600, max=60)


def test_a_rule_keeps_what_it_does_not_set_of_the_decorator() -> None:
    found = under([rule("charge", attempts=6)], of=charge.spec)
    assert found.retry == Retry(attempts=6, initial=5.0)
    assert found.timeout == 7


def test_a_whole_retry_replaces_the_steps_own() -> None:
    assert under([rule("charge", retry=Retry(attempts=9))], of=charge.spec).retry == Retry(attempts=9)
    assert under([("charge", {"retry": {"attempts": 9}})], of=charge.spec).retry == Retry(attempts=9)


def test_a_timeout_is_in_seconds_or_a_timedelta_and_can_be_taken_away() -> None:
    assert under([rule("charge", timeout=timedelta(minutes=2))], of=charge.spec).timeout == 120
    assert under([rule("charge", timeout=None)], of=charge.spec).timeout is None


def test_the_presets_are_those_of_the_guide() -> None:
    found = under([rule("work", llm)])
    assert (found.retry.attempts, found.retry.backoff, found.timeout, found.on_failure) == (
        4,
        "exponential",
        30,
        "halt",
    )
    found = under([rule("work", **io)])
    assert (found.retry.attempts, found.retry.backoff, found.timeout, found.on_failure) == (3, "linear", 10, "skip")
    found = under([("work", fast_fail)])
    assert (found.retry.attempts, found.timeout, found.on_failure) == (1, 5, "halt")
    assert backoff(found.retry, 1, "k") == 0
    assert under([rule("work", llm, timeout=60)]).timeout == 60


# --- levels ---------------------------------------------------------------------------------------------------------


def test_rules_of_a_run_come_before_the_programs_and_those_before_the_engines() -> None:
    run, program, engine = [rule("a", timeout=1)], [rule("b", timeout=2)], [rule(default, timeout=3)]
    assert [under(run, program, engine, of=spec(name)).timeout for name in "abc"] == [1, 2, 3]
    assert under([], program, engine, of=spec("a")).timeout == 3


def test_a_level_can_replace_those_behind_it() -> None:
    run, program, engine = [rule("a", timeout=1)], [rule("b", timeout=2)], [rule(default, timeout=3)]
    assert [under(replace(run), program, engine, of=spec(name)).timeout for name in "abc"] == [1, None, None]
    assert [under(run, replace(program), engine, of=spec(name)).timeout for name in "abc"] == [1, 2, None]
    assert under(replace([]), program, engine, of=spec("b")).timeout is None


LEVELS = st.lists(st.tuples(st.lists(NAMES, unique=True, max_size=3), st.booleans()), min_size=3, max_size=3)


@given(LEVELS, NAMES)
def test_a_level_counts_unless_one_before_it_replaces_it(levels: list[tuple[list[str], bool]], name: str) -> None:
    made, expected, open_ = [], None, True
    for depth, (names, replaces) in enumerate(levels):
        rules = [rule(each, timeout=100 * (depth + 1) + n) for n, each in enumerate(names)]
        made.append(replace(rules) if replaces else prepend(rules))
        if open_ and expected is None and name in names:
            expected = 100 * (depth + 1) + names.index(name)
        open_ = open_ and not replaces
    assert under(*made, of=spec(name)).timeout == expected
    assert len(combine(made)) <= sum(len(names) for names, _ in levels)


# --- as data --------------------------------------------------------------------------------------------------------

DATA_POLICIES = POLICIES.map(lambda p: {k: v for k, v in p.items() if k != "fallback"})
DATA_MATCHERS = NAMES | st.just({"regex": "^zz"}) | st.just({"kind": ["cpu"]})


@given(
    st.lists(st.tuples(DATA_MATCHERS, DATA_POLICIES), max_size=4, unique_by=lambda pair: str(pair[0])), st.booleans()
)
def test_rules_come_back_from_a_journal_as_they_were(pairs: list[Any], replaces: bool) -> None:
    rules = replace(pairs) if replaces else rules_of(pairs)
    data = rules_data(rules)
    if data is None:
        assert rules == NONE
        return
    back = rules_of(msgspec.json.decode(msgspec.json.encode(data)))
    assert [(r.matcher, dict(r.policy)) for r in back.rules] == [(r.matcher, dict(r.policy)) for r in rules.rules]
    assert back.replaces is replaces


def test_a_whole_retry_comes_back_too() -> None:
    retry = Retry(attempts=7, initial=2, backoff="linear")
    data = rules_data(rules_of([rule(re.compile("x", re.I), retry=retry), rule(default, timeout=timedelta(seconds=3))]))
    back = rules_of(msgspec.json.decode(msgspec.json.encode(data)))
    assert back.rules[0].policy["retry"] == retry
    assert back.rules[0].matches(info("MAX"))
    assert back.rules[1].policy["timeout"] == 3


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (rule(lambda step: True, timeout=1), "a predicate is code"),
        (rule("charge", fallback=lambda failed: 0), "a fallback is code"),
        (rule("charge", retry=Retry(on=(OSError,))), "exception classes of Retry"),
        (rule("charge", on=(OSError,)), "exception classes of on="),
    ],
)
def test_code_in_the_rules_of_a_run_is_refused(wrong: Rule, what: str) -> None:
    with pytest.raises(InvalidRule, match=what) as caught:
        rules_data(rules_of([wrong]), "start(rules=...)")
    assert "start(rules=...), rule 1" in str(caught.value)
    assert "Engine(rules=...)" in str(caught.value)


def test_a_run_without_rules_costs_nothing() -> None:
    started = RunStarted("id", "shop", "1", Raw(b"{}"))
    assert resolver(NONE, NONE, started) is None
    assert rules_data(rules_of([])) is None
    assert rules_data(rules_of(())) is None


def test_the_levels_of_a_run_are_read_from_its_journal() -> None:
    data = rules_data(rules_of([rule("work", timeout=1)]))
    started = RunStarted("id", "shop", "1", Raw(b"{}"), rules=data, tags={"tier": "gold"})
    found = resolver(rules_of([rule(lambda step: step.tags["tier"] == "gold", timeout=9)]), NONE, started)
    assert found is not None
    assert found.spec(spec()).timeout == 1
    assert found.spec(spec("other")).timeout == 9


def test_a_command_is_the_same_but_for_its_policy() -> None:
    resolve = Resolver([rules_of([rule("work", timeout=1)])], "shop", {})
    command = RunStep("work:0", spec(), b"[1]", "hash", 1, (), "shop.py:3")
    changed = resolve(command)
    assert changed.spec.timeout == 1
    assert msgspec.structs.replace(changed, spec=command.spec) == command
    assert resolve(command).spec is changed.spec, "decided once for each step"
    other = RunStep("other:0", spec("other"), b"[]", "hash")
    assert resolve(other) is other


def test_steps_with_options_of_their_own_do_not_fill_the_memory() -> None:
    resolve = Resolver([rules_of([rule("work", timeout=1)])], "shop", {})
    for n in range(3000):
        resolve(RunStep(f"work:{n}", spec(), b"[]", "hash"))
    assert len(resolve._known) < 1500


def test_a_predicate_that_raises_fails_its_step_and_says_so() -> None:
    def odd(step: StepInfo) -> bool:
        return step.tags["tier"] == "gold"

    found = under([rule(odd, timeout=5)], of=charge.spec)
    with pytest.raises(
        InvalidRule, match="rule\\('odd'\\): its predicate raised KeyError: 'tier' for the step 'charge'"
    ):
        found.fn(1)
    assert found.retry.attempts == 1
    assert not found.asynchronous


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ({"timout": 5}, "there is no policy 'timout'; did you mean 'timeout'?"),
        ({"attemps": 5}, "did you mean 'attempts'?"),
        ({"onfailure": "skip"}, "did you mean 'on_failure'?"),
        ({"max_retries": 5}, "here it is called attempts, which counts the first one too"),
        ({"timeout_ms": 5}, "here it is called timeout, in seconds"),
        ({"colour": "red"}, "there are retry, attempts, backoff"),
        ({"backoff": "quadratic"}, "it is 'exponential', 'linear' or 'none'"),
        ({"attempts": 0}, "at least one attempt"),
        ({"attempts": 2.5}, "attempts=2.5 is a whole number"),
        ({"attempts": True}, "attempts=True is a whole number"),
        ({"initial": "soon"}, "rule('charge')"),
        ({"initial": -1}, "must not be negative"),
        ({"timeout": 0}, "above 0"),
        ({"timeout": -5}, "above 0"),
        ({"timeout": "5"}, "above 0"),
        ({"timeout": float("nan")}, "above 0"),
        ({"timeout": timedelta(seconds=-1)}, "above 0"),
        ({"on_failure": "skipp"}, "did you mean 'skip'?"),
        ({"on_failure": None}, "there are halt, skip"),
        ({"at_most_once": 1}, "is True or False"),
        ({"retry": 3}, "retry is a Retry"),
        ({"retry": {"atempts": 3}}, "Retry has no 'atempts'; did you mean 'attempts'?"),
        ({"retry": Retry(), "attempts": 3}, "leave out attempts"),
        ({"fallback": 7}, "write fallback=lambda failed: 7"),
        ({"fallback": lambda: 7}, "a fallback takes one argument"),
        ({"fallback": charge}, "write fallback=lambda failed: instead(charge"),
    ],
)
def test_an_invalid_policy_is_refused_with_the_fix(policy: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        rule("charge", **policy)
    assert told in str(caught.value)
    assert "rule('charge')" in str(caught.value)
    with pytest.raises(InvalidRule) as caught:
        rules_of([rule("refund"), ("charge", policy)], "Engine(rules=...)")
    assert "Engine(rules=...), rule 2 ('charge')" in str(caught.value) or "rule('charge')" in str(caught.value)


@pytest.mark.parametrize(
    ("matcher", "told"),
    [
        ("", "write `default` for every step"),
        (7, "a matcher is a step or its name"),
        (None, "a matcher is a step or its name"),
        (int, "a matcher is a step or its name"),
        (re.compile(b"x"), "without the b"),
        (kind(), "kind() needs at least one of step, async"),
        (kind("cpus"), "there is no kind 'cpus'; did you mean 'cpu'?"),
        (shop, "@workflow(rules=[...])"),
        ({"regexp": "x"}, "did you mean 'regex'?"),
        ({"regex": "("}, "'(' is not a regular expression"),
        ({"regex": 7}, "regex is a text, not 7"),
        ({"name": "a", "kind": "cpu"}, "a matcher is one of name, regex, kind, default"),
        ({"name": "a", "flags": 2}, "a matcher is one of"),
        ({}, "a matcher is one of"),
        ({"kind": "cpux"}, "did you mean 'cpu'?"),
    ],
)
def test_an_invalid_matcher_is_refused(matcher: Any, told: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        rule(matcher, timeout=5)
    assert told in str(caught.value)


SAME: Callable[[StepInfo], bool] = lambda step: True  # noqa: E731 - a function that is given twice


@pytest.mark.parametrize(
    ("matchers", "number"),
    [
        ((default, "charge"), 2),
        (("charge", default, "refund"), 3),
        (("charge", "refund", "charge"), 3),
        ((charge, "charge"), 2),
        ((re.compile("^llm_"), "llm_ask"), 2),
        ((re.compile("^llm_"), re.compile("^llm_")), 2),
        ((kind("cpu", "async"), kind("cpu")), 2),
        ((kind("step"), "charge"), 2),
        ((kind("cpu"), kind("step"), default), 3),
        ((default, default), 2),
        ((SAME, SAME), 2),
    ],
)
def test_a_rule_that_can_match_nothing_is_refused(matchers: Sequence[Any], number: int) -> None:
    with pytest.raises(InvalidRule) as caught:
        rules_of([rule(matcher, timeout=5) for matcher in matchers], "Engine(rules=...)")
    assert f"Engine(rules=...), rule {number}: " in str(caught.value)
    assert "can match nothing" in str(caught.value)
    assert "put the narrower one before it" in str(caught.value)


@pytest.mark.parametrize(
    "matchers",
    [
        ("charge", re.compile("^charge"), kind("async"), kind("cpu"), default),
        (kind("cpu"), kind("cpu", "async"), kind("step")),
        (re.compile("^a"), re.compile("^b"), "c", lambda step: True, lambda step: True),
        ("charge", lambda step: True, "refund"),
    ],
)
def test_rules_from_the_narrow_to_the_wide_are_accepted(matchers: Sequence[Any]) -> None:
    assert len(rules_of([rule(matcher) for matcher in matchers]).rules) == len(matchers)


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ("charge", "rules are a list"),
        (rule("charge"), "rules are a list"),
        (7, "rules are a list"),
        (["charge"], "a rule is rule(matcher, ...) or a pair"),
        ([("charge",)], "a rule is rule(matcher, ...) or a pair"),
        ([("charge", 5)], "a policy is a mapping"),
        ({"mode": "append", "rules": []}, "did you mean 'prepend'?"),
        ({"rule": []}, "did you mean 'rules'?"),
    ],
)
def test_anything_but_a_list_of_rules_is_refused(given_: Any, told: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        rules_of(given_, "Engine(rules=...)")
    assert told in str(caught.value)
    assert str(caught.value).startswith("Engine(rules=...)")


def test_instead_takes_a_step() -> None:
    with pytest.raises(UsageError, match="instead\\(\\) takes a step"):
        instead(len, "abc")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="instead\\(\\) takes a step"):
        instead("charge")  # type: ignore[arg-type]


def test_rules_are_plain_values() -> None:
    assert isinstance(prepend([rule("charge")]), Rules)
    assert rules_of(prepend([rule("charge", timeout=1)])) == rules_of([rule("charge", timeout=1)])
