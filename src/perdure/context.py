"""The context of a run, for the code of its body and its steps. Changes nothing."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from perdure.authoring.code.body import current_body, require_body
from perdure.authoring.dataflow.deciding import PATCHES
from perdure.engine.step_context import current
from perdure.errors import PerdureError, UsageError
from perdure.kernel.context import RunContext
from perdure.kernel.ids import check_name

T = TypeVar("T")


def run_context() -> RunContext:
    """The run that this code is part of: its ids, program, tags, and the tick of the schedule that started it.

    Works in a workflow body, where it is the same on every replay, and in a step of any kind.
    """
    body = current_body()
    if body is not None:
        return body.run_context()
    step = current.get(None)
    if step is None:
        raise PerdureError("run_context() works only inside a workflow, or a step that a workflow called")
    return step.run


@overload
def resource(name: str) -> Any: ...
@overload
def resource(name: str, type: type[T]) -> T: ...
def resource(name: str, type: Any = None) -> Any:
    """A resource from `Engine(resources={name: ...})` of the engine that runs this step: a pool, a client, a model.

    Works in steps only: a workflow body must do the same on every replay.
    """
    if current_body() is not None:
        raise UsageError(f"resource({name!r}) works in a step, and this is a workflow body; get it in a @step")
    step = current.get(None)
    if step is None:
        raise PerdureError(f"resource({name!r}) works only inside a step that a workflow called")
    found = step.resources[name]
    if type is not None and not isinstance(found, type):
        raise UsageError(f"the resource {name!r} is a {found.__class__.__name__}, not a {type.__name__}")
    return found


def patched(id: str) -> bool:
    """Whether this run takes the new path of a change: `if patched("tax-first"): ... else: ...`.

    False for runs that were beyond this place before the change was deployed, True for all others; each run keeps its
    answer, which is marked in its journal. Give each change an id of its own. A step gets the answer that the body
    which called it was given: ask in the body first. A graph names its patches: `Graph(patches=["tax-first"])`.
    """
    id = check_name(id, "the id of a patch")
    deciding = PATCHES.get(None)
    if deciding is not None:
        if id not in deciding:
            raise UsageError(f"patched({id!r}) in a graph takes a patch that the graph names: Graph(patches=[{id!r}])")
        return deciding[id]
    body, step = current_body(), current.get(None)
    if body is not None or step is None:
        return require_body("patched()").patched(id)
    answer = step.patches.get(id)
    if answer is None:
        raise UsageError(
            f"patched({id!r}) in a step gives the answer that the workflow was given, and the workflow has not asked; "
            f"write patched({id!r}) in its body, before it calls the step, or Graph(patches=[{id!r}]) for a node: only "
            "they know what the run did before"
        )
    return answer
