"""What callers tell a run: signals, answers, cancels, pauses."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from perdure.client.base import Connection
from perdure.client.state_cache import check_answer, check_signal
from perdure.engine.outbox import extend
from perdure.engine.turns import CROWD, Turns, wait_for_turn
from perdure.errors import NoSuchRun, StepCancelled
from perdure.kernel import inbound
from perdure.kernel.events import StepFailed, StepSkipped, StepSucceeded
from perdure.kernel.ids import INPUT, MAX_REASON, REMOTE, check_name, check_text, generated_id
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.projection import RunRow, child_path, row
from perdure.kernel.state import RunState
from perdure.kernel.values.failures import describe


class Telling(Connection):
    """Sends runs what comes to them from outside."""

    async def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably. It is kept until the run waits for it; a `signal_id` makes it arrive once.

        Raises SignalRejected when the run waits for a signal of this name and this one is not of the type it waits for.
        """
        check_name(name, "the name of a signal")
        data = self.codec.encode(payload, f"the payload of the signal {name!r}")
        self.payloads.fits_inline(len(data), f"the payload of the signal {name!r}")
        key = _key(signal_id, "signal_id")
        check = partial(check_signal, payload=data)

        def decide(state: RunState, child: str) -> Any:
            return inbound.signal(state, name, Raw(data), key, child, check)

        return _own(await self._tell(id, decide), signal_id)

    async def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Give a run its next input, durably: what `async for input in inputs()` in its body takes, in order.

        An `input_id` makes it count once. Raises SignalRejected when the run waits for an input of another type.
        """
        return await self.signal(id, name, input, input_id)

    async def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run, by its name or its path; of several of one name, the oldest.

        Raises AnswerRejected when the answer does not fit what was asked, or `by` is not among those who may answer.
        """
        check_text(name, "the name of an approval")
        data = self.codec.encode(payload, f"the answer to {name!r}")
        self.payloads.fits_inline(len(data), f"the answer to {name!r}")
        key, person = _key(approval_id, "approval_id"), check_text(by, "by")

        def decide(state: RunState, child: str) -> Any:
            now = self.clock.now()
            check = partial(check_answer, answer=data)
            return inbound.answer(state, name, Raw(data), key, person, now, check, child)

        return _own(await self._tell(id, decide), approval_id)

    async def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Say no to an open approval of a run: its body gets an ApprovalRejected. The rules are those of `approve`."""
        check_text(name, "the name of an approval")
        why = check_text(reason, "the reason", MAX_REASON)
        key, person = _key(approval_id, "approval_id"), check_text(by, "by")

        def decide(state: RunState, child: str) -> Any:
            return inbound.reject(state, name, why, key, person, self.clock.now(), child)

        verdict = await self._tell(id, decide)
        return _own(verdict, approval_id)

    async def cancel(self, id: str, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end. Its body gets a CancelledError and may clean up. Of this and its completion one wins."""
        why = check_text(reason, "the reason", MAX_REASON)
        await self._report_cancelled(id, why)
        verdict: Accepted | AlreadyFinished | NotFound
        verdict = await self._tell(id, lambda state, child: inbound.cancel(state, why, child))
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return Cancelled() if isinstance(verdict, Accepted) else verdict

    async def pause(self, id: str, reason: str | None = None) -> Accepted | Finished:
        """Let no new step of a run begin. Steps under way go on, and their outcomes are kept."""
        why = check_text(reason, "the reason", MAX_REASON)
        verdict: Accepted | NotFound | Finished
        verdict = await self._tell(id, lambda state, child: inbound.pause(state, why, child))
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return verdict

    async def resume(self, id: str) -> Accepted | Finished:
        """Let a paused run go on."""
        verdict: Accepted | NotFound | Finished = await self._tell(id, inbound.resume)
        if isinstance(verdict, NotFound):
            raise NoSuchRun(id)
        return verdict

    async def _report_cancelled(self, id: str, reason: str) -> None:
        """Where a run is a remote step, tell its parent first: nobody else may come to it."""
        found = await self._find(id)
        if found is not None and found[0].program.startswith(REMOTE) and found[0].finished_at is None:
            run = found[0]
            op = run.id.removeprefix(run.parent + "/")
            error = describe(StepCancelled(op, reason or "its run was cancelled"), self.codec)
            await self._report(run.parent, StepFailed(op, 1, error))

    async def _report(self, run_id: str, outcome: StepSucceeded | StepFailed | StepSkipped) -> str:
        """Tell a run what came of its remote step, and say whether it counted."""
        if isinstance(outcome, StepSucceeded):
            what = f"the result of {outcome.op}"
            if not self.payloads.fits_inline(len(outcome.value), what):
                outcome = replace(outcome, blob=await self.payloads.offload(bytes(outcome.value), what))
        verdict = await self._tell_in_turn(run_id, lambda state: inbound.report(state, outcome))
        return "accepted" if isinstance(verdict, Accepted) else "dropped"

    async def _tell(self, id: str, decide: Callable[[RunState, str], Any]) -> Any:
        """Append what `decide` makes of the run's journal, and say Accepted; or say why nothing was appended.

        A child is told through the journal of its root, and is named by its op path in it.
        """
        here = await self._at_hand(id)
        if here is not None:
            verdict = await self._try_to_tell(here, partial(_to, decide, ""))
            if verdict is not None and not isinstance(verdict, Finished | AlreadyFinished):
                return verdict
        found = await self._find(id)
        if found is None:
            return NotFound()
        run = found[0]
        root, child = run.root or run.run_id, child_path(run)
        await self._bring(run)
        while True:
            verdict = await self._tell_in_turn(root, partial(_to, decide, child))
            if isinstance(verdict, Finished | AlreadyFinished) and id != run.run_id:
                # It may go on under the same id meanwhile.
                found = await self._find(id)
                if found is not None and found[0].run_id != run.run_id:
                    run = found[0]
                    root, child = run.root or run.run_id, child_path(run)
                    continue
            return verdict

    async def _at_hand(self, id: str) -> str | None:
        """The run_id of the run of this id, where it is in memory or can be brought there without asking for it."""
        return None

    async def _bring(self, run: RunRow) -> None:
        """Have a run in memory that is about to be told something, where runs are executed."""

    async def _tell_in_turn(self, run_id: str, decide: Callable[[RunState], Any]) -> Any:
        """As `_try_to_tell`, until there is a verdict: a caller whose appends keep losing asks for its turn."""
        verdict = await self._try_to_tell(run_id, decide)
        if verdict is not None:
            return verdict
        turns = Turns(self._leases, self.clock, f"caller#{secrets.token_hex(8)}")
        try:
            while verdict is None:
                turns.lose(run_id)
                await turns.take(run_id)
                verdict = await self._try_to_tell(run_id, decide, turns.owner)
            return verdict
        finally:
            if turns.settle(run_id):
                await turns.give_back(run_id)

    async def _try_to_tell(self, run_id: str, decide: Callable[[RunState], Any], caller: str = "") -> Any:
        """As `_tell`; None when another event came first."""
        state = await self._states.read(self.store.journal, run_id)
        # The owner may be about to write, and have come too late each time.
        while state.told >= CROWD and await wait_for_turn(self._leases, self.clock, run_id, caller):
            self._states.remember(state)
            state = await self._states.read(self.store.journal, run_id)
        verdict = decide(state)
        if not isinstance(verdict, Sequence) or not verdict:
            self._states.remember(state)
            return verdict if not isinstance(verdict, Sequence) else Accepted()
        # What is in memory is ahead of the store until this is accepted.
        self._states.forget(run_id)
        if not await self._append(extend(state, verdict, self.clock.now())):
            return None
        self._states.remember(state)
        if state.finished is not None:
            self._ended_here(row(state))
        return Accepted()


def _key(given: str | None, what: str) -> str:
    """The id of what is sent: one of its own even if the caller has none, since a write may be tried again."""
    return check_text(given, what) or generated_id(secrets.token_hex(8))


def _own(
    verdict: Accepted | Duplicate | NotFound | Finished, given: str | None
) -> Accepted | Duplicate | NotFound | Finished:
    """What to tell a caller who gave no id: what has come before under an id that we made is this very call's."""
    return Accepted() if isinstance(verdict, Duplicate) and not given else verdict


def _to(decide: Callable[[RunState, str], Any], child: str, state: RunState) -> Any:
    return decide(state, child)
