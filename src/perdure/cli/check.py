"""`perdure check`: lint workflow bodies."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.authoring.code.check import Finding, check_source
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import AsJson
from perdure.cli.output import clean, note, write_json


def check(
    modules: Annotated[list[str], Parameter(help="Files, folders or modules with workflows.")],
    /,
    *,
    json: AsJson = False,
) -> int:
    """Find clocks, randomness, I/O, threads, changed globals and missing awaits in workflow bodies. It runs nothing.

    Exits with 0 when nothing was found, and with 1 otherwise. `# noqa: perdure`
    at the end of a line silences it.
    """
    files = [file for module in modules for file in _files(module)]
    found = [finding for file in files for finding in _check(file)]
    if json:
        write_json({"files": len(files), "findings": found})
        return Exit.FAILED if found else Exit.OK
    for finding in found:
        where = f"{finding.file}:{finding.line}"
        print(clean(f"{where}: {finding.kind}: in the workflow {finding.workflow} {finding.what}; {finding.instead}"))
    files_of = "1 file" if len(files) == 1 else f"{len(files)} files"
    note(f"{files_of}: {len(found) or 'nothing'} found")
    return Exit.FAILED if found else Exit.OK


def _check(file: Path) -> list[Finding]:
    shown = os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)
    try:
        return check_source(file.read_text(encoding="utf-8"), shown)
    except SyntaxError as error:
        raise Problem(f"{shown}:{error.lineno}: {error.msg}; the file cannot be checked") from None
    except UnicodeDecodeError as error:
        raise Problem(f"{shown} is not UTF-8: {error}") from None


def _files(module: str) -> list[Path]:
    """The files of a target: a file, a folder, a package, or an importable module."""
    path = Path(module).absolute()
    if path.is_dir():
        return _within(path)
    if module.endswith(".py") or os.sep in module:
        if not path.is_file():
            raise Problem(f"the file {module} does not exist (the current directory is {os.getcwd()})")
        return [path]
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise Problem(f"there is no module {module!r} with source that can be read; give a file, a folder or a module")
    found = Path(spec.origin)
    return _within(found.parent) if found.name == "__init__.py" else [found]


def _within(folder: Path) -> list[Path]:
    found = folder.rglob("*.py")
    files = sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))
    if not files:
        raise Problem(f"there is no Python file in {folder}")
    return files
