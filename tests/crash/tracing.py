"""A process that executes traced runs, and writes each span to a file. It may be killed anywhere."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from perdure import Engine, Recovery, Retry, Telemetry, sleep, step, workflow


class File(SpanExporter):
    """Appends one line for each span, whole or not at all."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            parent, context = span.parent, span.context
            assert context is not None
            os.write(
                self._file,
                json.dumps(
                    {
                        "name": span.name,
                        "kind": span.kind.name,
                        "id": [context.trace_id, context.span_id],
                        "parent": None if parent is None else [parent.trace_id, parent.span_id],
                        "links": [[link.context.trace_id, link.context.span_id] for link in span.links],
                        **dict(span.attributes or {}),
                    }
                ).encode()
                + b"\n",
            )
        return SpanExportResult.SUCCESS


def tracer() -> trace.Tracer:
    """As an application has it."""
    return trace.get_tracer("of the application")


@step
async def work(n: int) -> int:
    with tracer().start_as_current_span("inner"):
        await asyncio.sleep(0.002)
    await asyncio.sleep(0.003)
    return n + 1


@step(retry=Retry(attempts=3, initial=0.004))
async def flaky(n: int) -> int:
    with tracer().start_as_current_span("inner"):
        await asyncio.sleep(0.001)
    if n % 2:
        raise ValueError("once more")
    return n


@workflow
async def errand(n: int) -> int:
    total = await work(n)
    total += sum(await asyncio.gather(*(work(i) for i in range(3))))
    await sleep(0.01)
    try:
        total += await flaky(n)
    except ValueError:
        total += 1
    return await work(total)


def execute(db: str, spans: str, name: str, runs: int) -> dict[str, Any]:
    """Start what is not started yet, and execute all of it."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(File(spans)))
    trace.set_tracer_provider(provider)

    async def main() -> dict[str, Any]:
        recovery = Recovery(grace=0, quarantine=0)
        async with Engine(db, [errand], name=name, recovery=recovery, telemetry=Telemetry(spans=True)) as engine:
            handles = []
            for number in range(runs):
                if number % 2:
                    with tracer().start_as_current_span("request"):
                        handles.append(await engine.start(errand(number), id=f"r{number}"))
                else:
                    handles.append(await engine.start(errand(number), id=f"r{number}"))
            return {"results": [await handle.result() for handle in handles]}

    return asyncio.run(main())
