"""Read YAML or JSON into a tree in which every value knows its line and column. Knows nothing of flows.

Scalars follow the rules of JSON in both: `yes`, `on` and `2026-11-16` are text. Tags, anchors, aliases and duplicate
keys are problems, and so is what is too large or too deep.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from types import MappingProxyType
from typing import Any

import msgspec

from perdure.authoring.flow.files import MOST_BYTES
from perdure.errors import FlowInvalid, FlowProblem, UsageError

MOST_DEPTH = 20
MOST_PROBLEMS = 100
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DIGITS = frozenset("-0123456789")
_WORDS = {"true": True, "false": False, "null": None, "": None}
# Plain scalars that YAML 1.1 does not read as text.
_OTHERWISE = re.compile(
    r"(?i:yes|no|on|off|~)|(?:True|TRUE|False|FALSE|Null|NULL)|0x[0-9a-fA-F]+|0o?[0-7]+|[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+"
    r"|[-+]?\.(?i:inf|nan)|\+[0-9.]+"
)
_BLANK = re.compile(r"[ \t\r\n]*")


# A tree has tens of thousands of these and no cycles: the garbage collector need not visit them.
class Mark(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place in a file, counted from 1."""

    line: int
    column: int


NO_KEYS: Mapping[str, Mark] = MappingProxyType({})


class Item(msgspec.Struct, eq=False, gc=False):
    """A value with its place: an object, with the places of its keys, a list, or a scalar."""

    # Objects and lists have items inside.
    value: Any
    mark: Mark
    # The length of the opening quote of a text. -1: places inside the text are unknown, as it has several lines or
    # escapes.
    quoted: int = 0
    keys: Mapping[str, Mark] = NO_KEYS

    def plain(self) -> Any:
        """The value without places."""
        value = self.value
        if type(value) is dict:
            return {key: one.plain() for key, one in value.items()}
        if type(value) is list:
            return [one.plain() for one in value]
        return value

    def at(self, offset: int) -> Mark:
        """The place of a character of a text."""
        return self.mark if self.quoted < 0 else Mark(self.mark.line, self.mark.column + self.quoted + offset)


def text(value: str, mark: Mark) -> Item:
    """A text item at a place."""
    return Item(value, mark, -1)


def made(value: Any, mark: Mark) -> Item:
    """The tree of a plain value, with one place for all; items in it stay as they are."""
    if isinstance(value, Item):
        return value
    if isinstance(value, Mapping):
        item = Item({key: made(one, mark) for key, one in value.items()}, mark)
        item.keys = {key: one.mark for key, one in item.value.items()}
        return item
    if isinstance(value, list | tuple):
        return Item([made(one, mark) for one in value], mark)
    return text(value, mark) if isinstance(value, str) else Item(value, mark)


def fields(item: Item | None) -> dict[str, Item]:
    """The fields of an object; empty for any other item."""
    return item.value if item is not None and isinstance(item.value, dict) else {}


def elements(item: Item | None) -> list[Item]:
    """The elements of a list; empty for any other item."""
    return item.value if item is not None and isinstance(item.value, list) else []


def places(item: Item, plain: Any) -> list[int]:
    """The places of the parts of a tree that a plain value still has, in order: line, column and `quoted`."""
    found: list[int] = [item.mark.line, item.mark.column, item.quoted]
    kind = type(plain)
    if kind is dict:
        for key, value in plain.items():
            found += places(item.value[key], value)
    elif kind is list:
        for one, value in zip(item.value, plain, strict=True):
            found += places(one, value)
    return found


def put_places(item: Item, found: Sequence[int]) -> None:
    """Give a tree the places that `places` returned for it."""
    work, number = [item], 0
    while work and number + 3 <= len(found):
        one = work.pop()
        one.mark, one.quoted = Mark(found[number], found[number + 1]), found[number + 2]
        number += 3
        if isinstance(one.value, dict):
            work += reversed(list(one.value.values()))
        elif isinstance(one.value, list):
            work += reversed(one.value)


class Problems:
    """The problems of a file, collected and raised together."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[FlowProblem] = []

    def add(self, mark: Mark, code: str, message: str) -> None:
        """Note a problem. Raises FlowInvalid if there are more than a person would read."""
        self.found.append(FlowProblem(self.file, mark.line, mark.column, code, message))
        if len(self.found) >= MOST_PROBLEMS:
            self.found.append(
                FlowProblem(self.file, mark.line, mark.column, "F000", "there may be more; mend these first")
            )
            self.stop()

    def warn(self, mark: Mark, code: str, message: str) -> None:
        """Note a possible mistake."""
        self.found.append(FlowProblem(self.file, mark.line, mark.column, code, message, "warning"))

    def stop(self) -> None:
        """Raise FlowInvalid if there is a problem other than warnings."""
        if any(problem.level == "error" for problem in self.found):
            raise FlowInvalid(sorted(self.found, key=lambda one: (one.line, one.column)))


_TOP = Mark(1, 1)


def is_text(value: str) -> bool:
    """Whether this and other YAML parsers read a text without quotes as this text."""
    return value not in _WORDS and not _NUMBER.fullmatch(value) and not _OTHERWISE.fullmatch(value)


def read(data: bytes, file: str, problems: Problems) -> Item:
    """The tree of a file. Raises FlowInvalid if the file cannot be parsed."""
    item = None
    if len(data) > MOST_BYTES:
        problems.add(_TOP, "F008", f"the file is larger than {MOST_BYTES:,} bytes; a flow is not")
    else:
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            problems.add(Mark(line, 1), "F001", "this line is not UTF-8")
        else:
            item = _Json(text, problems).read() if file.endswith(".json") else _yaml(text, problems)
    problems.stop()
    assert item is not None
    return item


# --- YAML -----------------------------------------------------------------------------------------------------------


def _yaml(text: str, problems: Problems) -> Item | None:
    try:
        import yaml
    except ImportError as error:
        raise UsageError("flows in YAML need a library: pip install 'perdure[flow]'; JSON files do not") from error
    try:
        return _Events(problems).read(yaml, yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = _TOP if mark is None else Mark(mark.line + 1, mark.column + 1)
        problems.add(place, "F001", f"this is not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:  # a character that YAML does not allow
        line = text.count("\n", 0, getattr(error, "position", 0) or 0) + 1
        problems.add(Mark(line, 1), "F001", f"this is not YAML: {' '.join(str(error).split())}")
    return None


class _Events:
    """Builds a tree from the events of a parser, without recursion."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems

    def read(self, yaml: Any, events: Iterator[Any]) -> Item | None:
        root: Item | None = None
        documents = 0
        scalar, mapping, sequence = yaml.ScalarEvent, yaml.MappingStartEvent, yaml.SequenceStartEvent
        # The innermost object or list that is open, the key that waits for its value, and the same for those around it.
        inside: Item | None = None
        key: str | None = None
        outer: list[tuple[Item | None, str | None]] = []
        for event in events:
            kind = type(event)
            if kind is scalar or kind is mapping or kind is sequence or kind is yaml.AliasEvent:
                start = event.start_mark
                mark = Mark(start.line + 1, start.column + 1)
                is_key = key is None and inside is not None and type(inside.value) is dict
                item = self._scalar(event, mark, is_key) if kind is scalar else self._other(yaml, event, mark)
                if inside is None:
                    root = root or item
                elif is_key:
                    key = self._key(inside, item)
                elif key is None:
                    inside.value.append(item)
                else:
                    inside.value[key], key = item, None
                if kind is mapping or kind is sequence:
                    outer.append((inside, key))
                    inside, key = item, None
                    if len(outer) > MOST_DEPTH:
                        self._problems.add(mark, "F008", f"this is nested more than {MOST_DEPTH} deep")
                        return None
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                inside, key = outer.pop()
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    mark = Mark(event.start_mark.line + 1, 1)
                    self._problems.add(mark, "F001", "a flow is one document; this is the beginning of a second one")
                    return None
        if root is None:
            self._problems.add(_TOP, "F001", "the file is empty; a flow begins with `perdure: 1`")
        return root

    def _other(self, yaml: Any, event: Any, mark: Mark) -> Item:
        """An empty object or list. An alias is a problem."""
        if type(event) is yaml.AliasEvent:
            self._problems.add(mark, "F007", f"aliases such as *{event.anchor} are not read; write it out")
            return Item(None, mark)
        self._check(event, mark)
        return Item({}, mark, keys={}) if type(event) is yaml.MappingStartEvent else Item([], mark)

    def _check(self, event: Any, mark: Mark) -> None:
        if event.anchor:
            self._problems.add(mark, "F007", f"anchors such as &{event.anchor} are not read; write it out")
        if event.tag is not None and event.tag != "!":
            self._problems.add(mark, "F007", f"tags such as {event.tag} are not read; write the plain value")

    def _scalar(self, event: Any, mark: Mark, is_key: bool) -> Item:
        value: str = event.value
        if event.anchor or event.tag is not None:
            self._check(event, mark)
        if event.style:
            one_line = event.start_mark.line == event.end_mark.line
            simple = one_line and event.end_mark.column - event.start_mark.column == len(value) + 2
            return Item(value, mark, 1 if simple and event.style in "'\"" else -1)
        if value in _WORDS:
            return Item(_WORDS[value], mark)
        if value[0] in _DIGITS and _NUMBER.fullmatch(value):
            return Item(_number(value, mark, self._problems), mark)
        if not is_key and _OTHERWISE.fullmatch(value):
            self._problems.warn(mark, "F009", f"{value} is text here; write true, false, null or a number, or quote it")
        return Item(value, mark, 0 if mark.line == event.end_mark.line + 1 else -1)

    def _key(self, inside: Item, item: Item) -> str:
        key = item.value
        if type(key) is str:
            _add_key(inside, key, item.mark, self._problems)
            return key
        if isinstance(key, dict | list):
            self._problems.add(
                inside.mark, "F021", "`{{ x }}` without quotes is a YAML mapping; write ${{ x }}, in quotes"
            )
            return f"\0{len(inside.value)}"
        key = json.dumps(key)
        _add_key(inside, key, item.mark, self._problems)
        return key


def _add_key(inside: Item, key: str, mark: Mark, problems: Problems) -> None:
    keys: Any = inside.keys
    first = keys.setdefault(key, mark)
    if first is not mark:
        where = f"{problems.file}:{first.line}:{first.column}"
        problems.add(mark, "F004", f"the key {key!r} is given twice; first at {where}")


def _number(text: str, mark: Mark, problems: Problems) -> float | int | None:
    if text.lstrip("-").isdecimal():
        if len(text) <= 20 and -(2**63) <= int(text) < 2**63:
            return int(text)
    elif abs(found := float(text)) != float("inf"):
        return found
    problems.add(mark, "F002", f"{text[:40]} is a larger number than is kept; write it as text")
    return None


# --- JSON -----------------------------------------------------------------------------------------------------------


class _Json:
    """Builds a tree from JSON text."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._text, self._problems = text, problems
        # The places at which lines begin.
        self._lines = [0, *(found.end() for found in re.finditer("\n", text))]

    def read(self) -> Item | None:
        try:
            json.loads(self._text)
            return self._item(_blank(self._text, 0), 1)[0]
        except json.JSONDecodeError as error:
            self._problems.add(Mark(error.lineno, error.colno), "F001", f"this is not JSON: {error.msg}")
        except RecursionError:
            self._problems.add(_TOP, "F008", f"this is nested more than {MOST_DEPTH} deep")
        except ValueError:  # Python refuses to convert an int of so many digits
            self._problems.add(_TOP, "F002", "a number in it has thousands of digits; write it as text")
        return None

    def _mark(self, at: int) -> Mark:
        line = bisect_right(self._lines, at)
        return Mark(line, at - self._lines[line - 1] + 1)

    def _whole(self, value: str, mark: Mark) -> str:
        """A text. A lone surrogate in it is noted as a problem: no store could keep it."""
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(value[error.start]):04x}"
            self._problems.add(mark, "F001", f"{half} is half of a character; write both halves, or the character")
            return value.encode(errors="replace").decode()
        return value

    def _item(self, at: int, depth: int) -> tuple[Item, int]:
        """The value that begins at a place, and its end. The text is known to be valid JSON."""
        text, mark = self._text, self._mark(at)
        if depth > MOST_DEPTH + 1:
            raise RecursionError
        if text[at] == '"':
            value, end = scanstring(text, at + 1)
            return Item(self._whole(value, mark), mark, 1 if end - at == len(value) + 2 else -1), end
        if text[at] not in "{[":
            end = next((n for n in range(at, len(text)) if text[n] in " \t\r\n,]}"), len(text))
            word = text[at:end]
            return Item(_WORDS[word] if word in _WORDS else _number(word, mark, self._problems), mark), end
        item = Item({}, mark, keys={}) if text[at] == "{" else Item([], mark)
        at = _blank(text, at + 1)
        while text[at] not in "}]":
            if isinstance(item.value, dict):
                place = self._mark(at)
                key, at = scanstring(text, at + 1)
                key = self._whole(key, place)
                _add_key(item, key, place, self._problems)
                item.value[key], at = self._item(_blank(text, _blank(text, at) + 1), depth + 1)
            else:
                inner, at = self._item(at, depth + 1)
                item.value.append(inner)
            at = _blank(text, at)
            if text[at] == ",":
                at = _blank(text, at + 1)
        return item, at + 1


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()
