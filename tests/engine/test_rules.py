"""Rules at work: policies from the engine, the program and the run; skipped steps; fallbacks."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

from perdure import (
    Engine,
    FailedStep,
    InvalidRule,
    NotDecodable,
    Retry,
    RunStatus,
    StepInfo,
    StepStatus,
    StepTimeout,
    continue_as,
    default,
    instead,
    io,
    kind,
    replace,
    retry_with,
    rule,
    step,
    step_context,
    workflow,
)
from perdure.kernel.events import AttemptFailed, RunStarted, StepSkipped, StepStarted, StepSucceeded
from perdure.kernel.policies.rules import rules_of
from perdure.orchestrator.residency import EntryRequest
from perdure.stores.memory.store import MemoryStore
from tests.engine.harness import AT_ONCE, PATIENCE, Gates, Ran, Recorded, eventually, left_by_a_crash, only, run

calls: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    calls.clear()


@step
async def charge(cents: int, currency: str = "EUR") -> str:
    calls.append((cents, currency))
    if cents > 100:
        raise ConnectionError(f"no route for {cents}")
    return f"{cents} {currency}"


@step
async def pay_later(cents: int) -> str:
    calls.append(("later", cents))
    return f"{cents} later"


@step
def in_thread(cents: int) -> str:
    calls.append(threading.current_thread() is threading.main_thread())
    raise ConnectionError


@workflow
async def shop(cents: int) -> str | None:
    return await charge(cents)


def names(ran: Ran, events: list[Any]) -> list[str]:
    kinds = (StepStarted, AttemptFailed, StepSkipped, StepSucceeded)
    return [type(e).__name__ for e in events if isinstance(e, kinds) or type(e).__name__ == "StepFailed"]


# --- levels ---------------------------------------------------------------------------------------------------------


async def test_the_engine_gives_steps_their_policy() -> None:
    ran = await run(shop(500), rules=[rule("charge", attempts=3, initial=0)])
    assert isinstance(ran.result.error, ConnectionError)
    assert len(calls) == 3


async def test_the_program_comes_before_the_engine() -> None:
    @workflow(rules=[rule("charge", attempts=2, initial=0)])
    async def careful(cents: int) -> str:
        return await charge(cents)

    await run(careful(500), rules=[rule(default, attempts=5, initial=0)])
    assert len(calls) == 2


async def test_a_run_comes_before_its_program_and_its_rules_are_in_the_journal() -> None:
    @workflow(rules=[rule("charge", attempts=2, initial=0)])
    async def careful(cents: int) -> str:
        return await charge(cents)

    store = MemoryStore()
    async with Engine(store, [careful], recovery=AT_ONCE) as engine:
        result = await engine.run(careful(500), id="it", rules=[rule("charge", attempts=4, backoff="none")])
        [started, *_] = [entry.event for entry in await engine.journal("it")]
    assert isinstance(result.error, ConnectionError)
    assert len(calls) == 4
    assert isinstance(started, RunStarted)
    assert started.rules == {"mode": "prepend", "rules": [["charge", {"attempts": 4, "backoff": "none"}]]}


async def test_a_run_can_replace_all_other_rules() -> None:
    async with Engine("memory://", [shop], rules=[rule("charge", attempts=9, initial=0)]) as engine:
        await engine.run(shop(500), rules=replace([rule(kind("cpu"), timeout=1)]))
        assert len(calls) == 1


async def test_the_rules_of_a_run_hold_after_it_was_taken_up_by_another_engine() -> None:
    gates, recorded, store = Gates(), Recorded(), MemoryStore()

    @step
    async def wait() -> None:
        await gates.wait("go")

    @workflow
    async def later() -> str:
        await wait()
        return await charge(500)

    async with Engine(store, [later], recovery=AT_ONCE, on_commit=recorded) as engine:
        _ = await engine.start(later(), id="it", rules=[(re.compile("^ch"), {"attempts": 3, "initial": 0.0})])
        await recorded.until_started("wait:0")
    gates.open("go")
    async with Engine(store, [later], recovery=AT_ONCE) as engine:
        result = await (await engine.start(later(), id="it")).outcome(PATIENCE)
    assert isinstance(result.error, ConnectionError)
    assert len(calls) == 3


async def test_the_rules_of_a_run_hold_when_it_goes_on_as_another_incarnation() -> None:
    @workflow
    async def endless(times: int) -> str:
        if times:
            continue_as(times - 1)
        return await charge(500)

    async with Engine("memory://", [endless], recovery=AT_ONCE) as engine:
        run = await engine.start(endless(2), rules=[rule("charge", attempts=3, backoff="none")])
        assert isinstance((await run.outcome(PATIENCE)).error, ConnectionError)
    assert len(calls) == 3


async def test_rules_see_the_kind_of_a_step_its_program_and_the_tags_of_the_run() -> None:
    seen: list[StepInfo] = []

    def look(info: StepInfo) -> bool:
        seen.append(info)
        return info.tags.get("tier") == "gold"

    async with Engine("memory://", [shop], rules=[rule(look, attempts=2, initial=0)]) as engine:
        await engine.run(shop(500), tags={"tier": "gold"})
        assert len(calls) == 2
        await engine.run(shop(500))
        assert len(calls) == 3
    assert seen == [StepInfo("charge", "async", "shop", {"tier": "gold"}), StepInfo("charge", "async", "shop", {})]


async def test_a_rule_can_give_a_timeout_and_take_one_away() -> None:
    @step(timeout=0.001)
    async def slow() -> str:
        await asyncio.sleep(0.02)
        return "done"

    @step
    async def endless() -> None:
        await asyncio.Event().wait()

    @workflow
    async def flow() -> str:
        try:
            await endless()
        except StepTimeout:
            return await slow()
        return "no timeout"

    ran = await run(flow(), rules=[rule("slow", timeout=None), rule(kind("step"), timeout=0.001)])
    assert ran.output == "done"


async def test_a_predicate_that_raises_fails_the_step_and_the_body_may_go_on() -> None:
    @workflow
    async def flow() -> str:
        try:
            return await charge(5)
        except InvalidRule as error:
            return str(error)

    def odd(info: StepInfo) -> bool:
        return info.tags["tier"] == "gold"

    ran = await run(flow(), rules=[rule(odd, timeout=5)])
    assert "rule('odd'): its predicate raised KeyError: 'tier'" in ran.output
    assert calls == []


async def test_a_child_has_the_rules_of_its_own_program_behind_those_of_the_root_run() -> None:
    seen: list[str] = []

    def look(info: StepInfo) -> bool:
        seen.append(info.program)
        return False

    @workflow(rules=[rule("charge", attempts=2, backoff="none")])
    async def paying(cents: int) -> str:
        return await charge(cents)

    @workflow(rules=[rule("charge", attempts=3, backoff="none")])
    async def ordering(cents: int) -> str:
        return await paying(cents)

    async with Engine("memory://", [ordering, paying], rules=[rule(default, attempts=9)]) as engine:
        await engine.run(ordering(500))
        assert len(calls) == 2, "of the child's program, not of its parent's"
        await engine.run(ordering(500), rules=[rule("charge", attempts=4, backoff="none")])
        assert len(calls) == 2 + 4, "of the root run first"
        await engine.run(ordering(500), rules=replace([]))
        assert len(calls) == 2 + 4 + 1

    @workflow
    async def plain(cents: int) -> str:
        return await charge(cents)

    @workflow
    async def outer(cents: int) -> str:
        return await plain(cents)

    async with Engine("memory://", [outer, plain], rules=[rule(look)]) as engine:
        await engine.run(outer(5))
    assert seen == ["plain"]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_an_engine_and_a_workflow_refuse_rules_that_make_no_sense_at_once() -> None:
    with pytest.raises(InvalidRule, match=r"Engine\(rules=...\), rule 1 \('charge'\).*did you mean 'timeout'"):
        _ = Engine("memory://", rules=[("charge", {"timout": 5})])
    with pytest.raises(InvalidRule, match="@workflow flow, rule 2: 'charge' can match nothing"):

        @workflow(rules=[rule(default, timeout=5), rule("charge", timeout=6)])
        async def flow() -> None: ...


async def test_a_start_with_rules_that_make_no_sense_writes_nothing() -> None:
    async with Engine("memory://", [shop]) as engine:
        with pytest.raises(InvalidRule, match=r"start\(rules=...\), rule 1"):
            _ = await engine.start(shop(1), id="it", rules=[("charge", {"attemps": 3})])
        with pytest.raises(InvalidRule, match="a fallback is code"):
            _ = await engine.start(shop(1), id="it", rules=[rule("charge", fallback=lambda failed: 0)])
        assert await engine.get("it") is None
        assert (await engine.run(shop(1), id="it")).output == "1 EUR"


# --- skipping -------------------------------------------------------------------------------------------------------


async def test_a_step_that_may_be_skipped_gives_none_after_its_last_attempt() -> None:
    @workflow
    async def flow() -> list[Any]:
        return [await charge(500), await charge(5)]

    ran = await run(flow(), rules=[rule("charge", io, initial=0)])
    assert ran.output == [None, "5 EUR"]
    events = await ran.events()
    assert names(ran, events) == ["StepStarted", "AttemptFailed"] * 2 + ["StepStarted", "StepSkipped"] + [
        "StepStarted",
        "StepSucceeded",
    ]
    async with Engine(ran.store, [flow]) as engine:
        first, second = await engine.steps("it")
    assert (first.status, first.output, first.attempt) == (StepStatus.SKIPPED, None, 3)
    assert first.error is not None
    assert first.error.message == "no route for 500"
    assert [a.status for a in first.attempts] == [StepStatus.FAILED] * 3
    assert second.status is StepStatus.SUCCEEDED


async def test_a_step_that_was_skipped_stays_skipped_whatever_the_rules_say_later() -> None:
    ran = await run(shop(500), rules=[rule("charge", on_failure="skip")])
    for batch in ran.store.journal.batches[ran.run_id][1:]:
        store = left_by_a_crash(ran.store, batch[0])
        skipped = any(isinstance(e, StepSkipped) for b in await store.journal.read(ran.run_id) for e in b.events)
        async with Engine(store, [shop], recovery=AT_ONCE) as engine:
            result = await (await engine.start(shop(500), id="it")).outcome(PATIENCE)
        assert result.status is (RunStatus.COMPLETED if skipped else RunStatus.FAILED)


async def test_a_skipped_step_has_no_type_to_fit() -> None:
    @step
    async def count() -> int:
        raise ConnectionError

    @workflow
    async def flow() -> int:
        return await count() or 7

    assert (await run(flow(), rules=[rule("count", on_failure="skip")])).output == 7


# --- falling back ---------------------------------------------------------------------------------------------------


async def test_a_fallback_gives_the_value_of_the_step() -> None:
    told: list[FailedStep] = []

    def use_none(failed: FailedStep) -> str:
        told.append(failed)
        return "unpaid"

    ran = await run(shop(500), rules=[rule("charge", attempts=2, initial=0, fallback=use_none)])
    assert ran.output == "unpaid"
    [failed] = told
    assert (failed.name, failed.op, failed.args, failed.kwargs) == ("charge", "charge:0", (500,), {})
    assert failed.attempt == 3
    assert repr(failed.error) == "ConnectionError('no route for 500')"
    events = await ran.events()
    assert names(ran, events) == ["StepStarted", "AttemptFailed"] * 2 + ["StepStarted", "StepSucceeded"]
    marks = [e.fallback for e in events if isinstance(e, AttemptFailed | StepSucceeded)]
    assert marks == [False, True, True]
    async with Engine(ran.store, [shop]) as engine:
        [view] = await engine.steps("it")
    assert (view.status, view.output) == (StepStatus.SUCCEEDED, "unpaid")
    assert [a.fallback for a in view.attempts] == [False, False, True]


async def test_a_fallback_may_be_async_and_sees_the_context_of_the_step() -> None:
    async def ask(failed: FailedStep) -> str:
        await asyncio.sleep(0)
        return f"{step_context().id.partition('/')[2]} #{step_context().attempt}"

    assert (await run(shop(500), rules=[rule("charge", fallback=ask)])).output == "charge:0 #2"


async def test_a_plain_fallback_runs_in_a_thread() -> None:
    where: list[bool] = []

    def look(failed: FailedStep) -> str:
        where.append(threading.current_thread() is threading.main_thread())
        return "x"

    await run(shop(500), rules=[rule("charge", fallback=look)])
    assert where == [False]


async def test_a_fallback_can_try_the_step_once_more_with_other_arguments() -> None:
    rules = [rule("charge", attempts=2, initial=0, fallback=lambda failed: retry_with(failed.args[0] // 10, "USD"))]
    ran = await run(shop(500), rules=rules)
    assert ran.output == "50 USD"
    assert calls == [(500, "EUR"), (500, "EUR"), (50, "USD")]
    ran = await run(shop(5000), rules=rules)
    assert repr(ran.result.error) == "ConnectionError('no route for 500')", "once, and not more often"


async def test_a_fallback_can_call_another_step() -> None:
    rules = [rule("charge", fallback=lambda failed: instead(pay_later, failed.args[0]))]
    ran = await run(shop(500), rules=rules)
    assert ran.output == "500 later"
    assert await ran.ops() == ["charge:0"], "it is an attempt of the step that failed"


async def test_another_step_may_be_a_plain_one() -> None:
    @step
    def offline(cents: int) -> str:
        return f"{cents} {threading.current_thread() is threading.main_thread()}"

    ran = await run(shop(500), rules=[rule("charge", fallback=lambda failed: instead(offline, *failed.args))])
    assert ran.output == "500 False"


async def test_a_fallback_that_raises_fails_the_step_with_its_error_and_the_first_as_cause() -> None:
    def broken(failed: FailedStep) -> str:
        raise KeyError("no plan")

    ran = await run(shop(500), rules=[rule("charge", fallback=broken)])
    assert repr(ran.result.error) == "KeyError('no plan')"
    assert ran.result.error is not None
    assert repr(ran.result.error.__cause__) == "ConnectionError('no route for 500')"


async def test_a_fallback_that_raises_what_it_was_told_changes_nothing() -> None:
    def give_up(failed: FailedStep) -> str:
        raise failed.error

    ran = await run(shop(500), rules=[rule("charge", fallback=give_up)])
    assert repr(ran.result.error) == "ConnectionError('no route for 500')"
    assert ran.result.error is not None
    assert ran.result.error.__cause__ is None


async def test_a_fallback_that_fails_is_skipped_where_the_step_may_be() -> None:
    rules = [rule("charge", on_failure="skip", fallback=lambda failed: retry_with(200))]
    ran = await run(shop(500), rules=rules)
    assert ran.output is None
    assert calls == [(500, "EUR"), (200, "EUR")]


async def test_the_value_of_a_fallback_must_fit_the_step() -> None:
    ran = await run(shop(500), rules=[rule("charge", fallback=lambda failed: 7)])
    assert isinstance(ran.result.error, NotDecodable)
    assert "the result of charge:0" in str(ran.result.error)


async def test_a_fallback_takes_an_error_that_is_not_retried_too() -> None:
    retry = Retry(attempts=5, on=(KeyError,))
    ran = await run(shop(500), rules=[rule("charge", retry=retry, fallback=lambda failed: "unpaid")])
    assert ran.output == "unpaid"
    assert len(calls) == 1


async def test_a_fallback_takes_a_timeout_and_has_one_of_its_own() -> None:
    @step
    async def slow(seconds: float) -> str:
        calls.append(seconds)
        await asyncio.sleep(seconds)
        return "done"

    flow = only(slow, 3600)

    def quicker(failed: FailedStep) -> Any:
        assert isinstance(failed.error, StepTimeout)
        return retry_with(0.0)

    assert (await run(flow(), rules=[rule("slow", timeout=0.01, fallback=quicker)])).output == "done"
    ran = await run(flow(), rules=[rule("slow", timeout=0.01, fallback=lambda failed: retry_with(3600))])
    assert isinstance(ran.result.error, StepTimeout)
    unhurried = slow.options(timeout=60)
    rules = [rule("slow", timeout=0.01, fallback=lambda failed: instead(unhurried, 0.03))]
    assert (await run(flow(), rules=rules)).output == "done", "another step has the timeout of its own"


async def test_a_fallback_in_a_thread_is_told_that_its_time_is_up() -> None:
    told = threading.Event()

    def stubborn(failed: FailedStep) -> str:
        context = step_context()
        while not context.cancelled:
            told.wait(0.001)
        told.set()
        return "too late"

    ran = await run(shop(500), rules=[rule("charge", timeout=0.01, fallback=stubborn)])
    assert isinstance(ran.result.error, StepTimeout)
    assert repr(ran.result.error.__cause__) == "ConnectionError('no route for 500')"
    await eventually(told.is_set)


async def test_a_large_value_of_a_fallback_is_stored_apart() -> None:
    ran = await run(shop(500), rules=[rule("charge", fallback=lambda failed: "x" * 300_000)])
    assert len(ran.output) == 300_000
    [event] = [e for e in await ran.events() if isinstance(e, StepSucceeded)]
    assert event.blob
    assert event.fallback


async def test_a_fallback_that_is_given_up_is_cancelled() -> None:
    gates, recorded = Gates(), Recorded()
    ends: list[str] = []

    async def endless(failed: FailedStep) -> str:
        try:
            await gates.wait("never")
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise
        return "x"

    rules = [rule("charge", timeout=60, fallback=endless)]
    async with Engine("memory://", [shop], rules=rules, on_commit=recorded, recovery=AT_ONCE) as engine:
        handle = await engine.start(shop(500), id="it")
        await recorded.until_started("charge:0", 2)
        await engine.cancel("it")
        assert (await handle.outcome(PATIENCE)).status is RunStatus.CANCELLED
        await eventually(lambda: ends == ["cancelled"])


# --- over crashes and deploys ---------------------------------------------------------------------------------------


async def everywhere(ran: Ran, program: Any, **options: Any) -> list[Any]:
    """How the run ends when it is taken up from each prefix of its journal by an engine with these options."""
    ends = []
    for seq, _, _ in ran.store.journal.batches[ran.run_id][1:]:
        store = left_by_a_crash(ran.store, seq)
        async with Engine(store, [program], recovery=AT_ONCE, **options) as engine:
            handle = await engine.start(program(500), id="it")
            assert handle.run_id == ran.run_id
            result = await handle.outcome(PATIENCE)
        ends.append(result.output if result.error is None else repr(result.error))
    return ends


async def test_a_fallback_is_made_again_from_every_prefix_of_the_journal() -> None:
    rules = [rule("charge", attempts=2, initial=0, fallback=lambda failed: retry_with(50))]
    ran = await run(shop(500), rules=rules)
    ends = await everywhere(ran, shop, rules=rules)
    assert set(ends) == {"50 EUR"}
    assert len(ends) >= 5


@pytest.mark.parametrize(
    ("later", "end"),
    [
        ([], "ConnectionError('no route for 500')"),
        ([rule("charge", on_failure="skip")], None),
        ([rule("charge", fallback=lambda failed: "another")], "another"),
        ([rule("charge", attempts=9, backoff="none")], "ConnectionError('no route for 500')"),
        ([rule(default, timeout=5)], "ConnectionError('no route for 500')"),
    ],
)
async def test_rules_that_change_between_two_deploys_never_make_a_run_diverge(later: Any, end: Any) -> None:
    ran = await run(shop(500), rules=[rule("charge", attempts=2, initial=0, fallback=lambda failed: retry_with(50))])
    ends = await everywhere(ran, shop, rules=later)
    # What the journal says stays; what it does not say yet is decided by the rules of now.
    assert set(ends) <= {"50 EUR", end}
    assert ends[0] == end


async def test_recorded_rules_that_no_longer_make_sense_park_the_run() -> None:
    store = MemoryStore()
    async with Engine(store, [shop]) as engine:
        _ = await engine.start(shop(1), id="it", delay=3600, rules=[rule("charge", timeout=5)])
    [(run_id, [(seq, at, data), *_])] = store.journal.batches.items()
    store.journal.batches[run_id][0] = (seq, at, data.replace(b'"timeout"', b'"timewarp"').replace(b"3600", b"0"))
    async with Engine(store, [shop]) as engine:
        orchestrator = engine._orchestrator
        assert orchestrator is not None
        await orchestrator.enter(EntryRequest((run_id,)))
        view = await engine.get("it")
        for _ in range(100):
            view = await engine.get("it")
            if view is not None and view.status is RunStatus.PARKED:
                break
            await asyncio.sleep(0)
    assert view is not None
    assert view.status is RunStatus.PARKED
    assert "there is no policy 'timewarp'" in view.reason


def test_one_list_of_rules_serves_many_engines() -> None:
    rules = rules_of([rule("charge", timeout=5)])
    assert Engine("memory://", rules=rules)._rules is rules
