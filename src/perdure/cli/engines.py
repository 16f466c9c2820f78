"""The engine of a module: with its programs, queues, schedules and resources, and what the settings say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.assembly import Engine
from perdure.cli.options import engine_options
from perdure.cli.targets import Target
from perdure.config import Recovery
from perdure.kernel.policies.queues import Queue


@dataclass(frozen=True, slots=True)
class ModuleEngine:
    """An engine, not open yet, and what it was made with."""

    engine: Engine
    queues: Sequence[Queue]
    serves: Sequence[str] | None
    grace: float


def engine_of(target: Target, store: str, given: Mapping[str, Any], grace: float | None = None) -> ModuleEngine:
    """An engine on a store for all that a module defines; `given` takes precedence over the settings."""
    options = engine_options(store, target.queues) | dict(given)
    recovery: Recovery = options.pop("recovery", Recovery())
    if grace is not None:
        recovery = replace(recovery, grace=grace)
    engine = Engine(
        store,
        {id(program): program for program in target.programs.values()}.values(),
        steps=target.steps,
        schedules=target.schedules,
        resources=target.resources,
        recovery=recovery,
        **options,
    )
    engine.module = target.file
    return ModuleEngine(engine, options["queues"], options.get("serves"), recovery.grace)
