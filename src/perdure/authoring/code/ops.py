"""What a workflow body may call besides steps: sleeping, recorded values, checkpoints, an early end."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Never, NoReturn
from uuid import UUID

from perdure.authoring.code.body import check_awaited, current_body, named, require_body, to_await
from perdure.authoring.code.step import seconds
from perdure.errors import StepBailed, UsageError
from perdure.kernel.events import moment
from perdure.kernel.ids import MAX_REASON, check_name, check_text, derived_uuid, step_key
from perdure.kernel.policies.retry import fraction


def sleep(duration: float | timedelta) -> Coroutine[object, Never, None]:
    """Sleep durably: for seconds or months, over restarts, without holding memory."""
    return to_await(
        _sleep(duration), sys._getframe(1), "sleep(...)"
    )  # typed like a call of a step, so that gather infers its result


@named("sleep")
async def _sleep(duration: float | timedelta) -> None:
    body = require_body("sleep()")
    await body.sleep("sleep", body.loop.now + seconds(duration, "sleep(): duration"))


def sleep_until(when: datetime) -> Coroutine[object, Never, None]:
    """Sleep durably until a datetime, which needs a time zone: without one it would differ between machines."""
    return to_await(_sleep_until(when), sys._getframe(1), "sleep_until(...)")


@named("sleep_until")
async def _sleep_until(when: datetime) -> None:
    body = require_body("sleep_until()")
    if not isinstance(when, datetime) or when.tzinfo is None:
        raise ValueError(
            f"sleep_until() needs a datetime with a time zone, not {when!r:.80}; write now() + timedelta(...), or "
            "datetime(2030, 1, 1, tzinfo=UTC)"
        )
    await body.sleep("sleep", max(when.timestamp(), body.loop.now))


def now() -> datetime:
    """The current time, the same on every replay: the time of the event that the body is reacting to."""
    body = require_body("now()")
    value: datetime = body.record("now", datetime, lambda op: moment(body.loop.now))
    return value


def uuid4() -> UUID:
    """A random UUID, the same on every replay."""
    body = require_body("uuid4()")
    value: UUID = body.record("uuid", UUID, lambda op: derived_uuid(body.run_id, op))
    return value


def random() -> float:
    """A random number in [0, 1), the same on every replay."""
    body = require_body("random()")
    value: float = body.record("random", float, lambda op: fraction(step_key(body.run_id, op)))
    return value


def deprecate_patch(id: str) -> None:
    """Replace a `patched(id)` whose old path was removed, until no run has its mark; then remove this too.

    Use it when every run on the old path has ended: `perdure upgrade-check` reports them.
    """
    require_body("deprecate_patch()")
    check_name(id, "the id of a patch")


def checkpoint() -> Awaitable[None]:
    """Make everything so far durable before the next step starts; for `durability="manual"` and the lazy modes."""
    body = require_body("checkpoint()")
    site = check_awaited(sys._getframe(1), "checkpoint()")
    future = body.checkpoint()
    future.site = site
    return future


def bail(reason: str, output: Any = None, *, outputs: Any = None) -> NoReturn:
    """End the run here, on purpose and without an error: its status is `bailed`, and its result is `output`.

    In a step it raises StepBailed, which is never retried; the run ends when that is recorded. In a node of a graph,
    `outputs={"status": "rejected"}` means the same.
    """
    if outputs is not None:
        if output is not None:
            raise UsageError("bail(output=..., outputs=...): both say what the output of the run is; give one of them")
        output = outputs
    reason, body = check_text(reason, "the reason of bail()", MAX_REASON), current_body()
    if body is None:
        raise StepBailed(reason, output)
    body.bail(reason, output)
    raise AssertionError("unreachable")
