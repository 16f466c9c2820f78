"""A failed run that is tried again: what succeeded is never called again, and what failed is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from perdure import (
    CannotRetry,
    Limits,
    Retry,
    RunStatus,
    SignalTimeout,
    StepStatus,
    approval,
    child,
    lock,
    now,
    patched,
    rule,
    run_context,
    set_state,
    sleep,
    step,
    step_context,
    uuid4,
    wait_signal,
    workflow,
)
from perdure.testing.simulation import Simulation
from tests.patience import PATIENCE

calls: Counter[str] = Counter()
keys: dict[str, set[str]] = {}
# How often each call fails before it succeeds.
failures: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    reset()


def reset() -> None:
    for one in (calls, failures):
        one.clear()
    keys.clear()


async def act(name: str, seconds: float = 0.0) -> str:
    calls[name] += 1
    keys.setdefault(name, set()).add(step_context().id)
    await asyncio.sleep(seconds)
    if failures[name] > 0:
        failures[name] -= 1
        raise ConnectionError(f"no {name}")
    return name


@step
async def one(name: str, seconds: float = 0.0) -> str:
    return await act(name, seconds)


@step
async def two(name: str, seconds: float = 0.0) -> str:
    return await act(f"{name} two", seconds)


@step(retry=Retry(attempts=2, initial=0.1))
async def stubborn(name: str, seconds: float = 0.0) -> str:
    return await act(name, seconds)


@step
async def large(name: str) -> str:
    return (await act(name)) * 1000


def retry_until_done(
    run: Any, *programs: Any, rounds: int = 6, check: Callable[[], None] | None = None, **options: Any
) -> Any:
    """Run, and retry until it is completed; each call that succeeded was made once more by nobody."""
    sim = Simulation(seed=1)
    results: list[Any] = []
    # How often each step had been called when its success was recorded.
    recorded: dict[str, int] = {}

    async def scenario() -> None:
        async with sim.engine(programs, **options) as engine:
            handle = await engine.start(run, id="r")
            for number in range(rounds):
                handle = handle if number == 0 else await engine.retry("r")
                result = await handle.outcome()
                assert {name: calls[name] for name in recorded} == recorded
                for view in await engine.steps("r"):
                    if view.status is StepStatus.SUCCEEDED and view.output in calls:
                        recorded[view.output] = calls[view.output]
                if result.status is RunStatus.COMPLETED:
                    results.append(result.output)
                    return
                before = sum(calls.values())
                if check is not None:
                    check()
                assert sum(calls.values()) == before
            raise AssertionError("it does not end")

    sim.play(scenario())
    return results[0]


NAMES = ["a", "b", "c", "d", "e", "f", "g"]


def test_a_fan_out_behind_a_semaphore() -> None:
    @workflow
    async def wide() -> list[str]:
        room = asyncio.Semaphore(2)

        async def guarded(name: str, seconds: float) -> str:
            async with room:
                return await one(name, seconds)

        made = await asyncio.gather(*(guarded(n, 7.0 - i) for i, n in enumerate(NAMES)), return_exceptions=True)
        if any(isinstance(m, Exception) for m in made):
            raise RuntimeError("some of them failed")
        return [str(m) for m in made]

    failures.update({"a": 1, "d": 2, "g": 3})
    assert retry_until_done(wide(), wide) == NAMES
    assert calls == {"a": 2, "b": 1, "c": 1, "d": 3, "e": 1, "f": 1, "g": 4}
    assert all(len(of) == 1 for of in keys.values())


def test_a_fan_out_that_publishes_its_progress() -> None:
    @workflow
    async def wide() -> list[str]:
        made = 0

        async def shown(name: str, seconds: float) -> str:
            nonlocal made
            value = await one(name, seconds)
            made += 1
            set_state("progress", made)
            return value

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(shown(n, 7.0 - i)) for i, n in enumerate(NAMES)]
        return [task.result() for task in tasks]

    failures.update({"c": 1, "a": 1})
    assert retry_until_done(wide(), wide) == NAMES


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_that_take_from_a_queue_in_the_body(workers: int) -> None:
    @workflow
    async def pool() -> list[str]:
        queue: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        for i, name in enumerate(NAMES):
            queue.put_nowait((name, 1.0 + i % 3))
        failed: list[str] = []
        got: list[str] = []

        async def worker() -> None:
            while not queue.empty():
                name, seconds = queue.get_nowait()
                try:
                    got.append(await two(await one(name, seconds)))
                except ConnectionError:
                    failed.append(name)
                set_state("left", queue.qsize())

        await asyncio.gather(*(worker() for _ in range(workers)))
        if failed:
            raise RuntimeError(f"{len(failed)} failed")
        return sorted(got)

    failures.update({"a": 1, "b two": 2, "e": 1, "g two": 1})
    assert retry_until_done(pool(), pool) == [f"{n} two" for n in NAMES]


def test_children_with_two_steps_and_retries() -> None:
    @workflow
    async def part(name: str) -> str:
        first = await stubborn(name)
        await sleep(10)
        return await two(first)

    @workflow
    async def whole() -> list[str]:
        made = await asyncio.gather(*(child(part(name)) for name in NAMES), return_exceptions=True)
        for one_of in made:
            if isinstance(one_of, Exception):
                raise one_of
        return [str(m) for m in made]

    failures.update({"b": 2, "d two": 1, "e": 4})
    assert retry_until_done(whole(), whole, part) == [f"{n} two" for n in NAMES]


def test_what_is_done_under_a_lock_keeps_the_token_it_was_done_under() -> None:
    @step
    async def under(name: str, token: int) -> str:
        return await act(name)

    @workflow
    async def locked() -> list[str]:
        made = []
        for name in ("a", "b"):
            async with lock("room", ttl=30) as held:
                made.append(await under(name, held.token))
                made.append(await under(f"{name} two", held.token))
        return made

    failures.update({"b two": 2})
    assert retry_until_done(locked(), locked) == ["a", "a two", "b", "b two"]


def test_what_was_waited_for_and_drawn_is_the_same() -> None:
    @step
    async def told(name: str, *values: Any) -> list[str]:
        await act(name)
        return [str(value) for value in values]

    @workflow
    async def asking() -> list[Any]:
        drawn = await told("drawn", now(), uuid4(), run_context().run_id)
        try:
            await wait_signal("never", timeout=5)
        except SignalTimeout:
            await told("late")
        await sleep(20)
        signal: str = await wait_signal("go")
        answer: str = await approval("ship")
        await told("heard", signal, answer)
        return [drawn, signal, answer, await told("last", now())]

    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([asking]) as engine:
            run = await engine.start(asking(), id="r")
            await sim.advance(30)
            await engine.signal("r", "never", "too late")
            await engine.signal("r", "go", "went")
            await sim.advance(1)
            await engine.approve("r", "ship", "yes")
            assert (await run.outcome()).status is RunStatus.FAILED
            assert (await (await engine.retry("r")).outcome()).status is RunStatus.FAILED
            drawn, *rest = await (await engine.retry("r")).result()
            assert rest[:2] == ["went", "yes"]
            assert drawn[2] == run.run_id
            assert datetime.fromisoformat(drawn[0]) < sim.now()
            assert calls == {"drawn": 1, "late": 1, "heard": 1, "last": 3}

    failures.update({"last": 2})
    sim.play(scenario())


def test_a_failure_that_the_body_took_another_way_for_stays_one() -> None:
    @workflow
    async def pay() -> list[str]:
        try:
            paid = await one("card")
        except ConnectionError:
            paid = await two("invoice")
        return [paid, await one("ship")]

    failures.update({"card": 1, "ship": 1})
    assert retry_until_done(pay(), pay) == ["invoice two", "ship"]
    assert calls == {"card": 1, "invoice two": 1, "ship": 2}


def test_a_timeout_counts_anew() -> None:
    @workflow
    async def hurried() -> list[str]:
        first = await one("first")
        async with asyncio.timeout(PATIENCE):
            return [first, await one("slow", 100.0 if failures["slow"] else 0.0)]

    failures.update({"slow": 1})

    def mend() -> None:
        failures.clear()

    assert retry_until_done(hurried(), hurried, check=mend) == ["first", "slow"]


def test_large_values_and_rules_that_skip_are_kept() -> None:
    @workflow(rules=[rule("two", on_failure="skip")])
    async def heavy() -> list[Any]:
        made = await asyncio.gather(large("a"), two("b"), one("c"), large("d"))
        return [len(m) if m else m for m in made]

    failures.update({"b two": 1, "c": 2})
    assert retry_until_done(heavy(), heavy, limits=Limits(blob=100)) == [1000, None, 1, 1000]
    assert calls["b two"] == 1


def test_a_detached_run_is_started_once() -> None:
    @workflow
    async def other() -> str:
        return await one("other")

    @workflow
    async def starter() -> str:
        await child(other(), detached=True)
        return await two("then")

    failures.update({"then two": 1})
    assert retry_until_done(starter(), starter, other) == "then two"
    assert calls["other"] == 1


def test_a_run_that_took_the_old_path_of_a_patch_stays_on_it() -> None:
    new: list[bool] = []

    @workflow
    async def changing() -> str:
        if new and patched("two-first"):
            await two("first")
        await one("a")
        return await one("b")

    def deploy() -> None:
        new.append(True)

    failures.update({"b": 2})
    assert retry_until_done(changing(), changing, check=deploy) == "b"
    assert "first two" not in calls


# --- refused ---------------------------------------------------------------------------------------------------------


def refused(run: Any, *programs: Any, change: Callable[[], None] = lambda: None) -> str:
    sim = Simulation(seed=1)
    told: list[str] = []

    async def scenario() -> None:
        async with sim.engine(programs) as engine:
            first = await engine.start(run, id="r")
            assert (await first.outcome()).status is RunStatus.FAILED
            change()
            before = dict(calls)
            with pytest.raises(CannotRetry) as error:
                _ = await engine.retry("r")
            told.append(str(error.value))
            assert dict(calls) == before
            assert (await engine.get("r")).run_id == first.run_id  # type: ignore[union-attr]

    sim.play(scenario())
    return told[0]


def test_a_run_that_would_fail_the_same_way_is_refused() -> None:
    @workflow
    async def buggy() -> str:
        await one("a")
        raise KeyError("oh")

    assert "fail the same way" in refused(buggy(), buggy)
    assert "KeyError" in refused(buggy(), buggy)


def test_a_run_whose_code_no_longer_asks_for_what_it_has_done_is_refused() -> None:
    changed: list[bool] = []

    @workflow
    async def changing() -> list[str]:
        first = [] if changed else [await one("a")]
        return [*first, await two("b")]

    failures.update({"b two": 5})
    told = refused(changing(), changing, change=lambda: changed.append(True))
    assert "would not ask again" in told
    assert "one:0" in told


# --- and not refused: what came after a failure is kept until it is asked for ----------------------------------------


def test_what_succeeded_behind_a_failure_is_kept_where_another_failure_may_end_the_run_first() -> None:
    @workflow
    async def uneven() -> list[str]:
        async def through() -> str:
            try:
                await one("a", 1.0)
            except ConnectionError:
                await one("b")
                raise
            return await one("b")

        async def beside() -> str:
            await sleep(1.5)
            return await one("c")

        return list(await asyncio.gather(through(), beside()))

    # The next time, what fails first ends the run before the other has got where it was.
    failures.update({"a": 2, "c": 2})
    assert retry_until_done(uneven(), uneven, rounds=6) == ["b", "c"]
    assert calls["b"] == 1


def test_a_task_that_outlived_the_failure_of_its_group_keeps_what_it_has_done() -> None:
    @workflow
    async def outlived() -> list[Any]:
        room = asyncio.Semaphore(1)

        async def within(name: str, seconds: float) -> str:
            async with room:
                return await one(name, seconds)

        async def narrow() -> list[str]:
            return list(await asyncio.gather(within("a", 0.5), within("b", 1.0), within("c", 1.0)))

        made = await asyncio.gather(narrow(), one("d", 5.0), return_exceptions=True)
        for outcome in made:
            if isinstance(outcome, BaseException):
                raise outcome
        return list(made)

    failures["b"] = 3
    assert retry_until_done(outlived(), outlived, rounds=6) == [["a", "b", "c"], "d"]
    assert calls == {"a": 1, "b": 4, "c": 1, "d": 1}


def test_what_one_worker_failed_at_and_another_did_is_not_called_by_the_first_again() -> None:
    @workflow
    async def shared() -> list[str]:
        todo: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        for item in (("a", 0.5), ("b", 2.0), ("c", 4.0), ("d", 0.0)):
            todo.put_nowait(item)
        made: list[str] = []
        errors: list[Exception] = []

        async def worker() -> None:
            while not todo.empty():
                name, seconds = todo.get_nowait()
                try:
                    made.append(await one(name, seconds))
                except ConnectionError as error:
                    errors.append(LookupError(name) if name == "a" else error)

        await asyncio.gather(worker(), worker())
        if errors:
            raise ExceptionGroup("some", errors)
        return sorted(made)

    failures.update({"a": 1, "b": 1, "c": 2, "d": 2})
    assert retry_until_done(shared(), shared, rounds=8) == ["a", "b", "c", "d"]
    assert calls == {"a": 2, "b": 2, "c": 3, "d": 3}


@pytest.mark.parametrize("times", [1, 2])
def test_what_the_body_called_once_more_and_had_is_not_called_again(times: int) -> None:
    @workflow
    async def persistent() -> list[str]:
        first = ""
        for attempt in range(3):
            try:
                first = await one("a")
                break
            except ConnectionError:
                if attempt == 2:
                    raise
        return [first, await two("b")]

    failures.update({"a": times, "b two": 2})
    assert retry_until_done(persistent(), persistent, rounds=4) == ["a", "b two"]
    assert calls["a"] == times + 1


def test_a_client_that_does_not_know_the_code_retries_all_that_failed() -> None:
    @workflow
    async def wide() -> list[str]:
        made = await asyncio.gather(*(one(n) for n in NAMES), return_exceptions=True)
        await two("report")
        if any(isinstance(m, Exception) for m in made):
            raise RuntimeError("some of them failed")
        return [str(m) for m in made]

    failures.update({"b": 1, "f": 1})
    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([wide]) as engine:
            assert (await (await engine.start(wide(), id="r")).outcome()).status is RunStatus.FAILED
            async with sim.client() as client:
                _ = await client.retry("r")
            await sim.advance(10)
            assert (await engine.get("r")).output == NAMES  # type: ignore[union-attr]
            assert calls == {**dict.fromkeys(NAMES, 1), "b": 2, "f": 2, "report two": 1}

    sim.play(scenario())


def test_what_a_client_retries_and_does_not_fit_is_parked_before_anything_is_called() -> None:
    @workflow
    async def buggy() -> str:
        await one("a")
        raise KeyError("oh")

    sim = Simulation(seed=1)

    async def scenario() -> None:
        async with sim.engine([buggy]) as engine:
            assert (await (await engine.start(buggy(), id="r")).outcome()).status is RunStatus.FAILED
            async with sim.client() as client:
                _ = await client.retry("r")
            await sim.advance(10)
            view = await engine.get("r")
            assert view is not None
            assert (view.status, calls) == (RunStatus.PARKED, {"a": 1})
            assert "fail the same way" in str(view.reason)

    sim.play(scenario())


# --- any shape -------------------------------------------------------------------------------------------------------


async def branch(name: str, steps: list[list[Any]]) -> list[str]:
    made = []
    for number, (kind, seconds) in enumerate(steps):
        call = {"one": one, "stubborn": stubborn}[kind]
        made.append(await call(f"{name}{number}", seconds))
    return made


@workflow
async def shaped(shape: str, width: int, branches: list[list[list[Any]]]) -> list[list[str]]:
    """One fan-out of any shape; it fails if any of its branches does."""
    work: list[Callable[[], Awaitable[list[str]]]] = []
    for number, steps in enumerate(branches):
        if shape == "children":
            work.append(lambda n=number, s=steps: nested(f"{n}.", s))  # type: ignore[misc]
        else:
            work.append(lambda n=number, s=steps: branch(f"{n}.", s))  # type: ignore[misc]
    room = asyncio.Semaphore(width)

    async def guarded(make: Callable[[], Awaitable[list[str]]]) -> list[str]:
        async with room:
            made = await make()
            set_state("last", made)
            return made

    if shape == "sequence":
        return [await make() for make in work]
    if shape == "gather":
        return list(await asyncio.gather(*(branch(f"{n}.", s) for n, s in enumerate(branches))))
    if shape == "group":
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(guarded(make)) for make in work]
        return [task.result() for task in tasks]
    if shape == "workers":
        return await workers(width, work)
    made = await asyncio.gather(*(guarded(make) for make in work), return_exceptions=True)
    bad = [m for m in made if isinstance(m, BaseException)]
    if bad:
        raise ExceptionGroup("bad", [m for m in bad if isinstance(m, Exception)])
    return [m for m in made if not isinstance(m, BaseException)]


async def workers(width: int, work: list[Callable[[], Awaitable[list[str]]]]) -> list[list[str]]:
    queue = list(enumerate(work))
    got: dict[int, list[str]] = {}
    bad: list[str] = []

    async def worker() -> None:
        while queue:
            number, make = queue.pop(0)
            try:
                got[number] = await make()
            except ConnectionError as error:
                bad.append(str(error))

    await asyncio.gather(*(worker() for _ in range(width)))
    if bad:
        raise RuntimeError(f"{len(bad)} failed")
    return [got[number] for number in sorted(got)]


@workflow
async def nested(name: str, steps: list[list[Any]]) -> list[str]:
    return await branch(name, steps)


_step = st.tuples(st.sampled_from(["one", "one", "stubborn"]), st.sampled_from([0.0, 0.5, 1.0, 2.0])).map(list)
_branches = st.lists(st.lists(_step, min_size=1, max_size=3), min_size=1, max_size=6)
_shapes = st.sampled_from(["sequence", "gather", "group", "caught", "children", "workers"])
_failing = st.dictionaries(st.tuples(st.integers(0, 5), st.integers(0, 2)), st.integers(1, 3), max_size=5)


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(_shapes, st.integers(1, 3), _branches, _failing)
def test_each_step_of_a_fan_out_succeeds_once_whatever_its_shape(
    shape: str, width: int, branches: list[list[list[Any]]], failing: dict[tuple[int, int], int]
) -> None:
    reset()
    failures.update({f"{b}.{s}": times for (b, s), times in failing.items()})
    expected = [[f"{b}.{s}" for s in range(len(steps))] for b, steps in enumerate(branches)]
    assert retry_until_done(shaped(shape, width, branches), shaped, nested, rounds=20) == expected
    # Where the first failure ends the run, what was under way beside it is given up, and called again.
    if shape not in ("gather", "group"):
        asked = {f"{b}.{s}": failing.get((b, s), 0) + 1 for b, steps in enumerate(branches) for s in range(len(steps))}
        assert calls == asked


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.6, 1.1, 2.5])
@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
def test_a_retry_that_dies_on_its_way_is_gone_on_with(moment: float, mode: str) -> None:
    names = [f"{b}.{s}" for b in range(4) for s in range(3)]
    branches = [[["one", 0.5], ["stubborn", 1.0], ["one", 0.5]] for _ in range(4)]
    failures.update({"0.0": 1, "1.1": 3, "2.2": 1, "3.0": 1})
    sim = Simulation(seed=1)

    async def begin() -> None:
        engine = sim.engine([shaped, nested], durability=mode)
        _ = await engine.open()
        run = await engine.start(shaped("caught", 2, branches), id="r")
        assert (await run.outcome()).status is RunStatus.FAILED
        succeeded.update(view.output for view in await engine.steps("r") if view.status is StepStatus.SUCCEEDED)
        before.update(calls)
        _ = await engine.retry("r")
        await sim.advance(moment)  # and dies

    async def after() -> None:
        async with sim.engine([shaped, nested], durability=mode) as engine:
            handle = engine.handle("r")
            for _ in range(5):
                if (await handle.outcome()).status is RunStatus.COMPLETED:
                    break
                handle = await engine.retry("r")
            assert [name for part in (await handle.outcome()).output or () for name in part] == names
            assert {name: calls[name] for name in succeeded} == {name: before[name] for name in succeeded}

    succeeded: set[str] = set()
    before: Counter[str] = Counter()
    sim.play(begin())
    sim.play(after())
    assert succeeded
