"""Runs that a workflow begins: awaited, side by side, let go; and what passes between them and their parent."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Accepted,
    Cancelled,
    DeadlineExceeded,
    Engine,
    Finished,
    Limits,
    Retry,
    RunCancelled,
    RunStatus,
    UnknownProgram,
    UsageError,
    approval,
    call,
    child,
    connect,
    rule,
    saga,
    set_state,
    sleep,
    step,
    uuid4,
    wait_signal,
    workflow,
)
from perdure.engine.driver import Driver
from perdure.kernel.events import CancelRequested, ChildFinished, ChildStarted, RunFinished, StepStarted
from perdure.stores.memory.store import MemoryStore
from perdure.testing.simulation import Simulation
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Recorded, left_by_a_crash

called: list[str] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    called.clear()


@step
async def note(what: str) -> str:
    called.append(what)
    return what.upper()


@step
async def explode(what: str) -> str:
    raise ValueError(what)


@workflow
async def refund(order: str) -> str:
    return await note(f"refund {order}")


@workflow
async def failing(order: str) -> str:
    return await explode(order)


@workflow
async def patient(name: str) -> str:
    set_state("name", name)
    try:
        return f"{name}: {await wait_signal('go')}"
    finally:
        await note(f"{name} leaves")


@workflow
async def grandparent(order: str) -> str:
    return f"<{await parent(order)}>"


@workflow
async def parent(order: str) -> str:
    before = await note("before")
    inner = await refund(order)
    return f"{before} {inner} {await note('after')}"


async def one(engine: Engine, invocation: Any, id: str = "it") -> Any:
    return await (await engine.start(invocation, id=id)).result(PATIENCE)


async def test_an_awaited_child_returns_its_result() -> None:
    async with Engine("memory://", [parent, refund]) as engine:
        assert await one(engine, parent("7")) == "BEFORE REFUND 7 AFTER"
        assert called == ["before", "refund 7", "after"]
        assert [view.path for view in await engine.steps("it")] == ["note:0", "refund:0/note:0", "note:1"]


async def test_a_child_is_a_run_with_an_id_a_parent_and_a_root() -> None:
    async with Engine("memory://", [grandparent, parent, refund]) as engine:
        assert await one(engine, grandparent("7")) == "<BEFORE REFUND 7 AFTER>"
        top, middle, bottom = [await engine.get(id) for id in ("it", "it/parent:0", "it/parent:0/refund:0")]
        assert top is not None
        assert middle is not None
        assert bottom is not None
        assert (top.parent, top.root) == (None, top.run_id)
        assert (middle.parent, middle.root, middle.program) == (top.run_id, top.run_id, "parent")
        assert (bottom.parent, bottom.root, bottom.program) == (middle.run_id, top.run_id, "refund")
        assert bottom.status is RunStatus.COMPLETED
        assert bottom.input == {"order": "7"}
        assert bottom.output == "REFUND 7"
        assert [view.path for view in await engine.steps("it/parent:0/refund:0")] == ["parent:0/refund:0/note:0"]
        events = [type(entry.event).__name__ for entry in await engine.journal("it/parent:0/refund:0")]
        assert events == ["ChildStarted", "StepStarted", "StepSucceeded", "ChildFinished"]
        followed = [entry.seq async for entry in engine.follow("it/parent:0/refund:0")]
        assert followed == [entry.seq for entry in await engine.journal("it/parent:0/refund:0")]


async def test_children_run_side_by_side() -> None:
    @workflow
    async def both(orders: list[str]) -> list[str]:
        return list(await asyncio.gather(*(refund(order) for order in orders)))

    @workflow
    async def grouped(orders: list[str]) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(refund(order)) for order in orders]
        return [task.result() for task in tasks]

    async with Engine("memory://", [both, grouped, refund]) as engine:
        for program in (both, grouped):
            assert await one(engine, program(["a", "b", "c"]), program.name) == ["REFUND A", "REFUND B", "REFUND C"]
            paths = [view.path for view in await engine.steps(program.name)]
            assert paths == ["refund:0/note:0", "refund:1/note:0", "refund:2/note:0"]


async def test_what_a_child_raises_its_parent_gets() -> None:
    @workflow
    async def careful(order: str) -> str:
        try:
            return await failing(order)
        except ValueError as error:
            return f"caught {error}"

    @workflow
    async def careless(order: str) -> str:
        return await failing(order)

    async with Engine("memory://", [careful, careless, failing]) as engine:
        assert await one(engine, careful("x"), "a") == "caught x"
        with pytest.raises(ValueError, match="x") as raised:
            await one(engine, careless("x"), "b")
        assert any("the child failing:0" in note for note in raised.value.__notes__)
        view = await engine.get("b/failing:0")
        assert view is not None
        assert view.status is RunStatus.FAILED
        assert view.error is not None
        assert view.error.message == "x"


async def test_a_child_can_have_an_id_of_its_own() -> None:
    @workflow
    async def twice() -> list[str]:
        return [await child(refund("1"), id="refund-1"), await child(refund("2"), id="refund-1")]

    async with Engine("memory://", [twice, refund]) as engine:
        assert await one(engine, twice()) == ["REFUND 1", "REFUND 2"]
        view = await engine.get("refund-1")
        assert view is not None
        assert view.root != view.run_id
        assert await one(engine, refund("3"), "refund-1") == "REFUND 3"
        view = await engine.get("refund-1")
        assert view is not None
        assert view.root == view.run_id


async def test_a_child_known_only_by_name() -> None:
    @workflow
    async def by_name() -> Any:
        return await call("refund", order="9")

    async with Engine("memory://", [by_name, refund]) as engine:
        assert await one(engine, by_name()) == "REFUND 9"


async def test_a_child_that_the_engine_does_not_have_is_an_error_in_the_body() -> None:
    @workflow
    async def alone() -> str:
        return await refund("1")

    async with Engine("memory://", [alone]) as engine:
        with pytest.raises(UnknownProgram, match="refund"):
            await one(engine, alone())


async def test_signals_and_answers_reach_the_child_they_are_sent_to() -> None:
    @workflow
    async def asking() -> Any:
        return await approval("ship", request={"total": 3}, schema=bool)

    @workflow
    async def several() -> list[Any]:
        return list(await asyncio.gather(patient("a"), patient("b"), wait_signal("go"), asking()))

    async with Engine("memory://", [several, patient, asking]) as engine:
        run = await engine.start(several(), id="it")
        view = await engine.get("it/patient:1")
        assert view is not None
        assert view.state == {"name": "b"}
        assert [(wait.path, wait.name) for wait in view.waits] == [("patient:1/go:0", "go")]
        assert await engine.signal("it/patient:1", "go", "second", signal_id="s") == Accepted()
        assert await engine.signal("it", "go", "root", signal_id="s") == Accepted()
        async with connect(engine.store) as other:
            assert await other.signal("it/patient:0", "go", "first") == Accepted()
        assert await engine.approve("it/asking:0", "ship", True) == Accepted()
        assert await run.result(PATIENCE) == ["a: first", "b: second", "root", True]
        assert await engine.signal("it/patient:0", "go") == Finished(RunStatus.COMPLETED)
        with pytest.raises(UsageError, match="top of its tree"):
            await engine.pause("it/patient:0")


async def test_cancelling_a_run_lets_its_children_clean_up_first() -> None:
    @workflow
    async def outer() -> str:
        try:
            return await patient("a")
        finally:
            await note("outer leaves")

    async with Engine("memory://", [outer, patient]) as engine:
        run = await engine.start(outer(), id="it")
        assert await engine.cancel("it", "enough") == Cancelled()
        with pytest.raises(RunCancelled):
            await run.result(PATIENCE)
        assert called == ["a leaves", "outer leaves"]
        view = await engine.get("it/patient:0")
        assert view is not None
        assert view.status is RunStatus.CANCELLED


async def test_cancelling_a_child_alone_raises_in_its_parent() -> None:
    @workflow
    async def outer() -> str:
        try:
            return await patient("a")
        except RunCancelled as error:
            return f"{error.reason}"

    async with Engine("memory://", [outer, patient]) as engine:
        run = await engine.start(outer(), id="it")
        assert await engine.cancel("it/patient:0", "enough") == Cancelled()
        assert await run.result(PATIENCE) == "enough"
        assert called == ["a leaves"]


def test_a_child_that_nobody_waits_for_any_more_is_asked_to_end() -> None:
    @workflow
    async def hasty() -> str:
        try:
            async with asyncio.timeout(60):
                return await patient("a")
        except TimeoutError:
            return "too late"

    @workflow
    async def racing() -> str:
        first, second = asyncio.create_task(patient("a")), asyncio.create_task(patient("b"))
        done, left = await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return str(done.pop().result())

    sim = Simulation(1)

    async def scenario() -> None:
        async with sim.engine([hasty, racing, patient]) as engine:
            slow = await engine.start(hasty(), id="slow")
            await sim.advance(61)
            assert await slow.result() == "too late"
            assert called == ["a leaves"]
            race = await engine.start(racing(), id="race")
            await engine.signal("race/patient:1", "go", "fast")
            assert await race.result() == "b: fast"
            view = await engine.get("race/patient:0")
            assert view is not None
            assert view.status is RunStatus.CANCELLED

    sim.play(scenario())


async def test_a_child_given_up_in_the_breath_it_was_called_in_never_happened() -> None:
    @workflow
    async def fickle() -> str:
        task = asyncio.create_task(refund("1"))
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return await note("never mind")
        return "?"

    async with Engine("memory://", [fickle, refund]) as engine:
        assert await one(engine, fickle()) == "NEVER MIND"
        assert not [e for e in await engine.journal("it") if isinstance(e.event, ChildStarted)]
        assert called == ["never mind"]


async def test_a_run_that_ends_takes_its_children_along() -> None:
    @workflow
    async def leaves() -> str:
        task = asyncio.create_task(patient("a"))
        await note("begun")
        assert not task.done()
        return "gone"

    async with Engine("memory://", [leaves, patient]) as engine:
        assert await one(engine, leaves()) == "gone"
        view = await engine.get("it/patient:0")
        assert view is not None
        assert view.status is RunStatus.CANCELLED
        journal = [entry.event for entry in await engine.journal("it")]
        assert isinstance(journal[-1], RunFinished)
        assert sum(isinstance(event, ChildFinished) for event in journal) == 1


def test_a_deadline_of_a_child_ends_it_and_not_its_parent() -> None:
    @workflow
    async def nap() -> None:
        await sleep(timedelta(days=1))

    @workflow
    async def strict() -> str:
        try:
            await child(nap(), deadline=timedelta(hours=1))
        except DeadlineExceeded:
            return "late"
        return "in time"

    sim = Simulation(1)

    async def scenario() -> None:
        async with sim.engine([strict, nap]) as engine:
            run = await engine.start(strict(), id="it")
            await sim.advance(hours=2)
            assert await run.result() == "late"

    sim.play(scenario())


async def test_values_recorded_in_a_child_are_its_own() -> None:
    @workflow
    async def identify() -> str:
        return str(uuid4())

    @workflow
    async def three() -> list[str]:
        return [str(uuid4()), await identify(), await identify()]

    async with Engine("memory://", [three, identify]) as engine:
        assert len(set(await one(engine, three()))) == 3


async def test_large_inputs_and_outputs_of_children_lie_apart() -> None:
    @workflow
    async def echo(text: str) -> str:
        return text + "!"

    @workflow
    async def outer() -> int:
        return len(await echo("x" * 400_000))

    async with Engine("memory://", [outer, echo]) as engine:
        assert await one(engine, outer()) == 400_001
        started, finished = [
            entry.event for entry in await engine.journal("it") if isinstance(entry.event, ChildStarted | ChildFinished)
        ]
        assert isinstance(started, ChildStarted)
        assert isinstance(finished, ChildFinished)
        assert started.input_blob
        assert finished.blob
        assert bytes(started.input) == bytes(finished.value) == b"null"
        view = await engine.get("it/echo:0")
        assert view is not None
        assert len(view.output) == 400_001


async def test_a_detached_child_goes_its_own_way() -> None:
    @workflow
    async def starter() -> str:
        return await child(patient("a"), id="free", detached=True)

    async with Engine("memory://", [starter, patient]) as engine:
        run_id = await one(engine, starter())
        view = await engine.get("free")
        assert view is not None
        assert (view.run_id, view.root) == (run_id, run_id)
        parent_view = await engine.get("it")
        assert parent_view is not None
        assert view.parent == parent_view.run_id
        await engine.signal("free", "go", "now")
        assert await (await engine.start(patient("a"), id="free")).result(PATIENCE) == "a: now"


async def test_a_finished_child_is_never_run_again() -> None:
    store_url = "memory://"
    engine = Engine(store_url, [grandwait, refund])
    async with engine:
        _ = await engine.start(grandwait("5"), id="it")
        while not (await engine.get("it")).waits:  # type: ignore[union-attr]
            await asyncio.sleep(0)
    assert called == ["refund 5"]
    async with Engine(engine.store, [grandwait, refund]) as again:
        await again.signal("it", "go")
        assert await (await again.start(grandwait("5"), id="it")).result(PATIENCE) == "REFUND 5"
        starts = [e.event for e in await again.journal("it") if isinstance(e.event, StepStarted)]
    assert len(starts) == 1
    assert called == ["refund 5"]


@workflow
async def grandwait(order: str) -> str:
    inner = await refund(order)
    await wait_signal("go")
    return inner


async def test_a_child_that_is_given_up_while_it_compensates_is_left_to_it_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing follows from its cancellation until that is done, and nothing polls for it meanwhile."""
    gates, looks = Gates(), [0]
    wake = Driver.wake

    def count(driver: Driver) -> None:
        looks[0] += 1
        wake(driver)

    monkeypatch.setattr(Driver, "wake", count)

    @step
    async def pass_gate(name: str) -> str:
        await gates.wait(name)
        return name

    @step
    async def undo() -> None:
        undoing.set()
        await gates.wait("undo")

    undoing = asyncio.Event()

    @workflow
    async def compensates() -> None:
        async with saga() as s:
            s.compensate(undo)
            raise ValueError("undo it")

    @workflow
    async def other() -> str:
        return await pass_gate("other")

    @workflow
    async def flow() -> str:
        first = asyncio.ensure_future(other())
        second = asyncio.ensure_future(compensates())
        await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
        second.cancel()
        await asyncio.wait([second])
        return first.result()

    async with Engine("memory://", [flow, other, compensates], recovery=AT_ONCE) as engine:
        run = await engine.start(flow())
        await undoing.wait()
        gates.open("other")
        async with asyncio.timeout(PATIENCE):
            while not any(isinstance(e.event, CancelRequested) for e in await engine.journal(run.run_id)):
                await asyncio.sleep(0)
        looks[0] = 0
        for _ in range(200):
            await asyncio.sleep(0)
        assert looks[0] <= 1
        gates.open("undo")
        assert await run.result(PATIENCE) == "other"


# --- the options of a run that goes its own way ---------------------------------------------------------------------


async def test_a_detached_child_takes_the_options_of_a_start() -> None:
    @step
    async def flaky() -> str:
        raise ConnectionError("no")

    @workflow
    async def apart() -> str:
        return await flaky()

    @workflow
    async def begins() -> str:
        return await child(
            apart(),
            id="apart",
            detached=True,
            tags={"team": "ops"},
            queue="mail",
            key="k",
            priority=3,
            delay=0.01,
            max_concurrency=2,
            rules=[rule("flaky", retry=Retry(attempts=3, initial=0.001))],
        )

    async with Engine("memory://", [begins, apart]) as engine:
        run = await engine.start(begins(), tags={"of": "the parent"})
        run_id = await run.result(PATIENCE)
        result = await engine.handle("apart").outcome(PATIENCE)
        assert isinstance(result.error, ConnectionError)
        view = await engine.get("apart")
        assert view is not None
        assert (view.run_id, view.parent, view.tags) == (run_id, run.run_id, {"team": "ops"})
        assert (view.queue, view.key, view.priority) == ("mail", "k", 3)
        (tried,) = await engine.steps("apart")
        assert tried.attempt == 3
        started = (await engine.journal("apart"))[0]
        assert started.event.max_concurrency == 2  # type: ignore[union-attr]
        assert (await engine.journal("apart"))[1].at >= started.at


async def test_options_that_make_no_sense_for_a_child_are_an_error_of_the_body() -> None:
    @workflow
    async def apart() -> None: ...

    @workflow
    async def begins(options: dict[str, Any], detached: bool) -> str:
        return await child(apart(), detached=detached, **options)  # type: ignore[call-overload, no-any-return]

    wrong: list[tuple[dict[str, Any], bool, str]] = [
        ({"tags": {"a": "b"}}, False, "are for independent runs: add detached=True"),
        ({"queue": "q"}, False, "are for independent runs: add detached=True"),
        ({"priority": 3}, True, "means nothing without a queue"),
        ({"tags": {"a": 1}}, True, "names and values of tags are strings"),
        ({"max_concurrency": 0}, True, "must be at least 1"),
    ]
    async with Engine("memory://", [begins, apart]) as engine:
        for options, detached, says in wrong:
            assert says in str((await engine.run(begins(options, detached))).error)


@pytest.mark.parametrize("way", ["child", "detached"])
async def test_a_crash_while_a_large_value_is_offloaded_beside_a_step_that_began_changes_nothing(way: str) -> None:
    @step(queue="far")
    async def far(text: str) -> int:
        return len(text)

    @step
    async def near() -> int:
        return 1

    @workflow
    async def kid(size: int) -> int:
        return await far("x" * size)

    @workflow
    async def other() -> None:
        return None

    @workflow
    async def parent() -> list[int]:
        async def first() -> int:
            if way == "child":
                return await kid(1000)
            await child(other(), detached=True)
            return await far("x" * 1000)

        async def second() -> int:
            return await near()

        return list(await asyncio.gather(first(), second()))

    store, recorded, stopped = MemoryStore(), Recorded(), asyncio.Event()
    put = store.blobs.put

    async def never(data: bytes) -> str:
        if b"xxx" in data:
            await stopped.wait()
        return await put(data)

    store.blobs.put = never  # type: ignore[method-assign]
    programs: list[Any] = [parent, kid, other]
    limits = Limits(blob=500)
    async with Engine(store, programs, steps=[far], limits=limits, recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(parent(), id="p")
        await recorded.until_succeeded("second:0/near:0")
        found = left_by_a_crash(store)
        stopped.set()
    async with Engine(found, programs, steps=[far], limits=limits, recovery=AT_ONCE) as engine:
        assert await engine.handle("p").result() == [1000, 1]
