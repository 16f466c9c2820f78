"""Put secrets into the arguments of a step where it is executed, and keep them out of all that leaves it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from perdure.authoring.flow.expressions import Path
from perdure.authoring.flow.values import SECRET
from perdure.errors import UsageError
from perdure.kernel.commands import StepSpec

MASK = "***"
# A shorter text is part of others by chance.
_SHORTEST = 4


def with_secrets(spec: StepSpec, places: Mapping[str, tuple[Path, ...]]) -> StepSpec:
    """A step that gets secrets at these places of its arguments. Raises UsageError for one that cannot."""
    if spec.generator or spec.cpu or spec.queue:
        raise UsageError("a step that streams, has cpu=True or runs in a queue takes no secrets")
    types = tuple((name, Any if name.lstrip("*=") in places else type) for name, type in spec.types)
    fn = _asynchronous(spec.fn, places) if spec.asynchronous else _plain(spec.fn, places)
    return dataclasses.replace(spec, fn=fn, types=types)


def _plain(fn: Callable[..., Any], places: Mapping[str, tuple[Path, ...]]) -> Callable[..., Any]:
    @wraps(fn)
    def call(**arguments: Any) -> Any:
        used = set[str]()
        try:
            return masked(fn(**_filled(arguments, places, used)), used)
        except Exception as error:
            _mask_error(error, used)
            raise

    return call


def _asynchronous(fn: Callable[..., Any], places: Mapping[str, tuple[Path, ...]]) -> Callable[..., Any]:
    @wraps(fn)
    async def call(**arguments: Any) -> Any:
        used = set[str]()
        try:
            return masked(await fn(**_filled(arguments, places, used)), used)
        except Exception as error:
            _mask_error(error, used)
            raise

    return call


def _filled(arguments: Mapping[str, Any], places: Mapping[str, tuple[Path, ...]], used: set[str]) -> dict[str, Any]:
    found = dict(arguments)
    for name, paths in places.items():
        for path in paths:
            found[name] = _put(found[name], path, used)
    return found


def _put(value: Any, path: Path, used: set[str]) -> Any:
    """A value with a secret at a place in it."""
    if not path:
        return _secret(value[SECRET], used)
    if isinstance(value, list):
        return [_put(one, path[1:], used) if number == path[0] else one for number, one in enumerate(value)]
    return {key: _put(one, path[1:], used) if key == path[0] else one for key, one in value.items()}


def _secret(stored: Any, used: set[str]) -> str:
    if isinstance(stored, list):
        return "".join(one if isinstance(one, str) else _secret(one[SECRET], used) for one in stored)
    found = os.environ.get(stored)
    if found is None:
        raise UsageError(f"the secret {stored} is not set where this step runs; set the environment variable {stored}")
    used.add(found)
    return found


def masked(value: Any, secrets: set[str]) -> Any:
    """A value without these texts in it."""
    long = [one for one in secrets if len(one) >= _SHORTEST]
    return _masked(value, long) if long else value


def _masked(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for one in secrets:
            value = value.replace(one, MASK)
        return value
    if isinstance(value, dict):
        return {_masked(key, secrets): _masked(one, secrets) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_masked(one, secrets) for one in value]) if type(value) in (list, tuple) else value
    return value


def _mask_error(error: BaseException, secrets: set[str]) -> None:
    """Take secrets out of an exception, its notes, and those that led to it."""
    seen = set[int]()
    work: list[BaseException | None] = [error]
    while work:
        one = work.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = masked(one.args, secrets)
        if getattr(one, "__notes__", None):
            one.__notes__ = masked(one.__notes__, secrets)
        for name, value in list(getattr(one, "__dict__", {}).items()):
            if isinstance(value, str | dict | list | tuple):
                one.__dict__[name] = masked(value, secrets)
        work += [one.__cause__, one.__context__]
