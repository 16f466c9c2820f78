"""Messages that senders send to the runs of a simulation, and checks that the replies were true.

An answer is held against the store at the moment it is given: what is said to be accepted must be there by then, and
what is said to have ended must have ended so. A sender without a reply, because it was lost or a machine died, asks
again under the same id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.client.client import Client
from perdure.errors import AnswerRejected, NoSuchRun, StoreUnavailable, UsageError
from perdure.kernel.events import AnyEvent, RunPaused, RunStatus, SignalReceived, WaitResolved
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.testing.simulation.monitor import Monitor, Watched

Kind = Literal["signal", "approve", "reject", "cancel", "pause", "resume"]
Verdict = Accepted | Duplicate | NotFound | Finished | Cancelled | AlreadyFinished | AnswerRejected

# How long a sender waits before it asks again, and how often for a question that is not there yet.
AGAIN_SECONDS, ASK_TIMES = 0.3, 40


@dataclass(frozen=True, slots=True)
class Message:
    """One message to a run, sent `wait` virtual seconds after the reply to the previous one."""

    kind: Kind
    name: str = ""
    payload: Any = None
    run: str = "run-0"
    by: str = ""
    wait: float = 0.0


@dataclass(frozen=True, slots=True)
class Sender:
    """A sender that tells runs one thing after another; `local`, in the process that executes them.

    Messages are numbered under `ids`, so that two senders with the same `ids` send duplicates.
    """

    messages: Sequence[Message]
    local: bool = False
    ids: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """The final reply to a message. `id` is the id of the message."""

    sender: int
    message: Message
    id: str
    verdict: Verdict


@dataclass(slots=True)
class Sending:
    """A sender and its position in its messages, which survives the death of its machine."""

    number: int
    sender: Sender
    monitor: Monitor
    replies: list[Reply] = field(default_factory=list)
    _waited: bool = False

    @property
    def done(self) -> bool:
        """Whether every message has a reply."""
        return len(self.replies) == len(self.sender.messages)

    async def go_on(self, client: Client) -> None:
        """Send the messages without a reply, in order."""
        while not self.done:
            number = len(self.replies)
            message = self.sender.messages[number]
            if message.wait and not self._waited:
                await asyncio.sleep(message.wait)
            self._waited = True
            id = f"{self.sender.ids or f's{self.number}'}.{number}"
            verdict = await self._until_answered(client, message, id)
            self._waited = False
            self.monitor.note(f"sender-{self.number}", f"{message.kind} {message.name} {id}: {verdict!r}")
            self.replies.append(Reply(self.number, message, id, verdict))
            self._hold_against_the_store(message, id, verdict)

    async def _until_answered(self, client: Client, message: Message, id: str) -> Verdict:
        asked = 0
        while True:
            try:
                verdict = await _send(client, message, id)
                # A run that has not been started yet will be; a question may never be asked.
                asked += find(self.monitor, message.run) is not None
                if not isinstance(verdict, NotFound) or asked > ASK_TIMES:
                    return verdict
            except AnswerRejected as error:
                return error
            except (StoreUnavailable, NoSuchRun):
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    def _hold_against_the_store(self, message: Message, id: str, verdict: Verdict) -> None:
        problem = check(message, id, verdict, self.monitor)
        if problem:
            self.monitor.accuse(f"{message.kind} {message.name!r} {id} of {message.run}: {verdict!r}, but {problem}")


async def _send(client: Client, message: Message, id: str) -> Verdict:
    run = message.run
    match message.kind:
        case "signal":
            return await client.signal(run, message.name, message.payload, id)
        case "approve":
            return await client.approve(run, message.name, message.payload, id, message.by or None)
        case "reject":
            return await client.reject(run, message.name, message.payload, id, message.by or None)
        case "cancel":
            return await client.cancel(run, id)
        case "pause":
            return await client.pause(run, id)
        case "resume":
            try:
                return await client.resume(run)
            except UsageError:
                return Accepted()  # parked, not paused: nothing to resume


def find(monitor: Monitor, id: str) -> Watched | None:
    """The run of this id with its journal."""
    found = [w for w in monitor.runs.values() if w.state.started is not None and w.state.started.id == id]
    return found[-1] if found else None


def _chunks_of(monitor: Monitor, watched: Watched) -> list[Watched]:
    """The runs of the chunks of a run, whose journals have the answers to the questions of their items."""
    found = ((one, one.state.started) for one in monitor.runs.values())
    return [one for one, started in found if started is not None and started.parent == watched.state.run_id]


def check(message: Message, id: str, verdict: Verdict, monitor: Monitor) -> str:
    """What is wrong with a reply; empty if it is true."""
    watched = find(monitor, message.run)
    if watched is None:
        return "" if isinstance(verdict, NotFound) else "there is no such run"
    state = watched.state
    ended: RunStatus | None = state.finished.status if state.finished is not None else None
    there = sum(_times(one, message, id) for one in (watched, *_chunks_of(monitor, watched)))
    if there > 1:
        return f"it is in the journal {there} times"
    match verdict:
        case Finished(status=status) | AlreadyFinished(status=status):
            if status is not ended:
                return f"the run is {ended or 'not finished'}"
            return "it is in the journal" if there and message.kind in ("signal", "approve", "reject") else ""
        case Cancelled():
            return "" if state.cancel_requested is not None else "nothing in the journal asks the run to end"
        case Accepted() | Duplicate() if message.kind in ("signal", "approve", "reject"):
            return "" if there else "it is not in the journal"
        case Accepted() if message.kind == "pause":
            return "" if _events(watched, RunPaused) else "the run was never paused"
        case NotFound() | AnswerRejected():
            return "it is in the journal" if there else ""
    return ""


def _times(watched: Watched, message: Message, id: str) -> int:
    if message.kind == "signal":
        return sum(event.signal_id == id for event in _events(watched, SignalReceived))
    if message.kind in ("approve", "reject"):
        return sum(event.answer_id == id for event in _events(watched, WaitResolved))
    return 0


def _events(watched: Watched, kind: type[Any]) -> list[Any]:
    events: list[AnyEvent] = [event for batch in watched.batches for event in batch.events]
    return [event for event in events if isinstance(event, kind)]


def judge(senders: Sequence[Sending], monitor: Monitor) -> None:
    """Check at the end: the order, and that every reply is still true."""
    for sending in senders:
        sent: dict[tuple[str, str], list[str]] = {}
        for reply in sending.replies:
            if not isinstance(reply.verdict, Finished | AlreadyFinished | NotFound):
                problem = check(reply.message, reply.id, reply.verdict, monitor)
                if problem:
                    monitor.accuse(f"{reply.id} was answered with {reply.verdict!r}, and now {problem}")
            if reply.message.kind == "signal" and isinstance(reply.verdict, Accepted | Duplicate):
                sent.setdefault((reply.message.run, reply.message.name), []).append(reply.id)
        for (run, name), ids in sent.items():
            watched = find(monitor, run)
            assert watched is not None
            received = [e.signal_id for e in _events(watched, SignalReceived) if e.name == name and e.signal_id in ids]
            if received != ids:
                monitor.accuse(f"signals {name!r} were sent to {run} as {ids}, and are in its journal as {received}")
