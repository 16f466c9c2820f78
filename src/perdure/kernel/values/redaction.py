"""What is taken out of values before people see them: by path, by the name of a key, and from texts that mention it.

One object says it for everything that shows values: the server, capsules, log lines and spans. A path leads to a place
in a value, `$.card.number`; a name, `*password*`, means every key of that name at any depth, every value that has such
a name itself (an argument, a state, a signal, a step), and `password=...` in texts. What was taken out of a value is
also taken out of the texts beside it: a message of an error may repeat it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import UsageError
from perdure.kernel.ids import op_name
from perdure.kernel.values.failures import Failure

REDACTED = "[redacted]"
_PART = re.compile(r"\.\.(?P<deep>[^.\[\]]+)|\.(?P<key>[^.\[\]]+)|\[(?P<index>\d+|\*)\]")
_NAME = re.compile(r"[^\s.$\[\]\"'`]*[^\s.$\[\]\"'`*?][^\s.$\[\]\"'`]*")
# Texts that decode as another type get a blank of that type.
_FORMS = (
    (re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE), "00000000-0000-0000-0000-000000000000"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?"), "1970-01-01T00:00:00"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)"), "1970-01-01T00:00:00Z"),
    (re.compile(r"\d{4}-\d\d-\d\d"), "1970-01-01"),
    (re.compile(r"-?\d+\.\d+"), "0"),
)
# Shorter texts and numbers are not looked for in other texts: they are in them by chance.
_SHORTEST_TEXT, _SHORTEST_NUMBER = 4, 5
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
# What a part of a path matches: a key at any depth, a key, an index, or a key by pattern at any depth.
Part = tuple[str, str]


class Pattern(msgspec.Struct, frozen=True):
    """One thing to take out: `$.card.number` of every value, or of those of an op, as in `charge:0.$.pan`.

    Before the `$`: an op path, a name, `input`, `output`, or nothing for all. After it `.key`, `[0]`, `[*]`, `.*`, and
    `..key` for a key at any depth. Without a `$` it is the name of a key, in which `*` and `?` stand for others.
    """

    text: str
    where: str
    parts: tuple[Part, ...]

    @property
    def name(self) -> str:
        """The last key of it, as texts mention it; empty if there is none."""
        kind, name = self.parts[-1] if self.parts else ("", "")
        return "" if kind in ("", "index") or name == "*" else name

    def applies(self, names: Collection[str]) -> bool:
        """Whether it is about a value that can be called by these names."""
        return self.where in ("", "*") or self.where in names


def parse(text: str) -> Pattern:
    """Parse a path or a name, or raise UsageError."""
    if not isinstance(text, str) or ("$" not in text and not _NAME.fullmatch(text)):
        raise UsageError(
            f"redact={text!r:.80}: write a path with a $ in it, as in $.card.number or charge:0.$.pan, or the name of "
            "a key, as in *password*"
        )
    if "$" not in text:
        return Pattern(text, "", (("glob", text),))
    where, _, rest = text.partition("$")
    parts: list[Part] = []
    position = 0
    while position < len(rest):
        found = _PART.match(rest, position)
        if found is None:
            raise UsageError(f"redact={text!r}: {rest[position:]!r} is no .key, ..key, [0] or [*]")
        kind = found.lastgroup
        assert kind is not None
        parts.append((kind, found[kind]))
        position = found.end()
    return Pattern(text, where.removesuffix("."), tuple(parts))


class Removed:
    """What was taken out so far: how often each pattern matched, and the texts that must not be seen elsewhere."""

    __slots__ = ("counts", "texts")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.texts: set[str] = set()

    def note(self, pattern: Pattern, value: Any) -> None:
        """A pattern has taken out a value."""
        self.counts[pattern.text] = self.counts.get(pattern.text, 0) + 1
        pending = [value]
        while pending:
            one = pending.pop()
            if isinstance(one, dict):
                pending += one.values()
            elif isinstance(one, list):
                pending += one
            elif isinstance(one, str) and len(one) >= _SHORTEST_TEXT and one != REDACTED:
                self.texts.add(one)
            elif isinstance(one, int | float) and not isinstance(one, bool) and len(str(one)) >= _SHORTEST_NUMBER:
                self.texts.add(str(one))


class Redaction:
    """Takes values out. `typed`: what stands in their place has their type, so that a program can still decode it."""

    def __init__(self, patterns: Sequence[str] = (), *, typed: bool = False) -> None:
        if isinstance(patterns, str):
            raise UsageError(f"redact={patterns!r:.80}: give a list of them, as in [{patterns!r:.60}]")
        self.patterns = tuple(parse(one) for one in dict.fromkeys(patterns))
        self._typed = typed
        globs = [one.parts[0][1] for one in self.patterns if one.parts[:1] and one.parts[0][0] == "glob"]
        self._glob = re.compile("|".join(map(translate, globs)), re.IGNORECASE) if globs else None
        self._mentions = _mentions([one.name for one in self.patterns if one.name])

    def __bool__(self) -> bool:
        return bool(self.patterns)

    @property
    def texts(self) -> tuple[str, ...]:
        """The patterns as they were given."""
        return tuple(one.text for one in self.patterns)

    def plus(self, patterns: Sequence[str]) -> Redaction:
        """This and more."""
        return Redaction((*self.texts, *patterns), typed=self._typed) if patterns else self

    def hides(self, name: str) -> bool:
        """Whether a value that is called so is taken out as a whole."""
        return self._glob is not None and self._glob.fullmatch(name) is not None

    # --- values ---------------------------------------------------------------------------------------------------

    def value(
        self, data: bytes, *names: str, arguments: Sequence[str] | None = None, removed: Removed | None = None
    ) -> bytes:
        """A value as JSON, without what is taken out of it; the same object if that is nothing.

        `names` are what the value can be called by: its op path, its name, `input`, `output`. `arguments`: it is a list
        of arguments with these names, or of arguments whose names are not known, for ().
        """
        if not self.patterns:
            return data
        value = before = msgspec.json.decode(data)
        value = self.plain(value, *names, arguments=arguments, removed=removed)
        return data if value is before else msgspec.json.encode(value)

    def plain(
        self, value: Any, *names: str, arguments: Sequence[str] | None = None, removed: Removed | None = None
    ) -> Any:
        """As `value`, for a value that is decoded."""
        removed = Removed() if removed is None else removed
        known = {*names, *map(op_name, names)}
        if self._glob is not None:
            for pattern in self.patterns:
                if pattern.parts[:1] and pattern.parts[0][0] == "glob" and any(map(self.hides, known)):
                    return self._taken(pattern, value, removed)
        for pattern in self.patterns:
            if pattern.applies(known):
                value = self._without(value, pattern, pattern.parts, removed)
                if arguments is not None and isinstance(value, list):
                    value = self._of_arguments(value, pattern, arguments, removed)
        return value

    def keyed(self, key: str, data: bytes, removed: Removed | None = None) -> bytes:
        """As `value`, for one that is published under a key: a path may begin with the key."""
        if not self.patterns:
            return data
        value = before = msgspec.json.decode(data)
        value = self.plain({key: value}, removed=removed)[key]
        value = self.plain(value, key, removed=removed)
        return data if value is before else msgspec.json.encode(value)

    def _of_arguments(self, value: list[Any], pattern: Pattern, names: Sequence[str], removed: Removed) -> list[Any]:
        """A list of arguments: by their names, or where those are not known each as if it were the whole."""
        found = []
        for number, one in enumerate(value):
            if number < len(names):
                name = names[number].lstrip("*")
                made = self._without({name: one}, pattern, pattern.parts, removed)[name]
            else:
                made = self._without(one, pattern, pattern.parts, removed)
            found.append(made)
        return found if any(made is not one for made, one in zip(found, value, strict=True)) else value

    def _without(self, value: Any, pattern: Pattern, parts: Sequence[Part], removed: Removed) -> Any:
        """The value without what a pattern means; the same object if that is nothing."""
        if not parts:
            return self._taken(pattern, value, removed)
        (kind, name), rest = parts[0], parts[1:]
        if isinstance(value, dict):
            made = {
                key: self._without(item, pattern, rest, removed)
                if self._matches(kind, name, key)
                else self._without(item, pattern, parts, removed)
                if kind in ("deep", "glob")
                else item
                for key, item in value.items()
            }
            return made if any(made[key] is not item for key, item in value.items()) else value
        if isinstance(value, list):
            items = [
                self._without(item, pattern, parts, removed)
                if kind in ("deep", "glob")
                else self._without(item, pattern, rest, removed)
                if name == "*" or (kind == "index" and name == str(number))
                else item
                for number, item in enumerate(value)
            ]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _matches(self, kind: str, name: str, key: str) -> bool:
        if kind == "glob":
            return self.hides(key)
        return kind in ("key", "deep") and (name == key or (kind == "key" and name == "*"))

    def _taken(self, pattern: Pattern, value: Any, removed: Removed) -> Any:
        removed.note(pattern, value)
        return blank(value) if self._typed else REDACTED

    def named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Decoded values by name: arguments, variables, attributes of a span, extras of a log line."""
        found: dict[str, Any] = self.plain(dict(values))
        return {name: self.text(value) if isinstance(value, str) else value for name, value in found.items()}

    # --- texts ----------------------------------------------------------------------------------------------------

    def text(self, text: str, removed: Removed | None = None) -> str:
        """A text without the values of keys that it mentions, and without what was taken out of values beside it."""
        if not self.patterns or not text:
            return text
        for one in sorted(removed.texts, key=len, reverse=True) if removed is not None else ():
            text = text.replace(one, REDACTED)
        return text if self._mentions is None else _without_mentions(text, self._mentions)

    def failure(self, failure: Failure | None, removed: Removed | None = None) -> Failure | None:
        """An error with its causes."""
        if failure is None or not self.patterns:
            return failure
        removed = Removed() if removed is None else removed
        data = Raw(self.value(failure.data, removed=removed)) if len(failure.data) else failure.data
        args = Raw(self.value(failure.args, removed=removed)) if len(failure.args) else failure.args
        causes = [self.failure(one, removed) for one in failure.errors]
        return msgspec.structs.replace(
            failure,
            data=self._texts_in(data, removed),
            args=self._texts_in(args, removed),
            message=self.text(failure.message, removed),
            traceback=self.text(failure.traceback, removed),
            cause=self.failure(failure.cause, removed),
            errors=tuple(one for one in causes if one is not None),
        )

    def _texts_in(self, data: Raw, removed: Removed) -> Raw:
        return Raw(msgspec.json.encode(self.texts_in(msgspec.json.decode(data), removed))) if len(data) else data

    def texts_in(self, value: Any, removed: Removed | None = None) -> Any:
        """A decoded value whose texts are each taken for a text."""
        if isinstance(value, str):
            return self.text(value, removed)
        if isinstance(value, list):
            return [self.texts_in(one, removed) for one in value]
        if isinstance(value, dict):
            return {key: self.texts_in(one, removed) for key, one in value.items()}
        return value


def blank(value: Any) -> Any:
    """A blank value of the same type."""
    if isinstance(value, str):
        return next((made for form, made in _FORMS if form.fullmatch(value)), REDACTED)
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return type(value)(0)
    if isinstance(value, list):
        return [blank(item) for item in value]
    if isinstance(value, dict):
        return {key: blank(item) for key, item in value.items()}
    return value


def _mentions(names: Iterable[str]) -> re.Pattern[str] | None:
    """What finds `name=`, `name: ` and `"name": ` in a text."""
    found = [re.escape(name).replace(r"\*", r"\w*").replace(r"\?", r"\w") for name in names]
    if not found:
        return None
    return re.compile(rf"(?<!\w)(?:{'|'.join(found)})(?!\w)(?:\\?[\"'])?\s*[:=]\s*", re.IGNORECASE)


def _without_mentions(text: str, mentions: re.Pattern[str]) -> str:
    parts, at = [], 0
    for found in mentions.finditer(text):
        if found.start() < at:
            continue
        end = _end_of_value(text, found.end())
        if end > found.end():
            parts += [text[at : found.end()], REDACTED]
            at = end
    return "".join([*parts, text[at:]]) if parts else text


def _end_of_value(text: str, start: int) -> int:
    """Where a value in a text ends: a quoted text, something in brackets, a call, or a word."""
    at = start
    while at < len(text) and (text[at].isalnum() or text[at] in "_.+-"):
        at += 1
    if at < len(text) and text[at] in _BRACKETS:
        return _end_of_brackets(text, at)
    if at == start and at < len(text) and text[at] in "\"'":
        return _end_of_quoted(text, at)
    while at < len(text) and not text[at].isspace() and text[at] not in ",;)]}\"'":
        at += 1
    return at


def _end_of_quoted(text: str, at: int) -> int:
    quote, at = text[at], at + 1
    while at < len(text) and text[at] != quote:
        at += 2 if text[at] == "\\" else 1
    return min(len(text), at + 1)


def _end_of_brackets(text: str, at: int) -> int:
    open_brackets = 0
    while at < len(text):
        if text[at] in "\"'":
            at = _end_of_quoted(text, at)
            continue
        open_brackets += (text[at] in _BRACKETS) - (text[at] in _BRACKETS.values())
        at += 1
        if open_brackets == 0:
            break
    return at
