"""The policy of a rule: its keys, their checks, presets. Matching steps is the duty of `rules.py`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, TypedDict

from perdure.errors import InvalidRule
from perdure.kernel.commands import OnFailure, StepSpec
from perdure.kernel.policies.durations import ENDLESS, duration
from perdure.kernel.policies.fallback import FailedStep
from perdure.kernel.policies.retry import Backoff, Retry, merge


class Policy(TypedDict, total=False):
    """The settings of a rule for a step. Keys that are left out keep the step's own value."""

    retry: Retry
    attempts: int
    backoff: Backoff
    initial: float
    factor: float
    max: float
    jitter: bool
    on: tuple[type[BaseException], ...]
    timeout: float | timedelta | None
    heartbeat: float | timedelta | None
    at_most_once: bool
    on_failure: OnFailure
    fallback: Callable[[FailedStep], Any] | None


# For language models and other slow services: three retries.
llm: Final[Policy] = {"attempts": 4, "backoff": "exponential", "timeout": 30.0}
# For input and output that a run can do without: two retries, then None in place of the result.
io: Final[Policy] = {"attempts": 3, "backoff": "linear", "timeout": 10.0, "on_failure": "skip"}
# For calls that succeed at once or not at all.
fast_fail: Final[Policy] = {"attempts": 1, "backoff": "none", "timeout": 5.0, "on_failure": "halt"}

# Names in other systems that close matching would not find.
_ELSEWHERE = {
    "max_retries": "attempts, which counts the first one too",
    "retries": "attempts, which counts the first one too",
    "base_delay_ms": "initial, in seconds",
    "max_delay_ms": "max, in seconds",
    "timeout_ms": "timeout, in seconds",
}
_RETRY = frozenset(field.name for field in dataclasses.fields(Retry))
_KEYS = tuple(Policy.__annotations__)


def check_policy(given: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """A policy in its final form; raises InvalidRule with the key that is wrong, and what to write."""
    if not isinstance(given, Mapping):
        raise InvalidRule(where, f"a policy is a mapping such as {{'timeout': 5}}, not {given!r}")
    for key in given:
        if key not in _KEYS:
            raise InvalidRule(where, f"there is no policy {key!r}; {suggest(key, _KEYS, _ELSEWHERE)}")
    policy = dict(given)
    keys = sorted(_RETRY & policy.keys())
    if "retry" in policy:
        if keys:
            raise InvalidRule(where, f"retry= says all about retries; leave out {', '.join(keys)}, or put it into it")
        policy["retry"] = _retry(policy["retry"], where)
    else:
        checked = _make_retry({key: policy[key] for key in keys}, where)
        policy |= {key: getattr(checked, key) for key in keys}
    for key in ("timeout", "heartbeat"):
        if key in policy:
            policy[key] = _seconds(policy[key], key, where)
    if not isinstance(policy.get("at_most_once", False), bool):
        raise InvalidRule(where, f"at_most_once={policy['at_most_once']!r} is True or False")
    on_failure = policy.get("on_failure", "halt")
    if on_failure not in ("halt", "skip"):
        raise InvalidRule(where, f"on_failure={on_failure!r}: {suggest(str(on_failure), ('halt', 'skip'))}")
    _check_fallback(policy.get("fallback"), where)
    return MappingProxyType(policy)


def suggest(word: str, words: Iterable[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """`did you mean ...?`, or the known words."""
    known = tuple(words)
    if elsewhere is not None and word in elsewhere:
        return f"here it is called {elsewhere[word]}"
    near = difflib.get_close_matches(str(word), known, 1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"there {'are' if len(known) > 1 else 'is'} {', '.join(known) or 'none'}"


def _retry(given: Any, where: str) -> Retry:
    if isinstance(given, Retry):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRule(where, f"retry is a Retry, as in retry=Retry(attempts=3), not {given!r}")
    for key in given:
        if key not in _RETRY:
            raise InvalidRule(where, f"Retry has no {key!r}; {suggest(key, sorted(_RETRY), _ELSEWHERE)}")
    return _make_retry(given, where)


def _make_retry(given: Mapping[str, Any], where: str) -> Retry:
    attempts = given.get("attempts", 1)
    if isinstance(attempts, bool) or not isinstance(attempts, int):
        raise InvalidRule(where, f"attempts={attempts!r} is a whole number")
    try:
        return Retry(**given)
    except (TypeError, ValueError) as error:
        raise InvalidRule(where, str(error)) from None


def _seconds(given: Any, key: str, where: str) -> float | None:
    if given is None:
        return None
    number = duration(given)
    if number is None or not 0 < number < ENDLESS:
        raise InvalidRule(where, f"{key}={given!r} is a number of seconds above 0, a timedelta, or None for no timeout")
    return number


def _check_fallback(given: Any, where: str) -> None:
    if given is None:
        return
    if not callable(given):
        raise InvalidRule(where, f"fallback={given!r} cannot be called; write fallback=lambda failed: {given!r}")
    if isinstance(getattr(given, "spec", None), StepSpec):
        raise InvalidRule(
            where, f"fallback={given!r} is a step; write fallback=lambda failed: instead({given.name}, ...)"
        )
    try:
        inspect.signature(given).bind(None)
    except TypeError as error:
        raise InvalidRule(where, f"a fallback takes one argument, the FailedStep: {error}") from None
    except ValueError:  # a builtin without a signature
        pass


def apply(policy: Mapping[str, Any], spec: StepSpec) -> StepSpec:
    """The step with a policy merged over its own."""
    changes: dict[str, Any] = {key: value for key, value in policy.items() if key not in _RETRY}
    if "retry" not in policy:
        keys = {key: value for key, value in policy.items() if key in _RETRY}
        if keys:
            changes["retry"] = merge(spec.retry, keys)
    if spec.queue and policy:
        sent = dict(spec.sent)
        sent |= {"retry": changes["retry"]} if "retry" in sent and "retry" in changes else policy
        changes["sent"] = tuple(sorted(sent.items()))
    return dataclasses.replace(spec, **changes) if changes else spec


def policy_data(policy: Mapping[str, Any], where: str, code: str | None = None) -> dict[str, Any]:
    """A policy as JSON; raises InvalidRule if it holds code, with `code` as the reason."""
    code = code or CODE
    data = dict(policy)
    retry = data.get("retry")
    if retry is not None:
        data["retry"] = {field.name: getattr(retry, field.name) for field in dataclasses.fields(Retry)}
        if data["retry"].pop("on") != (Exception,):
            raise InvalidRule(where, code.format("the exception classes of Retry(on=...)", "are"))
    if "on" in data:
        raise InvalidRule(where, code.format("the exception classes of on=", "are"))
    if data.get("fallback") is not None:
        raise InvalidRule(where, code.format("a fallback", "is"))
    return data


# The reason why the rules of a run cannot hold code.
CODE = (
    "the rules of a run are kept in its journal, and {} {} code; give this rule to Engine(rules=...) or "
    "@workflow(rules=...)"
)
# The reason why the policy of a remote step cannot hold code.
CODE_FOR_WORKER = (
    "a remote step is tried by its worker, to which the policy is sent, and {} {} code; give this rule to the worker: "
    "Engine(steps=[...], rules=...)"
)
