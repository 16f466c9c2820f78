"""The guide to running lists every parameter of an engine, every option of a start, and every filter of a list."""

from __future__ import annotations

import inspect
import re

from perdure import Client, Engine
from tests.docs.markdown import ROOT, table

GUIDE = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")


def names_in(head: str) -> set[str]:
    """The names in the first column of a table."""
    return {name for row in table(GUIDE, head) for name in re.findall(r"`(\w+)`", row[0])}


def test_every_parameter_of_an_engine_is_in_the_guide_and_no_other() -> None:
    assert names_in("argument") == inspect.signature(Engine).parameters.keys()


def test_every_option_of_a_start_is_in_the_guide_and_no_other() -> None:
    assert names_in("option") == inspect.signature(Client.start).parameters.keys() - {"self", "invocation"}


def test_every_filter_of_a_list_is_in_the_guide() -> None:
    assert names_in("filter") == inspect.signature(Client.list).parameters.keys() - {"self"}
