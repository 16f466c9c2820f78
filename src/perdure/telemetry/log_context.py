"""Adds the current run to log records. Formats nothing and stores nothing."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from typing import Any

from perdure.engine.step_context import current
from perdure.errors import UsageError
from perdure.kernel.context import RunContext

FIELDS = ("run_id", "run", "op", "attempt", "program", "trace_id", "span_id")


class LogContext(logging.Filter):
    """Puts on every record which run, step and attempt it was made in: `handler.addFilter(LogContext())`.

    The fields are `run_id`, `run` (its id), `op`, `attempt`, `program`, and with OpenTelemetry `trace_id` and
    `span_id`; outside of a run they are empty. With `drop_replayed=True` records that a body makes during a replay are
    dropped: they were made when it was executed first.
    """

    def __init__(self, *, drop_replayed: bool = False) -> None:
        super().__init__()
        if not isinstance(drop_replayed, bool):
            raise UsageError(f"LogContext(drop_replayed={drop_replayed!r:.80}) must be True or False")
        self._drop = drop_replayed

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields. False for a record that a replay repeats, where those are dropped."""
        body = _body()
        if body is not None and self._drop and body.replaying:
            return False
        fields: dict[str, Any] = dict.fromkeys(FIELDS, "")
        # A log call must not fail because of its context.
        with suppress(Exception):
            fields |= _of_step() | _trace() if body is None else _of_run(body.run_context())
        for name, value in fields.items():
            # Fields that the caller gave as `extra` stay, and so do those that were added in the thread of the log
            # call.
            record.__dict__.setdefault(name, value)
        return True


def _of_run(run: RunContext) -> dict[str, Any]:
    return {"run_id": run.run_id, "run": run.id, "program": run.program}


def _of_step() -> dict[str, Any]:
    step = current.get(None)
    if step is None:
        return {}
    # The key of a step ends with its op, in every process.
    return {**_of_run(step.run), "op": step.id.partition("/")[2], "attempt": step.attempt}


def _body() -> Any:
    """The workflow body that this code is part of; only bodies run on a BodyLoop. None in any other code."""
    loop: Any = asyncio._get_running_loop()
    found = getattr(loop, "body", None)
    return found() if callable(found) else None


def _trace() -> dict[str, str]:
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    found = trace.get_current_span().get_span_context()
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"} if found.is_valid else {}
