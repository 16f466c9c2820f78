"""Write a flow in one canonical form: keys in order, one style of quotes, comments in their places.

The output is read again and compared: a file is refused if its meaning would change, or a comment would be lost.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from perdure.authoring.flow import definition
from perdure.authoring.flow.tree import Item, Mark, Problems, is_text, read
from perdure.errors import UsageError

# The longest line with a whole collection.
WIDTH = 100
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
# How an unquoted text may begin, and what it may not contain: in its own line, and within brackets.
_BEGINS = re.compile(r"[^\W_]|[_./$(]|--?[A-Za-z]")
_NO_PLAIN = re.compile(r": |:$| #|[\t\r\n]")
_NO_INLINE = re.compile(r"[,\[\]{}:]")
# By kind of object: the order of its keys, and the kinds of the objects under them.
_KINDS: Mapping[str, tuple[Iterable[str], Mapping[str, str]]] = {
    "flow": (
        definition.FLOW_KEYS,
        {
            "steps": "step",
            "finally": "step",
            "jobs": "job",
            "schedules": "schedule",
            "tests": "test",
            "variables": "variables",
            "resources": "resources",
            "profiles": "profiles",
            "workspace": "workspace",
        },
    ),
    # Its steps come last.
    "job": ([*(key for key in definition.JOB_KEYS if key != "steps"), "steps"], {"steps": "step", "lock": "lock"}),
    "step": (definition.STEP_KEYS, {"retry": "retry", "map": "map", "lock": "lock", "repeat": "repeat"}),
    "lock": (definition.LOCK_KEYS, {}),
    "workspace": (definition.WORKSPACE_KEYS, {}),
    "retry": (definition.RETRY_KEYS, {}),
    "map": (definition.MAP_KEYS, {}),
    "repeat": (definition.REPEAT_KEYS, {}),
    "schedule": (definition.SCHEDULE_KEYS, {}),
    "test": (definition.TEST_KEYS, {"expect": "expect"}),
    "expect": (definition.EXPECT_KEYS, {}),
    "variables": ((), {"": "variable"}),
    "resources": ((), {"": "variables"}),
    "profiles": ((), {"": "profile"}),
    "profile": (definition.PROFILE_KEYS, {"variables": "variables", "resources": "resources"}),
    "variable": (definition.VARIABLE_KEYS, {}),
}
# These are never written in one line, however short they are.
_OPEN = frozenset({"flow", "job", "step", "schedule", "test"})


class Comment(NamedTuple):
    """A comment, and whether something comes before it in its line."""

    line: int
    text: str
    trailing: bool


class _Around(NamedTuple):
    """The comments and blank lines around an entry."""

    before: list[str]
    behind: list[str]
    blank: bool


def formatted(data: bytes, file: str) -> str:
    """The text of a file in canonical form. Raises FlowInvalid if the file cannot be read."""
    problems = Problems(file)
    root = read(data, file, problems)
    if not isinstance(root.value, dict) or "perdure" not in root.value:
        problems.add(root.mark, "F006", "a flow begins with the version of its format: `perdure: 1`")
        problems.stop()
    if file.endswith(".json"):
        return as_json(root)
    text = data.decode("utf-8-sig")
    comments = list(_comments(text))
    found = _Writer(comments, {number for number, line in _lines(text) if not line.strip()}).write(root)
    again = read(found.encode(), file, Problems(file))
    kept = Counter(one.text for one in _comments(found)) == Counter(one.text for one in comments)
    if not kept or again.plain() != root.plain():
        raise UsageError(f"{file} cannot be written in canonical form without a change; it is left as it is")
    return found


def as_yaml(root: Item) -> str:
    """A tree as YAML."""
    return _Writer([], set()).write(root)


def as_json(root: Item) -> str:
    """A tree as JSON."""
    return json.dumps(_ordered(root, "flow").plain(), indent=2, ensure_ascii=False) + "\n"


def _ordered(item: Item, kind: str) -> Item:
    """A tree with its keys in order."""
    if isinstance(item.value, list):
        return Item([_ordered(one, kind) for one in item.value], item.mark)
    if not isinstance(item.value, dict):
        return item
    keys, inner = _KINDS.get(kind, ((), {}))
    order = {key: number for number, key in enumerate(keys)}
    found = Item({}, item.mark)
    for key in sorted(item.value, key=lambda key: order.get(key, len(order))):
        found.value[key] = _ordered(item.value[key], inner.get(key, inner.get("", "")))
    found.keys = item.keys
    return found


# --- comments -------------------------------------------------------------------------------------------------------


def _lines(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(_BREAK.split(text), 1)


def _comments(text: str) -> Iterator[Comment]:
    """The comments of a YAML text: everything between its tokens but blanks."""
    import yaml

    starts = [0, *(one.end() for one in _BREAK.finditer(text))]

    def offset(mark: Any) -> int:
        return min(starts[mark.line] + int(mark.column), len(text)) if mark.line < len(starts) else len(text)

    end = 0
    for token in yaml.scan(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        begin = offset(token.start_mark)
        yield from _in_gap(text, end, begin, starts)
        end = max(end, offset(token.end_mark))
        if isinstance(token, yaml.ScalarToken) and token.style in ("|", ">"):
            header = re.compile(r"[|>][-+0-9]*[ \t]+(#[^\r\n\x85\u2028\u2029]*)").match(text, begin)
            if header is not None:
                yield Comment(token.start_mark.line + 1, header[1].rstrip(), True)
    yield from _in_gap(text, end, len(text), starts)


def _in_gap(text: str, begin: int, end: int, starts: list[int]) -> Iterator[Comment]:
    at = text.find("#", begin, end)
    while at >= 0:
        line = _line_of(at, starts)
        broken = _BREAK.search(text, at)
        stop = len(text) if broken is None else broken.start()
        yield Comment(line, text[at:stop].rstrip(), bool(text[starts[line - 1] : at].strip()))
        at = text.find("#", stop, end)


def _line_of(at: int, starts: list[int]) -> int:
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts[middle] <= at else (low, middle)
    return low + 1


# --- writing --------------------------------------------------------------------------------------------------------


class _Writer:
    """Writes a tree as YAML, with the comments and blank lines of the file that it was read from."""

    def __init__(self, comments: list[Comment], blanks: set[int]) -> None:
        self._comments, self._blanks = comments, blanks
        # By place: the surroundings of the entry that begins there.
        self._around: dict[Mark, _Around] = {}
        self._out: list[str] = []

    def write(self, root: Item) -> str:
        """The text."""
        header, footer = self._attach(root)
        self._out = header
        self._object(_ordered(root, "flow"), "flow", "")
        return "\n".join([*self._out, *footer]) + "\n"

    def _attach(self, root: Item) -> tuple[list[str], list[str]]:
        """Find the entry that each comment is about; remaining comments come first or last."""
        found = set(_places(root))
        places, keys = sorted({place for place, _ in found}), {place for place, is_key in found if is_key}
        first = places[0].line if places else 0
        header: list[str] = []
        for one in self._comments:
            if one.line < first:
                header += ["", one.text] if header and one.line - 1 in self._blanks else [one.text]
        footer: list[str] = []
        waiting = [one for one in self._comments if one.line >= first]
        for one in waiting:
            same = [place for place in places if place.line == one.line] if one.trailing else []
            if same:
                named = [place for place in same if place in keys]
                self._get((named or same)[0]).behind.append(one.text)
                continue
            following = next((place for place in places if place.line > one.line), None)
            if following is None:
                footer.append(one.text)
            else:
                self._get(following).before.append(one.text)
        alone = {one.line for one in self._comments if not one.trailing}
        for place in places:
            line = place.line - 1
            while line in alone:
                line -= 1
            if line in self._blanks and line > first:
                self._around[place] = self._get(place)._replace(blank=True)
        if header and first - 1 in self._blanks:
            header.append("")
        return header, footer

    def _get(self, place: Mark) -> _Around:
        return self._around.setdefault(place, _Around([], [], False))

    def _object(self, item: Item, kind: str, indent: str) -> None:
        inner = _KINDS.get(kind, ((), {}))[1]
        for number, (key, one) in enumerate(item.value.items()):
            begun = self._begun(item.keys.get(key), indent, number == 0)
            self._entry(f"{indent}{_scalar(key, True)}:", begun, one, inner.get(key, inner.get("", "")), indent)

    def _list(self, item: Item, kind: str, indent: str) -> None:
        for number, one in enumerate(item.value):
            if isinstance(one.value, dict) and one.value and self._inline(one, kind, f"{indent}-") is None:
                behind = self._around[one.mark].behind if one.mark in self._around else []
                self._begun(one.mark, indent, number == 0, behind=False)
                if behind:  # the comment belongs to the key that begins there
                    self._get(one.mark).behind.extend(behind)
                at = len(self._out)
                self._object(one, kind, f"{indent}  ")
                # The dash is in the first line that is no comment; comments of the first key come before it.
                while self._out[at].lstrip().startswith("#"):
                    self._out[at] = indent + self._out[at].lstrip()
                    at += 1
                self._out[at] = f"{indent}- {self._out[at].lstrip()}"
            else:
                self._entry(f"{indent}-", self._begun(one.mark, indent, number == 0), one, kind, indent)

    def _begun(self, place: Mark | None, indent: str, first: bool, behind: bool = True) -> str:
        """Write the surroundings before an entry, and return the comment at the end of its line, if there is one."""
        around = None if place is None else self._around.pop(place, None)
        if around is None:
            return ""
        if around.blank and not first:
            self._out.append("")
        self._out += [indent + one for one in around.before]
        if not behind or not around.behind:
            return ""
        self._out += [indent + one for one in around.behind[:-1]]
        return f"  {around.behind[-1]}"

    def _entry(self, begun: str, comment: str, item: Item, kind: str, indent: str) -> None:
        value = item.value
        short = self._inline(item, kind, begun)
        if short is not None:
            self._out.append(f"{begun} {short}{comment}")
        elif isinstance(value, dict):
            self._out.append(f"{begun}{comment}")
            self._object(item, kind, f"{indent}  ")
        elif isinstance(value, list):
            self._out.append(f"{begun}{comment}")
            self._list(item, kind, f"{indent}  ")
        else:
            lines = _block(value)
            if lines is None:
                self._out.append(f"{begun} {_scalar(value, False)}{comment}")
            else:
                self._out.append(f"{begun} {lines[0]}{comment}")
                self._out += [f"{indent}  {line}" if line else "" for line in lines[1:]]

    def _inline(self, item: Item, kind: str, begun: str) -> str | None:
        """A value in the rest of a line; None if it needs its own lines."""
        if not isinstance(item.value, dict | list):
            return _scalar(item.value, False) if _block(item.value) is None else None
        if item.value and (kind in _OPEN or self._has_comments(item)):
            return None
        found = _inline(item)
        return found if found is not None and (not item.value or len(begun) + len(found) < WIDTH) else None

    def _has_comments(self, item: Item) -> bool:
        around = (self._around.get(place) for place, _ in _places(item))
        return any(one is not None and (one.before or one.behind) for one in around)


def _places(item: Item) -> Iterator[tuple[Mark, bool]]:
    """The places of all entries in a tree, and whether each has a key."""
    if isinstance(item.value, dict):
        yield from ((mark, True) for mark in item.keys.values())
        for one in item.value.values():
            yield from _places(one)
    elif isinstance(item.value, list):
        for one in item.value:
            yield one.mark, False
            yield from _places(one)


def _inline(item: Item) -> str | None:
    value = item.value
    if isinstance(value, dict):
        parts = [(_scalar(key, True), _inline(one)) for key, one in value.items()]
        return None if any(part[1] is None for part in parts) else f"{{{', '.join(f'{k}: {v}' for k, v in parts)}}}"
    if isinstance(value, list):
        shown = [_inline(one) for one in value]
        return None if None in shown else f"[{', '.join(one or '' for one in shown)}]"
    return None if _block(value) is not None else _scalar(value, True)


def _scalar(value: Any, within: bool) -> str:
    """A scalar in its own line, or `within` brackets, or as a key."""
    if not isinstance(value, str):
        return json.dumps(value)
    plain = (
        is_text(value)
        and _BEGINS.match(value) is not None
        and not value.startswith("...")
        and value == value.strip()
        and value.isprintable()
        and not _NO_PLAIN.search(value)
        and not (within and _NO_INLINE.search(value))
    )
    if plain:
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(character: str) -> str:
    if character in '"\\' or character in "\n\t":
        return json.dumps(character)[1:-1]
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _block(value: Any) -> list[str] | None:
    """A text of several lines as a block: its head and its lines; None if it has one line, or needs quotes."""
    if not isinstance(value, str) or "\n" not in value.strip("\n") or value.startswith((" ", "\n", "\t")):
        return None
    body = value.removesuffix("\n")
    lines = body.split("\n")
    if body.endswith("\n") or not all(line.replace("\t", "").isprintable() and line == line.rstrip() for line in lines):
        return None
    return ["|" if value.endswith("\n") else "|-", *lines]
