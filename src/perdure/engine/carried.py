"""What a driver leaves to the one that takes its place when the journal has to be read anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from perdure.engine.steps import Attempt
from perdure.kernel.events import AnyEvent, AttemptFailed, StepFailed, StepSkipped, StepStarted, StepSucceeded

Key = tuple[str, int]


class Carried(msgspec.Struct):
    """What is known of an attempt: it runs, it has ended, its result is being stored or is, or it has an outcome."""

    inputs: str
    attempt: Attempt | None = None
    # How the attempt ended, if it did before the journal came to it.
    ended: tuple[Any, BaseException | None] | None = None
    # The result that was to be stored apart, and its blob, or why there is none.
    stored: tuple[bytes, str | BaseException] | None = None
    outcome: StepSucceeded | AttemptFailed | StepFailed | StepSkipped | None = None
    # The value of the outcome, if that is offloaded.
    large: Raw | None = None

    @property
    def over(self) -> bool:
        """Whether all that is left to do is to tell the run."""
        return self.ended is not None or self.stored is not None or self.outcome is not None

    def cancel(self) -> None:
        """Nobody will want it any more."""
        if self.attempt is not None:
            self.attempt.cancel()


def carry(
    before: Mapping[Key, Carried],
    storing: Mapping[Key, str],
    attempts: Mapping[str, Attempt],
    unsaved: Iterable[AnyEvent],
    large: Mapping[str, Raw],
) -> dict[Key, Carried]:
    """Everything that is under way or done and not known to be in the store, by op and attempt."""
    carried = dict(before)
    for key, of_inputs in storing.items():
        carried[key] = Carried(of_inputs)
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
            value = large.get(event.op) if isinstance(event, StepSucceeded) and event.blob else None
            carried[event.op, event.attempt] = Carried(inputs.get(event.op, ""), outcome=event, large=value)
    return carried
