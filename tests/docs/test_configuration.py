"""The guide to the configuration names every setting, with what it holds and what it is about, and no other."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.settings.keys import KEYS, Section
from tests.docs.markdown import ROOT, table

GUIDE = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def rows(section: Section, path: str = "") -> Iterator[list[str]]:
    for name, key in section.keys.items():
        if isinstance(key, Section):
            yield from rows(key, f"{path}{name}.NAME." if key.each else f"{path}{name}.")
        else:
            yield [f"`{path}{name}`", f"`{key.stepflow}`" if key.stepflow else "", key.kind.words, key.about]


def test_every_setting_is_in_the_guide_and_no_other() -> None:
    assert table(GUIDE, "setting") == list(rows(KEYS))
