"""Check the options of a start: queue, key, priority, debounce and durations."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.errors import UsageError
from perdure.kernel.ids import check_id
from perdure.kernel.policies.durations import ENDLESS, Duration, duration
from perdure.kernel.policies.queues import check_key, check_priority, check_queue


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a queue; an empty `queue`: the run begins at once."""

    queue: str = ""
    key: str = ""
    priority: int = 0


def placed(queue: str | None, key: str | None, priority: int) -> Place:
    """The place that the caller's options name, or UsageError."""
    check_priority(priority)
    if queue is None:
        given = f"key={key!r}" if key is not None else f"priority={priority}" if priority else None
        if given is not None:
            raise UsageError(f"{given} means nothing without a queue; add queue='...', or leave it out")
        return Place()
    return Place(check_queue(queue), "" if key is None else check_key(key), priority)


def debounced_id(program: str, place: Place, id: str | None, reuse: str, delay: Duration | None) -> str:
    """The id under which debounced starts are merged into one run."""
    if delay is not None:
        raise UsageError("debounce and delay both say when the run begins; give one of them")
    if reuse != "return_existing":
        raise UsageError(f"reuse={reuse!r} does not go with debounce: a start after the run began makes the next")
    if id is not None:
        return id
    if not place.key:
        raise UsageError("debounce needs to know which starts belong together: give an id, or a queue and a key")
    return check_id(f"{place.queue}/{place.key}/{program}")


def seconds(value: Duration, what: str) -> float:
    """A duration as a number of seconds, or UsageError."""
    number = duration(value)
    if number is None or not 0 <= number < ENDLESS:
        raise UsageError(f"{what}={value!r:.80} must be a number of seconds or a timedelta, and not negative")
    return number


def at_least_one(value: int | None, option: str = "max_concurrency") -> int | None:
    """A number that may be left out, such as how many steps of a run may be in flight; or UsageError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UsageError(f"{option}={value!r} must be at least 1")
    return value
