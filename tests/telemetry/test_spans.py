"""Spans: each fact once, each parent exported, nothing open while a run rests, and none of it in a run's way."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from perdure import (
    AlreadyExists,
    Client,
    Engine,
    Program,
    Retry,
    RunStatus,
    StepTimeout,
    Telemetry,
    UsageError,
    bail,
    child,
    continue_as,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.kernel.events import StepStarted
from perdure.stores.memory.store import MemoryStore
from perdure.telemetry.span_queue import SpanQueue, SpanQueueConfig
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded, crashed, left_by_a_crash
from tests.telemetry.otel import Collected, assert_whole, attribute, ids, installed, links_of, of, parent_of

ON = Telemetry(spans=True)


def tracer() -> trace.Tracer:
    """As an application has it."""
    return trace.get_tracer_provider().get_tracer("of the application")


@step
async def add(n: int) -> int:
    with tracer().start_as_current_span("inner"):
        return n + 1


@step
def add_in_thread(n: int) -> int:
    with tracer().start_as_current_span("in a thread"):
        return n + 1


@step(retry=Retry(attempts=2, initial=0.0))
async def fail(card: str) -> None:
    raise ValueError(f"declined {card}, card={card}")


@workflow
async def count(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = await add(total)
    return total


@step
async def add_plainly(n: int) -> int:
    return n + 1


@workflow
async def plain(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = await add_plainly(total)
    return total


@workflow
async def threads() -> int:
    return await add_in_thread(1)


@workflow
async def failing() -> None:
    await fail("4111")


@workflow
async def signalled() -> int:
    with tracer().start_as_current_span("of the body"):
        first = await add(1)
        told = await wait_signal("go")
    return await add(first + int(told))


@workflow
async def resting() -> int:
    first = await add(1)
    await sleep(0.01)
    return await add(first)


@step
async def ask() -> int:
    return 7


@workflow
async def asking() -> int:
    return await ask.options(queue="others")()


@workflow
async def detaching() -> None:
    await add(1)
    await child(count(1), detached=True, id="the-child")


@workflow
async def chain(left: int) -> int:
    await add(left)
    if left:
        await continue_as(left - 1)
    return left


PROGRAMS: list[Program | str] = [plain, count, threads, failing, signalled, resting, asking, detaching, chain]


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> Collected:
    return installed(monkeypatch, Collected())


@asynccontextmanager
async def opened(store: Any = "memory://", **options: Any) -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE):
        given = {"recovery": AT_ONCE, "telemetry": ON, **options}
        async with Engine(store, PROGRAMS, steps=[ask], **given) as engine:
            yield engine


def summaries(found: Collected, program: str) -> list[ReadableSpan]:
    return found.all(f"run {program}", "INTERNAL")


def stretches(found: Collected, program: str) -> list[ReadableSpan]:
    return found.all(f"run {program}", "CONSUMER")


# --- what there is ---------------------------------------------------------------------------------------------------


async def test_a_run_of_a_caller_in_a_trace_is_part_of_it(sdk: Collected) -> None:
    async with opened() as engine:
        with tracer().start_as_current_span("request") as request:
            handle = await engine.start(count(2), id="a")
        assert await handle.result() == 2
        trace_of_run = (await engine.journal("a"))[0].event.trace  # type: ignore[union-attr]
    start, [stretch], [summary] = sdk.one("start count"), stretches(sdk, "count"), summaries(sdk, "count")
    assert start.kind is SpanKind.PRODUCER
    assert parent_of(start) == (request.get_span_context().trace_id, request.get_span_context().span_id)
    assert parent_of(stretch) == parent_of(summary) == of(start)
    assert trace_of_run == f"00-{of(start)[0]:032x}-{of(start)[1]:016x}-01"
    attempts = sdk.all("step add")
    assert [parent_of(one) for one in attempts] == [of(stretch)] * 2
    assert {parent_of(one) for one in sdk.all("inner")} == ids(attempts)
    assert links_of(summary) == ids([stretch])
    assert attribute(summary, "perdure.run.status") == "completed"
    assert (attribute(summary, "perdure.run.steps"), attribute(summary, "perdure.run.attempts")) == (2, 2)
    for name in ("worked", "waited", "queued"):
        assert attribute(summary, f"perdure.run.{name}") >= 0
    assert len({of(span)[0] for span in sdk.spans}) == 1
    assert_whole(sdk.spans)


async def test_a_run_that_no_trace_led_to_has_one_of_its_own_and_no_start_span(sdk: Collected) -> None:
    async with opened() as engine:
        await engine.run(count(1), id="a")
        await engine.run(threads(), id="b")
    assert not sdk.all("start count")
    assert parent_of(sdk.one("run count", "CONSUMER")) is None
    assert parent_of(sdk.one("in a thread")) == of(sdk.one("step add_in_thread"))
    assert len({of(span)[0] for span in sdk.spans}) == 2
    assert_whole(sdk.spans)


async def test_attempts_say_what_they_are_of(sdk: Collected) -> None:
    async with opened(name="w1") as engine:
        await engine.run(count(1), id="a")
    attempt = sdk.one("step add")
    found = dict(attempt.attributes or {})
    assert found["perdure.run.id"] == "a"
    assert found["perdure.op.path"] == "add:0"
    assert found["perdure.step.name"] == "add"
    assert found["perdure.step.attempt"] == 1
    assert str(found["perdure.step.key"]).endswith("add:0")
    assert found["perdure.orchestrator.name"] == "w1"
    assert found["perdure.orchestrator.epoch"] == 1
    assert found["perdure.program.name"] == "count"
    assert str(found["code.file.path"]).endswith("test_spans.py")
    assert isinstance(found["code.line.number"], int)
    assert not [name for name in found if "input" in name or "value" in name]


async def test_failed_attempts_say_how_and_redact_what_is_redacted(sdk: Collected) -> None:
    async with opened(redact=["card"]) as engine:
        assert (await (await engine.start(failing())).outcome()).status is RunStatus.FAILED
    attempts = sdk.all("step fail")
    assert [attribute(one, "perdure.step.attempt") for one in attempts] == [1, 2]
    assert len(ids(attempts)) == 2
    for attempt in attempts:
        assert attempt.status.status_code is StatusCode.ERROR
        assert attribute(attempt, "error.type") == "builtins.ValueError"
        [event] = attempt.events
        assert event.name == "exception"
        said = dict(event.attributes or {})
        assert "declined [redacted], card=[redacted]" in str(said["exception.message"])
        assert "4111" not in str(said)
    assert summaries(sdk, "failing")[0].status.status_code is StatusCode.ERROR


async def test_nothing_is_open_while_a_run_rests(sdk: Collected) -> None:
    async with opened() as engine:
        handle = await engine.start(signalled(), id="a")
        await handle.outcome(until="rest")
        await settled(engine)
        assert sdk.names() == ["inner", "run signalled", "step add"]
        with tracer().start_as_current_span("sender") as sender:
            await handle.signal("go", 1)
        assert await handle.result() == 4
    first, second = stretches(sdk, "signalled")
    assert (sender.get_span_context().trace_id, sender.get_span_context().span_id) in links_of(second)
    assert of(first)[0] == of(second)[0]
    assert links_of(summaries(sdk, "signalled")[0]) == ids([first, second])
    assert_whole(sdk.spans)


async def settled(engine: Engine) -> None:
    """What is over has been exported."""
    spans = engine._telemetry.spans
    assert spans is not None
    async with asyncio.timeout(PATIENCE):
        while spans.queue.waiting:
            await asyncio.sleep(0)


async def test_after_a_long_rest_a_run_continues_in_a_new_trace_with_links(sdk: Collected) -> None:
    async with opened(telemetry=Telemetry(spans=True, trace_gap=0)) as engine:
        with tracer().start_as_current_span("request"):
            handle = await engine.start(resting(), id="a")
        assert await handle.result() == 3
    start, (first, second) = sdk.one("start resting"), stretches(sdk, "resting")
    assert parent_of(first) == of(start)
    assert parent_of(second) is None
    assert of(second)[0] != of(start)[0]
    assert links_of(second) == ids([start, first])
    assert parent_of(summaries(sdk, "resting")[0]) == of(start)
    assert_whole(sdk.spans)


async def test_a_body_makes_no_spans_however_often_it_is_replayed(sdk: Collected) -> None:
    async with opened() as engine:
        handle = await engine.start(signalled(), id="a")
        await handle.outcome(until="rest")
        assert engine._orchestrator is not None
        engine._orchestrator.warm.evict_all()
        await handle.signal("go", 1)
        assert await handle.result() == 4
    assert "of the body" not in sdk.names()
    assert len(sdk.all("step add")) == 2
    assert_whole(sdk.spans)


async def test_a_remote_step_is_part_of_what_asked_for_it(sdk: Collected) -> None:
    async with opened() as engine:
        assert (await engine.run(asking(), id="a")).output == 7
    asked = sdk.one("step ask", "CLIENT")
    [stretch] = [one for one in stretches(sdk, "asking") if of(one) == parent_of(asked)]
    theirs = sdk.one("run perdure.step.ask", "CONSUMER")
    assert parent_of(theirs) == of(stretch)
    assert parent_of(sdk.one("step ask", "INTERNAL")) == of(theirs)
    assert_whole(sdk.spans)


async def test_lives_of_their_own_are_linked(sdk: Collected) -> None:
    async with opened() as engine:
        await engine.run(detaching(), id="a")
        await engine.handle("the-child").result()
        assert (await engine.run(chain(1), id="chain")).output == 0
        _ = await engine.fork("a", new_id="the-fork")
        await engine.handle("the-fork").result()
    ours = stretches(sdk, "detaching")
    [theirs] = stretches(sdk, "count")
    assert links_of(theirs) & ids(ours)
    assert of(theirs)[0] not in {of(one)[0] for one in ours}
    first, second = summaries(sdk, "chain")
    assert of(first) in links_of(second)
    assert of(first)[0] != of(second)[0]
    origin, fork = summaries(sdk, "detaching")
    assert of(origin) in links_of(fork)
    assert_whole(sdk.spans)


async def test_the_next_owner_makes_the_spans_that_a_dead_one_could_not(sdk: Collected) -> None:
    gate = asyncio.Event()

    @step
    async def hold(n: int) -> int:
        await gate.wait()
        return await add.fn(n)

    @workflow
    async def count() -> int:
        return await hold(await hold(1))

    store = await crashed(count(), "hold:0")
    gate.set()
    async with Engine(store, [count], recovery=AT_ONCE, telemetry=ON) as engine:
        run = await engine.start(count(), id="it")
        assert await run.result() == 3
    lost, own = stretches(sdk, "count")
    assert attribute(lost, "error.type") == "process_died"
    assert (attribute(lost, "perdure.orchestrator.epoch"), attribute(own, "perdure.orchestrator.epoch")) == (1, 2)
    first, second, third = sdk.all("step hold")
    assert parent_of(first) == of(lost)
    assert attribute(first, "error.type") == "process_died"
    assert parent_of(second) == parent_of(third) == of(own)
    assert links_of(summaries(sdk, "count")[0]) == ids([lost, own])
    assert_whole(sdk.spans)


async def test_two_exports_of_a_fact_are_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = Collected(), Collected()
    installed(monkeypatch, here)
    gate, recorded = asyncio.Event(), Recorded()

    @step
    async def hold(n: int) -> int:
        await gate.wait()
        return n

    @workflow
    async def count() -> int:
        return await hold(1)

    store = MemoryStore()
    async with Engine(store, [count], recovery=AT_ONCE, on_commit=recorded, telemetry=ON) as engine:
        _ = await engine.start(count(), id="it")
        await recorded.until_started("hold:0")
        left = left_by_a_crash(store)
    installed(monkeypatch, there)
    gate.set()
    async with Engine(left, [count], recovery=AT_ONCE, telemetry=ON) as engine:
        assert await (await engine.start(count(), id="it")).result() == 1
    both = {(span.name, span.kind) for span in there.spans if of(span) in ids(here.spans)}
    assert both == {("run count", SpanKind.CONSUMER), ("step hold", SpanKind.INTERNAL)}
    assert_whole([*here.spans, *there.spans])


# --- sampling --------------------------------------------------------------------------------------------------------


async def test_what_a_caller_does_not_sample_is_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = installed(monkeypatch, Collected(sampler=ParentBased(ALWAYS_OFF)))
    async with opened() as engine:
        with tracer().start_as_current_span("request"):
            handle = await engine.start(asking(), id="a")
        assert await handle.result() == 7
        _ = await engine.start(count(1), id="b", trace="00-" + "1" * 32 + "-" + "2" * 16 + "-00")
        await engine.run(resting(), id="c")
    assert sdk.names() == []


async def test_a_run_is_sampled_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = installed(monkeypatch, Collected(sampler=ParentBased(TraceIdRatioBased(0.5))))
    async with opened(telemetry=Telemetry(spans=True, trace_gap=0)) as engine:
        for number in range(40):
            await engine.run(resting(), id=f"r{number}")
    sampled = {attribute(one, "perdure.run.id") for one in summaries(sdk, "resting")}
    assert 0 < len(sampled) < 40
    for id in sampled:
        names = sorted(span.name for span in sdk.spans if attribute(span, "perdure.run.id") == id)
        assert names == ["run resting"] * 3 + ["step add"] * 2
    assert {attribute(span, "perdure.run.id") for span in sdk.spans} - {None} == sampled


async def test_a_run_that_is_not_sampled_never_calls_opentelemetry_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = installed(monkeypatch, Collected(sampler=ALWAYS_OFF))
    async with opened() as engine:
        handle = await engine.start(signalled(), id="a")
        await handle.outcome(until="rest")
        spans = engine._telemetry.spans
        assert spans is not None
        monkeypatch.setattr(spans, "_tracer", None)
        assert engine._orchestrator is not None
        for _ in range(3):
            await handle.signal("other", 1)
        await handle.signal("go", 1)
        assert await handle.result() == 4
        assert not spans._told
    assert sdk.names() == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


class Broken(SpanExporter):
    """Raises, or does not return until it is let."""

    def __init__(self, blocks: bool = False) -> None:
        self.blocks, self.go, self.calls = blocks, threading.Event(), 0

    def export(self, spans: Any) -> SpanExportResult:
        self.calls += 1
        if self.blocks:
            self.go.wait()
            return SpanExportResult.SUCCESS
        raise SystemExit("of the exporter")


class Faulty(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise ValueError("of the processor")


async def test_an_exporter_that_raises_harms_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Broken()
    installed(monkeypatch, Collected(SimpleSpanProcessor(exporter)))
    async with opened() as engine:
        assert [(await engine.run(plain(3))).output for _ in range(3)] == [3] * 3
    assert exporter.calls


async def test_a_processor_that_raises_harms_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed(monkeypatch, Collected(Faulty()))
    async with opened() as engine:
        assert [(await engine.run(plain(2))).output for _ in range(3)] == [2] * 3
    assert caplog.text.count("a span could not be made") == 2, "once on the loop, and once in the thread"


async def test_an_exporter_that_blocks_harms_no_run_and_takes_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = Broken(blocks=True)
    installed(monkeypatch, Collected(SimpleSpanProcessor(exporter)))
    monkeypatch.setattr("perdure.telemetry.spans.SpanQueue", partial(SpanQueue, SpanQueueConfig(most=10, closing=0.01)))
    try:
        async with opened() as engine:
            for _ in range(10):
                assert (await (await engine.start(failing())).outcome()).status is RunStatus.FAILED
            spans = engine._telemetry.spans
            assert spans is not None
            assert spans.queue.waiting <= 11
            assert spans.queue.dropped
        assert "does not keep up" in caplog.text
        assert "are lost" in caplog.text
    finally:
        exporter.go.set()


async def test_without_an_sdk_there_are_no_spans_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as engine:
        assert [(await engine.run(plain(2))).output for _ in range(3)] == [2] * 3
    assert caplog.text.count("no OpenTelemetry SDK is set up") == 1


def test_without_opentelemetry_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "perdure.telemetry.spans", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'perdure\[otel\]' opentelemetry-sdk"):
        _ = Engine("memory://", [plain], telemetry=ON)


async def test_replays_of_readers_make_no_spans(sdk: Collected) -> None:
    async with opened() as engine:
        handle = await engine.start(signalled(), id="a")
        await handle.outcome(until="rest")
        assert [one.inputs for one in await engine.steps("a", inputs=True)] == [{"n": 1}]
        await settled(engine)
    assert "of the body" not in sdk.names()


async def test_an_engine_that_is_opened_again_makes_spans_again(sdk: Collected) -> None:
    async with asyncio.timeout(PATIENCE):
        engine = Engine(MemoryStore(), [plain], recovery=AT_ONCE, telemetry=ON)
        for _ in range(2):
            async with engine:
                await engine.run(plain(1))
    assert len(summaries(sdk, "plain")) == 2
    assert_whole(sdk.spans)


OFF = """
import asyncio, sys
from perdure import Engine, step, workflow
@step
async def add(n: int) -> int: return n + 1
@workflow
async def count(n: int) -> int: return await add(n)
async def main() -> None:
    async with Engine("memory://", [count]) as engine:
        assert (await engine.run(count(1))).output == 2
asyncio.run(main())
heavy = ("opentelemetry", "starlette", "uvicorn", "prometheus_client", "perdure.telemetry.spans", "perdure.server")
print(sorted(name for name in sys.modules if name in heavy))
"""


def test_an_engine_without_spans_imports_nothing_of_opentelemetry() -> None:
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "[]"


# --- every kind of step, in every mode -------------------------------------------------------------------------------


@step(timeout=0.02)
async def too_slow() -> None:
    await asyncio.sleep(60)


@step
async def chunks() -> AsyncIterator[int]:
    for number in range(3):
        yield number


@step(retry=Retry(attempts=2, initial=0.001))
def flaky_in_thread(n: int) -> int:
    if step_context().attempt == 1:
        raise OSError("once more")
    return n


@workflow
async def part(n: int) -> int:
    return await add_plainly(n)


@workflow
async def zoo() -> int:
    total = sum(await asyncio.gather(*(add_plainly(n) for n in range(4)), part(1)))
    with contextlib.suppress(StepTimeout):
        await too_slow()
    total += len(await chunks())
    total += await flaky_in_thread(1)
    async with asyncio.timeout(0.01):
        with contextlib.suppress(asyncio.CancelledError):
            await hanging()
    return total


@step
async def hanging() -> None:
    await asyncio.sleep(60)


@workflow
async def bailing() -> None:
    await add_plainly(1)
    bail("enough")


@pytest.mark.parametrize("durability", ["sync", "relaxed", "async", "exit"])
async def test_every_attempt_has_one_span_in_every_mode(sdk: Collected, durability: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with asyncio.timeout(PATIENCE):
        async with Engine(url, [zoo, part, bailing], recovery=AT_ONCE, telemetry=ON, durability=durability) as engine:
            with tracer().start_as_current_span("request"):
                handle = await engine.start(zoo(), id="a")
                with pytest.raises(AlreadyExists):
                    _ = await engine.start(zoo(), id="a", reuse="reject_duplicate")
            outcome = await handle.outcome()
            await engine.run(bailing(), id="b")
            events = [entry.event for id in ("a", "b") for entry in await engine.journal(id)]
    assert outcome.status is not RunStatus.PARKED
    begun = [(event.op, event.attempt) for event in events if isinstance(event, StepStarted)]
    made = [
        (attribute(span, "perdure.op.path"), attribute(span, "perdure.step.attempt"))
        for span in sdk.spans
        if span.name.startswith("step ")
    ]
    assert sorted(made) == sorted(begun)
    assert len(begun) >= 10
    assert len(summaries(sdk, "zoo")) == len(summaries(sdk, "bailing")) == 1
    assert {one.status.status_code for one in sdk.all("start zoo")} == {StatusCode.UNSET, StatusCode.ERROR}
    [slow] = sdk.all("step too_slow")
    assert attribute(slow, "error.type") == "perdure.errors.StepTimeout"
    assert not [span for span in sdk.all("step add_plainly") if span.status.status_code is StatusCode.ERROR]
    assert_whole(sdk.spans)


async def test_an_engine_that_closes_leaves_nothing_open(sdk: Collected) -> None:
    recorded = Recorded()

    @workflow
    async def stuck() -> None:
        await asyncio.gather(hanging(), hanging())

    store = MemoryStore()
    async with asyncio.timeout(PATIENCE):
        async with Engine(store, [stuck], recovery=AT_ONCE, telemetry=ON, on_commit=recorded) as engine:
            _ = await engine.start(stuck(), id="a")
            await recorded.until_started("hanging:1")
        spans = engine._telemetry.spans
        assert spans is not None
        assert not spans._attempts
        assert not spans._runs
        assert sdk.names() == ["run stuck", "step hanging", "step hanging"]
        # It was handed over: the next owner continues, and has nothing of it to make again.
        recorded = Recorded()
        async with Engine(store, [stuck], recovery=AT_ONCE, telemetry=ON, on_commit=recorded) as engine:
            await recorded.until_started("hanging:1", attempt=2)
            await engine.cancel("a")
            await engine.handle("a").outcome()
    assert sdk.names() == ["run stuck"] * 3 + ["step hanging"] * 4
    assert not [span for span in sdk.spans if attribute(span, "error.type") == "process_died"]
    assert_whole(sdk.spans)


async def test_a_journal_that_another_process_has_appended_to_is_told_once(sdk: Collected) -> None:
    gate = asyncio.Event()

    @step
    async def held(n: int) -> int:
        await gate.wait()
        return n

    @workflow
    async def both() -> int:
        first = await held(1)
        return first + int(await wait_signal("go"))

    store = MemoryStore()
    async with asyncio.timeout(PATIENCE):
        async with Engine(store, [both], recovery=AT_ONCE, telemetry=ON) as engine:
            run = await engine.start(both(), id="a")
            # Not through the engine: the next append of its own is refused.
            async with Client(store) as client:
                await client.signal("a", "go", 2)
            gate.set()
            assert await run.result() == 3
    assert len(summaries(sdk, "both")) == len(sdk.all("step held")) == 1
    assert_whole(sdk.spans)
