"""OpenTelemetry reads the same metrics as Prometheus does, and counts nothing itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData

from perdure import Engine, step, workflow
from perdure.telemetry import exposition, register_metrics
from perdure.telemetry.catalogue import CATALOGUE
from tests.engine.harness import AT_ONCE, PATIENCE


@step
async def add(n: int) -> int:
    return n + 1


@workflow
async def count(n: int) -> int:
    return await add(await add(n))


def read(reader: InMemoryMetricReader) -> dict[str, dict[tuple[tuple[str, Any], ...], float]]:
    data = reader.get_metrics_data()
    assert isinstance(data, MetricsData)
    return {
        metric.name: {tuple(sorted((point.attributes or {}).items())): point.value for point in metric.data.data_points}  # type: ignore[union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


async def test_opentelemetry_reads_what_was_counted(reader: InMemoryMetricReader) -> None:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    async with asyncio.timeout(PATIENCE):
        async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
            register_metrics(engine, provider)
            await engine.run(count(1))
            _ = await exposition(engine)  # which reads the store
            found = await asyncio.to_thread(read, reader)
            again = await asyncio.to_thread(read, reader)
    assert found["perdure.runs.started"] == {(("program", "count"),): 1}
    assert found["perdure.step.attempts"] == {(("outcome", "succeeded"), ("program", "count"), ("step", "add")): 2}
    assert found["perdure.step.duration.count"] == {(("program", "count"), ("step", "add")): 2}
    buckets = found["perdure.step.duration.bucket"]
    assert buckets[("le", "+Inf"), ("program", "count"), ("step", "add")] == 2
    assert len(buckets) == 15
    assert found["perdure.orchestrators"] == {(("state", "alive"),): 1, (("state", "gone"),): 0}
    assert found["perdure.steps.limit"] == {(): 1000}
    assert again["perdure.runs.started"] == found["perdure.runs.started"]


async def test_every_instrument_is_of_the_catalogue(reader: InMemoryMetricReader) -> None:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
        register_metrics(engine, provider)
        await engine.run(count(1))
        _ = await exposition(engine)
        found = set(await asyncio.to_thread(read, reader))
    known = {metric.name for metric in CATALOGUE if metric.kind != "histogram"}
    known |= {f"{metric.name}.{part}" for metric in CATALOGUE for part in ("count", "sum", "bucket")}
    assert found <= known


async def test_the_store_is_read_for_opentelemetry_alone(reader: InMemoryMetricReader) -> None:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    async with asyncio.timeout(PATIENCE):
        async with Engine("memory://", [count], recovery=AT_ONCE) as engine:
            register_metrics(engine, provider)
            while "perdure.orchestrators" not in await asyncio.to_thread(read, reader):
                await asyncio.sleep(0)
    assert "perdure.steps.limit" not in await asyncio.to_thread(read, reader)
