"""What is committed to install perdure: locks that agree, pinned by hash, bound to no particular index."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"

# Written so that this file does not name what it looks for.
INDEX_ADDRESS = re.compile(
    r"py(?:pi)[.]org|python(?:hosted)[.]org|--(?:extra-)?index(?:-url)|--find(?:-links)|://\S+/sim(?:ple)\b"
)
MADE_BY_TOOLS = {"__pycache__", "build", "dist", "node_modules"}
KEPT_DOT_NAMES = {".ci", ".github", ".gitignore", ".importlinter"}


def committed_files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in MADE_BY_TOOLS or (path.name.startswith(".") and path.name not in KEPT_DOT_NAMES):
            continue
        if path.is_dir():
            yield from committed_files(path)
        else:
            yield path


def pins(lock: str) -> dict[str, str]:
    text = (REQUIREMENTS / lock).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def test_no_file_names_the_address_of_a_package_index() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in committed_files(ROOT)
        if INDEX_ADDRESS.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert found == []


def test_every_requirement_is_pinned_by_hash() -> None:
    for lock in ("runtime.txt", "dev.txt"):
        entries = re.split(r"\n(?=\S)", (REQUIREMENTS / lock).read_text(encoding="utf-8").strip())
        assert entries
        assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_the_suite_runs_on_the_versions_that_users_get() -> None:
    runtime = pins("runtime.txt")
    assert runtime.items() <= pins("dev.txt").items()


def test_the_locks_hold_every_dependency_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[^A-Za-z0-9._-]", dependency, maxsplit=1)[0].lower() for dependency in project["dependencies"]}
    assert names <= pins("runtime.txt").keys()


def test_the_package_tells_type_checkers_that_it_is_typed() -> None:
    assert (ROOT / "src" / "perdure" / "py.typed").is_file()
