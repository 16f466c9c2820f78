"""What a driver leaves to the one that takes its place when the journal has to be read anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from perdure.engine.steps import Attempt
from perdure.kernel.events import AnyEvent, AttemptFailed, StepFailed, StepSkipped, StepStarted, StepSucceeded

Key = tuple[str, int]


class Carried(msgspec.Struct):
    """What is known of an attempt: it runs, it has ended, it has an outcome, or that is being stored."""

    inputs: str
    attempt: Attempt | None = None
    # How the attempt ended, if it did before the journal came to it.
    ended: tuple[Any, BaseException | None] | None = None
    outcome: StepSucceeded | AttemptFailed | StepFailed | StepSkipped | None = None

    def cancel(self) -> None:
        """Nobody will want it any more."""
        if self.attempt is not None:
            self.attempt.cancel()


def carry(
    before: Mapping[Key, Carried], storing: Iterable[Key], attempts: Mapping[str, Attempt], unsaved: Iterable[AnyEvent]
) -> dict[Key, Carried]:
    """Everything that is under way or done and not known to be in the store, by op and attempt."""
    carried = dict(before)
    for key in storing:
        carried[key] = Carried("")
    for op, attempt in attempts.items():
        carried[op, attempt.call.attempt] = Carried(attempt.call.command.inputs_hash, attempt=attempt)
    inputs: dict[str, str] = {}
    for event in unsaved:
        if isinstance(event, StepStarted) and event.attempt == 1:
            inputs[event.op] = event.inputs
        elif isinstance(event, StepSucceeded | AttemptFailed | StepSkipped) or (
            # What the program gave up it will give up again, or not.
            isinstance(event, StepFailed) and not event.cancelled
        ):
            carried[event.op, event.attempt] = Carried(inputs.get(event.op, ""), outcome=event)
    return carried
