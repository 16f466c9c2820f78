"""Routes about the code of runs: the source at a point of the journal, graphs, differences, and upgrade checks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw
from starlette.responses import StreamingResponse

from perdure.authoring.code.executed import executed_lines
from perdure.authoring.code.frames import inspect
from perdure.client.upgrade import upgrade_check
from perdure.errors import Diverged, NoSuchOp, PerdureError, UsageError
from perdure.kernel.divergence.recorded_source import code_at, source_ids
from perdure.kernel.divergence.source import Source
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.history.diff import INPUT, Diff, OpDiff
from perdure.kernel.history.diff import diff as compare
from perdure.kernel.history.ops import Op
from perdure.kernel.policies.versions import Programs
from perdure.kernel.values.redaction import REDACTED
from perdure.ports.blobs import source_of
from perdure.server import shapes
from perdure.server.problems import Problem
from perdure.server.requested_run import INLINE, RequestedRun
from perdure.server.routing import NDJSON, Call, Route

# How many characters of a variable's value are shown.
WIDTH = 2000


async def show_source(call: Call[shapes.SourceQuery, None]) -> shapes.SourceView:
    """The code of a run: its functions, the lines that were executed, and the variables at a point of its journal.

    The run is replayed, with no effects, where this process has the code of its program.
    """
    run, at = await call.run(), call.query.at
    await run.check_root()  # the root is replayed, and its source shown
    started, batches = await run.replayable()
    place = int(at) if at is not None and at.isdecimal() and len(at) < 16 else at
    sources = await _stored(run, batches)
    programs = call.service.programs.here
    if not sources and (program := call.service.programs.find(run.row.program, run.row.version)) is not None:
        # A capsule does not hold the source of its run.
        sources = {"": program.source()}
    parts = [shapes.SourcePart(**msgspec.structs.asdict(part)) for one in sources.values() for part in one.parts]
    problem, tasks, lines, values = None, None, None, None
    if programs is None:
        problem = "this server has no programs; the process that executes the run has"
    else:
        try:
            tasks, lines = await asyncio.to_thread(_replayed, run, programs, started, batches, place)
        except (NoSuchOp, UsageError) as error:
            if isinstance(error, NoSuchOp):
                raise
            problem = str(error)
        except Diverged as error:
            problem = run.text(f"the code here is not the code that the run was recorded with: {error}")
    graph = not parts and any(one.structure for one in sources.values())
    if graph:
        values = await _values(run, place)
    return shapes.SourceView(
        parts=[part for number, part in enumerate(parts) if part not in parts[:number]],
        executed=lines,
        tasks=tasks,
        values=values,
        problem=problem,
    )


async def _stored(run: RequestedRun, batches: Sequence[Batch]) -> dict[str, Source]:
    """The sources and structures of a run, by id. A long journal is searched for them in a thread."""
    ids = await asyncio.to_thread(source_ids, batches)
    found = {id: await source_of(run.client.store.blobs, id) for id in ids}
    return {id: source for id, source in found.items() if source is not None}


def _replayed(
    run: RequestedRun, programs: Programs, started: RunStarted, batches: Sequence[Batch], at: str | int | None
) -> tuple[list[shapes.TaskItem], dict[str, dict[str, int]]]:
    """Replay the run up to an event, in a thread: a body must not be driven inside a task, and replay may take long."""
    codec = run.client.codec
    tasks = inspect(programs, codec, run.root, started, batches, at, WIDTH)
    lines = executed_lines(programs, codec, run.root, started, batches, at)
    items = [
        shapes.TaskItem(
            task.program,
            task.task,
            task.waits_for,
            [shapes.FrameItem(one.function, one.source, run.redaction.named(one.variables)) for one in task.frames],
        )
        for task in tasks
    ]
    return items, {file: {str(line): count for line, count in found.items()} for file, found in lines.items()}


async def _values(run: RequestedRun, at: str | int | None) -> dict[str, Any] | None:
    try:
        values = await run.client.values(run.row.run_id, at)
        return {name: run.plain(value, name) for name, value in run.plain(values).items()}  # by path, then by name
    except UsageError:
        return None


async def show_graph(call: Call[shapes.GraphQuery, None]) -> Raw:
    """A run of a graph or a flow: its nodes with their statuses, and the edges that it took."""
    run = await call.run()
    try:
        text = await run.client.diagram(run.row.run_id, format="json", depth=call.query.depth)
    except UsageError as error:
        raise Problem(404, "no_graph", str(error)) from None
    return Raw(text.encode())


async def diff_runs(call: Call[None, None]) -> shapes.Diff:
    """Where two runs first differ, and the outcome of each op in both."""
    a, b = await call.run(), await call.service.run(call.access, call.path["other"])
    for run in (a, b):
        if run.child:
            raise Problem(422, "invalid_request", f"{run.row.id} is a child; give the run at the top of its tree")
    first, second = await a.batches(), await b.batches()
    found, ops = await asyncio.to_thread(_compared, a, b, first, second)
    differs, takes = found.first, await _sources((a, first), (b, second), found)
    return shapes.Diff(
        a=a.row.run_id,
        b=b.row.run_id,
        first=None if differs is None else differs.path,
        added=found.added,
        removed=found.removed,
        takes=takes,
        ops=ops,
    )


def _compared(
    a: RequestedRun, b: RequestedRun, first: Sequence[Batch], second: Sequence[Batch]
) -> tuple[Diff, list[shapes.DiffItem]]:
    found = compare(first, second)
    for op in found.ops:
        op.changes = tuple(name for name in op.changes if _tells(a, b, op, name))
    return found, [shapes.DiffItem(op.path, list(op.changes), _side(a, op.a), _side(b, op.b)) for op in found.ops]


def _tells(a: RequestedRun, b: RequestedRun, op: OpDiff, change: str) -> bool:
    """Whether a change is one of what the caller may see: with a run of their own they could confirm a guess."""
    if not a.redaction or op.a is None or op.b is None or change not in ("inputs", "value"):
        return True
    if change == "inputs":  # a hash of the arguments
        return False
    return bool(op.a.blob or op.b.blob) or _shown(a, op.a) != _shown(b, op.b)


def _shown(run: RequestedRun, op: Op) -> Any:
    """A value as the caller sees it."""
    if op.kind == "state":
        return REDACTED  # the key under which it was published is not known here
    return bytes(run.redacted(op.value, op.path, arguments=() if op.path == INPUT else None))


def _side(run: RequestedRun, op: Op | None) -> shapes.DiffSide | None:
    if op is None:
        return None
    large = bool(op.blob) or len(op.value) > INLINE
    failure = run.redaction.failure(op.error, run.removed)
    error = None if failure is None else shapes.ErrorItem(failure.type, failure.message)
    took = None if op.took is None or not math.isfinite(op.took) else op.took
    if op.kind == "state" and run.redaction:
        # The key under which it was published is not known here.
        return shapes.DiffSide(op.status, REDACTED, 0, error, op.attempts, took, op.source)
    value = None if large else run.redacted(op.value, op.path, arguments=() if op.path == INPUT else None)
    return shapes.DiffSide(op.status, value, len(op.value), error, op.attempts, took, op.source)


async def _sources(
    a: tuple[RequestedRun, Sequence[Batch]], b: tuple[RequestedRun, Sequence[Batch]], found: Diff
) -> list[str] | None:
    """For the first op that differs: where each run takes its arguments from, if the sources differ."""
    op = next((op.path for op in found.ops if op.changes and op.a is not None and op.b is not None), "")
    structures = []
    for run, batches in (a, b):
        stored = await _stored(run, batches)
        code = code_at(batches, batches[-1].seq + len(batches[-1].events))
        structures.append(stored[code].structure if code in stored else b"")
    if not op or not all(structures):
        return None
    from perdure.authoring.dataflow.changes import sources

    taken = sources(structures[0], structures[1], op)
    return None if taken is None else list(taken)


async def check_upgrade(call: Call[None, shapes.UpgradeBody]) -> StreamingResponse:
    """Replay every open run against the code of this process: a line of JSON for each, as it is checked."""
    programs = call.service.programs.here
    if programs is None:
        raise Problem(409, "no_code", "this server has no programs to hold the open runs against")
    client, sample, redaction = call.service.client, call.body.sample, call.service.redaction(call.access)

    async def lines() -> AsyncIterator[bytes]:
        try:
            async for one in upgrade_check(client, programs, sample=sample):
                if call.access.sees(one.program):
                    found = redaction.texts_in(msgspec.structs.asdict(one))
                    yield msgspec.json.encode(shapes.CheckedRun(**found)) + b"\n"
        except PerdureError as error:
            yield msgspec.json.encode({"problem": str(error)}) + b"\n"

    return StreamingResponse(lines(), media_type=NDJSON)


ROUTES = (
    Route(
        method="GET",
        path="runs/{run}/source",
        role="debug",
        handler=show_source,
        query=shapes.SourceQuery,
        result=shapes.SourceView,
    ),
    Route(
        method="GET",
        path="runs/{run}/graph",
        role="read",
        handler=show_graph,
        query=shapes.GraphQuery,
        result=shapes.GraphView,
    ),
    Route(method="GET", path="runs/{run}/diff/{other}", role="read", handler=diff_runs, result=shapes.Diff),
    Route(
        method="POST",
        path="upgrade-check",
        role="read",
        handler=check_upgrade,
        body=shapes.UpgradeBody,
        result=shapes.CheckedRun,
        media=NDJSON,
        optional=True,
        unsafe=False,
    ),
)
