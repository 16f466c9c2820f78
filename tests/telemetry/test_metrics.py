"""What an engine counts is what has happened, and `/metrics` serves the catalogue: all of it, and nothing else."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from perdure import (
    Engine,
    Program,
    Queue,
    Retry,
    RunStatus,
    Schedule,
    Telemetry,
    UsageError,
    approval,
    rule,
    sleep,
    step,
    step_inline,
    wait_signal,
    workflow,
)
from perdure.engine.probe import Probe
from perdure.telemetry import exposition, store_figures
from perdure.telemetry.catalogue import BOUNDS, CATALOGUE, OTHER, OUTCOMES, STATUSES
from perdure.telemetry.metrics import Metrics
from tests.engine.harness import AT_ONCE, PATIENCE, FakeClock, crashed

ON = Telemetry(metrics=True)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@step
async def add(n: int) -> int:
    return n + 1


@step(retry=Retry(attempts=2, initial=0.0))
async def fail() -> None:
    raise ValueError("no")


@step(timeout=0.01)
async def slow() -> None:
    await asyncio.sleep(60)


@workflow
async def count(steps: int) -> int:
    total = 0
    for _ in range(steps):
        total = await add(total)
    return total


@workflow
async def failing() -> None:
    await fail()


@workflow
async def late() -> None:
    await slow()


@workflow
async def signalled() -> str:
    return str(await wait_signal("go"))


@workflow
async def asking() -> Any:
    return await approval("may it?")


@workflow
async def resting() -> None:
    await sleep(0.01)


PROGRAMS: list[Program | str] = [count, failing, late, signalled, asking, resting]


@asynccontextmanager
async def opened(url: Any = "memory://", **options: Any) -> AsyncIterator[Engine]:
    async with asyncio.timeout(PATIENCE):
        async with Engine(url, PROGRAMS, recovery=AT_ONCE, **{"telemetry": ON, **options}) as engine:
            yield engine


async def samples(engine: Engine) -> Samples:
    """The figures, as Prometheus' own client reads them."""
    text = await exposition(engine)
    found: Samples = {}
    for family in parse(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def of(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


async def test_runs_and_their_steps_are_counted_once_each() -> None:
    async with opened() as engine:
        for _ in range(3):
            assert await engine.run(count(4)) is not None
        found = await samples(engine)
    assert of(found, "perdure_runs_started_total", program="count") == 3
    assert of(found, "perdure_runs_ended_total", program="count", status="completed") == 3
    assert of(found, "perdure_run_duration_seconds_count", program="count", status="completed") == 3
    assert of(found, "perdure_step_attempts_total", program="count", step="add", outcome="succeeded") == 12
    assert of(found, "perdure_step_duration_seconds_count", program="count", step="add") == 12
    assert of(found, "perdure_runs_claimed_total", reason="start") == 3
    assert of(found, "perdure_run_wait_seconds_count", queue="") == 3
    commits = of(found, "perdure_commit_duration_seconds_count", store="memory")
    assert commits is not None
    assert commits == of(found, "perdure_commit_events_count", store="memory")
    assert commits > 0


async def test_an_attempt_is_counted_by_how_it_ended() -> None:
    async with opened() as engine:
        assert (await (await engine.start(failing())).outcome()).status is RunStatus.FAILED
        assert (await (await engine.start(late())).outcome()).status is RunStatus.FAILED
        found = await samples(engine)
    assert of(found, "perdure_step_attempts_total", program="failing", step="fail", outcome="failed") == 2
    assert of(found, "perdure_step_attempts_total", program="late", step="slow", outcome="timed_out") == 1
    assert of(found, "perdure_runs_ended_total", program="failing", status="failed") == 1


async def test_a_step_that_its_run_gives_up_is_counted_as_cancelled() -> None:
    async with opened() as engine:
        run = await engine.start(late(), rules=[rule("slow", timeout=600)], id="late")
        while not (found := await samples(engine)).get(("perdure_steps_in_flight", ())):
            await asyncio.sleep(0)
        await run.cancel("enough")
        assert (await run.outcome()).status is RunStatus.CANCELLED
        found = await samples(engine)
    assert of(found, "perdure_step_attempts_total", program="late", step="slow", outcome="cancelled") == 1


async def test_a_run_whose_owner_has_died_is_a_takeover() -> None:
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
        found = await samples(engine)
    assert of(found, "perdure_runs_claimed_total", reason="takeover") == 1
    assert of(found, "perdure_runs_claimed_total", reason="start") is None
    assert of(found, "perdure_runs_started_total", program="count") is None
    assert of(found, "perdure_replay_duration_seconds_count") == 1
    assert (of(found, "perdure_replay_events_total") or 0) >= 3


async def test_a_run_that_is_due_again_is_awake() -> None:
    async with opened() as engine:
        run = await engine.start(signalled())
        await run.outcome(until="rest")
        assert engine._orchestrator is not None
        engine._orchestrator.warm.evict_all()
        await run.signal("go", "on")
        assert await run.result() == "on"
        found = await samples(engine)
    assert of(found, "perdure_runs_claimed_total", reason="wake") == 1
    assert of(found, "perdure_runs_claimed_total", reason="start") == 1


async def test_timers_say_how_late_they_were() -> None:
    async with opened() as engine:
        await engine.run(resting())
        found = await samples(engine)
    assert of(found, "perdure_timer_lateness_seconds_count") == 1


async def test_schedules_count_their_ticks() -> None:
    schedule = Schedule("often", count(0), every=0.05)
    async with opened(schedules=[schedule]) as engine:
        while not of(found := await samples(engine), "perdure_schedule_ticks_total", outcome="fired"):
            await asyncio.sleep(0.01)
        assert of(found, "perdure_schedule_ticks_total", outcome="fired")


async def test_the_store_says_what_waits_in_it() -> None:
    async with opened(queues=[Queue("one", concurrency=1)]) as engine:
        await (await engine.start(asking(), id="asking")).outcome(until="rest")
        for _ in range(3):
            _ = await engine.start(signalled(), queue="one")
        while (queues := {one.name: one for one in await engine.queues()})["one"].running != 1:
            await asyncio.sleep(0)
        found = await samples(engine)
    assert queues["one"].queued == 2
    assert of(found, "perdure_queue_depth", queue="one", state="queued") == 2
    assert of(found, "perdure_queue_depth", queue="one", state="running") == 1
    assert of(found, "perdure_runs_open", program="signalled", status="queued") == 2
    assert of(found, "perdure_runs_open", program="asking", status="waiting") == 1
    assert of(found, "perdure_approvals_open") == 1
    assert of(found, "perdure_orchestrators", state="alive") == 1
    assert of(found, "perdure_orchestrators", state="gone") == 0
    assert of(found, "perdure_runs_overdue", program="asking") == 0
    for name, labels in (
        ("perdure_queue_oldest_age_seconds", {"queue": "one"}),
        ("perdure_runs_oldest_age_seconds", {"program": "asking"}),
        ("perdure_approvals_oldest_age_seconds", {}),
    ):
        age = of(found, name, **labels)
        assert age is not None
        assert 0 <= age < PATIENCE


async def test_without_store_metrics_the_store_is_not_asked() -> None:
    async with opened(telemetry=Telemetry(metrics=True, store_metrics=False)) as engine:
        await engine.run(count(1))
        found = await samples(engine)
    assert not [name for name, _ in found if name.startswith(("perdure_queue", "perdure_runs_open", "perdure_orch"))]
    assert of(found, "perdure_runs_started_total", program="count") == 1


async def test_a_scrape_each_second_reads_the_store_once_in_five(tmp_path: Path) -> None:
    async with opened(f"sqlite:///{tmp_path / 'runs.db'}") as engine:
        await exposition(engine)
        asked: list[str] = []
        engine.store.trace(asked.append)
        for _ in range(5):
            await exposition(engine)
        engine.store.trace(None)
    assert not [one for one in asked if "perdure_runs" in one or "FROM runs" in one]


def exercised() -> Metrics:
    """Metrics with something of every kind."""
    metrics = Metrics()
    for metric in CATALOGUE:
        labels = tuple(f"{name} of it" for name in metric.labels)
        if metric.kind == "counter":
            metrics.count(metric.name, labels)
        elif metric.kind == "histogram":
            metrics.histogram(metric.name, labels).add(3.0)
        else:
            metrics.read_from(metric.name, lambda labels=labels: [(labels, 1.0)])  # type: ignore[misc]
    return metrics


def test_the_endpoint_serves_the_catalogue_and_nothing_else() -> None:
    from perdure.telemetry.prometheus import exposition as text_of

    families = {family.name: family for family in parse(text_of(exercised()))}
    assert families.keys() == {metric.exposed.removesuffix("_total") for metric in CATALOGUE}
    for metric in CATALOGUE:
        family = families[metric.exposed.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert {name for sample in family.samples for name in sample.labels} - {"le"} == set(metric.labels)


async def test_everything_that_an_engine_serves_is_in_the_catalogue() -> None:
    known = {metric.exposed.removesuffix("_total") for metric in CATALOGUE}
    async with opened() as engine:
        await engine.run(count(2))
        text = await exposition(engine)
    assert {family.name for family in parse(text)} <= known


async def test_label_values_are_escaped() -> None:
    metrics = Metrics()
    odd = 'a "queue"\nof \\ sorts'
    metrics.histogram("perdure.run.wait", (odd,)).add(1.0)
    from perdure.telemetry.prometheus import exposition as text_of

    [family] = [one for one in parse(text_of(metrics)) if one.name == "perdure_run_wait_seconds"]
    assert {sample.labels["queue"] for sample in family.samples} == {odd}


def test_the_number_of_series_is_bounded() -> None:
    metrics = Metrics()
    for kind, most in BOUNDS.items():
        names = {metrics.bounded(kind, f"{kind}-{number}", "of") for number in range(most * 3)}
        assert len(names) == most + 1
        assert OTHER in names
        assert metrics.bounded(kind, f"{kind}-0", "of") == f"{kind}-0"
    assert metrics.bounded("step", "new", "of another program") == "new"


def series(programs: int, steps: int, queues: int, *, buckets: bool, statuses: int = len(STATUSES)) -> int:
    """How many series there are with so many names, each seen with so many statuses, and with two outcomes or all."""
    outcomes = 2 if buckets else len(OUTCOMES)
    values = {"program": programs, "step": steps, "queue": queues, "status": statuses, "outcome": outcomes, "state": 2}
    values |= {"kind": 7, "reason": 3, "store": 1, "version": 1, "python": 1, "part": 1}
    found = 0
    for metric in CATALOGUE:
        each = math.prod(values[label] for label in metric.labels)
        found += each * (len(metric.buckets) + 2 if metric.kind == "histogram" and buckets else 1)
    return found


def test_the_number_of_series_is_what_the_guide_says() -> None:
    """At worst every name there may be, with a histogram as one series; typically ten programs of five steps."""
    most = series(BOUNDS["program"], BOUNDS["step"], BOUNDS["queue"], buckets=False)
    typical = series(10, 5, 3, buckets=True, statuses=2)
    assert 60_000 < most < 70_000
    assert 1_300 < typical < 2_000


async def test_steps_past_the_bound_are_counted_together() -> None:
    @workflow
    async def wide() -> None:
        for number in range(BOUNDS["step"] + 5):
            await step_inline(f"add-{number}", add.fn, number)

    async with asyncio.timeout(PATIENCE):
        async with Engine("memory://", [wide], recovery=AT_ONCE, telemetry=ON) as engine:
            await engine.run(wide())
            found = await samples(engine)
    assert of(found, "perdure_step_attempts_total", program="wide", step=OTHER, outcome="succeeded") == 5


async def test_a_run_that_leaves_memory_is_forgotten() -> None:
    async with opened() as engine:
        await engine.run(count(2))
        counting: Any = engine._telemetry.probes[0]
        assert counting._runs == {}


class Broken(Probe):
    def committed(self, *_: Any) -> None:
        raise SystemExit("of the probe")

    def entered(self, *_: Any) -> None:
        raise ValueError("of the probe")


async def test_a_probe_that_raises_is_removed_and_no_run_notices(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as engine:
        engine._telemetry.probes.insert(0, Broken())
        for _ in range(2):
            assert (await (await engine.start(count(3))).outcome()).output == 3
        assert [type(one).__name__ for one in engine._telemetry.probes] == ["Counting"]
        found = await samples(engine)
    assert caplog.text.count("telemetry: Broken failed;") == 1
    assert caplog.text.count("telemetry: Broken failed 5 times and is off from now on") == 1
    assert of(found, "perdure_telemetry_failures_total", part="Broken") == 5
    assert of(found, "perdure_telemetry_off", part="Broken") == 1
    assert of(found, "perdure_step_attempts_total", program="count", step="add", outcome="succeeded") == 6


async def test_a_probe_that_fails_once_goes_on() -> None:
    class Once(Broken):
        def committed(self, *_: Any) -> None:
            Once.committed = Probe.committed  # type: ignore[method-assign]
            raise ValueError("once")

    async with opened() as engine:
        engine._telemetry.probes.insert(0, Once())
        await engine.run(count(3))
        assert len(engine._telemetry.probes) == 2
        found = await samples(engine)
    assert of(found, "perdure_telemetry_failures_total", part="Once") == 1
    assert of(found, "perdure_telemetry_off", part="Once") is None


async def test_approvals_and_ages_are_exact_past_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store_figures, "PAGE", 2)
    clock = FakeClock()
    async with opened(f"sqlite:///{tmp_path / 'runs.db'}", clock=clock) as engine:
        for number in range(5):
            clock.advance(10.0 ** (5 - number))
            await (await engine.start(asking(), id=f"a{number}")).outcome(until="rest")
            await (await engine.start(signalled(), id=f"s{number}")).outcome(until="rest")
        exact = await samples(engine)
        assert of(exact, "perdure_approvals_open") == 5
        # More than are listed: the oldest is searched for.
        monkeypatch.setattr(store_figures, "BOUND", 3)
        now = clock.now()
        for program in ("asking", "signalled"):
            oldest = min(row.created_at.timestamp() for row in await engine.list(program=program))
            assert of(exact, "perdure_runs_oldest_age_seconds", program=program) == pytest.approx(now - oldest)
            found = await store_figures._oldest_of(engine.store, program, now)
            assert found is not None
            assert now - found == pytest.approx(now - oldest, rel=2 * store_figures.PRECISION, abs=2.0)
        assert await store_figures._oldest_of(engine.store, "nothing", now) is None


async def test_without_telemetry_an_engine_has_no_probe() -> None:
    async with opened(telemetry=Telemetry()) as engine:
        await engine.run(count(1))
        assert engine._telemetry.probes == []
        assert engine._telemetry.metrics is None


async def test_the_metrics_application_answers_get_alone() -> None:
    async with opened(telemetry=Telemetry()) as engine:
        app = engine.metrics()
        await engine.run(count(1))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "http.request"}

        for method in ("GET", "HEAD", "POST"):
            await app({"type": "http", "method": method, "path": "/"}, receive, send)
    assert [one["status"] for one in sent[::2]] == [200, 200, 405]
    assert b'perdure_runs_started_total{program="count"} 1' in sent[1]["body"]
    assert sent[3]["body"] == b""


@pytest.mark.parametrize(
    "option", [{"metrics": 1}, {"spans": "yes"}, {"trace_gap": -1}, {"trace_gap": "a minute"}, {"store_metrics": None}]
)
def test_a_wrong_option_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(option))):
        Telemetry(**option)


def test_telemetry_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"telemetry=Telemetry\(...\)"):
        _ = Engine("memory://", PROGRAMS, telemetry=True)  # type: ignore[arg-type]
