"""`perdure schedules`: create, list and change schedules. An open engine fires them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

from cyclopts import App, Parameter

from perdure.cli.clients import with_client
from perdure.cli.exits import Problem
from perdure.cli.inputs import invocation, read
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened, seconds, tags_of
from perdure.cli.output import note, table, when, write_json
from perdure.client.client import Client
from perdure.client.schedules import ScheduleHandle, ScheduleView
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durations import UNITS

app = App(name="schedules", help="Create, list and change schedules.")

T = TypeVar("T")

ScheduleId = Annotated[str, Parameter(help="The id of the schedule.")]


@app.command(sort_key=1)
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List schedules, what they have done, and when they fire next."""
    found = with_client(opened(store), lambda client: client.schedules())
    if json:
        write_json({"schedules": found})
        return
    if not found:
        note("no schedules yet")
        return
    rows = [
        (
            view.id,
            "paused" if view.paused else "active",
            view.program,
            _times(view),
            _counts(view),
            when(view.next_tick),
        )
        for view in found
    ]
    table(("id", "status", "program", "fires", "ticks", "next"), rows, cut=("program", "next"), fold=("id",))
    for view in found:
        if view.trouble is not None:
            note(f"schedule {view.id!r}: {view.trouble}")


@app.command(sort_key=2)
def add(
    id: ScheduleId,
    target: Annotated[
        str, Parameter(help="The program: its name, or file.py:workflow, against which the input is checked.")
    ],
    /,
    *,
    every: Annotated[str | None, Parameter(help="The interval: 90 (seconds), 15m, 2h, 1d.")] = None,
    cron: Annotated[str | None, Parameter(help="A cron expression, such as '30 2 * * *'.")] = None,
    timezone: Annotated[str, Parameter(help="The time zone of the cron expression.")] = "UTC",
    input: Annotated[str | None, Parameter(name="--input", help="JSON, @file.json, or - for stdin.")] = None,
    overlap: Annotated[
        str,
        Parameter(
            help="While the previous run is open: skip, allow, buffer_one, cancel_previous or terminate_previous."
        ),
    ] = "skip",
    catch_up: Annotated[
        str, Parameter(help="Which missed ticks are fired: skip (none), one, all or 'all(10)'.")
    ] = "one",
    jitter: Annotated[str | None, Parameter(help="Delay each tick by up to this much.")] = None,
    pause: Annotated[bool, Parameter(negative="", help="Create it paused.")] = False,
    queue: Annotated[str | None, Parameter(help="The queue of its runs.")] = None,
    key: Annotated[str | None, Parameter(help="The key of its runs in the queue; keys take turns.")] = None,
    priority: Annotated[int, Parameter(help="The priority of its runs in the queue; higher ones go first.")] = 0,
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="A tag of its runs, as key=value; may be repeated.")
    ] = None,
    deadline: Annotated[str | None, Parameter(help="How long each of its runs may take: 90s, 15m, 2h.")] = None,
    max_concurrency: Annotated[int | None, Parameter(help="How many steps of each run may run at once.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Create a schedule, or update the one with this id."""
    if (every is None) == (cron is None):
        given = "neither was" if every is None else "both were"
        raise Problem(f"a schedule needs either --every 15m or --cron '30 2 * * *', and {given} given")
    what = _invocation(target, input)

    async def make(client: Client) -> ScheduleView:
        handle = await client.schedule(
            id,
            what,
            every=None if every is None else timedelta(seconds=seconds(every, "--every")),
            cron=cron,
            timezone=timezone,
            overlap=overlap,  # type: ignore[arg-type] # checked there
            catch_up=catch_up,
            jitter=None if jitter is None else timedelta(seconds=seconds(jitter, "--jitter")),
            pause=pause,
            queue=queue,
            key=key,
            priority=priority,
            tags=tags_of(tag or []) or None,
            deadline=None if deadline is None else timedelta(seconds=seconds(deadline, "--deadline")),
            max_concurrency=max_concurrency,
        )
        return await handle.view()

    view = with_client(opened(store), make)
    if json:
        write_json(view)
    else:
        fires = "is paused" if view.paused else f"fires next {when(view.next_tick)}"
        note(f"schedule {id!r} of {view.program} {fires}")


@app.command(sort_key=3)
def pause(
    id: ScheduleId,
    /,
    *,
    reason: Annotated[str | None, Parameter(help="The reason; it is recorded in the journal.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Pause a schedule: it fires nothing until it is resumed."""
    _send(store, id, json, "paused", lambda handle: handle.pause(reason))


@app.command(sort_key=4)
def resume(id: ScheduleId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Resume a paused schedule."""
    _send(store, id, json, "resumed", lambda handle: handle.resume())


@app.command(sort_key=5)
def trigger(id: ScheduleId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Start a run of a schedule now, and show its id."""
    run = with_client(opened(store), lambda client: _with(client, id, lambda handle: handle.trigger()))
    if json:
        write_json({"run": run})
    else:
        print(run)


@app.command(sort_key=6)
def backfill(
    id: ScheduleId,
    start: Annotated[str, Parameter(help="The start of the range, such as 2030-01-01 or 2030-01-01T12:00Z.")],
    end: Annotated[str, Parameter(help="The end of the range, which is not part of it.")],
    /,
    *,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Fire the ticks of a past range, and show the ids of their runs."""
    first, last = _moment(start), _moment(end)
    runs = with_client(opened(store), lambda client: _with(client, id, lambda handle: handle.backfill(first, last)))
    if json:
        write_json({"runs": runs})
        return
    for run in runs:
        print(run)
    if not runs:
        note(f"schedule {id!r} has no tick from {first.isoformat()} to {last.isoformat()}")


@app.command(name="next", sort_key=7)
def next_(
    id: ScheduleId,
    /,
    *,
    count: Annotated[int, Parameter(help="How many times to show.")] = 10,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show when a schedule fires next."""
    times = with_client(opened(store), lambda client: _with(client, id, lambda handle: handle.next(count)))
    if json:
        write_json({"next": times})
        return
    for time in times:
        print(when(time))


@app.command(sort_key=8)
def delete(id: ScheduleId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Delete a schedule; runs that it has started continue."""
    _send(store, id, json, "deleted", lambda handle: handle.delete())


def _invocation(target: str, input: str | None) -> Invocation[Any]:
    if ":" in target or target.endswith(".py"):
        from perdure.cli.targets import resolve

        return invocation(resolve(target)[0], input)
    value = {} if input is None else read(input)
    if isinstance(value, dict):
        return Invocation(target, None, (), value)
    return Invocation(target, None, tuple(value) if isinstance(value, list) else (value,), {})


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise Problem(f"{text!r} is not a time; write it as 2030-01-01 or 2030-01-01T12:00+01:00") from error
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _times(view: ScheduleView) -> str:
    if view.cron is None:
        return f"every {_length(view.every)}"
    return view.cron if view.timezone == "UTC" else f"{view.cron} {view.timezone}"


def _length(every: timedelta | None) -> str:
    """A duration exactly, as `--every` takes it: `15m`."""
    length = 0.0 if every is None else every.total_seconds()
    for unit in ("d", "h", "m"):
        if length % UNITS[unit] == 0:
            return f"{length / UNITS[unit]:.0f}{unit}"
    return f"{length:g}s"


def _counts(view: ScheduleView) -> str:
    parts = [f"{view.fired} fired"]
    others = {"skipped": view.skipped, "failed": view.failed, "waiting": view.waiting}
    parts += [f"{count} {what}" for what, count in others.items() if count]
    return ", ".join(parts)


def _send(store: str, id: str, json: bool, done: str, send: Callable[[ScheduleHandle], Awaitable[None]]) -> None:
    with_client(opened(store), lambda client: _with(client, id, send))
    if json:
        write_json({"schedule": id, "answer": done})
    else:
        note(f"schedule {id!r}: {done}")


async def _with(client: Client, id: str, work: Callable[[ScheduleHandle], Awaitable[T]]) -> T:
    return await work(await client.schedule(id))
