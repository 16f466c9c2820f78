"""Steps, workflows and errors that tests of steps share."""

from __future__ import annotations

import math
from typing import Any

from perdure import Retry, Step, step, step_context

QUICK = Retry(attempts=3, initial=0, jitter=False)


class Declined(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"declined with {code}: {why}")
        self.code, self.why = code, why


class TooBusy(ConnectionError):
    pass


def failing(times: float = math.inf, *, called: list[int] | None = None, **options: Any) -> Step[[], int]:
    """A step that fails so many times, and then returns the number of its attempt."""

    @step(**options)
    async def failing() -> int:
        attempt = step_context().attempt
        if called is not None:
            called.append(attempt)
        if attempt <= times:
            raise TooBusy(f"attempt {attempt}")
        return attempt

    return failing
