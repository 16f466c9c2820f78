"""When a cron expression is due in a time zone, including days with a clock change. Knows nothing of schedules.

The policy for clock changes is that of Debian's cron. An expression with fixed times (`30 2 * * *`) is due once for
each of them: a time that the clocks skip is due right after the gap, a time that occurs twice is due the first time.
An expression whose hour or minute begins with `*` (`*/15 * * * *`) is due whenever the local time matches: twice in an
hour that occurs twice, never in one that is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from perdure.errors import UsageError

_SECOND = timedelta(seconds=1)
# How far ahead a clock change is searched for. No zone changes its clocks twice in that time.
_NEAR = timedelta(hours=48)
# Any start will do to check whether an expression parses and is ever due.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001 - a local time, in no zone
_FIELDS = "minute hour day-of-month month day-of-week, as in '30 2 * * *'; with six fields the first is the second"

# Nicknames that other crons accept.
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
    except Exception as error:  # KeyError, ValueError, OSError or TypeError
        near = get_close_matches(str(name), available_timezones(), 1, 0.5) if isinstance(name, str) else []
        hint = f"did you mean {near[0]!r}?" if near else "use a name such as 'Europe/Berlin'"
        raise UsageError(f"timezone={name!r} is not a time zone that this machine knows; {hint}") from error


def check_cron(expression: str) -> None:
    """Raise UsageError when the expression cannot be read, or is never due."""
    if not isinstance(expression, str):
        raise UsageError(f"cron={expression!r} is not a text; its fields are {_FIELDS}")
    if expression.strip() in _WORDS:
        raise UsageError(f"cron={expression!r} is written with fields here: cron={_WORDS[expression.strip()]!r}")
    try:
        due = next(CronSim(expression, _SOME_DAY), None)
    except CronSimError as error:
        if _has_impossible_day(expression):
            due = None
        else:
            raise UsageError(f"cron={expression!r} cannot be read: {error}; the fields are {_FIELDS}") from error
    except Exception as error:  # from the parser, on input it did not foresee
        raise UsageError(f"cron={expression!r} cannot be read; the fields are {_FIELDS}") from error
    if due is None:
        raise UsageError(f"cron={expression!r} never fires: no year has such a day; choose another day or month")


def _has_impossible_day(expression: str) -> bool:
    """Whether it parses apart from a day that its months do not have, as in `0 0 30 2 *`."""
    fields = expression.split()
    fields[-2:-1] = ["*"]
    try:
        CronSim(" ".join(fields), _SOME_DAY)
    except Exception:
        return False
    return True


def cron_ticks(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    """The times after `after` at which the expression is due, in order, in UTC."""
    fields = expression.split()
    after = after.astimezone(UTC).replace(microsecond=0)
    if where is UTC:
        return _in_utc(expression, after)
    if any(field.startswith("*") for field in fields[: len(fields) - 3]):
        return _every_match(expression, where, after)
    return _once_each(expression, where, after)


def _in_utc(expression: str, after: datetime) -> Iterator[datetime]:
    for due in _local_times(expression, after.replace(tzinfo=None)):
        yield due.replace(tzinfo=UTC)


def _once_each(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    last = after
    for due in _local_times(expression, after.astimezone(where).replace(tzinfo=None, fold=0)):
        moment = _first_occurrence(due, where)
        if moment > last:
            yield moment
            last = moment


def _every_match(expression: str, where: tzinfo, after: datetime) -> Iterator[datetime]:
    """Go through the periods between clock changes, in which the offset of the zone is constant."""
    offset = _offset(after, where)
    cursor = (after + offset).replace(tzinfo=None)
    at = after
    due = _local_times(expression, cursor)
    while (wall := next(due, None)) is not None:
        moment = wall.replace(tzinfo=UTC) - offset
        near = min(moment, at + _NEAR)
        if _offset(near, where) != offset:
            # The clocks change before that: search again from the change.
            change = _change(at, near, where)
            offset, at = _offset(change, where), change - _SECOND
            due = _local_times(expression, (change + offset - _SECOND).replace(tzinfo=None))
            continue
        if moment > near:
            # Beyond the searched period, where the offset may differ.
            if _is_skipped(wall, where):
                continue
            moment = wall.replace(tzinfo=where).astimezone(UTC)
            offset = _offset(moment, where)
        at = moment
        yield moment


def _local_times(expression: str, after: datetime) -> Iterator[datetime]:
    due = CronSim(expression, after)
    while True:
        try:
            yield next(due)
        except (StopIteration, OverflowError):  # not in the next fifty years, or after the year 9999
            return


def _offset(moment: datetime, where: tzinfo) -> timedelta:
    return moment.astimezone(where).utcoffset() or timedelta()


def _change(low: datetime, high: datetime, where: tzinfo) -> datetime:
    """The first second after `low` with the offset of `high`, which differs."""
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


def _first_occurrence(wall: datetime, where: tzinfo) -> datetime:
    """The first time at which the local clock shows `wall`, or the end of the gap that skips it."""
    moment = wall.replace(tzinfo=where).astimezone(UTC)
    if not _is_skipped(wall, where):
        return moment
    # Converting a skipped time with the offset before the gap gives a time after the gap.
    before = moment - _NEAR
    return _change(before, moment, where) if _offset(before, where) != _offset(moment, where) else moment
