"""Send messages to runs: signals, answers, cancellations, pauses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.chunks import ChunkReader
from perdure.client.gateway import RunGateway, decided
from perdure.engine.turns import Turns
from perdure.errors import AnswerRejected, NoSuchRun, NotDecodable, SignalRejected, StepCancelled, UsageError
from perdure.kernel import inbound
from perdure.kernel.chunks import MAP, open_chunks
from perdure.kernel.events import NULL, AnyEvent, RunStatus, StepFailed, StepSkipped, StepSucceeded
from perdure.kernel.history.questions import closed
from perdure.kernel.ids import INPUT, MAX_REASON, REMOTE, check_name, check_text, check_trace, generated_id
from perdure.kernel.inbound import (
    UNDECIDED,
    Accepted,
    AlreadyFinished,
    Cancelled,
    Decide,
    Decided,
    Duplicate,
    Finished,
    NotFound,
    Undecided,
)
from perdure.kernel.policies.durability import durability as durability_of
from perdure.kernel.projection import child_path
from perdure.kernel.state import OpenOp, RunState, fold
from perdure.kernel.values.arguments import digest_alone
from perdure.kernel.values.failures import describe
from perdure.kernel.values.items import has_references
from perdure.kernel.values.signatures import misfit

V = TypeVar("V")
# Decides about an approval, by its name or its path.
Resolve: TypeAlias = Callable[[str, RunState, str], inbound.Events | Duplicate | NotFound | Finished]


class _WithChunks(Generic[V]):
    """A decision about a run, and the runs of its chunks then, which are sent the same afterwards."""

    def __init__(
        self,
        decide: Callable[[RunState, str], inbound.Events | V],
        applies: Callable[[RunState], bool] = lambda state: True,
    ) -> None:
        self._decide, self._applies = decide, applies
        self.chunks: Collection[str] = ()

    def __call__(self, state: RunState, child: str = "") -> inbound.Events | V:
        self.chunks = open_chunks(state).values() if self._applies(state) else ()
        return self._decide(state, child)


class Messages:
    """Sends messages to runs."""

    def __init__(self, base: StoreClient, gateway: RunGateway) -> None:
        self._base, self._gateway = base, gateway
        # The trace that a caller is in, where spans are on.
        self.trace_of_caller: Callable[[], str | None] | None = None

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None, *, trace: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` deduplicates it.

        `trace` is the trace that the caller is in, as a `traceparent`. Raises SignalRejected when the run waits for a
        signal of this name and of another type.
        """
        name = check_name(name, "the name of a signal")
        data = self._base.codec.encode(payload, f"the payload of the signal {name!r}")
        self._base.payloads.fits_inline(len(data), f"the payload of the signal {name!r}")
        key = _key(signal_id, "signal_id")
        check = partial(_check_signal, payload=data, name=name)
        if trace is None and self.trace_of_caller is not None:
            trace = self.trace_of_caller()
        traced = "" if trace is None else check_trace(trace)

        def decide(state: RunState, child: str) -> inbound.Events | Duplicate | Finished:
            return inbound.signal(state, name, Raw(data), key, child, check, traced)

        return _unless_own(await self.tell(id, decide), signal_id)

    async def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run its next input, durably: `async for input in inputs()` in its body receives inputs in order.

        An `input_id` deduplicates it. Raises SignalRejected when the run waits for an input of another type.
        """
        return await self.signal(id, name, input, input_id)

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path.

        Raises AnswerRejected when the answer does not fit the schema, when `by` is not one of the approvers, and for a
        name that several open approvals have: the message lists their paths.
        """
        name = check_text(name, "the name of an approval")
        data = self._base.codec.encode(payload, f"the answer to {name!r}")
        self._base.payloads.fits_inline(len(data), f"the answer to {name!r}")
        key, person = _key(approval_id, "approval_id"), check_text(by, "by")

        def decide(name: str, state: RunState, child: str) -> inbound.Events | Duplicate | NotFound | Finished:
            now = self._base.clock.now()
            check = partial(_check_answer, answer=data)
            return inbound.answer(state, name, Raw(data), key, person, now, check, child)

        return _unless_own(await self._resolve(id, name, decide), approval_id)

    async def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Reject an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
        name = check_text(name, "the name of an approval")
        why = check_text(reason, "the reason", MAX_REASON)
        key, person = _key(approval_id, "approval_id"), check_text(by, "by")

        def decide(name: str, state: RunState, child: str) -> inbound.Events | Duplicate | NotFound | Finished:
            return inbound.reject(state, name, why, key, person, self._base.clock.now(), child)

        return _unless_own(await self._resolve(id, name, decide), approval_id)

    async def _resolve(self, id: str, name: str, decide: Resolve) -> Accepted | Duplicate | NotFound | Finished:
        """Resolve an approval of a run, or of one of its chunks."""
        verdict: Accepted | Duplicate | NotFound | Finished
        verdict = await self.tell(id, lambda state, child: decide(name, state, child))
        found = None if isinstance(verdict, Accepted | Duplicate) else await self._base.find(id)
        if found is None:
            return verdict
        run = found[0]
        if run.root:
            return await self._explained(verdict, run.root, name, child_path(run))
        store, run_id = self._base.store, run.run_id
        if (asked_there := await self._base.chunk_with(run_id, name)) is not None:
            # Also one that has ended: it knows the answers that it got.
            run_of_chunk, path = asked_there
            found_there = await self.tell(run_of_chunk, lambda state, child: decide(path, state, child))
            if isinstance(found_there, Accepted | Duplicate):
                return found_there
            return await self._explained(verdict, run_of_chunk, path)
        chunks = await ChunkReader(store).under_way(fold(run_id, await store.journal.read(run_id)))
        asked = [(chunk, op) for chunk in chunks for op in chunk.questions(name)]
        if len(asked) > 1:
            paths = ", ".join(f"{chunk.scope}{op}" for chunk, op in asked[:10])
            raise AnswerRejected(name, "", f"it is asked more than once: {paths}; give the path of one of them")
        for chunk, op in asked:
            verdict = await self.tell(chunk.state.run_id, lambda state, child, op=op: decide(op, state, child))  # type: ignore[misc]
        return await self._explained(verdict, run_id, name)

    async def _explained(
        self, verdict: Accepted | Duplicate | NotFound | Finished, run_id: str, name: str, child: str = ""
    ) -> Accepted | Duplicate | NotFound | Finished:
        """The verdict; of a question that is no longer open, with what became of it."""
        if not isinstance(verdict, NotFound):
            return verdict
        return NotFound(closed(await self._base.store.journal.read(run_id), name, child))

    async def cancel(self, id: str, reason: str | None = None, *, by: str | None = None) -> Cancelled | AlreadyFinished:
        """Cancel a run: its body gets a CancelledError and may clean up. Either the cancel or the completion wins.

        `by` is who asks, for its journal.
        """
        why, person = check_text(reason, "the reason", MAX_REASON), check_text(by, "by")
        await self._report_cancelled(id, why)
        with_chunks = _WithChunks(
            lambda state, child: inbound.cancel(state, why, child, person),
            lambda state: state.parked is not None,  # else its owner cancels them
        )
        verdict = await self.tell_known(id, with_chunks)
        for chunk in with_chunks.chunks:
            await self.cancel(chunk, why, by=by)
        return Cancelled() if isinstance(verdict, Accepted) else verdict

    async def pause(self, id: str, reason: str | None = None, *, by: str | None = None) -> Accepted | Finished:
        """Pause a run: no new step starts; running ones finish, and their outcomes are kept. `by` is who pauses it."""
        why, person = check_text(reason, "the reason", MAX_REASON), check_text(by, "by")
        with_chunks = _WithChunks(lambda state, child: inbound.pause(state, why, child, person))
        verdict = await self.tell_known(id, with_chunks)
        for chunk in with_chunks.chunks:
            await self.pause(chunk, why, by=by)
        return verdict

    async def resume(self, id: str, *, by: str | None = None) -> Accepted | Finished:
        """Continue a paused run. `by` is who resumes it."""
        person = check_text(by, "by")
        with_chunks = _WithChunks(lambda state, child: inbound.resume(state, child, person))
        verdict = await self.tell_known(id, with_chunks)
        for chunk in with_chunks.chunks:
            await self.resume(chunk, by=by)
        return verdict

    async def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far, and return the number of the next event.

        This is for the lazy durability modes; in the others everything is durable already. An engine that owns the run
        also stores a snapshot, so that the next owner replays less. A client cannot write the memory of another
        process: the UsageError names the owner.
        """
        base = self._base
        run, head = await base.require(id)
        run_id = run.root or run.run_id
        if run.root:
            run = await base.store.runs.get(run_id) or run
        flushed = await self._gateway.flush(run)
        if flushed is not None:
            return flushed
        began = fold(run_id, await base.store.journal.read(run_id, 0, 1)).started
        lazy = began is not None and not durability_of(began.durability).waits
        if lazy and run.status is RunStatus.RUNNING:
            owner = f"{run.owner!r} owns it" if run.owner else "no engine has it at the moment"
            raise UsageError(
                f"run {run.id!r} is under way in another process ({owner}), whose memory cannot be written from here; "
                "call checkpoint() there, or `await checkpoint()` in the workflow"
            )
        return head.next_seq

    async def terminate(self, run_id: str, reason: str) -> None:
        """End a run by an event of its own, whichever orchestrator owns it. Of this and its completion one wins."""
        with_chunks = _WithChunks(lambda state, child: inbound.terminate(state, reason))
        await self.send_decided(run_id, with_chunks)
        for chunk in with_chunks.chunks:
            await self.cancel(chunk, reason)

    async def _report_cancelled(self, id: str, reason: str) -> None:
        """If a run is that of a remote step, report to its parent first: the step may never begin."""
        found = await self._base.find(id)
        if found is not None and found[0].program.startswith((REMOTE, MAP)) and found[0].finished_at is None:
            run = found[0]
            op = run.id.removeprefix(run.parent + "/")
            error = describe(StepCancelled(op, reason or "its run was cancelled"), self._base.codec)
            await self.report(run.parent, StepFailed(op, 1, error))

    async def report(self, run_id: str, outcome: StepSucceeded | StepFailed | StepSkipped) -> str:
        """Send a run the outcome of its remote step. Returns `accepted` or `dropped`."""
        if isinstance(outcome, StepSucceeded):
            what = f"the result of {outcome.op}"
            data = bytes(outcome.value)
            inline = self._base.payloads.fits_inline(len(data), what) or has_references(data)
            if not inline:
                blob = await self._base.payloads.offload(data, what)
                outcome = replace(outcome, blob=blob, digest=digest_alone(data))
        verdict = await self.send_decided(run_id, lambda state: inbound.report(state, outcome))
        return "accepted" if isinstance(verdict, Accepted) else "dropped"

    async def tell(self, id: str, decide: Callable[[RunState, str], Sequence[AnyEvent] | V]) -> V | Accepted | NotFound:
        """Append the events that `decide` returns for the state of a run: Accepted, or why nothing was appended.

        A message to a child goes through the journal of its root, with the op path of the child.
        """
        warm = await self._gateway.find_warm(id)
        if warm is not None:
            outcome = await self._gateway.tell(warm, lambda state: decide(state, ""))
            if isinstance(outcome, Decided) and not isinstance(outcome.value, Finished | AlreadyFinished):
                return outcome.value

        async def attempt() -> Decided[V | Accepted | NotFound] | Undecided:
            found = await self._base.find(id)
            if found is None:
                return Decided(NotFound())
            run = found[0]
            child = child_path(run)
            await self._gateway.load(run)
            verdict = await self.send_decided(run.root or run.run_id, lambda state: decide(state, child))
            if isinstance(verdict, Finished | AlreadyFinished) and id != run.run_id:
                # The run may have continued under the same id meanwhile.
                latest = await self._base.find(id)
                if latest is not None and latest[0].run_id != run.run_id:
                    return UNDECIDED
            return Decided(verdict)

        return await decided(attempt)

    async def tell_known(self, id: str, decide: Callable[[RunState, str], Sequence[AnyEvent] | V]) -> V | Accepted:
        """As `tell`; raises NoSuchRun when there is no such run."""
        verdict = await self.tell(id, decide)
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return verdict

    async def send_decided(self, run_id: str, decide: Decide[V]) -> V | Accepted:
        """Append the events that `decide` returns for a root run. A caller that keeps losing asks for its turn."""
        first = await self._gateway.tell(run_id, decide)
        if isinstance(first, Decided):
            return first.value
        turns = Turns(self._base.leases, self._base.clock, f"caller#{secrets.token_hex(8)}")

        async def attempt() -> Decided[V | Accepted] | Undecided:
            turns.lose(run_id)
            await turns.reserve(run_id)
            return await self._gateway.tell(run_id, decide, turns.owner)

        try:
            return await decided(attempt)
        finally:
            await turns.end(run_id)


def _key(given: str | None, what: str) -> str:
    """The id of a message. Without one of the caller's it is generated, because a write may be tried again."""
    return check_text(given, what) or generated_id(secrets.token_hex(8))


def _unless_own(
    verdict: Accepted | Duplicate | NotFound | Finished, given: str | None
) -> Accepted | Duplicate | NotFound | Finished:
    """The answer for the caller: a Duplicate of a generated id is this call's own retried write, and was accepted."""
    return Accepted() if isinstance(verdict, Duplicate) and not given else verdict


def _check_answer(wait: OpenOp, answer: bytes) -> None:
    """Raise AnswerRejected when an answer does not fit what was asked."""
    if found := _misfit(wait, answer):
        raise AnswerRejected(wait.name, *found)


def _check_signal(wait: OpenOp, payload: bytes, name: str) -> None:
    """Raise SignalRejected when a signal does not fit the type that a run waits for."""
    if found := _misfit(wait, payload):
        raise SignalRejected(name, *found)


def _misfit(wait: OpenOp, value: bytes) -> tuple[str, str] | None:
    """Where a value does not fit an open wait, and why.

    The code of the run decides, where an engine has it in memory: it may have changed since the wait was opened.
    """
    if wait.reads is not None:
        try:
            wait.reads(Raw(value))
        except NotDecodable as error:
            return _by_schema(wait, value) or ("$", error.reason)
        return None
    return _by_schema(wait, value)


def _by_schema(wait: OpenOp, value: bytes) -> tuple[str, str] | None:
    if wait.opened is None or wait.opened.schema == NULL:
        return None
    return misfit(bytes(wait.opened.schema), msgspec.json.decode(value))
