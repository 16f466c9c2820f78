"""Where a suspended body stands: the lines it waits on, and its local variables there. Changes nothing of it."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.authoring.code.body import Body
from perdure.authoring.code.loop import source_of, waiting_frames


class Standing(msgspec.Struct, frozen=True):
    """A frame of the user's code that waits: its function, its line, and its local variables."""

    function: str
    line: str
    locals: dict[str, Any]


def standing(body: Body, op: str = "") -> list[Standing]:
    """The frames of the task that waits for an op, or of the body itself, from the outermost to the innermost."""
    tasks = [task for task in body.loop._tasks if not task.done() and op.startswith(task.scope.prefix)]
    task = max(tasks, key=lambda task: len(task.scope.prefix), default=None)
    if task is None:
        return []
    return [Standing(f.f_code.co_qualname, source_of(f), dict(f.f_locals)) for f in waiting_frames(task.body)]
