"""`perdure runs`: list runs, show one with its steps and its journal, and watch it."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from perdure.cli.bulk import ANY, Which, cancel, pause, resume, retry, signal
from perdure.cli.clients import Follower, reader_of, view_of, with_reader
from perdure.cli.differences import diff
from perdure.cli.events import Journal
from perdure.cli.exits import ENDS, Problem
from perdure.cli.forking import fork, travel
from perdure.cli.inspection import arguments_of, inspect
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import (
    as_dict,
    clean,
    cut,
    distance,
    failure_text,
    first_line,
    note,
    pairs,
    table,
    value_text,
    when,
    write_json,
)
from perdure.client.reader import Reader
from perdure.client.views import RunPage, RunSummary, RunView, StepView, WaitView
from perdure.client.why import Why
from perdure.kernel.chunks import CHUNK
from perdure.kernel.divergence.recorded_source import code_at, last_command
from perdure.kernel.divergence.source import NO_SOURCE, Source
from perdure.kernel.events import Batch, Entry, RunParked, RunResumed, RunStatus, StepStatus, moment
from perdure.kernel.policies.durations import span
from perdure.ports.blobs import sources_of
from perdure.ports.leases import ORCHESTRATOR

app = App(name="runs", help="List, inspect, fork and retry runs.")

T = TypeVar("T")

# How many running steps are shown one by one.
MOST_RUNNING = 10
# How much of an error is shown in a table.
ERROR_WIDTH = 200


@app.command(sort_key=1)
def ls(
    *,
    which: Which = ANY,
    limit: Annotated[int, Parameter(help="The maximum number of runs.")] = 20,
    cursor: Annotated[str | None, Parameter(help="Where the previous page ended.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """List runs, newest first, and why unfinished ones make no progress."""

    async def read(client: Reader) -> tuple[RunPage, dict[str, Why]]:
        page = await client.list(**which.given(), limit=limit, cursor=cursor)
        return page, await client.reasons(page)

    page, reasons = with_reader(opened(store), read)
    if json:
        runs = [{**as_dict(run), "why": reasons.get(run.run_id)} for run in page]
        write_json({"runs": runs, "cursor": page.cursor})
        return
    if not page:
        note("no runs match" if which.given() or cursor else "no runs yet")
        return
    # On a terminal there is room for one of two: how long ago, or when.
    started = distance if sys.stdout.isatty() else when
    rows = [
        (
            run.id,
            run.status.value,
            run.program,
            started(run.created_at),
            _took(run),
            str(reasons.get(run.run_id, "")),
        )
        for run in page
    ]
    headings = ("id", "status", "program", "started", "took", "why")
    shown = len(headings) if any(row[-1] for row in rows) else -1
    table(headings[:shown], [row[:shown] for row in rows], cut=("program",), fold=("id", "why"))
    if page.searched is not None:
        note(f"searched the newest {page.searched:,} runs; to search older ones, add --cursor {page.cursor}")
    elif page.cursor is not None:
        note(f"there may be more: add --cursor {page.cursor}")


@app.command(sort_key=2)
def show(id: RunId, /, *, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """Show one run: its status, what it waits for, its last error, its input and output."""

    async def read(client: Reader) -> tuple[RunView, Sequence[StepView], Why | None, Source, str]:
        view, steps, why = await view_of(client, id), await client.steps(id), await client.why(id)
        batches = await client.store.journal.read(view.root)
        sources = await sources_of(client.store.blobs, batches)
        return view, steps, why, sources.get(code_at(batches, last_command(batches)), NO_SOURCE), _unparked(batches)

    view, steps, why, code, unparked = with_reader(opened(store), read)
    if json:
        write_json({**as_dict(view), "why": why, "last_error": _last_error(steps), "code": code.parts})
    else:
        pairs([fact for fact in _facts(view, steps, why, unparked) if fact[1]], whole=("input", "output"))
        if "\n" in view.reason:
            print(f"\n{clean(view.reason, keep=chr(10))}")
        for part in code.parts:
            print(f"\nThe code at {part.file}:{part.line} when it was last executed:")
            print(f"\n{clean(part.text, keep=chr(10)).rstrip()}")


@app.command(sort_key=3)
def steps(
    id: RunId,
    /,
    *,
    status: Annotated[
        list[str] | None, Parameter(negative="", help="Only steps in this status; may be repeated.")
    ] = None,
    inputs: Annotated[
        bool, Parameter(negative="", help="Show their arguments: recorded ones, and others by replaying the code.")
    ] = False,
    module: Annotated[
        str | None, Parameter(help="With --inputs: the workflow's file or module; by default the file in the journal.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show the steps of a run, in the order in which they started."""
    wanted = [_step_status(one) for given in status or [] for one in given.split(",")]
    begun = with_reader(opened(store), lambda client: client.steps(id))
    if inputs:
        arguments = arguments_of(store, id, module)
        begun = [replace(step, inputs=arguments.get(step.path, step.inputs)) for step in begun]
    found = [step for step in begun if not wanted or step.status in wanted]
    if json:
        write_json(found)
        return
    if not found:
        which = f"no step of run {id!r} has the status {' or '.join(wanted)}"
        note(f"run {id!r} has started no step" if not begun else which)
        return
    if inputs:
        given = [(s.path, s.status.value, _step_inputs(s), _step_value(s), _short(s.source)) for s in found]
        table(("op", "status", "inputs", "output", "source"), given, fold=("op", "inputs", "output"))
        return
    rows = [(s.path, s.status.value, str(s.attempt), _took(s), _step_value(s), _short(s.source)) for s in found]
    table(("op", "status", "attempt", "took", "output", "source"), rows, fold=("op", "output"))


@app.command(sort_key=4)
def journal(
    id: RunId,
    /,
    *,
    start: Annotated[int, Parameter(help="The number of the first event to show.")] = 0,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Show the journal of a run: every event, numbered from 0. With --json, one event per line."""

    async def read(client: Reader) -> tuple[RunView, Sequence[Entry]]:
        return await view_of(client, id), await client.journal(id, _number(start))

    view, entries = with_reader(opened(store), read)
    shown = Journal(view, json)
    for entry in entries:
        shown.write(entry)


@app.command(sort_key=5)
def watch(
    id: RunId,
    /,
    *,
    start: Annotated[int, Parameter(help="The number of the first event to show.")] = 0,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Follow the journal of a run until it ends, and exit as the run did.

    Exits with 0 when it completed, 1 when it failed, 5 when it was cancelled or
    is parked.
    """
    follower = _Follower(id, _number(start), store, json)
    return asyncio.run(follower.until_end())


app.command(diff, sort_key=6)
app.command(inspect, sort_key=7)
app.command(fork, sort_key=8)
app.command(travel, sort_key=9)
app.command(retry, sort_key=10)
app.command(cancel, sort_key=11)
app.command(pause, sort_key=12)
app.command(resume, sort_key=13)
app.command(signal, sort_key=14)


class _Follower(Follower):
    """Follows one journal by number."""

    def __init__(self, id: str, start: int, store: str, json: bool) -> None:
        super().__init__(id, start, store, json, "event")
        self._shown: Journal | None = None

    async def _follow(self) -> int:
        async with reader_of(opened(self._store)) as client:
            view = await view_of(client, self._run_id or self._id)
            self._run_id = view.run_id
            if self._shown is None:
                self._shown = Journal(view, self._json)
                await self._warn_of_standstill(client, view)
            while True:
                async for entry in client.follow(view.run_id, self._next):
                    self._shown.write(entry)
                    self._next = entry.seq + 1
                    if isinstance(entry.event, RunParked) and await self._stands_still(client, view.run_id):
                        break
                view = await view_of(client, view.run_id)
                if not view.continued_as:
                    break
                view = await view_of(client, view.continued_as)
                self._run_id, self._next = view.run_id, 0
                if not self._json:
                    note(f"run {view.id!r} continues as {view.run_id}")
            if not self._json:
                self._conclude(view, await client.steps(view.run_id))
        return ENDS[view.status]

    async def _stands_still(self, client: Reader, run_id: str) -> bool:
        """Whether the run is parked now, and not only was so once."""
        view = await view_of(client, run_id)
        return view.status is RunStatus.PARKED and view.next_seq == self._next

    async def _warn_of_standstill(self, client: Reader, view: RunView) -> None:
        if view.status is not RunStatus.RUNNING or not sys.stderr.isatty():
            return
        alive = view.owner is not None and await client.store.leases.get(ORCHESTRATOR + view.owner, client.clock.now())
        if not alive:
            note(f"no process advances run {view.id!r}; it continues when an engine that has {view.program} is started")

    def _conclude(self, view: RunView, steps: Sequence[StepView]) -> None:
        if view.status is RunStatus.FAILED and view.error is not None:
            note(f"run {view.id!r} failed after {_took(view)}\n{failure_text(view.error, steps)}")
        else:
            why = f": {view.reason}" if view.reason else ""
            note(f"run {view.id!r} {'is ' if view.status is RunStatus.PARKED else ''}{view.status}{why}")


def _step_status(text: str) -> StepStatus:
    try:
        return StepStatus(text)
    except ValueError:
        raise Problem(f"--status {text!r} is not a status of a step; choose from {', '.join(StepStatus)}") from None


def _number(start: int) -> int:
    if start < 0:
        raise Problem(f"--start {start}: events are numbered from 0")
    return start


# --- as text --------------------------------------------------------------------------------------------------------


def _unparked(batches: Sequence[Batch]) -> str:
    """When and why the run was last unparked; empty if it is parked, or never was."""
    for batch in reversed(batches):
        for event in reversed(batch.events):
            if isinstance(event, RunParked):
                return ""
            if isinstance(event, RunResumed) and event.reason:
                return f"{when(moment(batch.at))}: {event.reason}"
    return ""


def _facts(view: RunView, steps: Sequence[StepView], why: Why | None, unparked: str) -> list[tuple[str, str]]:
    last = _last_error(steps) if not view.status.finished else None
    version = f" (version {view.version})" if view.version else ""
    return [
        ("id", view.id),
        ("run_id", view.run_id if view.run_id != view.id else ""),
        ("program", view.program + version),
        ("status", view.status.value + (f" ({view.parked})" if view.parked else "")),
        # Of one that has ended or is parked the lines below say more.
        ("why", str(why) if why is not None and not view.status.finished and view.parked is None else ""),
        ("reason", first_line(view.reason)),
        ("unparked", unparked),
        ("forked from", view.forked_from or ""),
        ("continued from", view.continued_from or ""),
        ("continued as", view.continued_as or ""),
        ("started", when(view.created_at)),
        ("updated", when(view.updated_at) if view.finished_at is None else ""),
        ("finished", when(view.finished_at) + f", took {_took(view)}" if view.finished_at else ""),
        ("owner", f"{view.owner} (epoch {view.epoch})" if view.owner and view.finished_at is None else ""),
        ("queue", _queue(view)),
        ("parent", view.parent or ""),
        ("tags", ", ".join(f"{key}={value}" for key, value in view.tags.items())),
        ("waits for", "\n".join(_waits_for(wait) for wait in view.waits if wait.kind != "child")),
        ("locks", ", ".join(view.locks)),
        ("state", "\n".join(f"{key} = {value_text(value, 200)}" for key, value in view.state.items())),
        ("steps", _counted(steps)),
        ("running", "\n".join(_running(steps))),
        ("last error", (last and f"{last.error} ({last.path}, attempt {last.attempt}, {when(last.at)})") or ""),
        ("journal", f"{view.next_seq} event{'' if view.next_seq == 1 else 's'}"),
        ("input", value_text(view.input, 1000)),
        ("output", value_text(view.output, 1000) if view.status in (RunStatus.COMPLETED, RunStatus.BAILED) else ""),
        ("error", failure_text(view.error, steps, "") if view.error is not None else ""),
    ]


@dataclass(frozen=True, slots=True)
class _LastError:
    """The error of the last failed attempt."""

    path: str
    attempt: int
    at: datetime
    error: str


def _last_error(steps: Sequence[StepView]) -> _LastError | None:
    failed = [
        _LastError(step.path, one.number, one.finished_at, str(one.error))
        for step in steps
        for one in step.attempts
        if one.error is not None and one.finished_at is not None
    ]
    return max(failed, key=lambda one: one.at, default=None)


def _counted(steps: Sequence[StepView]) -> str:
    """How many steps have started, and how many are in which status."""
    if not steps:
        return "none started"
    counts = Counter(step.status for step in steps)
    # What was skipped or is blocked, or has no arguments because an expression failed, never started.
    begun = sum(step.attempt > 0 for step in steps)
    return ", ".join([f"{begun} started", *(f"{count} {status}" for status, count in counts.items())])


def _running(steps: Sequence[StepView]) -> list[str]:
    """The attempts that are executed, or were when their owner died: since when, and how far they are."""
    found = [(s, s.attempts[-1]) for s in steps if s.attempts and s.attempts[-1].finished_at is None]
    lines = []
    for step, last in found[:MOST_RUNNING]:
        since = f"for {span((datetime.now(UTC) - last.started_at).total_seconds())}"
        if step.status is StepStatus.UNKNOWN:
            since = "outcome unknown: its owner is gone"
        progress = "" if step.progress is None else f", progress {value_text(step.progress)}"
        source = f"  ({_short(step.source)})" if step.source else ""
        lines.append(f"{step.path}, attempt {last.number}, {since}{progress}{source}")
    return [*lines, f"and {len(found) - MOST_RUNNING} more"] if len(found) > MOST_RUNNING else lines


def _queue(view: RunView) -> str:
    if view.queue is None:
        return ""
    key = f", key {view.key}" if view.key else ""
    return f"{view.queue}{key}" + (f", priority {view.priority}" if view.priority else "")


def _waits_for(wait: WaitView) -> str:
    if wait.kind == "remote" and wait.name == CHUNK:
        return f"the items of {wait.path}"
    named = f" `{wait.name}`" if wait.name else ""
    people = f" from {' or '.join(wait.approvers)}" if wait.approvers else ""
    until = f", until {when(wait.deadline)}" if wait.deadline is not None else ""
    what = "a step in queue" if wait.kind == "remote" else wait.kind
    return f"{what}{named}{people}{until}  ({wait.path} {_short(wait.source)})"


def _took(view: RunSummary | StepView) -> str:
    began = view.started_at if isinstance(view, StepView) else view.created_at
    return "" if view.finished_at is None else span((view.finished_at - began).total_seconds())


def _step_inputs(step: StepView) -> str:
    return "" if step.inputs is None else ", ".join(f"{name}={value_text(v)}" for name, v in step.inputs.items())


def _step_value(step: StepView) -> str:
    if step.error is not None:
        return cut(first_line(str(step.error)), ERROR_WIDTH)
    if step.reason:
        return cut(step.reason, ERROR_WIDTH)
    failed = next((a.error for a in reversed(step.attempts) if a.error is not None), None)
    if step.status == "succeeded":
        return value_text(step.output) + (" (by its fallback)" if step.attempts[-1].fallback else "")
    progress = "" if step.progress is None else f"progress: {value_text(step.progress)}"
    if not progress and step.chunks:
        progress = f"{len(step.chunks)} chunk{'s' * (len(step.chunks) != 1)} emitted"
    return cut(first_line(f"last attempt: {failed}"), ERROR_WIDTH) if failed is not None else progress


def _short(source: str) -> str:
    """The file and line without the directories that lead there."""
    return source.rpartition("/")[2]
