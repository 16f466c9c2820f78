"""A job of a flow as a program: its runs are children of the run of the flow, in the same journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Raw

from perdure.authoring.dataflow.dependence import Dependence
from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.plan import Plan
from perdure.authoring.dataflow.program import DataflowProgram
from perdure.kernel.events import RunStarted
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.values.codec import Codec, OwnDecoder
from perdure.kernel.values.skips import plain_result


class Result(OwnDecoder):
    """Reads the result of a flow or a job: plain JSON, without the note about skipped steps."""

    def __repr__(self) -> str:
        return "Any"

    def decoder(self, codec: Codec) -> Callable[[bytes | Raw], Any]:
        """The function that decodes a result."""
        return plain_result


class Job(DataflowProgram):
    """A part of a flow. It takes values of the flow by their names in the flow."""

    def __init__(self, name: str, version: str, plan: Plan, takes: tuple[str, ...]) -> None:
        self.name, self.version, self.plan = name, version, plan
        self.returns = Result()
        self.decides = self.rests = True
        self.dataflow = Dependence(plan)
        self.asks = asks(plan)
        self.types = tuple((f"={value}", Any) for value in takes)
        self.defaults = dict.fromkeys(takes)

    def __repr__(self) -> str:
        return f"<job {self.name} {self.version}>"

    def open(
        self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY
    ) -> DataflowExecution:
        """A fresh execution of its plan."""
        return DataflowExecution(self.plan, started, codec, past)


def asks(plan: Plan) -> bool:
    """Whether a plan may wait for a person."""
    return any(node.kind == "wait" or (node.program is not None and node.program.asks) for node in plan.nodes)
