"""An OpenTelemetry SDK for one test, which keeps what it is given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from perdure.telemetry.catalogue import SPAN_ATTRIBUTES


class Collected:
    """What was exported."""

    def __init__(self, *processors: SpanProcessor, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        for processor in processors or (SimpleSpanProcessor(self._exporter),):
            self.provider.add_span_processor(processor)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def all(self, name: str, kind: str = "") -> list[ReadableSpan]:
        found = [span for span in self.spans if span.name == name and kind in ("", span.kind.name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str, kind: str = "") -> ReadableSpan:
        found = self.all(name, kind)
        assert len(found) == 1, f"{len(found)} of {name} {kind} among {self.names()}"
        return found[0]


def installed(monkeypatch: pytest.MonkeyPatch, collected: Collected) -> Collected:
    """Make it the SDK of this process."""
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: collected.provider)
    return collected


def ids(spans: Iterable[ReadableSpan]) -> set[tuple[int, int]]:
    return {(span.context.trace_id, span.context.span_id) for span in spans if span.context}


def of(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> set[tuple[int, int]]:
    return {(link.context.trace_id, link.context.span_id) for link in span.links}


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


def assert_whole(spans: Iterable[ReadableSpan], remote: Iterable[tuple[int, int]] = ()) -> None:
    """Every parent was exported, or is one of `remote`; and no id stands for two facts."""
    spans = [*spans]
    assert {name for span in spans for name in span.attributes or {}} <= {*SPAN_ATTRIBUTES}
    known = ids(spans) | {*remote}
    lost = [span.name for span in spans if (parent := parent_of(span)) is not None and parent not in known]
    assert not lost, f"the parents of these were never exported: {lost}"
    facts: dict[tuple[int, int], set[tuple[Any, ...]]] = {}
    for span in spans:
        fact = (span.name, span.kind, attribute(span, "perdure.op.path"), attribute(span, "perdure.step.attempt"))
        facts.setdefault(of(span), set()).add(fact)
    assert not [found for found in facts.values() if len(found) > 1]
