"""The schema of flows for editors is that of the source, and is committed."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from tests.docs.flow_schema import DOCUMENT, document
from tests.docs.markdown import ROOT

FLOWS = sorted((ROOT / "tests" / "flow" / "imports").glob("*.to.yaml"))


def test_the_schema_for_editors_is_that_of_the_source() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "docs/flow.schema.json is out of date; run make api"


@pytest.mark.parametrize("file", FLOWS, ids=lambda file: file.stem)
def test_the_committed_schema_takes_flows(file: Path) -> None:
    schema = jsonschema_rs.validator_for(json.loads(DOCUMENT.read_text(encoding="utf-8")))
    flow = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert [error.message for error in schema.iter_errors(flow)] == []
    flow["stepps"] = flow.pop("steps", flow.pop("jobs", None))
    assert not schema.is_valid(flow)
