"""Settings files: plain data from YAML or TOML, and the line of each setting. Knows no setting."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import InvalidSettings

# Settings are small. A larger or deeper file is not one, or is hostile.
MOST_BYTES, MOST_DEPTH = 256 * 1024, 20
PYPROJECT = "pyproject.toml"

# The names of a setting and of the sections around it.
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of settings: the data of a file and the lines in it, and the variables that override it."""

    file: str = ""
    data: Any = field(default_factory=dict)
    lines: Mapping[Path, int] = field(default_factory=dict)
    variables: dict[Path, str] = field(default_factory=dict)

    def where(self, path: Path) -> str:
        """The variable of a setting or section, or its line in the file, for an error message."""
        if path in self.variables:
            return self.variables[path]
        under = [variable for known, variable in self.variables.items() if known[: len(path)] == path]
        if under and path not in self.lines:
            return under[0]
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}, line {self.lines.get(path, 1)}"


def read_file(path: str) -> Source:
    """Read a settings file, by the ending of its name."""
    if path.endswith((".yaml", ".yml")):
        lines: dict[Path, int] = {}
        return Source(path, _yaml(_read(path), path, lines), lines)
    if path.endswith(".toml"):
        table = read_table(path)
        if table is None:
            raise InvalidSettings(path, "it has no table [tool.perdure]")
        return table
    raise InvalidSettings(path, "settings are in a file that ends with .yaml, .yml or .toml")


def read_table(path: str) -> Source | None:
    """The table [tool.perdure] of a TOML file; None when there is none."""
    text = _read(path)
    if os.path.basename(path) == PYPROJECT and "perdure" not in text:
        return None
    try:
        tool = tomllib.loads(text).get("tool")
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidSettings(path, f"this is not TOML: {error}") from error
    if not isinstance(tool, dict) or "perdure" not in tool:
        return None
    return Source(path, tool["perdure"], dict(_toml_lines(text)))


def _toml_lines(text: str) -> Iterator[tuple[Path, int]]:
    """The lines of the keys and tables under [tool.perdure] that begin a line; the standard library gives none."""
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        found = re.match(r"\s*(?:\[+(?P<table>[^\]=#]+)\]|(?P<key>[^=#\[]+)=)", line)
        if found is not None:
            path = tuple(part.strip(" \t\"'") for part in (found["table"] or found["key"]).split("."))
            table, path = (path, path) if found["table"] else (table, (*table, *path))
            if path[:2] == ("tool", "perdure"):
                yield path[2:], number


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise InvalidSettings(path, f"there is no such file (the current directory is {os.getcwd()})") from error
    except OSError as error:
        raise InvalidSettings(path, f"it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InvalidSettings(path, f"it is larger than {MOST_BYTES:,} bytes, and settings are not")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidSettings(f"{path}, line {line}", "it is not UTF-8") from error


def _yaml(text: str, file: str, lines: dict[Path, int]) -> Any:
    """Plain data alone: no tags, aliases or duplicate keys; shallow. Adds the line of each key to `lines`."""
    try:
        import yaml
    except ImportError as error:
        raise InvalidSettings(
            file, "YAML needs a library: pip install 'perdure[yaml]'; or put the same under [tool.perdure] in TOML"
        ) from error
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_yaml(yaml, yaml.parse(text, Loader=loader), file)
        root = yaml.compose(text, Loader=loader)
        return {} if root is None else _plain(yaml, root, file, (), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}, line {mark.line + 1}" if mark is not None else file
        raise InvalidSettings(where, f"this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidSettings(file, f"this is not YAML: {' '.join(str(error).split())}") from error


def _check_yaml(yaml: Any, events: Any, file: str) -> None:
    depth = 0
    for event in events:
        where = f"{file}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MOST_DEPTH:
                raise InvalidSettings(where, f"it is nested more than {MOST_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise InvalidSettings(where, "anchors and aliases (& and *) are not read; write it out")
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            raise InvalidSettings(where, f"tags such as {tag} are not read; write the plain value")


def _plain(yaml: Any, node: Any, file: str, path: Path, lines: dict[Path, int]) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return [_plain(yaml, item, file, path, lines) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InvalidSettings(f"{file}, line {line}", "a key is a plain name")
            inner = (*path, key.value)
            if key.value in found:
                reason = f"{key.value!r} is given twice; it was in {file}, line {lines[inner]}"
                raise InvalidSettings(f"{file}, line {line}", reason)
            lines[inner] = line
            found[key.value] = _plain(yaml, value, file, inner, lines)
        return found
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        where = f"{file}, line {node.start_mark.line + 1}"
        raise InvalidSettings(where, f"{node.value!r} cannot be read: {' '.join(str(error).split())}") from error
