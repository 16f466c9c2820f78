"""Check every open run against code that is not deployed yet. Reads the store, and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import islice

import msgspec
from msgspec import Raw

from perdure.client.client import Client
from perdure.client.queries import pages
from perdure.client.schedules import ScheduleView
from perdure.errors import NotDecodable, PerdureError, StoreUnavailable, UsageError
from perdure.kernel.divergence.repair import Repairs
from perdure.kernel.events import FINISHED, AnyEvent, Batch, RunStatus, StepStarted, StepSucceeded, events_in
from perdure.kernel.history.upgrade import SAFE, Compatibility, Fit, check_compatibility
from perdure.kernel.ids import step_key
from perdure.kernel.policies.versions import Programs
from perdure.kernel.projection import RunRow
from perdure.kernel.schedules.schedule import PREFIX
from perdure.kernel.state import fold
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.ports.blobs import sources_of
from perdure.ports.runs import RunFilter

OPEN = tuple(status for status in RunStatus if status not in FINISHED)
# How many runs are listed at a time, and how many journals are in memory together.
LISTED, READ = 1000, 50


class Checked(msgspec.Struct, frozen=True):
    """A run, and whether it fits."""

    id: str
    run_id: str
    program: str
    version: str
    status: RunStatus
    fit: Fit
    reason: str = ""
    kind: str = ""
    """What does not fit: the change of the code, or the kind of parking."""
    title: str = ""
    source: str = ""
    """The line of the code that does not fit, if one is to blame."""


async def upgrade_check(
    client: Client, programs: Programs, *, codec: Codec | None = None, sample: int | None = None
) -> AsyncIterator[Checked]:
    """Every run that has not ended, or `sample` of them spread over all, each with what the code makes of it.

    And every schedule whose arguments the code does not take.
    """
    if sample is not None and sample < 1:
        raise UsageError(f"sample={sample}: check at least one run, or leave it out to check all")
    open_runs = RunFilter(status=OPEN, limit=LISTED, built_in=False)
    # Children are in the journals of their roots.
    roots = [row async for page in pages(client.store, open_runs) for row in page if not row.root]
    rows = _spread(roots, sample)
    repairs = Repairs(programs)
    for start in range(0, len(rows), READ):
        page = rows[start : start + READ]
        journals = await client.store.journal.read_many([row.run_id for row in page])
        for row in page:
            verdict = await _judge(client, repairs, codec or client.codec, row, journals.get(row.run_id, []))
            yield Checked(row.id, row.run_id, row.program, row.version, row.status, *msgspec.structs.astuple(verdict))
    for schedule in await client.schedules():
        verdict = _judge_schedule(schedule, programs, codec or client.codec)
        if verdict.fit is not Fit.SAFE:
            id = PREFIX + schedule.id
            yield Checked(id, id, schedule.program, "", RunStatus.WAITING, *msgspec.structs.astuple(verdict))


def _judge_schedule(schedule: ScheduleView, programs: Programs, codec: Codec) -> Compatibility:
    """Whether the runs that a schedule starts can begin."""
    program = programs.get(schedule.program)
    try:
        if program is not None:
            program.check_input(Raw(msgspec.json.encode(schedule.input)), codec)
    except NotDecodable as error:
        title = f"runs of the schedule {schedule.id!r} would be parked: {error}"
        source = program.defined.source if program is not None and program.defined is not None else ""
        return Compatibility(Fit.BREAKS, title, "undecodable", title, source)
    return SAFE


def _spread(rows: list[RunRow], sample: int | None) -> list[RunRow]:
    """A sample of this size, spread evenly from the newest to the oldest."""
    if sample is None or sample >= len(rows):
        return rows
    return [rows[number * len(rows) // sample] for number in range(sample)]


async def _unreported(client: Client, run_id: str, batches: Sequence[Batch]) -> list[Batch]:
    """The results of remote steps that the runs in their queues have, and have not reported yet."""
    if not any(isinstance(event, StepStarted) and event.queue for event in events_in(batches)):
        return []
    state, results = fold(run_id, batches), list[AnyEvent]()
    for op in [op for op, one in state.ops.items() if one.kind == "remote"]:
        found = await client.store.runs.find(step_key(run_id, op))
        own = await client.store.journal.read(found[0].run_id) if found is not None else ()
        outcomes = (event for event in events_in(own) if isinstance(event, StepSucceeded))
        # The first one is the step's, the next one would be that of its report.
        results += [StepSucceeded(op, event.value, blob=event.blob) for event in islice(outcomes, 1)]
    return [Batch(state.next_seq, batches[-1].at, results)] if results else []


async def _judge(
    client: Client, repairs: Repairs, codec: Codec, row: RunRow, batches: Sequence[Batch] | Exception
) -> Compatibility:
    try:
        if isinstance(batches, Exception):
            raise batches
        started = await client.payloads.with_input(batches)
        whole = await client.payloads.inflate([*batches, *await _unreported(client, row.run_id, batches)])
        sources = await sources_of(client.store.blobs, batches)
    except StoreUnavailable:
        raise
    except PerdureError as error:
        return Compatibility(Fit.BREAKS, str(error))
    # In a callback: a body must not be driven inside a task.
    loop = asyncio.get_running_loop()
    verdict: asyncio.Future[Compatibility] = loop.create_future()

    def judged() -> Compatibility:
        try:
            return check_compatibility(repairs.programs, codec, row.run_id, started, whole, repairs, sources)
        except Exception as error:  # the verdict does not depend on it
            log.warning("no fix could be tried for run %r: %s: %s", row.id, type(error).__name__, error)
            return check_compatibility(repairs.programs, codec, row.run_id, started, whole)

    def check() -> None:
        try:
            verdict.set_result(judged())
        except BaseException as error:
            verdict.set_exception(contained(error))

    loop.call_soon(check)
    return await verdict
