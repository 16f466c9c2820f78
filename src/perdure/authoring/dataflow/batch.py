"""The batches of a program: one map over the rows of the input, which runs the program for each."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.dependence import Dependence
from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.plan import Argument, Input, Mapped, Node, Output, Plan, Region
from perdure.authoring.dataflow.program import DataflowProgram
from perdure.kernel.batches import ROW, ROWS, BatchInput
from perdure.kernel.events import RunStarted
from perdure.kernel.ids import BATCH
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.program import Program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import Items

_MAPPED = Mapped((ROW,), on_error="none", rows=True)


class Batches(DataflowProgram):
    """The batches of a program, as a program."""

    def __init__(self, program: Program) -> None:
        self.name, self.version, self.accepts = program.name + BATCH, program.version, program.accepts
        self.rules, self.errors, self.asks = program.rules, program.errors, program.asks
        node = Node(ROW, "child", (Argument(ROW, Input(ROWS)),), (ROW,), program=program, mapped=_MAPPED)
        self.plan = Plan(
            (node,),
            (Region(nodes=(0,)),),
            region=(0,),
            consumers=((),),
            waits=(0,),
            reads=((),),
            kept=frozenset({0}),
            values={ROW: (Output(0),)},
            results=((ROW, Output(0)),),
            single=True,
        )
        self.dataflow = Dependence(self.plan)
        self.decides = True
        self.returns = Items[Any]

    def open(
        self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY
    ) -> DataflowExecution:
        """A fresh execution, with the limits of this batch."""
        options = msgspec.json.decode(started.input, type=BatchInput)
        (node,) = self.plan.nodes
        mapped = msgspec.structs.replace(_MAPPED, limit=options.limit, tolerate=options.tolerate)
        plan = msgspec.structs.replace(self.plan, nodes=(msgspec.structs.replace(node, mapped=mapped),))
        input = Raw(msgspec.json.encode({ROWS: options.rows}))
        return DataflowExecution(plan, msgspec.structs.replace(started, input=input), codec, past)
