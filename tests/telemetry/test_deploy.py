"""What deploy/ asks of Prometheus exists: every metric and every label is of the catalogue."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from perdure.telemetry.catalogue import CATALOGUE, OUTCOMES, STATUSES, Metric
from tests.docs.markdown import ROOT

DEPLOY = ROOT / "deploy"
DASHBOARD = DEPLOY / "grafana" / "perdure.json"
ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
KEDA = DEPLOY / "keda" / "scaledobject.yaml"

# The series of a histogram.
PARTS = ("_bucket", "_sum", "_count")
# What the scrape adds.
SCRAPED = {"job", "instance"}
KNOWN_VALUES = {
    "status": {*STATUSES, "parked"},
    "outcome": {*OUTCOMES},
    "state": {"queued", "running", "alive", "gone"},
}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            yield f"the panel {panel['title']!r}", target["expr"]
    for rule in rules():
        yield f"the alert {rule['alert']}", rule["expr"]
    for trigger in yaml.safe_load(KEDA.read_text())["spec"]["triggers"]:
        yield "the ScaledObject", trigger["metadata"]["query"]


def metric_of(name: str, where: str = "") -> Metric:
    for metric in CATALOGUE:
        if name == metric.exposed or (metric.kind == "histogram" and name in {metric.exposed + p for p in PARTS}):
            return metric
    raise AssertionError(f"{where} asks for {name}, which is no metric")


@pytest.mark.parametrize(("where", "expr"), list(expressions()))
def test_every_metric_and_label_is_of_the_catalogue(where: str, expr: str) -> None:
    names = re.findall(r"\bperdure_\w+", expr)
    assert names, f"{where} asks for no metric"
    labels: set[str] = set()
    for name in names:
        labels |= {*metric_of(name, where).labels} | ({"le"} if name.endswith("_bucket") else set())
    for name, given in re.findall(r"(perdure_\w+)\{([^}]*)\}", expr):
        for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', given):
            assert label in {*metric_of(name).labels} | SCRAPED, f"{where}: {name} has no label {label}"
            assert value.startswith("$") or value in KNOWN_VALUES.get(label, {value}), f"{where}: {label}={value}"
    for by in re.findall(r"\bby \(([^)]*)\)", expr):
        assert {one.strip() for one in by.split(",")} <= labels | SCRAPED, f"{where}: by ({by})"
    for kind, name in re.findall(r"\b(rate|increase)\((perdure_\w+)", expr):
        assert metric_of(name).kind != "gauge", f"{where}: the {kind} of a gauge"
    for opened, closed in ("()", "{}", "[]"):
        assert expr.count(opened) == expr.count(closed), f"{where}: {expr}"
    # A counter that is not rated, or a bucket outside of a quantile, is a mistake.
    for name in names:
        if metric_of(name).kind != "gauge":
            assert re.search(rf"(rate|increase)\({name}\b", expr), f"{where}: {name} without a rate"


def test_the_dashboard_has_twelve_panels_that_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len(panels) == 12
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == 12
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["description"]
    variables = {one["name"] for one in dashboard()["templating"]["list"]}
    assert {*re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())} - {"__rate_interval", "__all"} == variables


def test_there_are_six_alerts_that_say_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found) == 6
    for rule in found:
        assert rule["for"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        by = re.search(r"\bby \(([^)]*)\)", rule["expr"])
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert used <= ({one.strip() for one in by[1].split(",")} if by else set())
