"""Resolve parked runs: let them continue, or end them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.forking import Forks
from perdure.client.gateway import RunGateway, decided
from perdure.client.messages import Messages
from perdure.errors import FailedByHand, ForkRefused, NoSuchRun, UsageError
from perdure.kernel import inbound
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.history import fork as forks
from perdure.kernel.history import rewind
from perdure.kernel.history.rewind import Truncated
from perdure.kernel.ids import MAX_REASON, check_text, check_version, step_key
from perdure.kernel.inbound import UNDECIDED, Accepted, Decided, Finished, Undecided
from perdure.kernel.projection import RunRow, row
from perdure.kernel.state import RunState, fold
from perdure.kernel.values.failures import describe
from perdure.ports.appends import create, extend


class Resolver:
    """Resolves parked runs: lets them continue, or ends them."""

    def __init__(self, base: StoreClient, gateway: RunGateway, messages: Messages, forks: Forks) -> None:
        self._base, self._gateway, self._messages, self._forks = base, gateway, messages, forks

    async def resolve(
        self,
        id: str,
        *,
        version: str | None = None,
        fail: str | None = None,
        before: str | None = None,
        by: str | None = None,
    ) -> Accepted | Finished:
        """Continue a parked run: engines try it again at once.

        `version` pins the run to that version of its program; `fail` ends it as failed, for that reason. `before` lets
        it continue from right before an op, as a new incarnation under its id; the answer lists the steps that may be
        executed again. `by` is who decides, for its journal. Raises NotParked when the run is not parked.
        """
        if fail is not None and (version is not None or before is not None):
            raise UsageError("resolve(fail=...) takes no other option: a failed run does not continue")
        person = check_text(by, "by")
        pin = "" if version is None else check_version(version, "version")
        if before is not None:
            return await self._truncate(id, check_text(before, "before"), pin, person)
        why = check_text(fail, "the reason", MAX_REASON)
        failure = None if fail is None else describe(FailedByHand(why or "no reason was given"), self._base.codec)

        def decide(state: RunState, child: str) -> inbound.Events | Finished:
            return inbound.resolve(state, pin, failure, child, person)

        return await self._messages.tell_known(id, decide)

    async def _truncate(self, id: str, op: str, version: str, by: str) -> Truncated | Finished:
        """End a parked run, and continue from before an op in a new journal, in one commit."""

        async def attempt() -> Decided[Truncated | Finished] | Undecided:
            run, batches = await self._forks.origin(id)
            state = fold(run.run_id, batches)
            now = self._base.clock.now()
            run_id = self._base.new_run_id(now)
            ending = rewind.end(state, op, run_id)
            if isinstance(ending, Finished):
                return Decided(ending)
            await self._check_latest(run)
            past = forks.asked_by(await self._past_before(run, run_id, batches, op, version, now), by)
            remote = [path for path, open_op in state.ops.items() if open_op.kind == "remote"]
            self._base.states.forget(run.run_id)
            append = extend(state, ending, now)
            if not await self._base.append(replace(append, starts=[create(run_id, past)])):
                return UNDECIDED  # a caller sent it something, or an engine loaded it
            started = past[0].events[0]
            assert isinstance(started, RunStarted)
            self._gateway.created(run_id, started)
            self._base.watch.resolve(row(state))
            for path in remote:
                # Its worker makes it for a run that has ended.
                with suppress(NoSuchRun):
                    await self._messages.cancel(step_key(run.run_id, path), "its run continues from before it")
            return Decided(Truncated(run_id, rewind.forgotten(batches, past)))

        return await decided(attempt)

    async def _past_before(
        self, run: RunRow, run_id: str, batches: Sequence[Batch], op: str, version: str, now: float
    ) -> list[Batch]:
        """The longest past before an op that the code fits; if the code is not here, the longest there is."""
        changes = {"version": version} if version else {}
        started = forks.beginning(
            batches,
            run.run_id,
            now,
            incarnation=run.incarnation + 1,
            parent=forks.started_of(batches).parent,
            continued_from=run.run_id,
            **changes,
        )
        *more, last = rewind.points(batches, op)
        for point in more:
            past = rewind.truncate(batches, point, started, now)
            try:
                await self._gateway.check_replay(run.id, run_id, past)
                return past
            except ForkRefused:
                continue
        # If this does not fit either, the run is parked again, and says why.
        return rewind.truncate(batches, last, started, now)

    async def _check_latest(self, run: RunRow) -> None:
        latest, _ = await self._base.require(run.id)
        if latest.run_id != run.run_id:
            raise UsageError(
                f"{run.run_id} is not the latest run under the id {run.id!r}; pass the id, or fork this one"
            )
