"""The guide to the configuration names every setting, with what it holds, and no other."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.settings.keys import KEYS, STEPFLOW, Kind, Section
from tests.docs.markdown import ROOT, table

GUIDE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def rows(section: Section, path: str = "") -> Iterator[list[str]]:
    old = {new: old for old, new in STEPFLOW.items()}
    for name, key in section.items():
        if isinstance(key, Kind):
            yield [f"`{path}{name}`", f"`{old[name]}`" if name in old else "", key.words]
        else:
            yield from rows(key, f"{path}{name}.")


def test_every_setting_is_in_the_guide_and_no_other() -> None:
    found = table(GUIDE, "setting")
    assert [row[:3] for row in found] == list(rows(KEYS))
    assert all(row[3] for row in found)
