"""Steps, workflows and errors that tests of steps share."""

from __future__ import annotations

from perdure import Retry

QUICK = Retry(attempts=3, initial=0, jitter=False)


class Declined(Exception):
    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"declined with {code}: {why}")
        self.code, self.why = code, why


class TooBusy(ConnectionError):
    pass
