"""Read runs: views, lists, steps, journals, streams."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.checkpoints import GraphCheckpoint, Timeline
from perdure.client.folded import in_slices, sliced
from perdure.client.gateway import RunGateway
from perdure.client.views import (
    ApprovalView,
    BatchView,
    Chunk,
    HistogramBucket,
    ItemView,
    Loaded,
    OrchestratorView,
    QueueView,
    RunCount,
    RunPage,
    RunSummary,
    RunView,
    StepView,
    approval_views,
    orchestrator_views,
    queue_view,
    run_summary,
    run_view,
    step_view,
)
from perdure.client.why import (
    Why,
    World,
    alive,
    executed_elsewhere,
    explain,
    unread,
    why_ended,
    with_reason,
)
from perdure.errors import Corrupt, NoSuchOp, NotDecodable, PerdureError, UsageError
from perdure.kernel.batches import OP, ROW, BatchInput
from perdure.kernel.chunks import MAP, ChunkOutcome, MapShape, chunk_of, chunk_range, joined_outcomes
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    AttemptFailed,
    Batch,
    ChildFinished,
    ChildStarted,
    Entry,
    RunFinished,
    RunStarted,
    RunStatus,
    StepOutcome,
    StepStarted,
    StepStatus,
    StepSucceeded,
    ValueRecorded,
    WaitOpened,
    WaitResolved,
    entries,
    moment,
)
from perdure.kernel.ids import BATCH, BUILT_IN, check_cursor, flaw_of, step_key
from perdure.kernel.policies.lock_keys import lease_key
from perdure.kernel.policies.resting import ASKED
from perdure.kernel.policies.start_options import checked_tags
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.snapshot import newest
from perdure.kernel.state import RunState, fold
from perdure.kernel.step_records import ChunkRecord, ItemRecord, Missed, StepRecord, began, not_run, op_statuses
from perdure.kernel.step_records import chunks as chunks_of
from perdure.kernel.step_records import items as items_of
from perdure.kernel.streams import Reading
from perdure.kernel.values.arguments import by_name
from perdure.kernel.values.items import KEY, Items, parts_of, reference
from perdure.kernel.values.skips import plain_result, why_no_result
from perdure.ports.journal import Head
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, registrations
from perdure.ports.runs import Match, RunFilter, Span
from perdure.ports.store import Store, definitions_of

if TYPE_CHECKING:
    from perdure.kernel.program import Program

# How many events of a journal a follower reads at a time.
PAGE = 500
# How many events are replayed by default to find the arguments of steps: the engine's loop is blocked meanwhile.
REPLAYED = 2000
# How many runs a search goes through, how many of a program and status are counted, and parts of a histogram.
SEARCHED, COUNTED, BUCKETS = 100_000, 100_000, 1000
# How many bytes of journals are read to explain the runs of a page.
JOURNALS_READ = 8 * 1024 * 1024
# How many bytes of journals are read and folded in one turn of the event loop.
TOGETHER = 64 * 1024
# Errors from folding a journal that no engine could have written.
_UNREADABLE = (LookupError, AssertionError, msgspec.MsgspecError)
# For how many runs of a page the runs of their remote steps are explained as well.
EXECUTORS_READ = 20
# How many queued runs are counted to say how many are ahead of one.
QUEUED_READ = 1000
# How many runs that ask something are read at a time.
ASKING_PAGE = 200
# No name is longer, not even an id of a child, which is made of several.
MAX_ASKED = 10_000
# More runs, events or chunks than any store has.
UNBOUNDED = 2**53


class RunFilters(TypedDict, total=False):
    """Which runs: those that `list()` gives for the same filters, or those of these `ids`."""

    ids: Iterable[str]
    status: RunStatus | str | Sequence[RunStatus | str] | None
    program: str | None
    tags: dict[str, str] | None
    since: datetime | None
    until: datetime | None
    owner: str | None
    parent: str | None
    root: str | None
    queue: str | None
    id_prefix: str | None
    roots: bool
    search: str | None


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of rows. `cursor` and `searched` as in RunPage."""

    rows: Sequence[tuple[RunRow, Head]]
    cursor: str | None = None
    searched: int | None = None


class Queries:
    """Reads runs, their steps and their journals."""

    def __init__(self, base: StoreClient, gateway: RunGateway) -> None:
        self._base, self._gateway = base, gateway

    async def get(self, id: str) -> RunView | None:
        """The latest run under an id, or None."""
        found = await self._base.find(id)
        if found is None:
            return None
        run, head = found
        loaded = await self._load(run)
        return run_view(loaded, head, (await self._base.folded_states.read(run.root or run.run_id, head)).state)

    async def list(self, filters: RunFilters, limit: int, cursor: str | None, *, values: bool = True) -> RunPage:
        """The runs that match, newest first, a page at a time."""
        self._base.check_open()
        limit = _whole(limit, "list(limit", 1, "ask for at least one run, such as limit=100")
        _ = check_cursor(cursor, "list")
        filter = await self.filter("list", filters)
        found = await self.page(replace(filter, values=values), limit, cursor)
        page = RunPage()
        for some in sliced(found.rows):
            page += [run_summary(await self._load_or_say(run) if values else Loaded(run), head) for run, head in some]
            await asyncio.sleep(0)
        page.cursor, page.searched = found.cursor, found.searched
        return page

    async def page(
        self, filter: RunFilter, limit: int, cursor: str | None, programs: Collection[str] | None = None
    ) -> RowPage:
        """The rows that match, newest first, a page at a time; only those of some programs, unless that is None."""
        # No index has tags and values: a search ends before it has gone through years of runs.
        searching = bool(filter.tags) or filter.match is not None
        floor = await self._base.store.runs.nth(SEARCHED - 1, cursor) if searching else None
        # One more row than requested shows whether there is another page.
        filter = replace(filter, limit=limit + 1, cursor=cursor, floor=floor or "")
        if programs is None:
            found = await self._base.store.runs.list(filter)
        else:
            # The page of all of them is in the pages of each.
            wanted = {*programs} if filter.program is None else {filter.program} & {*programs}
            each = [await self._base.store.runs.list(replace(filter, program=name)) for name in sorted(wanted)]
            found = sorted((one for rows in each for one in rows), key=lambda one: one[0].run_id, reverse=True)
        if len(found) > limit:
            return RowPage(found[:limit], found[limit - 1][0].run_id)
        return RowPage(found, floor, None if floor is None else SEARCHED)

    async def counts(self) -> Sequence[RunCount]:
        """How many runs there are, by program and status: with children, and without runs of perdure's own programs.

        Of each program and status no more than 100,000 are counted; `bounded` says where there are more.
        """
        self._base.check_open()
        found = await self._base.store.runs.counts(COUNTED)
        return [
            RunCount(one.program, one.status, one.count, one.bounded)
            for one in found
            if not one.program.startswith(BUILT_IN)
        ]

    async def histogram(
        self, *, since: datetime, until: datetime, buckets: int = 60, program: str | None = None
    ) -> Sequence[HistogramBucket]:
        """How many runs ended in each of so many equal parts of a time, by status; of one program or of all."""
        self._base.check_open()
        first, last = _timestamp(since, "histogram(since"), _timestamp(until, "histogram(until")
        if first is None or last is None or first >= last:
            raise UsageError(f"histogram(since={since!r}, until={until!r}): `since` must be before `until`")
        if isinstance(buckets, bool) or not isinstance(buckets, int) or not 1 <= buckets <= BUCKETS:
            raise UsageError(f"histogram(buckets={buckets!r:.60}): ask for 1 to {BUCKETS}")
        span = Span(first, last, buckets)
        name = _named(program, "histogram(program", "the name of a workflow")
        counted: list[Counter[RunStatus]] = [Counter() for _ in range(buckets)]
        for one in await self._base.store.runs.count_ended(span, name, COUNTED):
            if name is not None or not one.program.startswith(BUILT_IN):
                counted[one.bucket][one.status] += one.count
        return [
            HistogramBucket(moment(first + n * span.width), moment(first + (n + 1) * span.width), dict(counts))
            for n, counts in enumerate(counted)
        ]

    async def filter(self, call: str, given: RunFilters) -> RunFilter:
        """The filters of a call, checked."""
        status, program, prefix = given.get("status"), given.get("program"), given.get("id_prefix")
        wanted = [*status] if isinstance(status, Iterable) and not isinstance(status, str) else [status]
        statuses = [_status(s) for s in wanted if s is not None]
        if status is not None and not statuses:
            # To the store, no status means any status, so an empty selection would select all runs.
            raise UsageError(f"{call}(status={status!r:.80}) names no status; leave it out to select runs in any")
        return RunFilter(
            status=statuses,
            program=_named(program, f"{call}(program", "the name of a workflow"),
            tags=checked_tags(given.get("tags")),
            since=_timestamp(given.get("since"), f"{call}(since"),
            until=_timestamp(given.get("until"), f"{call}(until"),
            owner=_named(given.get("owner"), f"{call}(owner", "the name of an orchestrator"),
            parent=await self._run_id_of(given.get("parent"), f"{call}(parent"),
            root=await self._run_id_of(given.get("root"), f"{call}(root"),
            queue=_named(given.get("queue"), f"{call}(queue", "the name of a queue"),
            id_prefix=_named(None if prefix == "" else prefix, f"{call}(id_prefix", "the beginning of an id"),
            built_in=program is not None,
            roots=bool(given.get("roots")),
            match=_match(given.get("search"), call),
        )

    async def why(self, id: str) -> Why | None:
        """Why a run does not advance, or how it ended; None when it is running, or has completed."""
        run, head = await self._base.require(id)
        summary = run_summary(Loaded(run), head)
        return (await self._reasons([summary], None)).get(run.run_id)

    async def reasons(self, runs: Sequence[RunSummary]) -> dict[str, Why]:
        """As `why`, for a page of runs, by run_id. Runs that are running or have completed are left out.

        Reads the journals of unfinished runs, up to a few megabytes.
        """
        self._base.check_open()
        return await self._reasons(runs, JOURNALS_READ)

    async def reasons_in(self, zone: tzinfo, runs: Sequence[RunSummary]) -> dict[str, Why]:
        """As `reasons`, for readers elsewhere: times in the texts are in this zone, with date and offset."""
        return await self._reasons(runs, JOURNALS_READ, zone)

    async def _reasons(
        self, runs: Sequence[RunSummary], budget: int | None, zone: tzinfo | None = None
    ) -> dict[str, Why]:
        found = {run.run_id: how for run in runs if run.status.finished and (how := why_ended(run)) is not None}
        still = [run for run in runs if not run.status.finished]
        if not still:
            return found
        states = await self._states_of(still, budget)
        world = await self._world(still, [one for one in states.values() if isinstance(one, RunState)])
        world = dataclasses.replace(world, zone=zone)
        for run in still:
            state = states.get(run.root)
            if isinstance(state, RunState):
                why = explain(run, state, run.run_id[len(run.root) + 1 :], world)
            else:
                why = unread(run, state)
            if why is not None:
                found[run.run_id] = why
        remote = [run for run in still if run.run_id in found and found[run.run_id].kind == "remote"]
        executors = await self._executors(remote, states)
        reasons = await self._reasons([*executors.values()], budget)
        for run_id, executor in executors.items():
            if executor.run_id in reasons:
                found[run_id] = with_reason(found[run_id], reasons[executor.run_id])
        return found

    async def _executors(
        self, runs: Sequence[RunSummary], states: Mapping[str, RunState | Exception]
    ) -> dict[str, RunSummary]:
        """The run that executes the remote step, or the items, for which each of these runs waits."""
        found: dict[str, RunSummary] = {}
        for run in runs[:EXECUTORS_READ]:
            state = states.get(run.root)
            op = executed_elsewhere(state, run.run_id[len(run.root) + 1 :]) if isinstance(state, RunState) else None
            one = None if op is None else await self._base.store.runs.find(step_key(run.root, op))
            if one is not None and not one[0].status.finished:
                found[run.run_id] = run_summary(Loaded(one[0]), one[1])
        return found

    async def _states_of(self, runs: Sequence[RunSummary], budget: int | None) -> dict[str, RunState | Exception]:
        """The folded journals of runs, the smallest first and as many as the budget allows."""
        heads = {run.root: Head(run.next_seq, run.updated_at.timestamp(), run.size) for run in runs}
        wanted, spent = dict[str, Head](), 0
        for root in sorted(heads, key=lambda root: heads[root].size):
            spent += heads[root].size
            if budget is None or spent <= budget:
                wanted[root] = heads[root]
        return await self._folded(wanted)

    async def _folded(self, heads: Mapping[str, Head]) -> dict[str, RunState | Exception]:
        """The folded journals of these roots: small ones some at a time, large ones in slices."""
        states: dict[str, RunState | Exception] = {}
        some: list[str] = []
        size = 0
        for root, head in heads.items():
            if head.size > TOGETHER:
                try:
                    states[root] = (await self._base.folded_states.read(root, head)).state
                except (PerdureError, *_UNREADABLE) as error:
                    states[root] = error
                continue
            if some and size + head.size > TOGETHER:
                states |= await self._folded_together(some)
                some, size = [], 0
            some.append(root)
            size += head.size
        return states | await self._folded_together(some) if some else states

    async def _folded_together(self, roots: Sequence[str]) -> dict[str, RunState | Exception]:
        states: dict[str, RunState | Exception] = {}
        for root, batches in (await self._base.store.journal.read_many(roots)).items():
            try:
                states[root] = batches if isinstance(batches, Exception) else fold(root, batches)
            except _UNREADABLE as error:
                states[root] = error  # no journal that an engine could have written
        await asyncio.sleep(0)
        return states

    async def parked_as(self, rows: Sequence[tuple[RunRow, Head]], kind: str) -> Sequence[tuple[RunRow, Head]]:
        """Those of these rows whose runs are parked with this kind of reason, which only their journals have."""
        parked = [(row, head) for row, head in rows if row.status is RunStatus.PARKED]
        states = await self._folded({row.root or row.run_id: head for row, head in parked})
        return [(row, head) for row, head in parked if _kind(states.get(row.root or row.run_id)) == kind]

    async def _world(self, runs: Sequence[RunSummary], states: Sequence[RunState]) -> World:
        """The surroundings of these runs, with one query of each kind that is needed."""
        now = self._base.clock.now()
        newest: dict[str, str] = {}
        for run in runs:
            if run.queue and run.status is RunStatus.QUEUED:
                newest[run.queue] = max(newest.get(run.queue, ""), run.run_id)
        queued, cut = {}, set()
        for queue, run_id in newest.items():
            queued[queue], whole = await self._queued(queue, run_id)
            if not whole:
                cut.add(queue)
        stats = await self._base.store.queues.stats() if newest else ()
        return World(
            now=now,
            orchestrators=alive(await self._base.leases.live(ORCHESTRATOR, now)),
            registered=registrations(await self._base.leases.live(REGISTRATION, now)),
            holders=await self._holders(
                {lock.key for state in states for lock in (*state.lock_waits.values(), *state.locks.values())}
            ),
            queued=queued,
            cut=frozenset(cut),
            under_way={one.queue: one.running for one in stats},
        )

    async def _queued(self, queue: str, newest: str) -> tuple[Sequence[RunRow], bool]:
        """Queued runs of a queue, and whether all are among them that were started before one of them, the `newest`."""
        filter = RunFilter(status=[RunStatus.QUEUED], queue=queue, limit=QUEUED_READ, values=False)
        rows = [row for row, _ in await self._base.store.runs.list(filter)]
        if len(rows) < QUEUED_READ:
            return rows, True
        older = msgspec.structs.replace(filter, cursor=newest)
        before = [row for row, _ in await self._base.store.runs.list(older)]
        found = {row.run_id: row for row in (*rows, *before)}
        return list(found.values()), len(before) < QUEUED_READ

    async def _holders(self, keys: set[str]) -> dict[str, str]:
        """The holders of these locks, as shown to people, by the keys of their leases."""
        held = [lock for lock in await self._base.locks.list() if lock.key in keys] if keys else []
        return {lease_key(lock.key): f"run {lock.id}" if lock.id else lock.owner for lock in held}

    async def _run_id_of(self, id: str | None, what: str) -> str | None:
        """The run_id of the run that a filter names. An unknown name stays as it is, and matches no run."""
        if id is None:
            return None
        if not isinstance(id, str):
            raise UsageError(f"{what}={id!r}): give the id of a run")
        found = await self._base.find(id)
        return id if found is None else found[0].run_id

    async def queues(self) -> Sequence[QueueView]:
        """Queues with runs that are queued or under way, by name; an Engine adds the limits it was given."""
        self._base.check_open()
        known = dict(self._base.queues)
        views = [
            queue_view(s, known.pop(s.queue, None), self._base.clock.now())
            for s in await self._base.store.queues.stats()
        ]
        views += [QueueView(name, 0, 0, limits=limits) for name, limits in known.items()]
        return sorted(views, key=lambda view: view.name)

    async def orchestrators(self) -> Sequence[OrchestratorView]:
        """The orchestrators that are alive, and those that are gone and still own unfinished runs, by name."""
        self._base.check_open()
        now = self._base.clock.now()
        live = await self._base.leases.live(ORCHESTRATOR, now)
        said = registrations(await self._base.leases.live(REGISTRATION, now))
        return orchestrator_views(live, await self._base.store.upkeep.loads(), said)

    async def steps(self, id: str, *, inputs: bool | None = None) -> Sequence[StepView]:
        """The steps of a run and its children with their attempts, in the order they began.

        `inputs`: whether an Engine that has the code replays the run to find the arguments of its steps. By default it
        does unless the journal is long.
        """
        run, head = await self._base.require(id)
        root = await self._base.store.runs.get(run.root) if run.root else run
        lives = run.status.finished or (root is not None and await self._lives(root.owner))
        try:
            folded = await self._base.folded.read(run.root or run.run_id, head)
            batches, records, missed = [*folded.batches], folded.steps.found(), Missed()
            program = self._gateway.find_program(run.program, run.version)
            short = sum(len(batch.events) for batch in batches) <= REPLAYED
            wanted = inputs or (inputs is None and (short or (program is not None and program.decides)))
            replayed = await self._gateway.step_arguments(run, batches, missed) if wanted else {}
            if not missed.whole and (structures := await self._base.stored_structures(batches)):
                # The code is not here, or does not fit.
                payloads = self._base.payloads
                started, whole = await payloads.with_input(batches), await payloads.inflate(batches)
                told, missed = self._base.structures, Missed()
                if definitions := await definitions_of(self._base.store, batches):
                    replayed = told.replayed(definitions, run.root or run.run_id, started, whole, missed)
                if not missed.whole:
                    missed = told.missed(structures, started, whole)
            if missed.turns or missed.whole:
                ops = {turn.op for turn in missed.turns}
                records = [one for one in records if one.attempts or not (missed.whole or one.path in ops)]
                records = sorted([*records, *map(not_run, missed.turns)], key=began)
            if run.root:
                records = [record for record in records if record.path.startswith(f"{child_path(run)}/")]
            views: list[StepView] = []
            for some in sliced(records):
                views += [
                    step_view(
                        record,
                        await self._base.payloads.load(record.output_blob, record.output),
                        lives or record.remote,
                        replayed[record.path] if record.path in replayed else await self._recorded(record),
                    )
                    for record in some
                ]
                await asyncio.sleep(0)
            return views
        except (LookupError, msgspec.MsgspecError, RecursionError) as error:
            reason = f"it is none that an engine could have written ({type(error).__name__}: {error})"
            raise Corrupt(f"the journal of run {run.id!r}", reason, run.root or run.run_id) from error

    async def values(self, id: str, at: str | int | None = None) -> dict[str, Any]:
        """The values of a graph's run by name, with its inputs: now, or as they were after an event or an op.

        In a loop a value is that of the last round. A graph inside the graph has its whole result as its value.
        """
        run, _ = await self._base.require(id)
        batches = await self._base.store.journal.read(run.root or run.run_id)
        end: int | None = None
        if isinstance(at, str):
            from perdure.kernel.history.ops import find, ops  # brings replay in, which lists do without

            op = find(ops(batches), at)
            if op.ended is None:
                raise UsageError(f"values({id!r}, at={at!r}): {op.path} has not ended")
            end = op.ended
        elif at is not None:
            end = _whole(at, "values(at", 0, "events are numbered from 0")
        values = (await self._checkpoints(run, batches, end))[-1].values
        return {name: self._value(name, value) for name, value in values.items()}

    def _value(self, name: str, value: Any) -> Any:
        """A value for display: items are read on demand."""
        if not isinstance(value, dict) or KEY not in value:
            return value
        return self._base.codec.decode(msgspec.json.encode(value), Items, f"the value {name!r}")

    async def history(self, id: str) -> Sequence[GraphCheckpoint]:
        """The state of a graph's run after each op that ended, in order: values, open ops and questions."""
        run, _ = await self._base.require(id)
        batches = await self._base.store.journal.read(run.root or run.run_id)
        return (await self._checkpoints(run, batches))[:-1]

    async def _checkpoints(
        self, run: RunRow, batches: Sequence[Batch], end: int | None = None
    ) -> Sequence[GraphCheckpoint]:
        """The checkpoints up to an event, each at the end of an op but the first and the last."""
        program = await self._program(run, batches)
        if program is None or program.dataflow is None:
            raise UsageError(f"{run.id!r} is a run of {run.program}, which is not a graph that is known here")
        flow, prefix = program.dataflow, f"{child_path(run)}/" if run.root else ""
        state, load = RunState(run.root or run.run_id), self._base.payloads.load
        timeline, found = Timeline(), list[GraphCheckpoint]()
        input = await load(run.input_blob, run.input)
        for name, given in msgspec.json.decode(input, type=dict[str, Any]).items():
            timeline.put(name, given)
        mapped: dict[str, dict[int, Any]] = {}

        def add(seq: int, at: float, op: str) -> None:
            forked_from = None if state.started is None else state.started.forked_from or None
            found.append(timeline.add(seq, moment(at), op, state.status, state.run_id, forked_from))

        for batch in batches:
            for seq, event in enumerate(batch.events, batch.seq):
                if end is not None and seq > end:
                    break
                state.fold(event, batch.at)
                op = getattr(event, "op", "")
                if isinstance(event, RunStarted):
                    add(seq, batch.at, op)
                if not op.startswith(prefix):
                    continue
                op = op.removeprefix(prefix)
                value = Raw(b"")
                if "/" in op:
                    pass  # an op of a nested graph
                elif isinstance(event, StepSucceeded) or (
                    isinstance(event, ChildFinished) and event.status in (RunStatus.COMPLETED, RunStatus.BAILED)
                ):
                    value = await load(event.blob, event.value)
                elif isinstance(event, WaitResolved) and event.brings_value:
                    value = event.value
                elif isinstance(event, ValueRecorded) and event.kind == "map":
                    value = _known_results(event.value)
                if isinstance(event, StepOutcome | ChildFinished) and "/" not in op and flow.stands_for(op):
                    # Replaces the result of an item that has none.
                    value = NULL if not value or why_no_result(value) is not None else value
                if value and why_no_result(value) is None:
                    for name, made in flow.named(op, _with_items(op, plain_result(value), mapped)).items():
                        timeline.put(name, made)
                if isinstance(event, StepOutcome | ChildFinished | WaitResolved):
                    timeline.end(op, event, moment(batch.at))
                    add(seq, batch.at, op)
                elif isinstance(event, StepStarted | WaitOpened | ChildStarted):
                    waits = event.kind if isinstance(event, WaitOpened) else ""
                    kind = waits or ("step" if isinstance(event, StepStarted) else "child")
                    timeline.begin(op, kind, moment(batch.at))
                    if isinstance(event, WaitOpened) and event.kind in ASKED:
                        timeline.ask(op, event, run.id)
                elif isinstance(event, AttemptFailed):
                    timeline.fail(op, event)
        add(batches[-1].seq, batches[-1].at, "")
        return found

    async def diagram(
        self, id: str, *, format: Literal["mermaid", "dot", "json"] = "mermaid", depth: int | None = None
    ) -> str:
        """A run of a graph as mermaid, dot or JSON text: its nodes with their statuses, and which edges were taken.

        Without the graph, it is drawn as it was when the run was executed. Takes the options of `Graph.diagram`.
        """
        run, _ = await self._base.require(id)
        known = self._gateway.find_program(run.program, run.version)
        if known is not None and known.dataflow is None:
            return known.drawn({}, format, depth)  # raises that it has no diagram
        batches = await in_slices(self._base.store.journal, run.root or run.run_id)
        program = await self._program(run, batches)
        if program is None:
            raise UsageError(f"{run.id!r} is a run of {run.program}, which is not a graph that is known here")
        inside = f"{child_path(run)}/" if run.root else ""
        statuses = await asyncio.to_thread(op_statuses, batches)
        # Nodes that did not run have no events.
        statuses |= {step.path: step.status for step in await self.steps(id) if step.path not in statuses}
        own = {path.removeprefix(inside): status for path, status in statuses.items() if path.startswith(inside)}
        return program.drawn(own, format, depth)

    async def _program(self, run: RunRow, batches: Sequence[Batch]) -> Program | None:
        """The program of a run, from this process or from its stored structure; None if neither is known."""
        found = self._gateway.find_program(run.program, run.version)
        return found or await self._base.stored_program(batches, child_path(run))

    async def items(
        self,
        id: str,
        op: str | None = None,
        *,
        status: StepStatus | str | None = None,
        start: int = 0,
        limit: int = 100,
    ) -> Sequence[ItemView]:
        """The items of a map in a graph, or the rows of a batch, in order: `items(id, "fetch:0", status="failed")`.

        Those that have begun, from item `start` on, `limit` at most; only those in one `status`. `op` can be left out
        for a batch.
        """
        for what, number in (("start", start), ("limit", limit)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise UsageError(f"items({what}={number!r:.80}): it is a whole number from 0 on")
        if status is not None and status not in list(StepStatus):
            raise UsageError(f"items(status={status!r:.80}): it is one of {', '.join(StepStatus)}")
        run, _ = await self._base.require(id)
        if op is None and not run.program.endswith(BATCH):
            raise UsageError(f"items({id!r}): it is not a batch; name the map, as in items({id!r}, 'fetch:0')")
        op = op or ROW
        path = op if not run.root else f"{child_path(run)}/{op}"
        path = path if ":" in path.rpartition("/")[2] else f"{path}:0"
        run_id, own, records, chunks = await self._map_at(run.root or run.run_id, path)
        found: list[ItemRecord] = []
        for chunk in chunks:
            if len(found) < limit and chunk.last >= start and chunk.may_have(status):
                inside = await self._of_chunk(run_id, own, chunk)
                found += [one for one in inside if one.index >= start and status in (None, one.status)]
        if not chunks:
            found = [one for one in records if one.index >= start and status in (None, one.status)]
        found, load = found[:limit], self._base.payloads.load
        return [
            ItemView(
                one.index,
                f"{path}[{one.index}]",
                one.status,
                plain_result(await load(one.output_blob, one.output)),
                one.error,
                one.reason,
            )
            for one in found
        ]

    async def batch(self, id: str) -> BatchView:
        """A batch: how many of its rows have completed, failed, run, wait, are queued, or will not begin."""
        run, _ = await self._base.require(id)
        if not run.program.endswith(BATCH):
            raise UsageError(f"batch({id!r}): it is a run of {run.program}, and not a batch; use get({id!r})")
        batches = await self._base.store.journal.read(run.run_id)
        rows = msgspec.json.decode((await self._base.payloads.with_input(batches)).input, type=BatchInput).rows
        total = sum(part.n for part in parts_of(rows) or ())
        completed = failed = 0
        records: list[ItemRecord] = []
        for chunk in chunks_of(batches, OP):
            if chunk.outcome is not None:
                failed += chunk.outcome.failed
                completed += chunk.last - chunk.first + 1 - chunk.outcome.failed
            else:
                records += await self._of_chunk(run.run_id, OP, chunk)
        found = Counter(one.status for one in records)
        failed += found[StepStatus.FAILED]
        completed += found[StepStatus.SUCCEEDED] + found[StepStatus.SKIPPED]
        over = run.status.finished
        running, waiting = (0, 0) if over else (found[StepStatus.RUNNING], found[StepStatus.WAITING])
        left = total - completed - failed - running - waiting
        counts = (completed, failed, running, waiting, *((0, left) if over else (left, 0)))
        return BatchView(run.id, run.run_id, run.program.removesuffix(BATCH), run.status, total, *counts)

    async def _map_at(self, run_id: str, path: str) -> tuple[str, str, Sequence[ItemRecord], Sequence[ChunkRecord]]:
        """The run that has a map, the map's path in it, its items and its chunks: a map in a chunk is in its run."""
        from perdure.kernel.history.ops import ops  # brings replay in, which lists do without

        batches = await self._base.store.journal.read(run_id)
        records, chunks = items_of(batches, path), chunks_of(batches, path)
        if records or chunks or path in (known := ops(batches)):
            return run_id, path, records, chunks
        around, _ = chunk_of(path, known)
        within = around.rpartition("[")[0]
        chunk = next((one for one in chunks_of(batches, within) if one.path == around), None)
        run = None if chunk is None else await self._run_of(run_id, chunk)
        if run is None:
            raise NoSuchOp(path, [one.path for one in known.values() if one.kind == "map"])
        return await self._map_at(run.run_id, path[around.rfind("/") + 1 :])

    async def _run_of(self, run_id: str, chunk: ChunkRecord) -> RunRow | None:
        """The run of a chunk; None if it was pruned, or has not begun."""
        if chunk.outcome is not None:
            return await self._base.store.runs.get(chunk.outcome.run)
        found = await self._base.store.runs.find(step_key(run_id, chunk.path))
        return None if found is None else found[0]

    async def _of_chunk(self, run_id: str, path: str, chunk: ChunkRecord) -> Sequence[ItemRecord]:
        """The items of a chunk, from the journal of its run; or, if that was pruned, from the results."""
        run = await self._run_of(run_id, chunk)
        if run is not None:
            return items_of(await self._base.store.journal.read(run.run_id), path.rpartition("/")[2])
        if chunk.outcome is None:
            return []
        results = await self._base.items.whole(Raw(reference(chunk.outcome.parts)), UNBOUNDED)
        return chunk.items(chunk.outcome, msgspec.json.decode(results, type=list[Raw]))

    async def _recorded(self, record: StepRecord) -> dict[str, Any] | None:
        if not record.names and not record.input_blob and record.input == NULL:
            return None
        return by_name(record.names, await self._base.payloads.load(record.input_blob, record.input))

    async def approvals(
        self, *, name: str | None = None, approver: str | None = None, program: str | None = None
    ) -> Sequence[ApprovalView]:
        """Open approvals of all runs, the oldest first; only of one `name`, or those that `approver` may answer now."""
        self._base.check_open()
        found: list[ApprovalView] = []
        now, asking = self._base.clock.now(), RunFilter(program=program, limit=ASKING_PAGE, asking=True, values=False)
        while True:
            page = await self._base.store.runs.list(asking)
            states = await self._folded({row.run_id: head for row, head in page})
            for row, _ in page:
                state = states.get(row.run_id)
                # A journal that cannot be read hides only its own approvals; `doctor` reports it.
                if isinstance(state, RunState):
                    found += await self._as_asked(row, approval_views(row, state, now))
            if len(page) < asking.limit:
                break
            asking = replace(asking, cursor=page[-1][0].run_id)
        wanted = [a for a in found if name in (None, a.name) and (approver is None or a.answerable_by(approver))]
        return sorted(wanted, key=lambda asked: (asked.asked_at, asked.run_id))

    async def _as_asked(self, row: RunRow, views: Sequence[ApprovalView]) -> Sequence[ApprovalView]:
        """Questions under the run that asks them. For items of a chunk, that is the run with the map."""
        while row.program.startswith(MAP):
            parent = await self._base.store.runs.get(row.parent)
            if parent is None:
                break
            op = row.id.removeprefix(f"{row.parent}/")
            views = [
                dataclasses.replace(
                    view,
                    id=parent.id,
                    run_id=parent.run_id,
                    program=parent.program,
                    path=f"{op[: op.rfind('/') + 1]}{view.path}",
                )
                for view in views
            ]
            row = parent
        return views

    async def _lives(self, owner: str | None) -> bool:
        if owner is None:
            return False
        return await self._base.leases.get(ORCHESTRATOR + owner, self._base.clock.now()) is not None

    async def get_checkpoint(self, id: str) -> int | None:
        """The number of the event up to which the newest snapshot replaces replay; None without a snapshot."""
        run, _ = await self._base.require(id)
        taken = newest(await self._base.store.journal.read(run.root or run.run_id))
        return None if taken is None else taken.seq

    async def journal(self, id: str, start: int = 0, limit: int | None = None) -> Sequence[Entry]:
        """The events of a run from number `start`, at most `limit` of them.

        A child is numbered in the journal of its root. The next page starts after the number of the last event.
        """
        start = _whole(start, "journal(start", 0, "events are numbered from 0")
        left = None if limit is None else _whole(limit, "journal(limit", 1, "ask for at least one event")
        run, _ = await self._base.require(id)
        root, found = run.root or run.run_id, list[Entry]()
        while left is None or len(found) < left:
            # Of the journal of a root, the events of a child are few.
            asked = left if left is None or not run.root else max(left, PAGE)
            batches = await in_slices(self._base.store.journal, root, start, asked)
            for some in sliced(batches):
                found += _of(run, entries(root, some, start, run.run_id))
                await asyncio.sleep(0)
            if left is None or not batches or not run.root:
                break
            start = batches[-1].seq + len(batches[-1].events)
        return found if left is None else found[:left]

    async def follow(self, id: str, start: int = 0) -> AsyncIterator[Entry]:
        """The events of a run from number `start` on, as they come, until it ends."""
        start = _whole(start, "follow(start", 0, "events are numbered from 0")
        run, _ = await self._base.require(id)
        following: RunRow | None = run
        while following is not None:
            async for entry in self._follow_one(following, start):
                yield entry
            following, start = (await self._continuation(following.run_id) if run.id == id else None), 0

    async def _follow_one(self, run: RunRow, start: int) -> AsyncIterator[Entry]:
        root = run.root or run.run_id
        with self._base.followers.follow(root) as follower:
            over = False
            while True:
                found = entries(root, await self._base.store.journal.read(root, start, PAGE), start, run.run_id)
                for entry in _of(run, found):
                    yield entry
                    if isinstance(entry.event, RunFinished) or _ends(run, entry):
                        return
                if found:
                    start = found[-1].seq + 1
                    continue
                if over:
                    return
                row = await self._base.store.runs.get(run.run_id)
                # The end may lie before `start`, or have come since the journal was read.
                over = row is None or row.status.finished
                if not over and not await follower.beyond(start):
                    return

    async def _continuation(self, run_id: str) -> RunRow | None:
        """The next incarnation of a run; None if there is none, or not yet."""
        run = await self._base.store.runs.get(run_id)
        return await self._base.store.runs.get(run.continued_as) if run is not None and run.continued_as else None

    async def stream(self, id: str, step: str | None = None, start: int = 0) -> AsyncIterator[Chunk]:
        """The chunks of a step, from number `start` on and as they are committed; ends with the step."""
        run, _ = await self._base.require(id)
        async for chunk in self.stream_run(run, step, start, goes_on=run.id == id):
            yield chunk

    async def stream_run(self, run: RunRow, step: str | None, start: int, *, goes_on: bool) -> AsyncIterator[Chunk]:
        """As `stream`, for one run; if it `goes_on`, also for its next incarnations."""
        start = _whole(start, "stream(start", 0, "chunks are numbered from 0")
        streaming: RunRow | None = run
        begun: list[str] = []
        index = 0
        while streaming is not None:
            root = streaming.root or streaming.run_id
            reading = Reading(step, start, child_path(streaming), index)
            with self._base.followers.follow(root) as follower:
                while not reading.ended:
                    batches = await self._base.store.journal.read(root, reading.next_seq, PAGE)
                    for c in reading.feed(batches):
                        yield Chunk(c.index, c.path, msgspec.json.decode(c.value), c.attempt, c.restart)
                    if not batches and not await follower.beyond(reading.next_seq):
                        return
            if step is not None and reading.found:
                return
            begun, index = [*begun, *reading.begun], reading.index
            streaming = await self._continuation(streaming.run_id) if goes_on else None
        if step is not None:
            names = ", ".join(dict.fromkeys(begun[:10])) or "none"
            raise UsageError(f"run {run.id!r} ended without a step {step!r}; its steps: {names}")

    # --- the values of a run --------------------------------------------------------------------------------------

    async def _load_or_say(self, run: RunRow) -> Loaded:
        """As `_load`; a run whose values cannot be read is listed without them, and with the error as its reason."""
        try:
            return await self._load(run)
        except Corrupt as damage:
            return Loaded(replace(run, reason=str(damage)))

    async def _load(self, run: RunRow) -> Loaded:
        input = await self._base.payloads.load(run.input_blob, run.input)
        output = await self._base.payloads.load(run.output_blob, run.output)
        return Loaded(run, msgspec.json.decode(input), self._output(run, output))

    def _output(self, run: RunRow, output: msgspec.Raw) -> Any:
        """The result of a run, of the type that its program declares; plain JSON if the program is not here."""
        completed = run.status is RunStatus.COMPLETED
        program = self._gateway.find_program(run.program, run.version) if completed else None
        if program is not None:
            try:
                return self._base.codec.decode(output, program.returns, f"the result of run {run.id!r}")
            except NotDecodable:
                pass  # the type has changed since; the value is shown all the same
        return plain_result(output)


async def pages(store: Store, filter: RunFilter) -> AsyncIterator[list[RunRow]]:
    """The rows of all runs that match, newest first, as many at a time as the filter says."""
    while True:
        page = [row for row, _ in await store.runs.list(filter)]
        yield page
        if len(page) < filter.limit:
            return
        filter = replace(filter, cursor=page[-1].run_id)


def _kind(state: RunState | Exception | None) -> str:
    """The kind of the reason for which a run is parked. A journal that cannot be folded is damaged."""
    if not isinstance(state, RunState):
        return "damaged"
    return "" if state.parked is None else state.parked.kind


def _status(value: RunStatus | str) -> RunStatus:
    try:
        return RunStatus(value)
    except ValueError:
        raise UsageError(f"{value!r} is not a status; there are {', '.join(RunStatus)}") from None


def _whole(value: int, what: str, least: int, meaning: str) -> int:
    """A checked count or position. One beyond anything in a store becomes the largest that stores accept."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{what}={value!r:.60}): {meaning}")
    return min(value, UNBOUNDED)


def _timestamp(at: datetime | None, what: str) -> float | None:
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise UsageError(f"{what}={at!r}): give a datetime such as datetime.now(UTC) - timedelta(hours=1)")
    if at.tzinfo is None:
        raise UsageError(f"{what}={at!r}): the time has no time zone; write datetime.now(UTC), or add tzinfo=UTC to it")
    return at.timestamp()


def _match(search: str | None, call: str) -> Match | None:
    """The parsed search: `input.customer=ann`, `output.total=17`, or `error=timed out`."""
    if search is None or search == "":
        return None
    if isinstance(search, str):
        left, equals, value = search.partition("=")
        field, *path = left.strip().split(".")
        flaw = flaw_of(search, MAX_ASKED)
        if flaw is not None:
            raise UsageError(f"{call}(search={search[:60]!r}): it {flaw}, which no stored text can have")
        match field:
            case "input" | "output" if equals and all(path):
                return Match(field, value.strip(), tuple(path))
            case "error" if equals and value.strip() and not path:
                return Match(field, value.strip())
    raise UsageError(
        f"{call}(search={search!r:.80}): write what is searched, as in input.customer=ann, output.total=17, or "
        "error=timed out; ids, tags and programs have filters of their own"
    )


def _named(name: str | None, what: str, meaning: str) -> str | None:
    """A checked name: refuses characters that no name has, or that stores would compare differently."""
    if name is None:
        return None
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what}={name!r}): give {meaning}")
    flaw = flaw_of(name, MAX_ASKED)
    if flaw is not None:
        raise UsageError(f"{what}={name[:60]!r}): it {flaw}, which no name may have")
    return name


def _of(run: RunRow, found: list[Entry]) -> list[Entry]:
    """The entries of a run: the whole journal for a root, or the entries about a child and everything in it."""
    path = child_path(run)
    if not path:
        return found
    return [entry for entry in found if _about(entry.event, path)]


def _about(event: AnyEvent, path: str) -> bool:
    op: str = getattr(event, "op", "") or getattr(event, "child", "")
    return op == path or op.startswith(f"{path}/")


def _ends(run: RunRow, entry: Entry) -> bool:
    return isinstance(entry.event, ChildFinished) and bool(run.root) and entry.event.op == child_path(run)


def _known_results(recorded: Raw) -> Raw:
    """The results that a caller has given a map; empty if its items produce them."""
    shape = msgspec.json.decode(recorded, type=MapShape)
    return shape.results if shape.results != NULL else Raw(b"[]" if not shape.n else b"")


def _with_items(op: str, value: Any, mapped: dict[str, dict[int, Any]]) -> Any:
    """The outcome of an op; of an item of a map, or a chunk of them, the results so far, in their order."""
    whole, _, index = op.partition("[")
    if not index:
        return value
    if (numbers := chunk_range(op)) is not None:
        outcomes = mapped.setdefault(whole, {})
        outcomes[numbers[0]] = msgspec.json.decode(msgspec.json.encode(value), type=ChunkOutcome)
        return msgspec.json.decode(joined_outcomes([outcomes[number] for number in sorted(outcomes)]))
    items = mapped.setdefault(whole, {})
    items[int(index[:-1])] = value
    return [items[number] for number in sorted(items)]
