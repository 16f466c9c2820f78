"""What code of a workflow body or a step may know of the run that it is part of. Reads, and changes nothing."""

from __future__ import annotations

from perdure.authoring.code.body import current_body
from perdure.engine.step_context import current
from perdure.errors import PerdureError
from perdure.kernel.context import RunContext


def run_context() -> RunContext:
    """The run that this code is part of: its ids, program, tags, and the tick of the schedule that started it.

    Works in a workflow body, where it is the same on every replay, and in a step, wherever that is executed.
    """
    body = current_body()
    if body is not None:
        return body.run_context()
    step = current.get(None)
    if step is None:
        raise PerdureError("run_context() works only inside a workflow, or a step that a workflow called")
    return step.run
