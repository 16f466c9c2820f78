"""In which line a key of TOML is: the scanner agrees with how the text was written, whatever is in it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.settings.problems import InvalidSettings
from perdure.settings.toml import Path, key_lines, read_toml
from perdure.settings.tree import Node

names = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.sampled_from("a.=[]{}#'\"\\ \n,é"), max_size=5),
)
scalars = st.one_of(
    st.integers(-9, 9),
    st.booleans(),
    st.text(st.sampled_from("a=[]{}#'\"\\ \n,\t"), max_size=8),
    st.just(1.5),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)
tables = st.dictionaries(names, values, max_size=4)


class Writer:
    """Writes TOML in many ways, and notes the line of every key."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw
        self.text = ""
        self.lines: dict[Path, int] = {}

    def note(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def key(self, name: str) -> None:
        bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        literal = "'" not in name and "\n" not in name
        kinds = ["basic"] + ["bare"] * bare + ["literal"] * literal
        kind = self._draw(st.sampled_from(kinds))
        self.text += {"bare": name, "literal": f"'{name}'", "basic": _basic(name)}[kind]

    def value(self, value: Any, path: Path, *, inline: bool = False) -> None:
        if isinstance(value, bool):
            self.text += str(value).lower()
        elif isinstance(value, str):
            literal = "'" not in value and "\n" not in value and "\t" not in value
            long = "'''" not in value and not value.endswith("'") and not value.startswith("\n") and not inline
            kinds = ["basic"] + ["literal"] * literal + ["long literal"] * long + ["long"] * (not inline)
            kind = self._draw(st.sampled_from(kinds))
            forms = {"basic": _basic(value), "literal": f"'{value}'", "long literal": f"'''\n{value}'''"}
            self.text += forms.get(kind, f'"""\n{_basic(value)[1:-1]}"""')
        elif isinstance(value, list):
            self.text += "["
            for number, item in enumerate(value):
                self.text += self._draw(st.sampled_from(["", " ", "\n", " # a ] = comment\n"])) if not inline else " "
                self.note((*path, number))
                self.value(item, (*path, number), inline=inline)
                self.text += ","
            self.text += "]"
        elif isinstance(value, dict):
            self.text += "{"
            for number, (name, item) in enumerate(value.items()):
                self.text += ", " if number else " "
                self.note((*path, name))
                self.key(name)
                self.text += " = "
                self.value(item, (*path, name), inline=True)
            self.text += " }"
        else:
            self.text += repr(value)

    def table(self, table: dict[str, Any], path: Path) -> None:
        for name, value in table.items():
            self.text += self._draw(st.sampled_from(["", "\n", "# [a comment] = 1\n", "  "]))
            self.note((*path, name))
            self.key(name)
            self.text += self._draw(st.sampled_from([" = ", "=", "\t= "]))
            self.value(value, (*path, name))
            self.text += self._draw(st.sampled_from(["\n", " # comment\n", "\r\n"]))

    def header(self, name: str, brackets: str, path: Path) -> None:
        self.text += brackets
        self.note((name,))
        self.note(path)
        self.key(name)
        self.text += brackets.replace("[", "]") + "\n"


def _basic(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


@given(st.data(), tables, tables, st.lists(tables, max_size=3))
def test_every_key_is_found_in_the_line_where_it_was_written(
    data: st.DataObject, top: dict[str, Any], inner: dict[str, Any], several: list[dict[str, Any]]
) -> None:
    writer = Writer(data)
    top = {name: value for name, value in top.items() if name not in ("in ner", "several")}
    writer.table(top, ())
    writer.header("in ner", "[", ("in ner",))
    writer.table(inner, ("in ner",))
    for number, table in enumerate(several):
        writer.header("several", "[[", ("several", number))
        writer.table(table, ("several", number))
    expected = top | {"in ner": inner} | ({"several": several} if several else {})
    assert tomllib.loads(writer.text) == expected
    assert key_lines(writer.text) == writer.lines


def test_dotted_keys_and_tables_in_arrays_are_found() -> None:
    text = 'a.b."c d" = 1\n[x.y]\nz = 2\n[[list]]\nk = 1\n[list.inner]\nq = 3\n[[list]]\nk = 2\n[[list.deep]]\nw = 1\n'
    lines = key_lines(text)
    assert lines["a", "b", "c d"] == 1
    assert (lines["x", "y"], lines["x", "y", "z"]) == (2, 3)
    assert (lines["list", 0, "k"], lines["list", 0, "inner", "q"], lines["list", 1, "k"]) == (5, 7, 9)
    assert lines["list", 1, "deep", 0, "w"] == 11


def test_values_come_with_their_lines() -> None:
    tree = read_toml("# first\n[tool.perdure]\nstore = 'memory://'\n\nserves = [\n 'a',\n 'b']\n", "x.toml")
    perdure: dict[str, Node] = tree["tool"].value["perdure"].value
    assert perdure["store"] == Node("memory://", "x.toml, line 3")
    assert [(node.value, node.where) for node in perdure["serves"].value] == [
        ("a", "x.toml, line 6"),
        ("b", "x.toml, line 7"),
    ]


def test_what_is_no_toml_is_told_with_its_line() -> None:
    with pytest.raises(InvalidSettings, match=r"x\.toml, line 2: this is not TOML"):
        read_toml("a = 1\nb = \n", "x.toml")
    with pytest.raises(InvalidSettings, match="nested more than 20 deep"):
        read_toml("a = " + "[" * 40 + "]" * 40, "x.toml")
    with pytest.raises(InvalidSettings, match="nested more than 20 deep"):
        read_toml("a = " + "[" * 100_000, "x.toml")
