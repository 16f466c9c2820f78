"""TOML with line numbers. The standard library parses it; a small scanner then finds the line of each key."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from perdure.settings.problems import InvalidSettings
from perdure.settings.tree import MOST_DEPTH, Node

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\])*"|\'[^\']*\'', re.DOTALL)
_PLAIN = re.compile(r"[^,\]}#\n]*")
_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BLANK = re.compile(r"[ \t]*")


def read_toml(text: str, file: str) -> dict[str, Node]:
    """Parse a TOML file; raises InvalidSettings."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"\(at line (\d+), ", str(error))
        where = f"{file}, line {place[1] if place else len(text.splitlines()) or 1}"
        raise InvalidSettings(where, f"this is not TOML: {error}") from error
    except RecursionError as error:
        raise InvalidSettings(file, f"it is nested more than {MOST_DEPTH} deep") from error
    lines = key_lines(text)
    tree: dict[str, Node] = _node(found, (), lines, file).value
    return tree


def _node(value: Any, path: Path, lines: dict[Path, int], file: str) -> Node:
    if len(path) > MOST_DEPTH:
        raise InvalidSettings(f"{file}, line {_line(path, lines)}", f"it is nested more than {MOST_DEPTH} deep")
    where = f"{file}, line {_line(path, lines)}"
    if isinstance(value, dict):
        return Node({key: _node(item, (*path, key), lines, file) for key, item in value.items()}, where)
    if isinstance(value, list):
        return Node([_node(item, (*path, i), lines, file) for i, item in enumerate(value)], where)
    return Node(value, where)


def _line(path: Path, lines: dict[Path, int]) -> int:
    """The line of a key, or of what contains it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def key_lines(text: str) -> dict[Path, int]:
    """The first line of each key and array item, in a valid TOML text."""
    return _Scanner(text.replace("\r\n", "\n")).lines


class _Scanner:
    """A scanner for valid TOML."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.lines: dict[Path, int] = {}
        # The position up to which lines have been counted, and their number.
        self._counted, self._line = 0, 1
        table: Path = ()
        counts: dict[Path, int] = {}
        while True:
            self._skip(_SPACE)
            if self._at >= len(text):
                return
            if text.startswith("[[", self._at):
                table = self._header(2, counts)
                counts[table] = counts.get(table, -1) + 1
                table = (*table, counts[table])
                self._note(table)
            elif text.startswith("[", self._at):
                table = self._header(1, counts)
            else:
                self._pair(table)

    def _header(self, brackets: int, counts: dict[Path, int]) -> Path:
        self._at += brackets
        path: Path = ()
        parts = self._key()
        for number, part in enumerate(parts, 1):
            path = (*path, part)
            self._note(path)
            # A subtable of an array of tables belongs to the last table.
            if path in counts and (brackets == 1 or number < len(parts)):
                path = (*path, counts[path])
        self._skip(_BLANK)
        self._at += brackets
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path)
        self._skip(_BLANK)
        self._at += 1  # =
        self._skip(_BLANK)
        self._value(path)

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(_BLANK)
            quoted = _STRING.match(self._text, self._at)
            if quoted is not None:
                parts.append(str(tomllib.loads(f"k = {quoted[0]}")["k"]))
                self._at = quoted.end()
            else:
                bare = _BARE.match(self._text, self._at)
                assert bare is not None
                parts.append(bare[0])
                self._at = bare.end()
            self._skip(_BLANK)
            if not self._text.startswith(".", self._at):
                return parts
            self._at += 1

    def _value(self, path: Path) -> None:
        if self._text.startswith("[", self._at):
            self._inside("]", path, lambda number: self._item((*path, number)))
        elif self._text.startswith("{", self._at):
            self._inside("}", path, lambda number: self._pair(path))
        else:
            string = _STRING.match(self._text, self._at)
            if string is not None:
                self._at = string.end()
            else:
                self._skip(_PLAIN)

    def _item(self, path: Path) -> None:
        self._note(path)
        self._value(path)

    def _inside(self, end: str, path: Path, one: Any) -> None:
        self._at += 1
        number = 0
        while True:
            self._skip(_SPACE)
            if self._text.startswith(end, self._at):
                self._at += 1
                return
            one(number)
            number += 1
            self._skip(_SPACE)
            if self._text.startswith(",", self._at):
                self._at += 1

    def _note(self, path: Path) -> None:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        self.lines.setdefault(path, self._line)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
