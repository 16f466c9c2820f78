"""Forks, travels back to a step, retries: what they keep, what they run, and that the original stays as it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    AlreadyExists,
    CannotRetry,
    Engine,
    ForkRefused,
    NoSuchOp,
    Retry,
    RunStatus,
    StepStatus,
    UsageError,
    approval,
    child,
    lock,
    now,
    random,
    saga,
    set_state,
    sleep,
    step,
    step_context,
    uuid4,
    wait_signal,
    workflow,
)
from perdure.kernel.events import RunFinished, RunForked, RunStarted
from perdure.kernel.events import encode_events as encode
from perdure.kernel.history.ops import ops
from perdure.testing.simulation import Simulation

calls: Counter[str] = Counter()
keys: list[str] = []
world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    keys.clear()
    world.clear()


@step
async def work(n: int, plus: int = 0) -> int:
    calls[f"work {n}"] += 1
    return n * 10 + plus


@step
async def slow(n: int, seconds: float = 1.0) -> int:
    calls[f"slow {n}"] += 1
    await asyncio.sleep(seconds)
    return n


@workflow
async def inner(n: int) -> list[Any]:
    first = await work(n)
    await sleep(5)
    return [first, await work(first), str(uuid4())]


async def branch(n: int) -> int:
    first = await slow(n, 1.0 + n / 10)
    return first + await slow(first * 100, 2.0 - n / 10)


@workflow
async def long(name: str) -> list[Any]:
    """Thirty ops and some more, of every kind."""
    seen: list[Any] = [name, await work(1), await work(2)]
    await sleep(60)
    seen += [str(now()), random()]
    set_state("phase", "early")
    seen += await asyncio.gather(branch(1), branch(2), branch(3))
    seen.append(await wait_signal("go"))
    seen.append(await inner(7))
    seen += await asyncio.gather(work(3), sleep(10), inner(8), slow(5))
    seen.append(await approval("ship"))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(n)) for n in (4, 5)]
    seen += [task.result() for task in tasks]
    set_state("phase", "late")
    try:
        async with asyncio.timeout(1):
            await slow(9, 100)
    except TimeoutError:
        seen.append("late")
    async with lock("the lock"):
        seen.append(await work(4))
    seen.append(str(uuid4()))
    return [*seen, await work(5)]


PROGRAMS: list[Any] = [long, inner]


async def finish(engine: Engine, id: str) -> Any:
    """Say to a run what it waits for, until it has ended."""
    while True:
        view = await engine.get(id)
        assert view is not None
        if view.status.finished:
            return view
        for wait in view.waits:
            if wait.kind == "signal":
                await engine.signal(id, "go", "gone")
            elif wait.kind == "approval":
                await engine.approve(id, "ship", {"yes": True})
        await asyncio.sleep(1.0)


def outcomes(sim: Simulation, run_id: str) -> set[str]:
    return {e.op for e in sim.monitor.executions if e.run_id == run_id}


def test_a_fork_at_every_op_gives_the_same_and_runs_only_what_comes_after() -> None:
    sim = Simulation()

    async def scenario() -> int:
        async with sim.engine(PROGRAMS) as engine:
            _ = await engine.start(long("a"), id="original")
            original = await finish(engine, "original")
            assert original.status is RunStatus.COMPLETED, original.error
            journal = await engine.journal("original")
            written = encode([entry.event for entry in journal])
            steps = {s.path: s for s in await engine.steps("original")}
            ended = {
                entry.event.op: entry.seq  # type: ignore[union-attr]
                for entry in journal
                if type(entry.event).__name__ in ("StepSucceeded", "StepFailed")
            }
            found = ops(await sim.store.journal.read(original.run_id))
            assert sum(op.given_up for op in found.values()) == 1
            for path, op in found.items():
                fork = await engine.fork("original", at=path, new_id=f"fork of {path}")
                view = await finish(engine, fork.id)
                assert view.status is RunStatus.COMPLETED, (path, view.error, view.reason)
                assert view.forked_from == original.run_id
                assert _plain(view.output) == _plain(original.output), path
                assert op.ended is not None
                # One that was given up is forked before it began, and not before it was given up.
                point = op.began if op.given_up else op.ended
                after = {p for p in steps if ended[p] >= point}
                within = {p for p in steps if op.kind == "child" and p.startswith(f"{path}/")}
                assert outcomes(sim, fork.run_id) == after | within, path
                assert {s.path for s in await engine.steps(fork.id)} == set(steps)
            assert encode([entry.event for entry in await engine.journal("original")]) == written
            return len(found)

    assert sim.play(scenario()) >= 30


def _plain(seen: Any) -> Any:
    """Without what belongs to one run alone: times, random numbers, uuids."""
    return [_plain(v) if isinstance(v, list) else v for v in seen if not isinstance(v, float) and "-" not in str(v)]


def test_a_fork_at_every_event_gives_the_same() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine(PROGRAMS) as engine:
            _ = await engine.start(long("a"), id="original")
            original = await finish(engine, "original")
            for seq in range(1, original.next_seq):
                fork = await engine.fork("original", at=seq)
                view = await finish(engine, fork.id)
                assert view.status is RunStatus.COMPLETED, (seq, view.error, view.reason)
                assert _plain(view.output) == _plain(original.output), seq
                every = {s.path for s in await engine.steps("original")}
                # Between the timeout and what it was the timeout of, that is never begun.
                assert every - {s.path for s in await engine.steps(fork.id)} <= {"slow:1"}

    sim.play(scenario())


def test_what_was_recorded_before_the_point_stays_and_what_comes_after_is_new() -> None:
    @workflow
    async def values() -> list[str]:
        first = [str(uuid4()), str(random()), str(now())]
        await work(1)
        await sleep(60)
        await work(2)
        return [*first, str(uuid4()), str(random()), str(now())]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([values]) as engine:
            original = await (await engine.start(values(), id="original")).result()
            await sim.advance(days=3)
            forked = await (await engine.fork("original", at="work:1")).result()
            assert forked[:3] == original[:3]
            assert all(a != b for a, b in zip(forked[3:], original[3:], strict=True))
            moment = sim.now()
            again = await (await engine.fork("original", values={"now:0": moment, "random:0": 0.5})).result()
            assert again[0] == original[0]
            assert again[1:3] == ["0.5", str(moment)]

    sim.play(scenario())


def test_values_are_edited_and_the_fork_begins_right_after_them() -> None:
    @workflow
    async def chain() -> list[int]:
        first = await work(1)
        second = await work(first)
        return [first, second, await work(second)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([chain]) as engine:
            assert await (await engine.start(chain(), id="original")).result() == [10, 100, 1000]
            calls.clear()
            assert await (await engine.fork("original", values={"work:0": 2})).result() == [2, 20, 200]
            assert calls == {"work 2": 1, "work 20": 1}
            assert await (await engine.fork("original", values={"work:2": 5}, new_id="end")).result() == [10, 100, 5]
            # Under its former name, which is deprecated.
            assert await (await engine.fork("original", set={"work:2": 6})).result() == [10, 100, 6]
            with pytest.raises(UsageError, match="former name"):
                _ = await engine.fork("original", values={"work:0": 2}, set={"work:0": 2})
            with pytest.raises(ForkRefused, match="work:1"):
                _ = await engine.fork("original", at="work:2", values={"work:0": 2}, new_id="no")
            assert await engine.get("no") is None
            with pytest.raises(UsageError, match="begins before"):
                _ = await engine.fork("original", at="work:0", values={"work:1": 2})
            with pytest.raises(ForkRefused, match="work:0"):
                _ = await engine.fork("original", values={"work:0": "no number"})
            with pytest.raises(NoSuchOp, match="work:0, work:1"):
                _ = await engine.fork("original", at="walk:0")
            with pytest.raises(UsageError, match="1 to"):
                _ = await engine.fork("original", at=0)
            with pytest.raises(AlreadyExists):
                _ = await engine.fork("original", new_id="end")

    sim.play(scenario())


def test_failures_waits_and_children_can_be_given_another_outcome() -> None:
    @step
    async def explode() -> int:
        raise ValueError("boom")

    @workflow
    async def asking() -> list[Any]:
        try:
            first: Any = await explode()
        except ValueError:
            first = "failed"
        try:
            second: Any = await wait_signal("go", timeout=5)
        except TimeoutError:
            second = "late"
        return [first, second, await wait_signal("more"), await approval("ship"), await inner(1)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([asking, inner]) as engine:
            _ = await engine.start(asking(), id="original")
            await sim.advance(10)
            await engine.signal("original", "more", 1)
            await sim.advance(1)
            await engine.approve("original", "ship", 2)
            await sim.advance(10)
            original = (await engine.get("original")).output  # type: ignore[union-attr]
            assert original[:4] == ["failed", "late", 1, 2]
            edits = {"explode:0": 7, "go:0": 8, "more:0": 9, "ship:0": 10, "inner:0": [1, 2, 3]}
            fork = await engine.fork("original", values=edits)
            assert await fork.result() == [7, 8, 9, 10, [1, 2, 3]]
            assert (await engine.steps(fork.id))[0].status is StepStatus.SUCCEEDED
            with pytest.raises(UsageError, match="no value"):
                _ = await engine.fork("original", values={"inner:0/sleep:0": 1})

    sim.play(scenario())


def test_other_inputs_of_the_workflow_begin_it_anew_unless_a_point_is_given() -> None:
    @workflow
    async def greet(name: str, tone: str = "warm") -> str:
        count = await work(1)
        return f"{name} {tone} {count + await work(2)}"

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([greet]) as engine:
            await (await engine.start(greet("ann"), id="original")).result()
            calls.clear()
            assert await (await engine.fork("original", inputs={"tone": "cold"})).result() == "ann cold 30"
            assert calls == {"work 1": 1, "work 2": 1}
            calls.clear()
            fork = await engine.fork("original", at="work:1", inputs={"name": "bob"}, new_id="bob")
            assert await fork.result() == "bob warm 30"
            assert calls == {"work 2": 1}
            with pytest.raises(ForkRefused, match="nobody"):
                _ = await engine.fork("original", inputs={"nobody": 1})

    sim.play(scenario())


def test_time_travel_gives_a_step_other_arguments_on_every_replay() -> None:
    @workflow
    async def chain() -> list[int]:
        first = await work(1, plus=2)
        second = await work(first)
        await sleep(3600)
        return [first, second, await work(second)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([chain]) as engine:
            _ = await engine.start(chain(), id="original")
            await sim.advance(hours=2)
            travelled = await engine.time_travel("original", "work:1", {"plus": 5}, new_id="one")
            both = await engine.time_travel("original", "work:0", {"n": 3, "plus": 0}, new_id="two")
            await sim.advance(60)  # both have left memory
            with pytest.raises(UsageError, match="no argument 'minus'"):
                _ = await engine.time_travel("original", "work:1", {"minus": 5})
            with pytest.raises(UsageError, match="takes no arguments"):
                _ = await engine.time_travel("original", "sleep:0", {"seconds": 5})
        async with sim.engine([chain]) as engine:
            await sim.advance(hours=2)
            assert (await engine.get("one")).output == [12, 125, 1250]  # type: ignore[union-attr]
            assert (await engine.get("two")).output == [30, 300, 3000]  # type: ignore[union-attr]
            assert await (await engine.time_travel("one", "work:2", {"n": 1})).result() == [12, 125, 10]
        assert travelled.id == "one"
        assert both.id == "two"

    sim.play(scenario())


def test_time_travel_reaches_into_children_and_gives_them_other_arguments() -> None:
    @workflow
    async def parent() -> list[Any]:
        return [await work(9), *(await inner(1))[:2]]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([parent, inner]) as engine:
            assert await (await engine.start(parent(), id="original")).result() == [90, 10, 100]
            calls.clear()
            fork = await engine.time_travel("original", "inner:0/work:1", {"n": 7})
            assert await fork.result() == [90, 10, 70]
            assert calls == {"work 7": 1}
            children = [r for r in await engine.list() if r.parent == fork.run_id]
            assert [c.status for c in children] == [RunStatus.COMPLETED]
            fork = await engine.time_travel("original", "inner:0", {"n": 4})
            assert await fork.result() == [90, 40, 400]
            with pytest.raises(UsageError, match="is a child"):
                _ = await engine.fork("original/inner:0")

    sim.play(scenario())


def test_published_state_is_edited_at_a_point() -> None:
    @workflow
    async def phases() -> None:
        set_state("phase", "early")
        await work(1)
        await wait_signal("go")

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([phases]) as engine:
            _ = await engine.start(phases(), id="original")
            await sim.advance(1)
            _ = await engine.fork("original", state={"phase": "late", "more": 1}, new_id="one")
            _ = await engine.fork("original", values={"state:0": "edited"}, new_id="two")
            await sim.advance(1)
            views = [await engine.get(id) for id in ("original", "one", "two")]
            assert [v.state for v in views if v] == [
                {"phase": "early"},
                {"phase": "late", "more": 1},
                {"phase": "edited"},
            ]
            assert calls == {"work 1": 2}  # the third fork begins after the state was set, before the step

    sim.play(scenario())


def test_what_waits_in_a_fork_has_as_long_left_as_it_had() -> None:
    @workflow
    async def patient() -> str:
        await work(1)
        try:
            return str(await wait_signal("go", timeout=timedelta(days=3)))
        except TimeoutError:
            return "late"

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([patient]) as engine:
            _ = await engine.start(patient(), id="original", deadline=timedelta(days=5))
            await sim.advance(days=30)
            assert (await engine.get("original")).output == "late"  # type: ignore[union-attr]
            fork = await engine.fork("original", at="go:0")
            await sim.advance(days=2.5)
            assert await fork.status() is RunStatus.WAITING
            await fork.signal("go", "here")
            assert await fork.result() == "here"
            fork = await engine.fork("original", at="go:0")
            await sim.advance(days=3.1)
            assert await fork.result() == "late"

    sim.play(scenario())


def test_running_waiting_and_queued_runs_are_forked_and_go_on_themselves() -> None:
    @workflow
    async def busy() -> list[int]:
        return [await work(1), *await asyncio.gather(slow(2, 100), work(3)), await work(4)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([busy]) as engine:
            original = await engine.start(busy(), id="original")
            later = await engine.start(busy(), id="later", delay=1000)
            await sim.advance(1)
            fork = await engine.fork("original", new_id="fork")
            new = await engine.fork("later", new_id="new")
            results = await asyncio.gather(fork.result(), original.result(), new.result(), later.result())
            assert list(results) == [[10, 2, 30, 40]] * 4
            ran = outcomes(sim, fork.run_id)
            assert ran == {"slow:0", "work:2"}

    sim.play(scenario())


def test_a_client_forks_for_an_engine_to_take_up() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine(PROGRAMS) as engine:
            _ = await engine.start(inner(1), id="original")
            await finish(engine, "original")
        calls.clear()
        async with sim.client() as client:
            fork = await client.fork("original", at="work:1", new_id="fork")
            assert await fork.status() is RunStatus.RUNNING
            assert (await client.get("fork")).owner is None  # type: ignore[union-attr]
            await sim.advance(100)
            async with sim.engine(PROGRAMS):
                assert (await fork.result())[:2] == [10, 100]
        assert calls == {"work 10": 1}

    sim.play(scenario())


def test_a_client_cannot_know_the_code_so_an_engine_parks_what_does_not_fit() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine(PROGRAMS) as engine, sim.client() as client:
            _ = await engine.start(inner(1), id="original")
            await finish(engine, "original")
            _ = await client.fork("original", at="work:1", inputs={"n": 5}, new_id="fork")
            await sim.advance(10)
            view = await client.get("fork")
            assert view is not None
            assert (view.status, "work:0" in view.reason) == (RunStatus.PARKED, True)

    sim.play(scenario())


def test_a_parked_run_is_forked_where_the_code_still_fits() -> None:
    def made(second: int) -> Any:
        @workflow
        async def changing() -> list[Any]:
            return [await work(1), await work(second), await wait_signal("go")]

        return changing

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([made(2)]) as engine:
            _ = await engine.start(made(2)(), id="original")
            await sim.advance(1)
        async with sim.engine([made(3)]) as engine:
            await engine.signal("original", "go")
            await sim.advance(1)
            view = await engine.get("original")
            assert view is not None
            assert view.status is RunStatus.PARKED
            with pytest.raises(ForkRefused, match="work:1"):
                _ = await engine.fork("original")
            calls.clear()
            fork = await engine.fork("original", at="work:1")
            await fork.signal("go", "gone")
            assert await fork.result() == [10, 30, "gone"]
            assert calls == {"work 3": 1}
            assert (await engine.get("original")).status is RunStatus.PARKED  # type: ignore[union-attr]

    sim.play(scenario())


@dataclass
class Big:
    text: str


def test_large_values_are_kept_and_can_be_edited() -> None:
    @step
    async def make(size: int) -> Big:
        return Big("x" * size)

    @workflow
    async def heavy(data: Big) -> list[int]:
        made = await make(400_000)
        await work(1)
        return [len(data.text), len(made.text)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([heavy]) as engine:
            assert await (await engine.start(heavy(Big("y" * 300_000)), id="original")).result() == [300_000, 400_000]
            assert await (await engine.fork("original", at="work:0")).result() == [300_000, 400_000]
            edited = await engine.fork("original", values={"make:0": Big("z" * 500_000)})
            assert await edited.result() == [300_000, 500_000]
            other = await engine.fork("original", at="work:0", inputs={"data": Big("y" * 350_000)})
            assert await other.result() == [350_000, 400_000]

    sim.play(scenario())


def test_a_fork_tells_where_it_comes_from() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine(PROGRAMS) as engine:
            _ = await engine.start(inner(1), id="original", tags={"a": "b"})
            original = await finish(engine, "original")
            fork = await engine.fork("original", at="work:1")
            await fork.result()
            grandchild = await engine.fork(fork.id, at="work:1")
            first = (await engine.journal(grandchild.id))[0].event
            assert isinstance(first, RunStarted)
            assert first.forked_from == fork.run_id
            views = [await engine.get(fork.id), await engine.get(grandchild.id), await engine.get("original")]
            assert [v.forked_from for v in views if v] == [original.run_id, fork.run_id, None]
            assert [v.tags for v in views if v] == [{"a": "b"}] * 3
            marks = [e.event for e in await engine.journal(fork.id) if isinstance(e.event, RunForked)]
            assert [(m.run_id, m.seq) for m in marks] == [(original.run_id, 7)]

    sim.play(scenario())


# --- retry ----------------------------------------------------------------------------------------------------------


@step(retry=Retry(attempts=3, initial=1.0))
async def fragile(n: int) -> int:
    calls[f"fragile {n}"] += 1
    keys.append(step_context().id)
    if world.get("broken", True):
        raise ConnectionError(f"no {n}")
    return n


def test_a_failed_run_goes_on_from_what_failed() -> None:
    @workflow
    async def shaky() -> list[int]:
        return [await work(1), await fragile(2), await work(3)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([shaky]) as engine:
            first = await engine.start(shaky(), id="original")
            with pytest.raises(ConnectionError):
                await first.result()
            assert calls == {"work 1": 1, "fragile 2": 3}
            again = await engine.retry("original")
            with pytest.raises(ConnectionError):
                await again.result()
            assert calls == {"work 1": 1, "fragile 2": 6}  # the whole policy again
            world["broken"] = False
            again = await engine.retry("original")
            assert await again.result() == [10, 2, 30]
            assert calls == {"work 1": 1, "fragile 2": 7, "work 3": 1}
            assert len(set(keys)) == 1  # whoever is called knows that it is the same
            view = await engine.get("original")
            assert view is not None
            assert (view.run_id, view.status) == (again.run_id, RunStatus.COMPLETED)
            assert (await engine.get(first.run_id)).status is RunStatus.FAILED  # type: ignore[union-attr]
            with pytest.raises(CannotRetry, match="completed"):
                _ = await engine.retry("original")

    sim.play(scenario())


def test_what_went_on_beside_what_failed_goes_on() -> None:
    @workflow
    async def wide() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(branch(1)), group.create_task(fragile(2)), group.create_task(slow(3, 100))]
        return [task.result() for task in tasks]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([wide]) as engine:
            with pytest.raises(ExceptionGroup):
                await (await engine.start(wide(), id="original")).result()
            world["broken"] = False
            assert calls["slow 1"] == 1
            assert await (await engine.retry("original")).result() == [101, 2, 3]
            assert (calls["slow 1"], calls["slow 3"]) == (1, 2)

    sim.play(scenario())


def test_of_a_fan_out_only_what_failed_is_tried_again() -> None:
    @workflow
    async def fails(n: int) -> int:
        return await work(n) + await fragile(n)

    @workflow
    async def wide() -> list[int]:
        made = await asyncio.gather(
            *(fragile(n) for n in (1, 2)), slow(3, 50), child(fails(4)), slow(5, 60), return_exceptions=True
        )
        if any(isinstance(one, Exception) for one in made):
            raise RuntimeError("some of them failed")
        return [one for one in made if isinstance(one, int)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([wide, fails]) as engine:
            with pytest.raises(RuntimeError):
                await (await engine.start(wide(), id="original")).result()
            world["broken"] = False
            calls.clear()
            assert await (await engine.retry("original")).result() == [1, 2, 3, 44, 5]
            assert calls == {"fragile 1": 1, "fragile 2": 1, "fragile 4": 1}

    sim.play(scenario())


def test_an_error_of_the_body_goes_on_from_the_last_thing_that_succeeded() -> None:
    @workflow
    async def buggy() -> list[int]:
        first, second = await asyncio.gather(work(1), work(2))
        if world.get("bug", True):
            raise KeyError("oh")
        return [first, second, await work(3)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([buggy]) as engine:
            with pytest.raises(KeyError):
                await (await engine.start(buggy(), id="original")).result()
            world["bug"] = False
            assert await (await engine.retry("original")).result() == [10, 20, 30]
            assert calls == {"work 1": 1, "work 2": 1, "work 3": 1}

    sim.play(scenario())


def test_what_failed_in_a_child_is_tried_again_in_the_child() -> None:
    @workflow
    async def fails(n: int) -> int:
        return await work(n) + await fragile(n)

    @workflow
    async def parent() -> list[int]:
        first = await work(9)
        return [first, await child(fails(1)), await work(2)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([parent, fails]) as engine:
            with pytest.raises(ConnectionError):
                await (await engine.start(parent(), id="original")).result()
            world["broken"] = False
            assert await (await engine.retry("original")).result() == [90, 11, 20]
            assert calls == {"work 9": 1, "work 1": 1, "fragile 1": 4, "work 2": 1}

    sim.play(scenario())


def test_cancelled_late_and_timed_out_runs_are_retried_from_there() -> None:
    @workflow
    async def waiting() -> list[Any]:
        return [await work(1), await wait_signal("go", timeout=100), await work(2)]

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([waiting]) as engine:
            for id, options in (("cancelled", {}), ("timed out", {}), ("late", {"deadline": 50})):
                _ = await engine.start(waiting(), id=id, **options)  # type: ignore[arg-type]
            await sim.advance(1)
            with pytest.raises(CannotRetry, match="waiting"):
                _ = await engine.retry("late")
            await engine.cancel("cancelled")
            await sim.advance(200)
            calls.clear()
            for id in ("cancelled", "timed out", "late"):
                handle = await engine.retry(id)
                await sim.advance(10)
                assert await handle.status() is RunStatus.WAITING, id
                await handle.signal("go", id)
                assert await handle.result() == [10, id, 20]
            assert calls == {"work 2": 3}

    sim.play(scenario())


def test_a_run_that_was_undone_is_not_retried() -> None:
    @workflow
    async def booked() -> int:
        async with saga() as s:
            await work(1)
            s.compensate(work, 2)
            if world.get("hang"):
                await sleep(1000)
            return await fragile(3)

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([booked]) as engine:
            with pytest.raises(ConnectionError):
                await (await engine.start(booked(), id="original")).result()
            with pytest.raises(UsageError, match="undone"):
                _ = await engine.retry("original")
            world["hang"] = True
            _ = await engine.start(booked(), id="cancelled")
            await sim.advance(1)
            await engine.cancel("cancelled")
            await sim.advance(10)
            with pytest.raises(UsageError, match="undone"):
                _ = await engine.retry("cancelled")

    sim.play(scenario())


def test_two_retries_at_once_are_one() -> None:
    @workflow
    async def shaky() -> int:
        return await fragile(2)

    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine([shaky]) as engine:
            with pytest.raises(ConnectionError):
                await (await engine.start(shaky(), id="original")).result()
            world["broken"] = False
            handles = await asyncio.gather(*(engine.retry("original") for _ in range(3)))
            assert len({handle.run_id for handle in handles}) == 1
            assert await handles[0].result() == 2

    sim.play(scenario())


def test_nothing_but_the_end_follows_in_the_original() -> None:
    sim = Simulation()

    async def scenario() -> None:
        async with sim.engine(PROGRAMS) as engine:
            _ = await engine.start(inner(1), id="original")
            await finish(engine, "original")
            before = await engine.journal("original")
            await (await engine.fork("original", at=3)).result()
            assert await engine.journal("original") == before
            assert isinstance(before[-1].event, RunFinished)

    sim.play(scenario())
