"""docs/api.md holds every public name, as the source has it."""

from __future__ import annotations

from importlib import import_module

import perdure
from tests.docs.reference import MODULES, PAGE, page


def test_the_reference_is_what_the_source_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/api.md is out of date; run make api"


def test_every_public_name_has_its_place_and_says_what_it_is() -> None:
    text = page()
    names = [*perdure.__all__]
    for module in MODULES:
        own = set(import_module(module).__all__) - set(perdure.__all__)
        names += [f"{module.removeprefix('perdure.')}.{name}" for name in sorted(own)]
    entries = {part.partition("\n")[0]: part.partition("\n")[2] for part in text.split("\n### ")[1:]}
    assert [name for name in names if name not in entries] == []
    plain = {"fast_fail", "io", "llm"}  # policies: their entry is their value
    silent = [name for name in names if name not in plain and not _says_something(entries[name])]
    assert silent == []


def _says_something(entry: str) -> bool:
    """Whether there is a sentence besides headings, signatures and tables."""
    outside = [part for number, part in enumerate(entry.split("```")) if number % 2 == 0]
    lines = [line for part in outside for line in part.splitlines()]
    return any(line and not line.startswith(("|", "#", "-", "`")) for line in lines)
