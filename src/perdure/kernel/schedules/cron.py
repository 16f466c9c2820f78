"""When a cron expression is due in a time zone, on days with a change of the clocks too. Knows no schedule.

The policy for those days is that of Debian's cron. An expression that names its times (`30 2 * * *`) is due once for
each of them: one that the clocks skip is due at the first moment after the gap, one that comes twice is due the first
time. An expression whose hour or minute begins with `*` (`*/15 * * * *`) is due whenever the clock on the wall shows
it: twice in an hour that comes twice, never in one that is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from perdure.errors import UsageError

_SECOND = timedelta(seconds=1)
# An hour that comes twice matters only this long after a moment in it. No zone changes its clocks twice in that time.
_NEAR = timedelta(hours=48)
# Any moment does to find out whether an expression can be read, and whether it is ever due.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a time on the wall, in no zone
_FIELDS = "minute hour day-of-month month day-of-week, as in '30 2 * * *'; with six fields the first is the second"

# Words that other crons know.
_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def zone(name: str) -> tzinfo:
    """The time zone of that name, or UsageError."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except Exception as error:  # by what is wrong with the name it is a KeyError, ValueError, OSError or TypeError
        near = get_close_matches(str(name), available_timezones(), 1, 0.5) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "use a name such as 'Europe/Berlin'"
        raise UsageError(f"timezone={name!r} is no time zone that this machine knows; {hint}") from error


def check_cron(expression: str) -> None:
    """Raise UsageError when the expression cannot be read, or is never due."""
    if not isinstance(expression, str):
        raise UsageError(f"cron={expression!r} is not a text; its fields are {_FIELDS}")
    if expression.strip() in _WORDS:
        raise UsageError(f"cron={expression!r} is written with fields here: cron={_WORDS[expression.strip()]!r}")
    try:
        due = next(CronSim(expression, _SOME_DAY), None)
    except CronSimError as error:
        if _only_the_days_never_come(expression):
            due = None
        else:
            raise UsageError(f"cron={expression!r} cannot be read: {error}; the fields are {_FIELDS}") from error
    except Exception as error:  # what its parser did not foresee
        raise UsageError(f"cron={expression!r} cannot be read; the fields are {_FIELDS}") from error
    if due is None:
        raise UsageError(f"cron={expression!r} never fires: no year has such a day; choose another day or month")


def _only_the_days_never_come(expression: str) -> bool:
    """Whether it could be read if its months had more days, as in `0 0 30 2 *`."""
    fields = expression.split()
    fields[-2:-1] = ["*"]
    try:
        CronSim(" ".join(fields), _SOME_DAY)
    except Exception:
        return False
    return True


def cron_ticks(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    """The moments after `after` at which the expression is due, in their order, in UTC."""
    fields = expression.split()
    after = after.astimezone(UTC).replace(microsecond=0)
    if where is UTC:
        return _in_utc(expression, after)
    if any(field.startswith("*") for field in fields[: len(fields) - 3]):
        return _whenever_shown(expression, where, after)
    return _once_each(expression, where, after)


def _in_utc(expression: str, after: datetime) -> Iterator[datetime]:
    for due in _on_the_wall(expression, after.replace(tzinfo=None)):
        yield due.replace(tzinfo=UTC)


def _once_each(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    last = after
    for due in _on_the_wall(expression, after.astimezone(where).replace(tzinfo=None, fold=0)):
        moment = _first_real(due, where)
        if moment > last:
            yield moment
            last = moment


def _whenever_shown(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    """Go through the stretches of time in which the offset of the zone stays the same, one after another."""
    offset = _offset(after, where)
    cursor = (after + offset).replace(tzinfo=None)
    at = after
    due = _on_the_wall(expression, cursor)
    while (wall := next(due, None)) is not None:
        moment = wall.replace(tzinfo=UTC) - offset
        near = min(moment, at + _NEAR)
        if _offset(near, where) != offset:
            # The clocks change before that: what they show then decides.
            change = _change(at, near, where)
            offset, at = _offset(change, where), change - _SECOND
            due = _on_the_wall(expression, (change + offset - _SECOND).replace(tzinfo=None))
            continue
        if moment > near:
            # Far away, where another offset may hold.
            if _is_skipped(wall, where):
                continue
            moment = wall.replace(tzinfo=where).astimezone(UTC)
            offset = _offset(moment, where)
        at = moment
        yield moment


def _on_the_wall(expression: str, after: datetime) -> Iterator[datetime]:
    due = CronSim(expression, after)
    while True:
        try:
            yield next(due)
        except (StopIteration, OverflowError):  # not in the next fifty years, or after the year 9999
            return


def _offset(moment: datetime, where: tzinfo) -> timedelta:
    return moment.astimezone(where).utcoffset() or timedelta()


def _change(low: datetime, high: datetime, where: tzinfo) -> datetime:
    """The first second after `low` at which the offset is another one; it is at `high`."""
    offset = _offset(low, where)
    seconds = (high - low) // _SECOND
    below, above = 0, max(1, seconds)
    while above - below > 1:
        middle = (below + above) // 2
        if _offset(low + middle * _SECOND, where) == offset:
            below = middle
        else:
            above = middle
    return low + above * _SECOND


def _is_skipped(wall: datetime, where: tzinfo) -> bool:
    there = wall.replace(tzinfo=where)
    return there.astimezone(UTC).astimezone(where).replace(tzinfo=None) != wall


def _first_real(wall: datetime, where: tzinfo) -> datetime:
    """The moment at which the clocks show this time first, or the end of the gap that it falls into."""
    moment = wall.replace(tzinfo=where).astimezone(UTC)
    if not _is_skipped(wall, where):
        return moment
    # With the offset before the gap, a time in it becomes a moment after it; the gap began at most a day before.
    before = moment - _NEAR
    return _change(before, moment, where) if _offset(before, where) != _offset(moment, where) else moment
