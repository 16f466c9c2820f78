"""The state of `perdure dev` for the dashboard: which code runs, and which runs an edit would park. Loads no code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from perdure.server import shapes
from perdure.server.changes import Changes
from perdure.server.problems import Problem
from perdure.server.routing import Call, Route


class Development:
    """The state of the edited code, and `take`, which applies an edit that is held back."""

    def __init__(self, state: shapes.DevState, changes: Changes, take: Callable[[], None]) -> None:
        self.state, self.take = state, take
        self._changes = changes

    def show(self, state: shapes.DevState) -> None:
        """Replace the state, and notify all listeners."""
        self.state = state
        self._changes.announce("dev")


def _development(call: Call[Any, Any]) -> Development:
    found = call.service.development
    if found is None:
        raise Problem(404, "not_developing", "this server was not started by `perdure dev`")
    return found


async def dev_state(call: Call[None, None]) -> shapes.DevState:
    """The code that `perdure dev` executes, and the open runs that an edit would park."""
    return _seen(call, _development(call).state)


def _seen(call: Call[Any, Any], state: shapes.DevState) -> shapes.DevState:
    return replace(state, runs=[run for run in state.runs if call.access.sees(run.program)])


async def take_edit(call: Call[None, shapes.EmptyBody]) -> shapes.DevState:
    """Apply an edit that is held back: runs that do not fit it are parked."""
    found = _development(call)
    if found.state.status != "held":
        raise Problem(409, "nothing_held", "no edit is held back now")
    found.take()
    return _seen(call, found.state)


ROUTES = (
    Route(method="GET", path="dev", role="read", handler=dev_state, result=shapes.DevState),
    Route(
        method="POST",
        path="dev/take",
        role="admin",
        handler=take_edit,
        body=shapes.EmptyBody,
        result=shapes.DevState,
        optional=True,
    ),
)
