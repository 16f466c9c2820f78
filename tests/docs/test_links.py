"""Links within the documentation lead somewhere, and the names it uses exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import perdure
from perdure.telemetry import event_names
from perdure.telemetry.catalogue import CATALOGUE, SPAN_ATTRIBUTES
from tests.docs.markdown import DOCS, ROOT, prose

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(document: Path) -> set[str]:
    """The anchors that headings get: lower case, spaces as hyphens, no punctuation."""
    headings = re.findall(r"^#+ (.+)$", prose(document.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_internal_links_resolve(document: Path) -> None:
    broken = []
    for target in LINK.findall(prose(document.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_files_that_are_named_exist(document: Path) -> None:
    """`engine/writer.py` and the like are files of the package, wherever the text names one."""
    named = [code for code in CODE.findall(prose(document.read_text(encoding="utf-8"))) if _is_source(code)]
    places = (ROOT, ROOT / "src" / "perdure")
    assert [code for code in named if not any((place / code).exists() for place in places)] == []


def _is_source(code: str) -> bool:
    return re.fullmatch(r"[\w/]+/[\w/]+\.(py|sql)", code) is not None


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_public_names_that_are_named_exist(document: Path) -> None:
    named = re.findall(r"`perdure\.([a-z_A-Z0-9]+)\b", prose(document.read_text(encoding="utf-8")))
    known = {
        "db",
        "yaml",
        "json",
        "schedule",
        *perdure.__all__,
        *(path.stem for path in (ROOT / "src" / "perdure").iterdir()),
        *(name.split(".")[1] for name in (*(metric.name for metric in CATALOGUE), *SPAN_ATTRIBUTES, *event_names())),
    }
    assert [found for found in named if found not in known] == []


def test_every_guide_and_decision_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    queue = [ROOT / "README.md"]
    for document in queue:
        for target in LINK.findall(prose(document.read_text(encoding="utf-8"))):
            file = (document.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.exists() and file not in reached:
                reached.add(file)
                queue.append(file)
    assert {name(path) for path in DOCS} - {name(path) for path in reached} == set()
