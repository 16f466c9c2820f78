"""Runs that begin with the past of another: forks, time travel, and retries of failed runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.client.gateway import RunGateway
from perdure.client.handle import Handles, RunHandle
from perdure.errors import (
    AlreadyExists,
    CannotRetry,
    Corrupt,
    ForkRefused,
    NoSuchOp,
    NotDecodable,
    PerdureError,
    UsageError,
)
from perdure.kernel import plan
from perdure.kernel.batches import OP
from perdure.kernel.chunks import DRAIN, KEEP, chunk_of, chunk_range, open_chunks
from perdure.kernel.events import (
    NULL,
    AnyEvent,
    Batch,
    CancelRequested,
    OutcomeKept,
    RunFinished,
    RunForked,
    RunStarted,
    RunStatus,
    StepSucceeded,
    WaitOpened,
    events_in,
)
from perdure.kernel.hints import did_you_mean
from perdure.kernel.history import fork as forks
from perdure.kernel.history.capsule import blobs_of
from perdure.kernel.history.fork import Point, Value
from perdure.kernel.history.ops import Op, find, find_last, ops
from perdure.kernel.history.retry_points import check_replaceable, memoized, rerun, retried, withdrawals
from perdure.kernel.ids import BATCH, BUILT_IN, check_id, check_text, step_key
from perdure.kernel.inbound import Accepted, Succession
from perdure.kernel.policies.resting import at_rest
from perdure.kernel.program import Dataflow
from perdure.kernel.projection import RunRow, child_path
from perdure.kernel.state import RunState, fold
from perdure.kernel.step_records import chunks
from perdure.kernel.values.arguments import named_input
from perdure.kernel.values.items import parts_of
from perdure.kernel.values.signatures import misfit
from perdure.ports.appends import create

# Stands for an outcome that has not been read.
_UNKNOWN: Any = object()
_arguments = msgspec.json.Decoder(dict[str, Raw] | list[Raw])


class Forks:
    """Creates runs with the past of other runs, which do not change."""

    def __init__(self, base: StoreClient, gateway: RunGateway, handles: Handles) -> None:
        self._base, self._gateway, self._handles = base, gateway, handles
        self._messages = handles.messages

    async def fork(
        self,
        id: str,
        at: str | int | None = None,
        values: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        state: Mapping[str, Any] | None = None,
        set: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that has the past of another up to a point, and continues independently from there.

        `at` is an op path, for the point right before that op, or the number of the first event to leave out. Without
        it the fork begins right after the last op that is edited, at the beginning when `inputs` are given, or else
        where the run is now. `values` gives ops another outcome, by op path, or in a graph by the name of the value;
        `inputs` gives the workflow other arguments, by name; `state` replaces values of set_state(). Raises ForkRefused
        when the code does not fit the past that is kept. `by` is who asks for it. `set` is the former name of `values`,
        and deprecated.
        """
        if set is not None and values is not None:
            raise UsageError("fork(set=...) is the former name of values=...; give one of them")
        values = values or set or {}
        run, batches = await self.origin(id)
        if _items_of_chunks(values, batches):
            if state:
                raise UsageError(
                    f"fork({id!r}): items of chunks run again, and nothing is published there; leave out state="
                )
            return await self._fork_items(run, batches, {**values, **(inputs or {})}, at, new_id, by)
        outcomes = await self._outcomes(await self._by_op(run, batches, values))
        if at is not None:
            point = forks.before(batches, _place(at))
        elif outcomes:
            point = forks.after(batches, outcomes)
        else:
            point = Point(1) if inputs else forks.at_end(batches)
        changes = await self._input(run, batches, inputs) if inputs else {}
        edits = {"values": outcomes, "state": self._encoded(state or {})}
        return await self._fork(run, batches, point, new_id, changes, by, **edits)

    async def _fork_items(
        self,
        run: RunRow,
        batches: Sequence[Batch],
        values: Mapping[str, Any],
        at: str | int | None,
        new_id: str | None,
        by: str | None,
    ) -> RunHandle[Any]:
        """A fork with other outcomes in chunks: those chunks run again and keep the rest, as in `update_state`."""
        flow = await self._dataflow(run, batches)
        if flow is None:
            raise UsageError(f"fork({run.id!r}): {run.program} is not a graph that is known here; fork it in an engine")
        now = self._base.clock.now()
        run_id = self._base.new_run_id(now)
        id = run_id if new_id is None else check_id(new_id)
        end = None if at is None else forks.before(batches, _place(at)).seq
        _, past = await self._updated(run, batches, flow, values, end, now, "fork", id=id)
        started = past[0].events[0]
        assert isinstance(started, RunStarted)
        return await self._begin(run, run_id, started, forks.asked_by(past, check_text(by, "by")))

    async def questions(self, id: str, values: Mapping[str, Any]) -> list[WaitOpened]:
        """The approvals that a fork with these values would answer."""
        run, batches = await self.origin(id)
        found = ops(batches)
        asked: list[WaitOpened] = []
        for name in await self._by_op(run, batches, values):
            chunk = "" if name in found else chunk_of(name, found)[0]
            path = name if chunk else find(found, name).path
            within = chunk[: chunk.rfind("/") + 1]
            events = events_in(await self._former_chunk(run.run_id, chunk) or () if chunk else batches)
            waits = (one for one in events if isinstance(one, WaitOpened) and one.kind == "approval")
            asked += [one for one in waits if within + one.op == path]
        return asked

    async def time_travel(
        self,
        id: str,
        step: str,
        inputs: Mapping[str, Any] | None = None,
        new_id: str | None = None,
        *,
        by: str | None = None,
    ) -> RunHandle[Any]:
        """Start a run that continues right before a step of another, with other arguments for that step.

        `step` is an op path such as `process:2` or `rag:1/generate:0`. `inputs` are arguments by name; the others stay
        as they were. A child takes them too. `by` is who asks for it.
        """
        run, batches = await self.origin(id)
        found = ops(batches)
        flow = await self._dataflow(run, batches)
        chunk, item = chunk_of(check_text(step, "step"), found)
        if flow is None:
            op = find(found, step)
        else:
            op = find_last(found, chunk or step)
        if inputs and op.kind not in ("step", "child"):
            raise UsageError(f"{op.path} is a {op.kind} and takes no arguments; fork with values= gives it a value")
        given = {step if chunk else op.path: self._encoded(inputs)} if inputs else None
        if flow is None:
            return await self._fork(run, batches, forks.before(batches, op.path), new_id, {}, by, inputs=given)
        if "/" in item:
            await self._in_chunk(run.run_id, chunk, step)
        again = flow.affected(op.path, {path: one.began for path, one in found.items()}) | {op.path}
        again |= {path for path in found if path.startswith((f"{op.path}/", f"{op.path}["))}
        now = self._base.clock.now()
        run_id = self._base.new_run_id(now)
        id = run_id if new_id is None else check_id(new_id)
        started = forks.beginning(batches, run.run_id, now, id=id, memo=run.run_id)
        items = {chunk: item} if chunk else None
        past = rerun(batches, again, {}, started, now, inputs=given, items=items)
        return await self._begin(run, run_id, started, forks.asked_by(past, check_text(by, "by")))

    async def update_state(
        self, id: str, values: Mapping[str, Any], at: str | int | None = None, *, dry_run: bool = False
    ) -> RunHandle[Any] | Sequence[str]:
        """See `Client.update_state`."""
        if not values:
            raise UsageError(f"update_state({id!r}) without values would change nothing; start it again, or retry it")
        run, batches = await self.origin(id)
        flow = await self._dataflow(run, batches)
        if flow is None:
            raise UsageError(
                f"update_state({id!r}): {run.program} is not a graph that is known here; fork it with values="
            )
        now = self._base.clock.now()
        run_id = self._base.new_run_id(now)
        while True:
            state = fold(run.run_id, batches)
            if state.finished is None and not at_rest(state):
                raise UsageError(f"update_state({id!r}): the run is {state.status}; wait until it rests, or cancel it")
            end = None if at is None else forks.before(batches, _place(at)).seq
            ending: list[AnyEvent] = []
            if state.finished is None:
                ending = [CancelRequested(_UPDATED), RunFinished(RunStatus.CANCELLED, reason=_UPDATED)]
                batches = [*batches, Batch(state.next_seq, max(now, state.at), ending)]
            anew = {"incarnation": run.incarnation + 1}
            again, past = await self._updated(run, batches, flow, values, end, now, "update_state", **anew)
            if dry_run:
                return again
            started = past[0].events[0]
            assert isinstance(started, RunStarted)
            if state.finished is not None:
                return await self._begin(run, run_id, started, past)
            await self._gateway.check_replay(run.id, run_id, past)
            if await self._succeed(run, state.next_seq, ending, plan.Start(run_id, [*past[0].events])):
                return self._handle(started.id, run_id, started)
            # Another event came first, or the latest events of the run were only in memory.
            await self._gateway.flush(run)
            run, batches = await self.origin(id)
            if run.run_id == run_id:
                return self._handle(started.id, run_id, started)

    async def _succeed(self, run: RunRow, seq: int, events: Sequence[AnyEvent], next: plan.Start) -> bool:
        """End a run at this number, and begin the next one in the same commit; False if the run has newer events."""
        chunks: list[str] = []

        def decide(state: RunState) -> Sequence[AnyEvent] | bool:
            if state.finished is not None or state.next_seq != seq:
                return False
            chunks[:] = open_chunks(state).values()
            return Succession(events, next)

        await keep_blobs(self._base, next.run_id, [Batch(0, self._base.clock.now(), next.events)])
        if not isinstance(await self._messages.send_decided(run.run_id, decide), Accepted):
            return False
        started = next.events[0]
        assert isinstance(started, RunStarted)
        self._gateway.created(next.run_id, started)
        for chunk in chunks:
            await self._messages.cancel(chunk, _UPDATED)
        return True

    async def _updated(
        self,
        run: RunRow,
        batches: Sequence[Batch],
        flow: Dataflow,
        values: Mapping[str, Any],
        end: int | None,
        now: float,
        asked: str,
        **anew: Any,
    ) -> tuple[Sequence[str], list[Batch]]:
        """The ops that run again with these values, and the journal of the run in which they do.

        `asked`: the method that the caller used. `anew`: what differs in the beginning of that run.
        """
        found = ops(batches)
        began = {path: one.began for path, one in found.items() if end is None or one.began < end}
        again, outcomes, inputs = set[str](), dict[str, Any](), dict[str, Any]()
        # Outcomes of ops in chunks, the ops that depend on them there, and items that run again as a whole.
        inside, behind, dropped = dict[str, Any](), list[str](), set[str]()
        given = (await self._base.payloads.with_input(batches)).input
        names = set(msgspec.json.decode(named_input(given, forks.claimed_names(batches))))
        for name, value in values.items():
            made = (name, ()) if name in found else flow.maker(name, _ran(found, began))
            _check_given(name, value, found)
            chunk, _ = ("", "") if made is not None else chunk_of(name, began)
            if chunk:
                there = await self._in_chunk(run.run_id, chunk, name)
                check_replaceable(name, there[name].kind)
                if there[name].kind in forks.USED:
                    raise UsageError(
                        f"{name} is a decision in a chunk of a map, which is made again; give a value to a step that "
                        "it depends on, or to one that depends on it"
                    )
                behind += flow.affected(name, {op: one.began for op, one in there.items()})
                again |= flow.affected(chunk, began)
                inside[name] = value
            elif made is not None:
                op, path = made
                again |= flow.affected(op, began)
                dropped |= {item for item in found if item.startswith(f"{op}[")}
                outcomes[op] = await self._with_part(batches, op, path, value, outcomes.get(op, _UNKNOWN))
            elif name in names or flow.taking(name, began):
                again |= flow.taking(name, began)
                inputs[name] = value
            elif chunk_of(name, found)[0]:
                raise UsageError(f"{name} is edited, and what is kept ends before it has its value; leave out `at`")
            else:
                raise UsageError(
                    f"{asked}({run.id!r}): {name!r} is neither an input nor a value that the run has made; "
                    f"{did_you_mean(name, {*flow.values, *names})}"
                )
        again -= outcomes.keys()
        typed = {op: value for op, value in outcomes.items() if op not in found or found[op].kind != "when"}
        self._check_types(run, flow, {**typed, **inside})
        changes = await self._input(run, batches, inputs) if inputs else {}
        started = forks.beginning(batches, run.run_id, now, memo=run.run_id, **anew, **changes)
        past = rerun(
            batches,
            again | dropped,
            await self._outcomes(outcomes),
            started,
            now,
            end=end,
            items={chunk_of(name, began)[0]: "" for name in inside} or None,
            inside=self._encoded(inside) or None,
        )
        return [*sorted(behind), *(path for path in found if path in again)], past

    async def _by_op(self, run: RunRow, batches: Sequence[Batch], values: Mapping[str, Any]) -> dict[str, Any]:
        """Outcomes by op path, also if they are given by the names of a graph's values."""
        flow, found = await self._dataflow(run, batches), ops(batches)
        for name, value in values.items():
            _check_given(name, value, found)
        if flow is None or all(name in found for name in values):
            return dict(values)
        began = {path: op.began for path, op in found.items()}
        outcomes: dict[str, Any] = {}
        for name, value in values.items():
            op, path = (name, ()) if name in found else flow.maker(name, _ran(found, began)) or (name, ())
            outcomes[op] = await self._with_part(batches, op, path, value, outcomes.get(op, _UNKNOWN))
        return outcomes

    def _check_types(self, run: RunRow, flow: Dataflow, outcomes: Mapping[str, Any]) -> None:
        """Refuse outcomes that do not have the types of the nodes' values."""
        codec = self._base.codec
        for op, value in outcomes.items():
            what = f"the value of {op}"
            data = codec.encode(value, what)
            if parts_of(data) is not None:
                continue  # items are checked where they are read
            try:
                codec.decode(data, flow.type_of(op), what)
            except NotDecodable as error:
                raise refused(run.id, error) from error

    async def _with_part(
        self, batches: Sequence[Batch], op: str, path: tuple[str | int, ...], value: Any, known: Any
    ) -> Any:
        """The outcome of an op with one part of it replaced."""
        if not path:
            return value
        if known is _UNKNOWN:
            events = events_in(batches)
            ended = [one for one in events if isinstance(one, StepSucceeded) and one.op == op]
            if ops(batches)[op].kind == "map":
                raise UsageError(f"it is a part of each result of {op}; replace the results as a whole, or of an item")
            if not ended:
                raise UsageError(f"{op} has no outcome yet in which a value could be replaced")
            known = msgspec.json.decode(await self._base.payloads.load(ended[-1].blob, ended[-1].value))
        part = known
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = msgspec.json.decode(self._base.codec.encode(value, f"the value of {op}"))
        return known

    async def _dataflow(self, run: RunRow, batches: Sequence[Batch]) -> Dataflow | None:
        """The dataflow of a graph, from its code or its stored structure."""
        program = self._gateway.find_program(run.program, run.version) or await self._base.stored_program(batches)
        return None if program is None else program.dataflow

    async def _begin(self, run: RunRow, run_id: str, started: RunStarted, past: Sequence[Batch]) -> RunHandle[Any]:
        await self._gateway.check_replay(run.id, run_id, past)
        if not await create_with_past(self._base, run_id, past):
            existing, _ = await self._base.require(started.id)
            raise AlreadyExists(started.id, existing.status, "fork")
        self._gateway.created(run_id, started)
        return self._handle(started.id, run_id, started)

    async def retry(self, id: str, *, max_rounds: int | None = None, by: str | None = None) -> RunHandle[Any]:
        """Continue a failed or cancelled run from where it failed, and keep all that succeeded.

        It continues under the same id as a new incarnation. What failed is tried again with its whole retry policy and
        the same idempotency key. Of a batch, also of one that completed, the rows run that failed, and those that never
        ran. Raises CannotRetry, before anything is executed, when the run would get no further.
        `max_rounds`: how many rounds the loops of a graph may have from now on. `by` is who asks for it.
        """
        person = check_text(by, "by")
        if max_rounds is not None and (
            isinstance(max_rounds, bool) or not isinstance(max_rounds, int) or max_rounds < 1
        ):
            raise UsageError(f"retry({id!r}, max_rounds={max_rounds!r:.80}): it is a whole number from 1 on")
        run, batches = await self.origin(id)
        failed = _failed_rows(run, batches)
        if run.status not in (RunStatus.FAILED, RunStatus.CANCELLED) and not failed:
            raise CannotRetry(run.id, run.status, _HINTS.get(run.status, "wait for its end, or fork it"))
        now = self._base.clock.now()
        before = forks.started_of(batches)
        started = forks.beginning(
            batches,
            run.run_id,
            now,
            incarnation=run.incarnation + 1,
            keys=before.keys or run.run_id,
            max_rounds=max_rounds or before.max_rounds,
        )
        run_id = self._base.new_run_id(now)
        if run.program.endswith(BATCH):
            past = rerun(batches, (), {}, started, now, items=dict.fromkeys(failed, ""))
        else:
            past = await self._retried(run.id, run_id, batches, started, now)
        if await create_with_past(self._base, run_id, forks.asked_by(past, person)):
            self._gateway.created(run_id, started)
            return self._handle(run.id, run_id, started)
        # Another caller has retried it, or started another run under its id.
        latest, _ = await self._base.require(run.id)
        if latest.forked_from != run.run_id:
            raise AlreadyExists(run.id, latest.status, "retry")
        return self._handle(run.id, latest.run_id, started)

    async def _retried(
        self, id: str, run_id: str, batches: Sequence[Batch], started: RunStarted, now: float
    ) -> list[Batch]:
        """The journal of the next incarnation: the first candidate that the code fits."""
        candidates = withdrawals(batches)
        refused: CannotRetry | None = None
        for without in candidates:
            past = retried(batches, without, started, now)
            try:
                if await self._gateway.check_replay(id, run_id, past, batches):
                    return past
            except CannotRetry as error:
                refused = refused or error
        if refused is not None:
            raise refused
        # Without the code, check only that something is called again; otherwise the run would fail in the same way.
        without = next((one for one in candidates if one.ops), candidates[0])
        return retried(batches, without, started, now)

    async def keep_chunk(self, run_id: str, started: RunStarted, flow: Dataflow | None) -> int:
        """Give the run of a chunk the outcomes of the run that it continues, and return how many.

        That is the run of the same chunk in the run that its parent continues, or in the last one before where it ran.
        """
        call = started.remote
        assert call is not None
        assert call.map is not None
        base, path = call.op.rpartition("[")[0].rpartition("/")[2], ""
        if call.map.again:
            number, _, rest = call.map.again.partition("/")
            path = f"{base}[{number}]/{rest}".rstrip("/")
        inputs, values = await self._edits_of_chunk(started.parent, call.op)
        former = await self._former_chunk(call.map.past, call.op, end=True)
        if former is None:
            # It was pruned: all items run again, one of them perhaps with other arguments.
            given = [RunForked(call.map.past, 0, inputs=inputs)] if inputs else []
            await self._messages.send_decided(run_id, lambda state: given)
            return 0
        now = self._base.clock.now()
        if started.memo:
            past = memoized(former, started, now)
        else:
            began = {op: one.began for op, one in ops(former).items()}
            edited = [one for one in (path, *values) if one]
            again = {op for op in began if op == path or any(op.startswith(f"{one}/") for one in edited)}
            again |= {op for one in edited if flow is not None for op in flow.affected(one, began)}
            past = rerun(former, again - values.keys(), await self._outcomes(values), started, now, inputs=inputs)
        kept: list[OutcomeKept | RunForked] = []
        for event in past[0].events:
            # Without the steps of the run itself, which reported the results of its items.
            if isinstance(event, OutcomeKept) and not event.op.startswith("<"):
                value = await self._base.payloads.load(event.blob, event.value)
                kept.append(msgspec.structs.replace(event, value=value))
            elif isinstance(event, RunForked) and event.inputs:
                kept.append(event)
        # A repeated attempt finds them in the journal.
        await self._messages.send_decided(run_id, lambda state: [] if state.kept is not None else kept)
        return len(kept)

    async def _former_chunk(self, origin: str, op: str, *, end: bool = False) -> Sequence[Batch] | None:
        """The journal of a chunk in this run, or in the last one before it where the chunk ran; `end` it first."""
        store = self._base.store
        while True:
            found = await store.runs.find(step_key(origin, op))
            before = await store.runs.get(origin)
            if found is not None:
                former = found[0]
                if end and not former.status.finished and (before is None or before.status.finished):
                    # Its parent no longer waits for it. Let its running items end, and keep their outcomes.
                    await self._messages.cancel(former.run_id, DRAIN)
                    await self._base.watch.wait_for_end(former.run_id)
                batches = await store.journal.read(former.run_id)
                if _has_kept(batches):
                    return batches
            if before is None or not before.forked_from:
                return None
            origin = before.forked_from

    async def _in_chunk(self, run_id: str, chunk: str, path: str) -> dict[str, Op]:
        """The ops of a chunk, by their paths in the run of its map. Raises NoSuchOp if this path is not among them."""
        batches = await self._former_chunk(run_id, chunk) or ()
        within = chunk[: chunk.rfind("/") + 1]
        found = {within + op: one for op, one in ops(batches).items() if not op.startswith("<")}
        if path not in found:
            raise NoSuchOp(path, tuple(found))
        return found

    async def _edits_of_chunk(self, parent: str, chunk: str) -> tuple[dict[str, dict[str, Raw]] | None, dict[str, Raw]]:
        """The edited arguments and outcomes for ops of a chunk, by their paths in the chunk."""
        inputs: dict[str, dict[str, Raw]] = {}
        values: dict[str, Raw] = {}
        within = chunk.rfind("/") + 1
        for batch in await self._base.store.journal.read(parent):
            for event in batch.events:
                if isinstance(event, RunForked):
                    for given, found in ((event.inputs, inputs), (event.values, values)):
                        of_chunk = {op[within:]: one for op, one in (given or {}).items() if chunk_of(op, [chunk])[0]}
                        found.update(of_chunk)  # type: ignore[arg-type]
        return inputs or None, values

    # --- in common ------------------------------------------------------------------------------------------------

    async def origin(self, id: str) -> tuple[RunRow, Sequence[Batch]]:
        """A run that another one can be forked from, and its journal."""
        run, _ = await self._base.require(id)
        if run.root:
            path = child_path(run)
            raise UsageError(f"{id!r} is a child; name the run at the top, {run.root}, and the op in it, {path}/...")
        if run.program.startswith(BUILT_IN):
            raise UsageError(f"{id!r} is a run of {run.program}, which is built in and cannot be forked")
        return run, await self._base.store.journal.read(run.run_id)

    async def _fork(
        self,
        run: RunRow,
        batches: Sequence[Batch],
        point: Point,
        new_id: str | None,
        changes: Mapping[str, Any],
        by: str | None,
        **edits: Any,
    ) -> RunHandle[Any]:
        now = self._base.clock.now()
        run_id = self._base.new_run_id(now)
        id = run_id if new_id is None else check_id(new_id)
        started = forks.beginning(batches, run.run_id, now, id=id, **changes)
        past = forks.asked_by(forks.fork(batches, point, started, now, **edits), check_text(by, "by"))
        if not await self._gateway.check_replay(run.id, run_id, past):
            _check_values(run.id, batches, edits.get("values") or {})
        if not await create_with_past(self._base, run_id, past):
            existing, _ = await self._base.require(id)
            raise AlreadyExists(id, existing.status, "fork")
        self._gateway.created(run_id, started)
        return self._handle(id, run_id, started)

    def _handle(self, id: str, run_id: str, started: RunStarted) -> RunHandle[Any]:
        return self._handles.of(id, run_id, self._gateway.find_program(started.program, started.version))

    def _encoded(self, values: Mapping[str, Any]) -> dict[str, Raw]:
        return {name: Raw(self._base.codec.encode(value, f"the value of {name!r}")) for name, value in values.items()}

    async def _outcomes(self, edited: Mapping[str, Any]) -> dict[str, Value]:
        values = {}
        for path, value in edited.items():
            data, what = self._base.codec.encode(value, f"the value of {path}"), f"the value of {path}"
            if parts_of(data) is not None:  # items as `values` gives them
                data = bytes(await self._base.items.whole(Raw(data), self._base.codec.limit))
            inline = self._base.payloads.fits_inline(len(data), what)
            values[path] = Value(Raw(data), "" if inline else await self._base.payloads.offload(data, what))
        return values

    async def _input(self, run: RunRow, batches: Sequence[Batch], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The input of the run with some arguments changed."""
        input = (await self._base.payloads.with_input(batches)).input
        arguments = _arguments.decode(named_input(input, forks.claimed_names(batches)))
        if isinstance(arguments, list):
            raise UsageError(
                f"run {run.id!r} was started with arguments by position, so they cannot be changed by name"
            )
        data, what = msgspec.json.encode({**arguments, **self._encoded(inputs)}), f"the input of {run.program}"
        program = self._gateway.find_program(run.program, run.version)
        if program is not None and program.dataflow is not None:
            try:
                program.check_input(Raw(data), self._base.codec)
            except NotDecodable as error:
                raise refused(run.id, error) from error
        if self._base.payloads.fits_inline(len(data), what):
            return {"input": Raw(data), "input_blob": ""}
        return {"input": Raw(b"null"), "input_blob": await self._base.payloads.offload(data, what)}


async def create_with_past(base: StoreClient, run_id: str, past: Sequence[Batch]) -> bool:
    """Put a run with a past into the store; False when its id is not free."""
    await keep_blobs(base, run_id, past)
    return await base.append(create(run_id, past))


async def keep_blobs(base: StoreClient, run_id: str, past: Sequence[Batch]) -> None:
    """Ensure that the blobs of a past are in the store when its run is."""
    for blob in blobs_of(list(past)):
        # Put it again, so that it stays even if its run is pruned at this moment.
        data = await base.store.blobs.get(blob)
        if data is None:
            raise Corrupt(f"the blob {blob}", "it is missing", run_id)
        await base.store.blobs.put(data)


_HINTS = {
    RunStatus.COMPLETED: "fork it to continue from another point",
    RunStatus.BAILED: "fork it to continue from another point",
    RunStatus.PARKED: "deploy code that fits it, and it continues by itself",
    RunStatus.PAUSED: "resume it",
}


def _check_values(id: str, batches: Sequence[Batch], values: Mapping[str, Value]) -> None:
    """Without the code: refuse signals and answers that do not fit the recorded types."""
    found = ops(batches)
    edited = {find(found, path).path: value for path, value in values.items()}
    for event in events_in(batches):
        if isinstance(event, WaitOpened) and event.op in edited and event.schema != NULL:
            wrong = misfit(bytes(event.schema), msgspec.json.decode(edited[event.op].data))
            if wrong is not None:
                raise ForkRefused(id, f"the value of {event.op} does not fit: {wrong[0]} {wrong[1]}", _OTHER_VALUE)


_UPDATED = "update_state() continues it as a new incarnation"
_OTHER_VALUE = "Give a value of the type that the code reads there"


def refused(id: str, error: Exception) -> Exception:
    """The error for a caller whose fork does not replay."""
    if isinstance(error, NotDecodable):
        return ForkRefused(id, f"{error.what} cannot be read as {error.type}: {error.reason}", _OTHER_VALUE)
    reason = str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
    return error if isinstance(error, UsageError) else ForkRefused(id, reason.rstrip("."))


def _ran(found: Mapping[str, Op], began: Mapping[str, int]) -> dict[str, int]:
    """The ops, except for those that a condition skipped, which have no value."""
    return {path: at for path, at in began.items() if found[path].kind != "when"}


def _items_of_chunks(values: Mapping[str, Any], batches: Sequence[Batch]) -> bool:
    """Whether one of these names is that of an item in a chunk, or of an op in one."""
    if not any("[" in name for name in values):
        return False
    found = ops(batches)
    return any(name not in found and chunk_of(name, found)[0] for name in values)


def _check_given(name: str, value: Any, found: Mapping[str, Op]) -> None:
    """Refuse a value for an op whose outcome is no value."""
    numbers = chunk_range(name) if name in found else None
    if numbers is not None:
        item = f"{name[: name.rindex('[')]}[{numbers[0]}]"
        raise UsageError(f"{name} is a chunk of a map; give values to its items, such as {item}, or to the map")
    if name in found and found[name].kind == "when" and not isinstance(value, bool):
        raise UsageError(f"{name} was skipped by its `when`, and made no value; give True, and it runs")


def _has_kept(batches: Sequence[Batch]) -> bool:
    """Whether a chunk took over the outcomes that it keeps; a chunk that was cancelled before that has no results."""
    started = forks.started_of(batches)
    if started.remote is None or started.remote.map is None or not started.remote.map.past:
        return True
    return any(isinstance(event, StepSucceeded) and event.op == KEEP for event in events_in(batches))


def _failed_rows(run: RunRow, batches: Sequence[Batch]) -> list[str]:
    """The chunks with failed rows of a batch that has ended."""
    if not run.program.endswith(BATCH) or not run.status.finished:
        return []
    found = chunks(batches, OP)
    return [one.path for one in found if one.outcome is not None and one.outcome.failed]


def _place(at: str | int) -> str | int:
    if isinstance(at, bool) or not isinstance(at, str | int):
        raise UsageError(f"at={at!r} is neither an op path, such as 'charge:0', nor the number of an event")
    return at
