"""The run for which a pure function of a plan is being called: a gate, a condition, a question. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

# The answers of `patched()` in such a function.
PATCHES: ContextVar[Mapping[str, bool]] = ContextVar("perdure.patches_of_decision")


def call(function: Callable[..., Any], patches: Mapping[str, bool], /, *values: Any, **named: Any) -> Any:
    """The result of a function that may ask for the patches of its run."""
    token = PATCHES.set(patches)
    try:
        return function(*values, **named)
    finally:
        PATCHES.reset(token)
