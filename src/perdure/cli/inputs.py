"""From `--input` to arguments: an object gives keywords, a list positions, anything else is the only argument."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from perdure.cli.exits import Problem
from perdure.kernel.invocation import Invocation
from perdure.kernel.program import Program


def invocation(program: Program, given: str | None) -> Invocation[Any]:
    """The invocation of a program with the arguments in the input."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    is_object = False
    if given is not None:
        value = read(given)
        is_object = isinstance(value, dict)
        if isinstance(value, dict):
            kwargs = value
        else:
            args = tuple(value) if isinstance(value, list) else (value,)
    if not callable(program):
        return Invocation(program.name, program, args, kwargs)
    try:
        made: Invocation[Any] = program(*args, **kwargs)
    except TypeError as error:
        raise Problem(_misfit(program, error, given, is_object)) from error
    return made


def _misfit(program: Program, error: TypeError, given: str | None, is_object: bool) -> str:
    from perdure.authoring.flow.flow import Flow

    message = f"the input does not fit {program.name}{program.signature}: {error}"
    if given is None:
        hint = "pass it with --input, as JSON"
    elif isinstance(program, Flow):
        hint = "a flow takes an object with its inputs by name"
    elif is_object:
        hint = "an object passes arguments by name (to pass one object: --input '[{...}]')"
    else:
        hint = "a list passes arguments by position (to pass one list: --input '[[...]]')"
    return f"{message}{' ' if message.endswith('?') else '; '}{hint}"


def read(given: str, option: str = "--input") -> Any:
    """The JSON value of an option: literal, in a file (`@file.json`), or on stdin (`-`)."""
    text, where = given, option
    if given == "-":
        text, where = sys.stdin.read(), "stdin"
    elif given.startswith("@"):
        where = given[1:]
        text = _file(where, option)
    return parse(text, where)


def parse(text: str, where: str) -> Any:
    """Parse a JSON value from the command line."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise Problem(_invalid(text, where, error)) from error
    except RecursionError as error:
        raise Problem(f"{where} is nested too deeply") from error


def _file(path: str, option: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError as error:
        raise Problem(f"{option} @{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise Problem(f"{option} @{path}: it is not text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise Problem(f"{option} @{path}: {error.strerror}") from error


def _invalid(text: str, where: str, error: json.JSONDecodeError) -> str:
    message = f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    lines = text.splitlines()
    if 0 < error.lineno <= len(lines) and lines[error.lineno - 1].isprintable():
        start = max(0, error.colno - 41)
        shown = lines[error.lineno - 1][start : start + 70]
        message += f"\n  {shown}\n  {' ' * (error.colno - 1 - start)}^"
    if not text.strip():
        return f'{where} is empty; JSON is expected, as in --input \'{{"name": "value"}}\''
    if text.strip()[0].isalpha():
        # `--set charge:0` names its own option.
        option, _, name = where.partition(" ")
        quoted = json.dumps(text.strip()[:40])
        example = f"{option} '{name}={quoted}'" if name else f"--input '{quoted}'"
        message += f"\nIn JSON, a string is in double quotes: {example}"
    return message


def _refuse(constant: str) -> NoReturn:
    raise Problem(f"--input holds {constant}, which is not JSON; use null or a string")
