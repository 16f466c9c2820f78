"""What tests of running workflows share: run one, replay its journal, and go on from any prefix of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from perdure import Engine, Invocation, Recovery, RunResult, Step, Workflow, step, workflow
from perdure.authoring.code.program import CodeProgram
from perdure.engine.large_values import Payloads
from perdure.kernel.commands import Finish, RunStep, StartChild, StartTimer
from perdure.kernel.events import AnyEvent, Batch, RunFinished, StepStarted, StepSucceeded
from perdure.kernel.policies.versions import Programs
from perdure.kernel.projection import project
from perdure.kernel.replay import Replay, open_replay
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.limits import Limits
from perdure.ports.journal import Append
from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.patience import PATIENCE as PATIENCE

# Leaving an engine cancels what is under way at once.
AT_ONCE = Recovery(grace=0)
# The same for an engine in whose loop a test puts the time forward: its lease lasts.
LASTING = Recovery(grace=0, lease=36_000.0)
# Seconds in the time of a loop that a test puts forward: no machine is so slow, and a test waits for longer than some.
LONG = 30.0


class FakeClock:
    """A clock that moves when it is told to."""

    def __init__(self, at: float = 1_800_000_000.0) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds


class LoopTime:
    """The time of the running loop, which a test puts forward: a timeout may be longer than any machine is slow."""

    def __init__(self) -> None:
        self._loop, self._ahead = asyncio.get_running_loop(), 0.0
        usual = self._loop.time
        self._loop.time = lambda: usual() + self._ahead  # type: ignore[method-assign]

    async def advance(self, seconds: float) -> None:
        """Let what is under way get as far as it can, so much time pass, and what was due until then happen."""
        await self._turns()
        self._ahead += seconds
        await self._turns()

    def advance_from_thread(self, seconds: float) -> None:
        """The same, for a thread."""
        asyncio.run_coroutine_threadsafe(self.advance(seconds), self._loop).result(PATIENCE)

    async def _turns(self) -> None:
        for _ in range(100):
            await asyncio.sleep(0)


class Gates:
    """Named events that steps wait for, so that a test decides which of them ends first."""

    def __init__(self) -> None:
        self._events: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def open(self, name: str) -> None:
        self._events[name].set()

    async def wait(self, name: str) -> None:
        await self._events[name].wait()

    def clear(self) -> None:
        self._events.clear()


def holding() -> tuple[Gates, Workflow[[], str]]:
    """A workflow of one step, `hold`, which opens the gate "runs", waits at the gate "hold", and returns "held"."""
    gates = Gates()

    @step
    async def hold() -> str:
        gates.open("runs")
        await gates.wait("hold")
        return "held"

    @workflow
    async def flow() -> str:
        return await hold()

    return gates, flow


class Recorded:
    """Every event as it is committed (an engine's `on_commit`), and a way to wait for one."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.appends: list[Append] = []
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, id: str, append: Append) -> None:
        self.appends.append(append)
        for batch in append.batches:
            self.events.extend(batch.events)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed.set)

    async def until(self, wanted: Callable[[AnyEvent], bool]) -> AnyEvent:
        """The first event that is wanted, once it is in the store."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE):
            while True:
                for event in list(self.events):
                    if wanted(event):
                        return event
                self._changed.clear()
                await self._changed.wait()

    async def until_started(self, op: str, attempt: int = 1) -> None:
        await self.until(lambda e: isinstance(e, StepStarted) and e.op == op and e.attempt == attempt)

    async def until_succeeded(self, op: str) -> None:
        await self.until(lambda e: isinstance(e, StepSucceeded) and e.op == op)


def only(called: Any, *args: Any) -> Workflow[[], Any]:
    """A workflow that calls one step, or another workflow, and returns what that returns."""

    async def flow() -> Any:
        return await called(*args)

    flow.__annotations__["return"] = called.spec.returns if isinstance(called, Step) else Any
    return workflow(flow)


async def crashed(call: Invocation[Any], op: str) -> MemoryStore:
    """What a crash leaves of the run "it" when one of its steps has started."""
    store, recorded = MemoryStore(), Recorded()
    assert call.program is not None
    async with Engine(store, [call.program], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(call, id="it")
        await recorded.until_started(op)
        return left_by_a_crash(store)


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds. For what has no event to wait for."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.001)


async def in_callback(function: Callable[[], Any]) -> Any:
    """Call a function from a callback of the loop, as the engine does: a body must not be driven inside a task."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def call() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    loop.call_soon(call)
    return await done


def without_end(batches: Sequence[Batch]) -> list[Batch]:
    """A journal up to its RunFinished, and not with it."""
    return [
        Batch(batch.seq, batch.at, [event for event in batch.events if not isinstance(event, RunFinished)])
        for batch in batches
    ]


async def replay(
    program: CodeProgram, run_id: str, store: Store, codec: Codec | None = None, others: Sequence[CodeProgram] = ()
) -> Replay:
    """Follow the journal of a finished run with a fresh body, and check that it arrives at the same end."""
    codec = codec or Codec()
    payloads = Payloads(store.blobs, Limits())
    batches = await payloads.inflate(await store.journal.read(run_id))
    started = await payloads.with_input(batches)

    def follow() -> Replay:
        followed = open_replay(Programs([program, *others]), run_id, started, codec, batches)
        followed.fold_all(without_end(batches))
        followed.close()
        return followed

    followed: Replay = await in_callback(follow)
    recorded = batches[-1].events[-1]
    assert isinstance(recorded, RunFinished)
    finish = followed.pending.pop("<finish>")
    assert isinstance(finish, Finish)
    # What was commanded together with the end never began.
    assert all(isinstance(command, RunStep | StartTimer | StartChild) for command in followed.pending.values())
    assert finish.status is recorded.status
    assert finish.reason == recorded.reason
    value = (await payloads.load(recorded.blob, recorded.value)) if recorded.blob else recorded.value
    assert finish.value == bytes(value)
    if recorded.error is None:
        assert finish.error is None
    else:
        assert finish.error is not None
        assert (finish.error.type, finish.error.message) == (recorded.error.type, recorded.error.message)
    return followed


def left_by_a_crash(store: MemoryStore, events: int | None = None) -> MemoryStore:
    """What is in the store now (or the first `events` of each journal), as another process finds it after a crash."""
    copy = MemoryStore()
    copy.blobs.blobs.update(store.blobs.blobs)
    for run_id, encoded in store.journal.batches.items():
        _refill(copy, store, run_id, [e for e in encoded if events is None or e[0] < events])
    return copy


def _refill(copy: MemoryStore, store: MemoryStore, run_id: str, encoded: list[tuple[int, float, bytes]]) -> None:
    from perdure.kernel.events import decode_events

    batches = [Batch(seq, at, decode_events(data)) for seq, at, data in encoded]
    [outcome] = copy.journal.append([Append(run_id, 0, batches, project(run_id, batches))])
    assert type(outcome).__name__ == "Appended"


@dataclass
class Ran:
    """A run that has ended, and the store it is in."""

    result: RunResult[Any]
    store: MemoryStore

    @property
    def run_id(self) -> str:
        return self.result.run_id

    @property
    def output(self) -> Any:
        """What it returned; raises what it raised."""
        if self.result.error is not None:
            raise self.result.error
        return self.result.output

    async def events(self) -> list[AnyEvent]:
        return [event for batch in await self.store.journal.read(self.run_id) for event in batch.events]

    async def ops(self) -> list[str]:
        """The paths of the steps, in the order they began."""
        return [e.op for e in await self.events() if isinstance(e, StepStarted) and e.attempt == 1]


async def run(
    invocation: Invocation[Any],
    store: MemoryStore | None = None,
    others: Sequence[CodeProgram] = (),
    **options: Any,
) -> Ran:
    """Run a workflow, which calls the `others`, to its end and check that its journal replays to the same end."""
    store = store or MemoryStore()
    program = invocation.program
    assert isinstance(program, CodeProgram)
    async with Engine(store, [program, *others], **{"recovery": AT_ONCE, **options}) as engine:
        handle = await engine.start(invocation, id="it")
        result = await handle.outcome(PATIENCE)
        codec = engine.codec
    ran = Ran(result, store)
    await replay(program, ran.run_id, store, codec, others)
    return ran


async def go_on_from_everywhere(invocation: Invocation[Any], ran: Ran, others: Sequence[CodeProgram] = ()) -> None:
    """Cut the journal after each of its batches, as a crash would, and check that a new engine comes to the same end.

    For workflows whose result does not depend on the order in which steps end.
    """
    program = invocation.program
    assert isinstance(program, CodeProgram)
    for seq, _, _ in ran.store.journal.batches[ran.run_id][1:]:
        store = left_by_a_crash(ran.store, seq)
        async with Engine(store, [program, *others], recovery=AT_ONCE) as engine:
            handle = await engine.start(invocation, id="it")
            assert handle.run_id == ran.run_id
            result = await handle.outcome(PATIENCE)
        assert result.status is ran.result.status
        assert result.output == ran.result.output
        assert repr(result.error) == repr(ran.result.error)
        await replay(program, ran.run_id, store, others=others)
