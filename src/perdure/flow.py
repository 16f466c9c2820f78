"""Flows: programs in YAML or JSON files.

from perdure import Engine
from perdure.flow import load_flow

nightly = load_flow("nightly.yaml")

async with Engine("sqlite:///flows.db", [nightly]) as engine:
    result = await engine.run(nightly(date="2026-11-16"), id="nightly-2026-11-16")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure.authoring.flow.flow import Flow, load
from perdure.authoring.flow.format import schema as flow_schema
from perdure.errors import FlowInvalid, FlowProblem, UsageError
from perdure.settings.load import load_settings

__all__ = ["Flow", "FlowInvalid", "FlowProblem", "flow_schema", "load_flow"]


def load_flow(
    path: str | os.PathLike[str],
    *,
    python: Sequence[str] | None = None,
    components: Mapping[str, Callable[..., Any]] | None = None,
) -> Flow:
    """The flow in a file. Raises FlowInvalid with all problems, each with its line and column.

    `python`: the modules whose functions steps may use, with all below them; left out, as the settings say under
    `flows: {python: [...]}`. `components`: functions that steps may use by these names.
    """
    allowed = load_settings().flows if python is None else tuple(python)
    try:
        return load(os.fspath(path), allowed or (), components or {})
    except OSError as error:
        raise UsageError(f"the flow {os.fspath(path)} cannot be read: {error.strerror or error}") from error
