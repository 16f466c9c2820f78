"""Check the options of a start: queue, key, priority, debounce, durations, tags, and how a used id is handled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from perdure.errors import UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import WrongValue, check_id, check_text, flaw_of, plain
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
    priority = check_priority(priority)
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
    return None if value is None else int(value)


Reuse = Literal["return_existing", "reject_duplicate", "allow_if_failed", "terminate_running"]
Decision = Literal["create", "return", "reject", "replace"]
_REUSES = get_args(Reuse)


def decide(reuse: Reuse, existing: RunStatus | None) -> Decision:
    """Create a new run, return the existing run, reject the start, or terminate the existing run and replace it."""
    if reuse not in _REUSES:
        raise WrongValue(f"reuse={reuse!r} is none of {', '.join(map(repr, _REUSES))}")
    if existing is None:
        return "create"
    if reuse == "return_existing":
        return "return"
    if reuse == "allow_if_failed":
        return "create" if existing in (RunStatus.FAILED, RunStatus.CANCELLED) else "reject"
    if reuse == "terminate_running":
        return "create" if existing.finished else "replace"
    return "reject"


# Limits, because every listed row carries its tags.
MAX_TAGS, MAX_TAG_NAME = 64, 200


def checked_tags(tags: dict[str, str] | None) -> dict[str, str] | None:
    """The tags as they are stored, None for none; or UsageError."""
    if tags is None:
        return None
    if not isinstance(tags, dict):
        raise UsageError(f"tags={tags!r:.80} must be a dict of names and values, such as tags={{'team': 'billing'}}")
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):
        raise UsageError(f"tags={tags!r:.200}: names and values of tags are strings")
    if len(tags) > MAX_TAGS:
        raise UsageError(f"there are {len(tags):,} tags, and {MAX_TAGS} is the limit; put the rest into the input")
    for name, value in tags.items():
        flaw = flaw_of(name, MAX_TAG_NAME)
        if flaw is not None:
            raise UsageError(f"the name of the tag {name[:60]!r} {flaw}; choose a short name, such as 'team'")
        if check_text(value, f"the value of the tag {name!r}").isprintable() or "\0" not in value:
            continue
        raise UsageError(f"the value of the tag {name!r} holds a NUL, which not every store can keep: {value[:60]!r}")
    return {plain(name): plain(value) for name, value in tags.items()} or None
