"""Metrics, spans and log context of engines: see docs/telemetry.md."""

from __future__ import annotations

from typing import Any

__all__ = ["exposition"]


async def exposition(engine: Any) -> str:
    """The metrics of an open engine as the text that Prometheus reads. Counting begins with the first call."""
    text: str = await engine._telemetry.exposition()
    return text
