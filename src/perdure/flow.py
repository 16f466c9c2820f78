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
from dataclasses import replace
from typing import Any

from perdure.authoring.flow.editor_schema import schema as flow_schema
from perdure.authoring.flow.flow import Flow, load
from perdure.config import Flows
from perdure.errors import FlowInvalid, FlowProblem
from perdure.settings.load import load_settings
from perdure.stored import access

__all__ = ["Flow", "FlowInvalid", "FlowProblem", "flow_schema", "load_flow"]


def load_flow(
    path: str | os.PathLike[str],
    *,
    python: Sequence[str] | None = None,
    http: Sequence[str] | None = None,
    shell: bool | None = None,
    components: Mapping[str, Callable[..., Any]] | None = None,
    profile: str | None = None,
    workspaces: Sequence[str] | None = None,
) -> Flow:
    """The flow in a file. Raises FlowInvalid with all problems, each with its line and column.

    `python`: the modules whose functions steps may use, with all below them. `http`: hosts that are not public, and may
    be reached all the same. `shell`: whether steps may run commands. `workspaces`: folders that its workspace may be
    in, beside that of the file. `profile`: which of its profiles a flow has that has any. Left out, they are as the
    settings say under `flows:`. `components`: functions that steps may use by these names.
    """
    lists = {"python": python, "http": http, "workspaces": workspaces}
    said: dict[str, Any] = {name: tuple(value) for name, value in lists.items() if value is not None}
    said |= {name: value for name, value in (("shell", shell), ("profile", profile)) if value is not None}
    allowed = Flows() if len(said) == len(lists) + 2 else load_settings().flows or Flows()
    allowed = replace(allowed, **said)
    return load(os.fspath(path), access(allowed, components))
