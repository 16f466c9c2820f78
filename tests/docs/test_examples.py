"""Everything the documentation shows is executed, and happens as it is shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.crash.harness import Children
from tests.docs.execute import fits
from tests.docs.markdown import DOCS, README, ROOT, blocks
from tests.docs.servers import servers_of
from tests.services.shared import Shared

# A block without a language is a picture; settings are saved, and used by what follows.
LANGUAGES = {"python", "text", "console", "sh", "", "yaml", "toml"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_what_a_document_shows_is_what_happens(
    document: Path, tmp_path: Path, services: Shared, children: Children
) -> None:
    if not any(block.language in ("python", "console") for block in blocks(document.read_text(encoding="utf-8"))):
        return  # nothing happens
    work = tmp_path / "work"
    work.mkdir()
    with servers_of(document, services) as environment:
        command = (str(Path(__file__).parent / "execute.py"), str(document))
        child = children.python(tmp_path, *command, cwd=work, env=environment)
        assert child.wait() == 0, child.log


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_no_block_escapes_execution(document: Path) -> None:
    """Blocks are of kinds that are executed or compared, text follows what prints it, saved files are used."""
    found = list(blocks(document.read_text(encoding="utf-8")))
    assert {block.language for block in found} <= LANGUAGES
    for number, block in enumerate(found):
        if block.language == "text":
            before = found[number - 1]
            assert (before.language, before.saved_as) == ("python", None), f"line {block.line}: nothing prints this"
        if block.language in ("yaml", "toml"):
            assert block.saved_as is not None, f"line {block.line}: nothing reads this"
        if block.saved_as is not None:
            # Commands find perdure.yaml by themselves.
            module = block.saved_as.removesuffix(".py").replace("/", ".").replace("perdure.yaml", "perdure")
            later = "\n".join(other.text for other in found[number + 1 :] if other.language in ("python", "console"))
            assert re.search(rf"\b{re.escape(module)}\b", later), f"{block.saved_as} is never run"


@pytest.mark.parametrize("document", DOCS, ids=name)
def test_commands_that_are_not_executed_exist(document: Path) -> None:
    """`make demo` and the like are not run here: the suite would run itself."""
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for block in blocks(document.read_text(encoding="utf-8")):
        if block.language == "sh":
            for line in block.text.splitlines():
                command, target = line.split()[:2]
                assert command == "make"
                assert target in targets


def test_the_architecture_in_the_readme_names_packages_that_exist() -> None:
    picture = next(block.text for block in blocks(README.read_text(encoding="utf-8")) if block.language == "")
    source = ROOT / "src" / "perdure"
    packages = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    named = set(re.findall(r"[\w/]+", picture)) & packages | set(re.findall(r"\w+/\w+", picture))
    assert {"authoring/code", "kernel", "engine/driver", "engine/writer", "engine/steps", "stores", "ports"} <= named
    assert [part for part in named if not ((source / part).exists() or (source / f"{part}.py").exists())] == []


def test_three_dots_stand_for_a_part_of_a_line_or_for_lines() -> None:
    assert fits("run ... is done\n", "run 06gx is done")
    assert not fits("run ... is done", "run 06gx\nis done")
    assert fits("first\n...\nlast", "first\nand\nmore\nlast")
    assert fits("first\n...", "first")
    assert not fits("first\n...", "second")
    assert not fits("", "something")


def test_every_documented_script_starts_its_runs_under_a_guard() -> None:
    """A process of a `cpu=True` step imports the script, and must not start the runs again."""
    unguarded = []
    for guide in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        for block in blocks(guide.read_text(encoding="utf-8")):
            if not block.saved_as or not block.saved_as.endswith(".py"):
                continue
            for statement in ast.parse(block.text).body:
                starts = isinstance(statement, ast.Expr | ast.Assign | ast.With | ast.For | ast.Try)
                calls = (ast.unparse(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call))
                if starts and any(call.endswith(("perdure.run", "asyncio.run", "Engine")) for call in calls):
                    unguarded.append(f"{guide.name}: {block.saved_as}")
    assert unguarded == []
