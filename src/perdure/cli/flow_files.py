"""`perdure flow import` and `perdure flow fmt`: write files of flows. They run nothing."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Annotated

from cyclopts import Parameter

from perdure.authoring.flow.files import read_file
from perdure.authoring.flow.formatting import as_json, as_yaml, formatted
from perdure.authoring.flow.importing import TODO, engine_of, native
from perdure.authoring.flow.tree import Problems, read
from perdure.cli.exits import Exit, Problem
from perdure.cli.options import AsJson
from perdure.cli.output import clean, note, write_json
from perdure.cli.targets import listed_flows
from perdure.errors import FlowInvalid, FlowProblem

NAMES = {"stepflow": "Stepflow", "aetherflow": "Aetherflow"}


def import_(
    file: Annotated[str, Parameter(help="A flow of Stepflow or Aetherflow.")],
    /,
    *,
    out: Annotated[
        str | None, Parameter(name=["--out", "-o"], help="The file to write; otherwise it is printed.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Translate a flow of Stepflow or Aetherflow, and report what could not be translated, with line and column.

    Ends with 0 when all of it was translated, and with 2 when something is left
    to be written.
    """
    problems = Problems(os.path.normpath(file))
    root = read(_data(file), problems.file, problems)
    engine = engine_of(root)
    flow = native(root, problems)
    if engine is None:
        raise Problem(f"{file} is not a flow of Stepflow or Aetherflow" + (", but of perdure" if flow is root else ""))
    found = sorted(problems.found, key=lambda one: (one.line, one.column))
    if out is not None:
        _write(out, as_json(flow) if out.endswith(".json") else as_yaml(flow))
    left = [one for one in found if one.level == "error" or one.code == TODO]
    if json:
        keys = ("file", "line", "column", "level", "code", "message")
        listed = [{key: getattr(one, key) for key in keys} for one in found]
        write_json({"engine": engine, "flow": flow.plain(), "problems": listed})
    elif out is None:
        print(as_yaml(flow), end="")
    if not json:
        sys.stdout.flush()
        for one in found:
            print(clean(str(one), "\n"), file=sys.stderr)
        note(f"a flow of {NAMES[engine]}: {len(left) or 'nothing'} left to be written")
    return Exit.USAGE if left else Exit.OK


def fmt(
    files: Annotated[list[str], Parameter(help="Flows: files that end with .yaml, .yml or .json, or folders of them.")],
    /,
    *,
    check: Annotated[
        bool, Parameter(negative="", help="Change nothing: list files that are not in canonical form.")
    ] = False,
    write: Annotated[bool, Parameter(negative="", help="Write the files, in place of printing them.")] = False,
) -> int:
    """Print flows in canonical form: one order of keys, one way to quote, comments where they were.

    With --check, it ends with 1 when a file is not in canonical form.
    """
    if check and write:
        raise Problem("--check changes nothing, and --write does; give one of them")
    paths, problems = listed_flows(files)
    data: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for path in paths:
        try:
            data[path] = read_file(path)
            texts[path] = formatted(data[path], path)
        except FlowInvalid as error:
            problems += error.problems
        except OSError as error:
            why = f"the file cannot be read: {error.strerror or error}"
            problems.append(FlowProblem(path, 1, 1, "F001", why))
    if problems:
        raise FlowInvalid(problems)
    changed = {path: text for path, text in texts.items() if text.encode() != data[path]}
    if check:
        for file in changed:
            print(clean(file))
        note(f"{len(changed) or 'none'} of {len(paths)} not in canonical form")
        return Exit.FAILED if changed else Exit.OK
    if not write:
        print("".join(texts.values()), end="")
        return Exit.OK
    for file, text in changed.items():
        _write(file, text)
    note(f"{len(changed) or 'none'} of {len(paths)} written")
    return Exit.OK


def _data(file: str) -> bytes:
    try:
        return read_file(file)
    except OSError as error:
        raise Problem(f"the file {file} cannot be read: {error.strerror or error}") from error


def _write(file: str, text: str) -> None:
    """Replace a file as a whole: a crash leaves the former one, or the new one."""
    target = os.path.realpath(file)
    part = f"{target}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
        if os.path.exists(target):
            shutil.copymode(target, part)
        os.replace(part, target)
    except OSError as error:
        raise Problem(f"the file {file} cannot be written: {error.strerror or error}") from error
