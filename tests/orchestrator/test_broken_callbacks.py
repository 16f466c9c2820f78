"""An error inside the engine, in any callback of a run, stops that run visibly and nothing else."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure import Engine, Retry, RunParked, RunStatus, lock, set_state, sleep, step, wait_signal, workflow
from perdure.authoring.code.body import Body
from perdure.engine import driver as driver_module
from perdure.engine.attempts import Attempts
from perdure.engine.driver import Driver
from perdure.engine.large_values import Payloads
from perdure.engine.outbox import Outbox
from perdure.engine.step_context import StepContext
from perdure.engine.steps import StepRunner
from perdure.engine.streams import Channel
from perdure.kernel.events import AnyEvent, StateSet, encode_events
from perdure.kernel.program import Program
from perdure.kernel.replay import Replay
from perdure.kernel.state import RunState
from perdure.orchestrator.catch_up import CatchUp
from perdure.orchestrator.loader import Loader
from perdure.orchestrator.locks import RunLocks
from perdure.orchestrator.orchestrator import Orchestrator
from perdure.orchestrator.service import Service, ServiceConfig
from perdure.ports.store import Store
from perdure.stores.memory import store as memory_store
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_store
from tests.engine.harness import AT_ONCE, PATIENCE

gate: asyncio.Event


@step(timeout=60)
async def work(n: int) -> int:
    if n == 0:
        await gate.wait()
    return n


@step(retry=Retry(attempts=2, initial=0.001, jitter=False))
async def shaky() -> str:
    raise ConnectionError("shaky")


@step
async def big() -> str:
    return "x" * 300_000


@step
async def chatter() -> AsyncIterator[int]:
    yield 1
    await asyncio.sleep(0)
    yield 2


@workflow
async def inner() -> int:
    return await work(4)


@workflow
async def busy() -> str:
    """Meets all that there is."""
    await work(0)
    await big()
    await chatter()
    try:
        await shaky()
    except ConnectionError:
        pass
    set_state("at", 1)
    await inner()
    await sleep(0.001)
    async with lock("k"):
        await asyncio.gather(work(1), work(2), work(3))
    got = await wait_signal("go")
    await sleep(0.001)
    return str(got)


PROGRAMS: list[Program] = [busy, inner]


class Boom(Exception):
    pass


class Panic(BaseException):
    """As libraries raise that are written in Rust."""


KINDS: list[type[BaseException]] = [Boom, Panic, SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit]


@dataclass
class Fault:
    """Makes a function of the engine raise when it is about one run."""

    run_ids: set[str] = field(default_factory=set)
    armed: bool = False
    raised: int = 0
    kind: type[BaseException] = Boom

    def about(self, *things: object) -> bool:
        return any(self._run_id(thing) in self.run_ids for thing in things)

    def _run_id(self, thing: Any) -> object:
        if isinstance(thing, str):
            return thing
        if isinstance(thing, Channel):
            thing = thing._owner
        if isinstance(thing, Attempts | Outbox):
            thing = thing._state
        if isinstance(thing, Replay):
            thing = thing.state
        call = getattr(thing, "context", None)
        return getattr(thing, "run_id", None) or getattr(call, "run_id", None)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def raising(*args: Any, **kwargs: Any) -> Any:
            if self.armed and self.about(*args):
                self.raised += 1
                raise self.kind("boom")
            return function(*args, **kwargs)

        return raising


# A function by where it is: whatever calls it must not leave the run standing still.
INSIDE: list[tuple[Any, str]] = [
    (Replay, "fold"),
    (Body, "advance"),
    (Body, "_end_of"),
    (RunState, "fold"),
    (driver_module, "plan"),
    (driver_module, "wake"),
    (driver_module, "deliver"),
    (Driver, "record"),
    (Driver, "wake"),
    (Driver, "next_append"),
    (Driver, "committed"),
    (Driver, "moment"),
    (Driver, "report"),
    (Driver, "accept"),
    (Driver, "offload"),
    (Driver, "expects"),
    (Driver, "_step_returned"),
    (Driver, "_step_failed"),
    (Driver, "_pump"),
    (Driver, "_act"),
    (Driver, "_touch"),
    (Driver, "_set_alarm"),
    (Driver, "_keep_value"),
    (Outbox, "next_append"),
    (Outbox, "written"),
    (Attempts, "launch_planned"),
    (Attempts, "plan"),
    (Attempts, "_make"),
    (Attempts, "remove"),
    (Attempts, "result"),
    (Attempts, "failure"),
    (Attempts, "stored"),
    (Attempts, "settle_channel"),
    (Attempts, "channels_committed"),
    (Channel, "_due_events"),
    (Channel, "_record"),
    (Channel, "_set_timer"),
    (StepRunner, "start"),
    (StepRunner, "_start_timers"),
    (Orchestrator, "_committed"),
    (Orchestrator, "_settle"),
    (RunLocks, "committed"),
    (RunLocks, "_acquire"),
    (RunState, "snapshot_due"),
]


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    global gate
    gate = asyncio.Event()
    return Fault()


def inject(monkeypatch: pytest.MonkeyPatch, fault: Fault, where: Any, name: str) -> None:
    monkeypatch.setattr(where, name, fault.wrap(getattr(where, name)))


async def send(engine: Engine, id: str) -> None:
    """Tell a run to go on, whether or not it can."""
    async with asyncio.timeout(PATIENCE):
        await engine.signal(id, "go", "done")


# What a task raises to be cancelled, or to end the loop, does that: only callbacks are asked about those.
# Each has the usual error, and others in turn; `make soak` has all.
CASES = [
    pytest.param(
        where,
        name,
        kind,
        id=f"{where.__name__.split('.')[-1]}.{name}-{kind.__name__}",
        marks=[] if kind is Boom or (number + KINDS.index(kind)) % 3 == 0 else pytest.mark.soak,
    )
    for number, (where, name) in enumerate(INSIDE)
    for kind in KINDS
    if where is not RunLocks or name != "_acquire" or kind in (Boom, Panic)
]


@pytest.mark.parametrize(("where", "name", "kind"), CASES)
async def test_an_error_in_a_callback_parks_its_run_and_stops_no_other(
    where: Any,
    name: str,
    kind: type[BaseException],
    fault: Fault,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fault.kind = kind
    inject(monkeypatch, fault, where, name)
    store = MemoryStore()
    caplog.set_level(logging.ERROR)
    async with Engine(store, PROGRAMS, name="w", recovery=AT_ONCE) as engine:
        other = await engine.start(busy(), id="other")
        victim = await engine.start(busy(), id="victim")
        fault.run_ids.add(victim.run_id)
        fault.armed = True
        waiting = asyncio.create_task(victim.outcome(PATIENCE))
        gate.set()
        await send(engine, "other")
        with suppress(kind, RuntimeError):  # where it is the caller's own code that raises
            await send(engine, "victim")
        ended = await waiting
        assert fault.raised, "the scenario does not come by here"
        fault.armed = False
        view = await engine.get("victim")
        assert view is not None
        if ended.status is RunStatus.FAILED:
            # What launches a step is part of its attempt: the step failed, and says why.
            assert "boom" in str(ended.error)
            assert kind is not Boom or isinstance(ended.error, Boom)
        else:
            assert isinstance(ended.error, RunParked)
            assert "boom" in str(ended.error)
            assert view.status is RunStatus.PARKED
            told = [r for r in caplog.records if "'victim' is stopped" in r.getMessage()]
            assert len(told) == 1
        assert (await other.outcome(PATIENCE)).output == "done"
        after = await engine.start(busy(), id="after")
        await send(engine, "after")
        assert (await after.outcome(PATIENCE)).output == "done"
    if ended.status is RunStatus.PARKED:
        async with Engine(store, PROGRAMS, name="w", recovery=AT_ONCE) as again:
            handle = again.handle("victim")
            await send(again, "victim")
            assert (await handle.outcome(PATIENCE)).output == "done"


@pytest.mark.parametrize("durability", ["async", "exit", "relaxed"])
@pytest.mark.parametrize(
    ("where", "name"),
    [(Replay, "fold"), (Driver, "committed"), (Driver, "next_append"), (Attempts, "result"), (Driver, "wake")],
)
async def test_in_every_durability_an_error_in_a_callback_parks_its_run(
    where: Any, name: str, durability: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(monkeypatch, fault, where, name)
    async with Engine(MemoryStore(), PROGRAMS, recovery=AT_ONCE, durability=durability) as engine:
        victim = await engine.start(busy(), id="victim")
        fault.run_ids.add(victim.run_id)
        fault.armed = True
        gate.set()
        await send(engine, "victim")
        ended = await victim.outcome(PATIENCE)
        assert isinstance(ended.error, RunParked)
        fault.armed = False
        await engine.resolve("victim")
        await send(engine, "victim")
        assert (await engine.handle("victim").outcome(PATIENCE)).output == "done"


@pytest.mark.parametrize("name", ["release_slot", "cancel"])
async def test_an_error_after_an_attempt_does_not_keep_its_outcome_from_the_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = 0

    def boom(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise Boom("boom")

    @step(timeout=0.01)
    async def slow() -> None:
        await asyncio.Event().wait()

    @workflow
    async def late() -> str:
        with suppress(TimeoutError):
            await slow()
        return "done"

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with Engine("memory://", [late]) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(StepRunner if name == "release_slot" else StepContext, name, boom)
            assert await (await engine.start(late())).result(PATIENCE) == "done"
        assert raised


@pytest.mark.parametrize("kind", [TypeError, StopIteration])
@pytest.mark.usefixtures("fault")
async def test_a_run_whose_events_the_store_cannot_encode_is_parked_with_the_reason(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(events: Sequence[AnyEvent]) -> bytes:
        if any(isinstance(event, StateSet) and event.key == "poison" for event in events):
            raise kind("no form")
        return encode_events(events)

    @workflow
    async def publish(key: str) -> str:
        await work(1)
        set_state(key, 1)
        await work(2)
        return key

    gate.set()
    async with Engine("memory://", [publish]) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(memory_store, "encode_events", encode)
            victim, other = await asyncio.gather(engine.start(publish("poison"), id="p"), engine.start(publish("key")))
            ended = await victim.outcome(PATIENCE)
            assert isinstance(ended.error, RunParked)
            assert "no form" in str(ended.error)
            assert await other.result(PATIENCE) == "key"
        await engine.resolve("p")
        assert await engine.handle("p").result(PATIENCE) == "poison"


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/runs.db", "file:///{}"])
async def test_a_run_that_was_stopped_in_its_first_moment_is_refused_or_parked(
    url: str, fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    gate.set()
    for where, name in [(Replay, "fold"), (Driver, "next_append"), (Driver, "committed"), (Orchestrator, "_committed")]:
        (tmp_path / name).mkdir()
        store: Store = open_store(url.format(tmp_path / name))
        with monkeypatch.context() as patch:
            inject(patch, fault, where, name)
            patch.setattr(Fault, "about", lambda self, *things: True)
            async with Engine(store, PROGRAMS, recovery=AT_ONCE) as engine:
                fault.armed = True
                async with asyncio.timeout(PATIENCE):
                    try:
                        handle = await engine.start(busy(), id="victim")
                    except Boom:
                        assert await engine.get("victim") is None
                    else:
                        assert isinstance((await handle.outcome()).error, RunParked)
                fault.armed = False
                _ = await engine.start(busy(), id="other")
                await send(engine, "other")
                assert (await engine.handle("other").outcome(PATIENCE)).output == "done"


@pytest.mark.parametrize(
    ("where", "name"),
    [
        (Loader, "_install"),
        (Loader, "_is_ours"),
        (Loader, "_claim_of"),
        (Loader, "replay"),
        (Loader, "_give_driver"),
        (Driver, "adopt"),
        (RunLocks, "join"),
        (Payloads, "with_input"),
        (Payloads, "inflate"),
    ],
)
async def test_an_error_while_a_run_is_loaded_parks_it_and_loads_the_others(
    where: Any, name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    async with Engine(store, PROGRAMS, name="w", recovery=AT_ONCE) as engine:
        victim, _ = await engine.start(busy(), id="victim"), await engine.start(busy(), id="other")
    gate.set()
    fault.run_ids.add(victim.run_id)
    fault.armed = True
    batches = await store.journal.read(victim.run_id)
    with monkeypatch.context() as patch:
        inject(patch, fault, where, name)

        def about(self: Fault, *things: Any) -> bool:
            named = any(isinstance(thing, str) and thing == victim.run_id for thing in things)
            of_it = any(getattr(thing, "run_id", "") == victim.run_id for thing in things)
            replayed = any(isinstance(thing, Replay) and thing.state.run_id == victim.run_id for thing in things)
            return named or of_it or replayed or any(isinstance(thing, list) and thing == batches for thing in things)

        patch.setattr(Fault, "about", about)
        async with Engine(store, PROGRAMS, name="w", recovery=AT_ONCE) as engine:
            await send(engine, "other")
            assert (await engine.handle("other").outcome(PATIENCE)).output == "done"
            ended = await engine.handle("victim").outcome(PATIENCE)
            assert isinstance(ended.error, RunParked)
            assert "boom" in str(ended.error)
    async with Engine(store, PROGRAMS, name="w", recovery=AT_ONCE) as engine:
        await send(engine, "victim")
        assert (await engine.handle("victim").outcome(PATIENCE)).output == "done"


async def test_an_error_while_what_others_wrote_is_taken_in_parks_the_run(
    fault: Fault, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    for where, name in [(CatchUp, "_apply"), (CatchUp, "_read_tail"), (Loader, "rejoin")]:
        with monkeypatch.context() as patch:
            if name == "rejoin":
                patch.setattr(Driver, "catch_up", lambda self, tail: False)
            inject(patch, fault, where, name)
            async with Engine(url, PROGRAMS, recovery=AT_ONCE) as engine, Engine(url) as client:
                victim = await engine.start(busy(), id=name)
                fault.run_ids.add(victim.run_id)
                fault.armed = True
                await client.signal(name, "unrelated", 1)
                ended = await victim.outcome(PATIENCE)
                assert isinstance(ended.error, RunParked)
                fault.armed = False


async def test_a_service_of_the_engine_that_raises_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "_service_config", ServiceConfig(restart=0.001))
    began = 0
    whole = Service._watch_store

    async def fails_at_first(self: Service) -> None:
        nonlocal began
        began += 1
        if began < 3:
            raise Boom("boom")
        await whole(self)

    @workflow
    async def sleeper() -> str:
        await sleep(1.2)  # for so long that it leaves memory
        return "awake"

    monkeypatch.setattr(Service, "_watch_store", fails_at_first)
    async with Engine(MemoryStore(), [sleeper], recovery=AT_ONCE) as engine:
        assert (await (await engine.start(sleeper())).outcome(PATIENCE)).output == "awake"
    assert began == 3
