"""The engine and the client for code that does not await: the same names, and no second implementation.

    from perdure.blocking import Engine

    with Engine("sqlite:///flows.db", [fulfil]) as engine:
        receipt = engine.start(fulfil(order), id="order-123").result()

Every method hands its coroutine to an event loop in a thread of its own and waits for it. So one Engine serves any
number of threads, plain `def` steps among them. A Ctrl-C while waiting gives up the wait, not the run; leaving the
`with` block then hands runs over as usual.

Called where another event loop runs (a notebook, an async server) these methods work, and hold that loop up for as
long as they take: fine in a notebook, wrong in a server, which awaits the classes of `perdure` itself. Called from the
engine's own loop (an `async def` step, a workflow body) they would wait for themselves, and raise UsageError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from perdure import assembly
from perdure.assembly import DEFAULT_STORE, run
from perdure.authoring.code.step import Step
from perdure.blocking.bulk import InBulk
from perdure.blocking.capsules import Capsules
from perdure.blocking.forking import Forking
from perdure.blocking.handle import RunHandle
from perdure.blocking.loop import Loop as _Loop
from perdure.blocking.resolving import Resolving
from perdure.blocking.schedules import ScheduleHandle, Scheduling
from perdure.blocking.upkeep import Upkeep
from perdure.client import client as asynchronous
from perdure.client.locks import Locks as AsyncLocks
from perdure.client.locks import LockView
from perdure.client.observing import OnCommit, OnComplete
from perdure.client.resting import Answers, Until
from perdure.client.schedules import Schedule
from perdure.client.views import (
    ApprovalView,
    Chunk,
    QueueView,
    RunPage,
    RunResult,
    RunSummary,
    RunView,
    StepView,
)
from perdure.client.why import Why
from perdure.config import Limits, Recovery, Retention
from perdure.kernel.events import Entry, RunStatus
from perdure.kernel.ids import INPUT
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.queues import Queue
from perdure.kernel.policies.reuse import Reuse
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.program import Program
from perdure.kernel.streams import StreamMode
from perdure.kernel.values.codec import TypeCodec
from perdure.orchestrator.sweep import SweepReport
from perdure.ports.blobs import Blobs as AsyncBlobs
from perdure.ports.clock import Clock
from perdure.ports.leases import HeldBy, Leases
from perdure.ports.store import Store
from perdure.settings.load import load_settings

__all__ = ["Blobs", "Client", "Engine", "Locks", "RunHandle", "ScheduleHandle", "connect", "run"]

R = TypeVar("R")
T = TypeVar("T")


class Client(Scheduling, InBulk, Forking, Capsules, Resolving, Upkeep):
    """A connection to a store: starts runs for engines elsewhere to execute, and reads. Made by `connect`."""

    def __init__(self, client: asynchronous.Client) -> None:
        self._client = client
        self._loop = _Loop(type(self).__name__)

    def open(self) -> Self:
        """Connect. `with` does this too."""
        self._loop.start()
        try:
            _ = self._loop.wait(self._client.open())
        except BaseException:
            self._loop.stop()
            raise
        return self

    def close(self) -> None:
        """Disconnect, and end the thread."""
        if self._loop.running:
            try:
                if not self._loop.forked:
                    self._loop.wait(self._client.close())
            finally:
                self._loop.stop()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def blobs(self) -> Blobs:
        """The blob store: `put(bytes) -> id`, `get(id) -> bytes | None`."""
        return Blobs(self._client.blobs, self._loop)

    @property
    def locks(self) -> Locks:
        """The locks of the store: `with engine.locks.hold(key)`."""
        return Locks(self._client.locks, self._loop)

    # --- starting -------------------------------------------------------------------------------------------------

    def start(
        self,
        invocation: Invocation[R],
        *,
        id: str | None = None,
        reuse: Reuse | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        debounce: Duration | None = None,
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
        tags: dict[str, str] | None = None,
    ) -> RunHandle[R]:
        """Start a run, durably, and return a handle to it; with an id that is in use, do what `reuse` says."""
        started = self._client.start(
            invocation,
            id=id,
            reuse=reuse,
            queue=queue,
            key=key,
            priority=priority,
            debounce=debounce,
            delay=delay,
            deadline=deadline,
            max_concurrency=max_concurrency,
            durability=durability,
            rules=rules,
            tags=tags,
        )
        return RunHandle(self._loop.wait(started), self._loop)

    @overload
    def handle(self, id: str) -> RunHandle[Any]: ...
    @overload
    def handle(self, id: str, program: Callable[..., Invocation[R]]) -> RunHandle[R]: ...
    def handle(self, id: str, program: Callable[..., Invocation[Any]] | None = None) -> RunHandle[Any]:
        """A handle of the run under an id, without starting anything."""
        found = self._client.handle(id) if program is None else self._client.handle(id, program)
        return RunHandle(found, self._loop)

    def run(
        self,
        invocation: Invocation[R],
        *,
        until: Until = "end",
        answers: Answers | None = None,
        by: str | None = None,
        **options: Any,
    ) -> RunResult[R]:
        """Start a run and wait for its end, or until it rests. Takes the options of `start`."""
        return self._loop.wait(self._client.run(invocation, until=until, answers=answers, by=by, **options))

    # --- telling --------------------------------------------------------------------------------------------------

    def signal(
        self, id: str, name: str, payload: Any = None, signal_id: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Send a run a signal, durably."""
        return self._loop.wait(self._client.signal(id, name, payload, signal_id))

    def feed(
        self, id: str, input: Any, input_id: str | None = None, name: str = INPUT
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Give a run its next input, durably."""
        return self._loop.wait(self._client.feed(id, input, input_id, name))

    def approve(
        self, id: str, name: str, payload: Any, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Answer an open approval of a run."""
        return self._loop.wait(self._client.approve(id, name, payload, approval_id, by))

    def reject(
        self, id: str, name: str, reason: str | None = None, approval_id: str | None = None, by: str | None = None
    ) -> Accepted | Duplicate | NotFound | Finished:
        """Say no to an open approval of a run."""
        return self._loop.wait(self._client.reject(id, name, reason, approval_id, by))

    def cancel(self, id: str, reason: str | None = None) -> Cancelled | AlreadyFinished:
        """Ask a run to end."""
        return self._loop.wait(self._client.cancel(id, reason))

    def pause(self, id: str, reason: str | None = None) -> Accepted | Finished:
        """Let no new step of a run begin."""
        return self._loop.wait(self._client.pause(id, reason))

    def resume(self, id: str) -> Accepted | Finished:
        """Let a paused run go on."""
        return self._loop.wait(self._client.resume(id))

    def checkpoint(self, id: str) -> int:
        """Make everything durable that a run has done so far."""
        return self._loop.wait(self._client.checkpoint(id))

    # --- asking ---------------------------------------------------------------------------------------------------

    def get(self, id: str) -> RunView | None:
        """The latest run under an id, or None."""
        return self._loop.wait(self._client.get(id))

    def list(
        self,
        *,
        status: RunStatus | str | Sequence[RunStatus | str] | None = None,
        program: str | None = None,
        tags: dict[str, str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        owner: str | None = None,
        parent: str | None = None,
        root: str | None = None,
        queue: str | None = None,
        id_prefix: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """Runs, newest first, a page at a time; those of perdure's own programs only when `program` names one."""
        return self._loop.wait(
            self._client.list(
                status=status,
                program=program,
                tags=tags,
                since=since,
                until=until,
                owner=owner,
                parent=parent,
                root=root,
                queue=queue,
                id_prefix=id_prefix,
                limit=limit,
                cursor=cursor,
            )
        )

    def why(self, id: str) -> Why | None:
        """Why a run does not go on, or how it ended; None when it is at work, or has completed."""
        return self._loop.wait(self._client.why(id))

    def reasons(self, runs: Sequence[RunSummary]) -> dict[str, Why]:
        """As `why`, for a page of runs and by their run_id: those at work, and those that completed, are left out."""
        return self._loop.wait(self._client.reasons(runs))

    def approvals(
        self, *, name: str | None = None, approver: str | None = None, program: str | None = None
    ) -> Sequence[ApprovalView]:
        """Every open approval of all runs, the oldest first."""
        return self._loop.wait(self._client.approvals(name=name, approver=approver, program=program))

    def queues(self) -> Sequence[QueueView]:
        """Queues with runs that wait or are under way, by name."""
        return self._loop.wait(self._client.queues())

    def steps(self, id: str, *, inputs: bool | None = None) -> Sequence[StepView]:
        """The steps of a run with their attempts, in the order they began."""
        return self._loop.wait(self._client.steps(id, inputs=inputs))

    def get_checkpoint(self, id: str) -> int | None:
        """The number before which a snapshot stands for the events of a run, or None."""
        return self._loop.wait(self._client.get_checkpoint(id))

    def journal(self, id: str, start: int = 0) -> Sequence[Entry]:
        """The events of a run from number `start` on."""
        return self._loop.wait(self._client.journal(id, start))

    def follow(self, id: str, start: int = 0) -> Iterator[Entry]:
        """The events of a run from number `start` on, as they come, until it ends."""
        return self._loop.iterate(self._client.follow(id, start))

    def stream(self, id: str, step: str | None = None, start: int = 0) -> Iterator[Chunk]:
        """What a step shows before it ends, from number `start` on and as it comes; it ends with the step."""
        return self._loop.iterate(self._client.stream(id, step, start))


class Engine(Client):
    """Executes runs, and does all that a client does.

    A context manager: entering it migrates an embedded store, recovers what was under way, and starts advancing runs;
    leaving it hands them over.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | Store = DEFAULT_STORE,
        programs: Iterable[Program | str] = (),
        *,
        name: str | None = None,
        durability: str | Durability = "sync",
        reuse: Reuse = "return_existing",
        stream: str | StreamMode = "immediate",
        max_concurrency: int = 1000,
        threads: int | None = None,
        queues: Iterable[Queue] = (),
        serves: Iterable[str] | None = None,
        steps: Iterable[Step[..., Any]] = (),
        schedules: Iterable[Schedule] = (),
        limits: Limits = Limits(),  # noqa: B008 - frozen
        recovery: Recovery = Recovery(),  # noqa: B008 - frozen
        leases: str | Leases | None = None,
        retention: Retention | None = None,
        rules: RulesLike = (),
        codecs: Iterable[TypeCodec[Any]] = (),
        resources: Mapping[str, Any] | None = None,
        executor: Executor | None = None,
        clock: Clock | None = None,
        on_commit: OnCommit | None = None,
        on_complete: OnComplete | Sequence[OnComplete] | None = None,
    ) -> None:
        engine = assembly.Engine(
            store,
            programs,
            name=name,
            durability=durability,
            reuse=reuse,
            stream=stream,
            max_concurrency=max_concurrency,
            threads=threads,
            queues=queues,
            serves=serves,
            steps=steps,
            schedules=schedules,
            limits=limits,
            recovery=recovery,
            leases=leases,
            retention=retention,
            rules=rules,
            codecs=codecs,
            resources=resources,
            executor=executor,
            clock=clock,
            on_commit=on_commit,
            on_complete=on_complete,
        )
        super().__init__(engine)
        self.name = engine.name
        self.resources = engine.resources
        self._engine = engine

    @classmethod
    def from_config(
        cls, path: str | os.PathLike[str] | None = None, programs: Iterable[Program | str] = (), **options: Any
    ) -> Self:
        """An engine as perdure.yaml, or another file of settings, and the environment say; `options` go over both."""
        return cls(programs=programs, **(load_settings(path).options() | options))

    def sweep(
        self,
        *,
        max_timers: int = 100,
        max_schedules: int = 100,
        max_runs: int = 100,
        until: float | timedelta | datetime | None = None,
    ) -> SweepReport:
        """Do what is due and return, for hosts without a process that stays; on an Engine that need not be open."""
        opened = not self._loop.running
        if opened:
            self._loop.start()
        try:
            return self._loop.wait(
                self._engine.sweep(max_timers=max_timers, max_schedules=max_schedules, max_runs=max_runs, until=until)
            )
        finally:
            if opened:
                self._loop.stop()


class Blobs:
    """Bytes that are stored once however often they are put, and verified when they are read."""

    def __init__(self, blobs: AsyncBlobs, loop: _Loop) -> None:
        self._blobs, self._loop = blobs, loop

    def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id, the SHA-256 in hex."""
        return self._loop.wait(self._blobs.put(data))

    def get(self, blob_id: str) -> bytes | None:
        """The bytes, or None when there is no such blob. Raises Corrupt when they are not what was put."""
        return self._loop.wait(self._blobs.get(blob_id))


class Locks:
    """The locks of a store."""

    def __init__(self, locks: AsyncLocks, loop: _Loop) -> None:
        self._locks, self._loop = locks, loop

    @contextmanager
    def hold(self, key: str, ttl: float | timedelta = 30, timeout: float | None = None) -> Iterator[LockView]:
        """Hold a lock for the length of a block, renewed as long as it lasts: `with engine.locks.hold(key)`."""
        stack = AsyncExitStack()
        view = self._loop.wait(stack.enter_async_context(self._locks.hold(key, ttl, timeout)))
        try:
            yield view
        except BaseException:
            self._loop.wait(stack.__aexit__(*sys.exc_info()))
            raise
        self._loop.wait(stack.aclose())

    def acquire(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView | HeldBy:
        """Take a lock that is free, expired or already the owner's, without waiting."""
        return self._loop.wait(self._locks.acquire(key, owner, ttl))

    def renew(self, key: str, owner: str, ttl: float | timedelta = 30) -> LockView:
        """Hold on to a lock; raises NotOwner when it is not the owner's."""
        return self._loop.wait(self._locks.renew(key, owner, ttl))

    def release(self, key: str, owner: str) -> None:
        """Give a lock back; raises NotOwner when it is not the owner's."""
        self._loop.wait(self._locks.release(key, owner))

    def force_release(self, key: str) -> LockView | None:
        """Take a lock away from whoever holds it, and say who that was; None when nobody does."""
        return self._loop.wait(self._locks.force_release(key))

    def get(self, key: str) -> LockView | None:
        """A lock that somebody holds, or None."""
        return self._loop.wait(self._locks.get(key))

    def list(self) -> list[LockView]:
        """Every lock that somebody holds, by key."""
        return self._loop.wait(self._locks.list())


def connect(
    store: str | os.PathLike[str] | Store = DEFAULT_STORE,
    *,
    leases: str | Leases | None = None,
    limits: Limits | None = None,
    codecs: Iterable[TypeCodec[Any]] = (),
    clock: Clock | None = None,
) -> Client:
    """A client of a store: `with connect(url) as client`, or `client = connect(url).open()`."""
    return Client(assembly.connect(store, leases=leases, limits=limits, codecs=codecs, clock=clock))
