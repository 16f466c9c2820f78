"""The page about telemetry has the catalogue of metrics."""

from __future__ import annotations

from perdure.telemetry import event_names
from perdure.telemetry.catalogue import SPAN_ATTRIBUTES, table
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "telemetry.md"
BEGIN, END = "<!-- metrics -->\n", "<!-- end of metrics -->"


def written() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


def test_the_guide_has_the_metrics_of_the_catalogue() -> None:
    assert PAGE.read_text(encoding="utf-8") == written(), "python -m tests.docs.test_telemetry writes it"


def test_the_guide_has_every_event_and_every_attribute_of_spans() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in event_names() if f"`{name}`" not in text] == []
    assert [name for name in SPAN_ATTRIBUTES if f"`{name}`" not in text] == []


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
