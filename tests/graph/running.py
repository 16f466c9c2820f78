"""Run a graph in memory and look at what became of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure import Engine, RunResult, RunStatus
from perdure.client.views import StepView
from perdure.graph import Graph


@dataclass(frozen=True)
class Ran:
    """A run of a graph, and its steps."""

    result: RunResult[Any]
    steps: Sequence[StepView]

    @property
    def output(self) -> Any:
        """What it put out; it must have completed."""
        assert self.result.status is RunStatus.COMPLETED, self.result
        return self.result.output

    def paths(self, status: str = "succeeded") -> list[str]:
        """The op paths of the steps in a status, in order."""
        return sorted(step.path for step in self.steps if step.status == status)

    def skipped(self) -> dict[str, str]:
        """What was skipped, and why."""
        return {step.path: step.skipped_by or "" for step in self.steps if step.status == "skipped"}

    def __getitem__(self, path: str) -> StepView:
        return next(step for step in self.steps if step.path == path)


async def run(graph: Graph[..., Any], options: dict[str, Any] | None = None, **inputs: Any) -> Ran:
    """Run a graph until it ends or rests."""
    async with Engine("memory://", [graph], **(options or {})) as engine:
        result = await engine.run(graph(**inputs), id="r")
        return Ran(result, await engine.steps("r"))
