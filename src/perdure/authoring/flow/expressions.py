"""The expressions of flows, `${{ ... }}`: the one module that knows minijinja. Pure, strict and bounded.

References are found in the text of an expression and replaced by variables: minijinja evaluates over plain values, and
never sees steps or inputs. Only filters that are pure and cannot blow up their argument exist.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from perdure.errors import UsageError
from perdure.kernel.hints import did_you_mean

MOST_TEXT, MOST_RESULT, MOST_RANGE = 4096, 1024 * 1024, 1000
FUEL = 50_000
# Limits of an expression: the bytes of its values, counted for each reference; the characters that its filters make;
# the characters that it copies; the comparisons of items with each other; the bytes of a default for each item.
MOST_GIVEN, MOST_MADE, MOST_COPIED = 16 * 1024 * 1024, 4 * MOST_RESULT, 32 * 1024 * 1024
MOST_COMPARED, MOST_REPEATED = 5_000_000, 4096
# Parts of minijinja that flows lack, because their result is not JSON, or grows without bounds.
_REMOVED = (
    "attr batch chain e escape filesizeformat format indent pluralize pprint safe slice striptags truncate wordwrap zip"
)
_REMOVED_FUNCTIONS = "debug namespace cycler joiner dict"
FILTERS = frozenset(
    [
        "abs",
        "add_days",
        "bool",
        "capitalize",
        "count",
        "d",
        "date",
        "default",
        "dictsort",
        "first",
        "float",
        "from_json",
        "groupby",
        "hash",
        "int",
        "items",
        "join",
        "last",
        "length",
        "lines",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "select",
        "selectattr",
        "sort",
        "split",
        "string",
        "sum",
        "title",
        "tojson",
        "trim",
        "unique",
        "upper",
        "urlencode",
    ]
)
FUNCTIONS = frozenset({"range"})
KEYWORDS = frozenset(["and", "or", "not", "in", "is", "if", "else", "true", "false", "none", "True", "False", "None"])
# A reference by names alone. The characters without which an expression cannot contain a `}}` before its end.
_PLAIN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\s*")
_NESTED = re.compile(r"[{'\"]")
# The filters and signs whose cost may grow faster than the values that they are given.
_GROWING = re.compile(r"[+~]|map|select|reject|string")
_TOKEN = re.compile(
    r"""(?P<blank>\s+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)"""
    r"""|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|//|==|!=|<=|>=|[-+*/%~<>=|.,:(){}\[\]])"""
    # A quote that does not end takes the rest of the text: the search for its end is not repeated for what is in it.
    r"""|(?P<wrong>'(?:[^'\\]|\\.)*|"(?:[^"\\]|\\.)*|.)""",
    re.DOTALL,
)
_CLOSE = {")": "(", "]": "[", "}": "{"}
_DEFAULT = frozenset({"default", "d"})
# The filters that are applied to each item, and those that split a text into items.
_EACH = frozenset({"map", "select", "reject", "selectattr", "rejectattr"})
_SPLITTING = frozenset({"split", "lines", "list", "reverse", "sort", "unique"})
# The path of a reference: keys of objects, and positions in lists.
Path = tuple[str | int, ...]


class Token(msgspec.Struct, frozen=True, gc=False):
    """A token of an expression: its kind, its text, and where it begins."""

    kind: str
    text: str
    at: int


class Reference(msgspec.Struct, frozen=True, gc=False):
    """A reference in an expression, such as `steps.orders.body`: its root, its path, and its place in the text."""

    root: str
    path: Path
    at: int
    text: str


class Wrong(Exception):
    """An expression is invalid. `code` and `at` are the kind of problem and its place."""

    def __init__(self, code: str, at: int, message: str) -> None:
        self.code, self.at = code, at
        super().__init__(message)


class Unset(Exception):
    """An expression needs a value that does not exist. `number` is the position of the reference."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)


class Failed(Exception):
    """An expression has no value."""


class Expression:
    """An expression with its references."""

    __slots__ = ("_bounds", "_made", "_pieces", "_products", "_same", "lone", "references", "text")

    def __init__(self, text: str) -> None:
        """Raises Wrong if the text is no expression."""
        if len(text) > MOST_TEXT:
            raise Wrong("F010", 0, f"an expression has at most {MOST_TEXT} characters; let a step compute it")
        self.text = text
        self.references: Sequence[Reference]
        # Between the references: the other pieces of the text, and by reference, the first one that is the same.
        self._pieces: Sequence[str]
        self._same: Sequence[int]
        self._products: Sequence[str]
        if (plain := _PLAIN.fullmatch(text)) is not None and KEYWORDS.isdisjoint(parts := plain[1].split(".")):
            # Most expressions are a single reference, and need not be parsed.
            self.references = (Reference(parts[0], tuple(parts[1:]), plain.start(1), plain[1]),)
            self._made, self._products, self.lone = "_0", (), True
            self._pieces, self._same, self._bounds = ("", ""), (0,), _NO_BOUNDS
            return
        tokens = _tokens(text)
        _check_syntax(text)
        _check_names(tokens)
        self.references = tuple(_references(text, tokens))
        # The expression with a variable in place of each reference: the same one for the same.
        known: dict[tuple[str, Path], int] = {}
        self._same = tuple(known.setdefault((one.root, one.path), place) for place, one in enumerate(self.references))
        pieces, end = list[str](), 0
        for one in self.references:
            pieces.append(text[end : one.at])
            end = one.at + len(one.text)
        self._pieces = (*pieces, text[end:])
        self._made = self._written(())
        self._bounds = _bounds(tokens, self.references) if _GROWING.search(text) is not None else _NO_BOUNDS
        self._products = tuple(_products(self._made)) if "*" in self._made else ()
        # Whether it is a single reference.
        self.lone = self._made.strip() == "_0"

    def evaluate(self, values: Sequence[Any]) -> Any:
        """The value, given the values of its references, `UNSET` for a missing one. Raises Unset or Failed."""
        variables = {
            f"_{number}": values[number] for number in dict.fromkeys(self._same) if values[number] is not UNSET
        }
        lacking = [number for number, value in enumerate(values) if value is UNSET]
        evaluate, errors = _engine()
        _made.set(0)
        try:
            if self._bounds.compared or self._bounds.taken:
                _check_comparisons(values, self._bounds)
            for operand in self._products:
                self._check_number(operand, variables)
            guarded = set(_guarded(_tokens(self.text), self.references)) if lacking else ()
            needed = [number for number in lacking if number not in guarded]
            made = self._written(needed) if needed else self._made
            result = evaluate(made, **variables)
            if result is None and not evaluate(f"({made}) is defined", **variables):
                if lacking:
                    raise Unset(lacking[0])
                raise Failed("it has no value: a key or a position in it does not exist")
        except (Unset, Failed):
            raise
        except errors as error:
            found = re.search(r"`?\b_([0-9]+)\b[^`]*`? is undefined", getattr(error, "detail", "") or "")
            if found is not None and values[int(found[1])] is UNSET:
                raise Unset(int(found[1])) from None
            raise Failed(self._explained(error)) from None
        except Exception as error:  # raised by one of our own filters
            raise Failed(str(error)) from None
        return str(result) if isinstance(result, str) and type(result) is not str else result

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Raise Failed if values of these sizes, as JSON, would cost too much."""
        bounds = self._bounds
        given = sum(sizes)
        if given > MOST_GIVEN:
            raise Failed(f"what it is given has more than {MOST_GIVEN:,} bytes; let a step compute it")
        if (given + len(self.text)) * bounds.copies > MOST_COPIED:
            raise Failed("what it puts together is too large; let a step compute it")
        if any(sizes[number] > MOST_REPEATED for number in bounds.repeated):
            raise Failed(f"what stands in for each item has at most {MOST_REPEATED:,} bytes; let a step compute it")

    def _written(self, needed: Sequence[int]) -> str:
        """The expression with a variable for each reference; a `needed` reference raises Unset when it is evaluated."""
        parts = [self._pieces[0]]
        for number, piece in enumerate(self._pieces[1:]):
            parts += [f"_unset({number})" if number in needed else f"_{self._same[number]}", piece]
        return "".join(parts)

    def _check_number(self, operand: str, variables: dict[str, Any]) -> None:
        evaluate, errors = _engine()
        try:
            fits = evaluate(f"({operand}) is number", **variables)
        except errors:
            return  # the whole expression has no value, or does not need this one
        if not fits:
            raise Failed("`*` multiplies numbers only; texts and lists are not repeated")

    def _explained(self, error: Any) -> str:
        detail = getattr(error, "detail", None) or getattr(error, "kind", None) or str(error)
        return re.sub(r"\b_([0-9]+)\b", lambda one: self._named(int(one[1]), one[0]), str(detail))

    def _named(self, number: int, otherwise: str) -> str:
        return self.references[number].text if number < len(self.references) else otherwise


# The steps of a flow often have the same expressions, as for a condition.
expression_of = lru_cache(500)(Expression)
UNSET: Any = object()


def encode(value: Any) -> bytes:
    """A value of an expression as JSON. Raises Failed if it is no JSON, or too large."""
    if isinstance(value, float) and value - value != 0:
        raise Failed(f"it is {value}, which is no number that is kept")
    try:
        data = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Failed(f"it is a value that is not kept: {error}") from None
    if len(data) > MOST_RESULT:
        raise Failed(f"it is larger than {MOST_RESULT:,} bytes; let a step compute it")
    return data


def find_end(text: str, at: int) -> int:
    """The end of the expression that begins at a place, before its `}}`; -1 if it does not end."""
    end = text.find("}}", at)
    if end < 0 or _NESTED.search(text, at, end) is None:
        return end  # nothing in it could contain a `}}`
    depth, end = 0, at + MOST_TEXT
    for found in _TOKEN.finditer(text, at, end):
        if not depth and text.startswith("}}", found.start()):
            return found.start()
        if found.lastgroup == "wrong" and found[0][0] in "'\"":
            end = found.start()
            break
        depth += {"{": 1, "}": -1}.get(found[0], 0)
    return text.find("}}", end)  # the expression is invalid or too long: `Expression` reads it again to say why


# --- parts of an expression -----------------------------------------------------------------------------------------


def _tokens(text: str) -> list[Token]:
    found = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "wrong":
            raise Wrong("F010", match.start(), f"{match[0][0]!r} cannot be read in an expression")
        if kind != "blank":
            found.append(Token(kind, match[0], match.start()))
    if not found:
        raise Wrong("F010", 0, "the expression is empty")
    return found


def _check_syntax(text: str) -> None:
    environment, errors = _environment(), _engine()[1]
    opening = "{{("
    try:
        environment.undeclared_variables_in_str(f"{opening}{text})}}}}")
    except errors as error:
        span = getattr(error, "range", None) or (len(opening), 0)
        at = max(0, span[0] - len(opening))
        why = "it ends too early" if at >= len(text) else getattr(error, "detail", None) or error
        raise Wrong("F010", min(at, max(0, len(text) - 1)), f"this is no expression: {why}") from None


def _check_names(tokens: Sequence[Token]) -> None:
    """Refuse filters and functions that do not exist, and calls of methods."""
    for number, token in enumerate(tokens):
        if token.kind != "name":
            continue
        before = tokens[number - 1].text if number else ""
        called = number + 1 < len(tokens) and tokens[number + 1].text == "("
        if before == "|" and token.text not in FILTERS:
            raise Wrong("F015", token.at, f"there is no filter {token.text!r}; {did_you_mean(token.text, FILTERS)}")
        if before == "." and called:
            raise Wrong("F015", token.at, f"methods such as .{token.text}() are not called; filters are: x | items")
        if called and before not in ("|", "is", "not") and token.text not in FUNCTIONS | KEYWORDS:
            raise Wrong("F015", token.at, f"there is no function {token.text!r}; {did_you_mean(token.text, FUNCTIONS)}")


def _references(text: str, tokens: Sequence[Token]) -> Iterator[Reference]:
    number, count = 0, len(tokens)
    while number < count:
        token, first = tokens[number], number
        number += 1
        if token.kind != "name" or token.text in KEYWORDS:
            continue
        before = tokens[first - 1].text if first else ""
        after = tokens[number].text if number < count else ""
        if before in (".", "|") or after == "(":
            continue
        if before == "is" or (before == "not" and first > 1 and tokens[first - 2].text == "is"):
            continue  # a test
        if after == "=":
            continue  # an argument by name
        path: list[str | int] = []
        end = token.at + len(token.text)
        while number + 1 < count:
            one, two = tokens[number], tokens[number + 1]
            if one.text == "." and two.kind == "name":
                path.append(two.text)
                number += 2
            elif one.text == "[" and number + 2 < count and tokens[number + 2].text == "]":
                if two.kind == "text" and "\\" not in two.text:
                    path.append(two.text[1:-1])
                elif two.kind == "number" and two.text.isdecimal():
                    path.append(int(two.text))
                else:
                    break
                number += 3
            else:
                break
            end = tokens[number - 1].at + len(tokens[number - 1].text)
        yield Reference(token.text, tuple(path), token.at, text[token.at : end])


def _guarded(tokens: Sequence[Token], references: Sequence[Reference]) -> Iterator[int]:
    """The references that may lack a value: those with a default, those in a default, and those asked for by a test."""
    places = {token.at: number for number, token in enumerate(tokens)}
    for number, one in enumerate(references):
        first = last = places[one.at]
        while last + 1 < len(tokens) and tokens[last + 1].at < one.at + len(one.text):
            last += 1
        while first > 0 and last + 1 < len(tokens) and (tokens[first - 1].text, tokens[last + 1].text) == ("(", ")"):
            if first > 1 and tokens[first - 2].text in _DEFAULT and tokens[first - 3].text == "|":
                break
            first, last = first - 1, last + 1
        behind = [token.text for token in tokens[last + 1 : last + 4]]
        before = [token.text for token in tokens[max(0, first - 3) : first]]
        asked = behind[2:3] if behind[1:2] == ["not"] else behind[1:2]
        stood_in = behind[:1] == ["|"] and not _DEFAULT.isdisjoint(behind[1:2])
        stands_in = len(before) == 3 and before[0] == "|" and before[1] in _DEFAULT and before[2] == "("
        if stood_in or stands_in or (behind[:1] == ["is"] and asked in (["defined"], ["undefined"])):
            yield number


class _Bounds(NamedTuple):
    """How the cost of an expression grows with its values.

    `copies`: how often a character may be copied. `compared`: the types whose items are compared with each other.
    `taken`: the references that a filter reads for each item of a list; `repeated`: those that may replace each item.
    """

    copies: int = 1
    compared: tuple[type, ...] = ()
    taken: tuple[int, ...] = ()
    repeated: tuple[int, ...] = ()


_NO_BOUNDS = _Bounds()


def _bounds(tokens: Sequence[Token], references: Sequence[Reference]) -> _Bounds:
    """The bounds of an expression. Raises Wrong if a computed default is repeated for each item."""
    joins = sum(token.text in ("+", "~") for token in tokens)
    # A list that is written as text gets quotes, and a list with that text in it gets twice as many.
    writes = sum(token.text == "~" or token.text.strip("'\"") == "string" for token in tokens)
    depth = most = 0
    for token in tokens:
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token.text, 0) if token.kind == "sign" else 0
        most = max(most, depth)
    names = {token.text for token in tokens if token.kind == "name"}
    compared: tuple[type, ...] = ()
    taken, repeated = list[int](), list[int]()
    for number, token in enumerate(tokens[1:], start=1):
        if token.kind != "name" or token.text not in _EACH or tokens[number - 1].text != "|":
            continue
        inside = tokens[number + 1 : _closing(tokens, number + 1)]
        said = {one.text.strip("'\"") for one in inside if one.kind in ("name", "text")}
        if len(inside) < 2:
            continue
        here = [place for place, one in enumerate(references) if inside[0].at < one.at < inside[-1].at]
        if "in" in said:
            compared = (list, dict, *((str,) if names & _SPLITTING else ()), *((range,) if "range" in names else ()))
        else:
            taken += here
        if token.text == "map" and not said.isdisjoint(_DEFAULT):
            if any(one.text in ("|", "+", "~", "range") for one in inside):
                why = "what stands in for each item is a value as it is, without filters or signs"
                raise Wrong("F010", token.at, why)
            repeated += here
    return _Bounds((1 + joins) << min(most, writes), compared, tuple(taken), tuple(repeated))


def _products(text: str) -> Iterator[str]:
    """The operands of `*` that are not obviously numbers; inner ones first."""
    tokens = _tokens(text)
    depths, depth = [], 0
    for token in tokens:
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.text, 0) if token.kind == "sign" else 0
        depths.append(depth)
    stars = [number for number, token in enumerate(tokens) if token.kind == "sign" and token.text == "*"]
    for star in sorted(stars, key=lambda number: -depths[number]):
        first, last = _before(tokens, star - 1), _behind(tokens, star + 1)
        for begin, end in ((first, star), (star + 1, last)):
            if any(token.kind != "number" for token in tokens[begin:end]):
                yield text[tokens[begin].at : tokens[end - 1].at + len(tokens[end - 1].text)]


def _before(tokens: Sequence[Token], last: int) -> int:
    """The first token of the operand that ends with a token."""
    at = last
    while True:
        if tokens[at].text in _CLOSE and tokens[at].kind == "sign":
            at = _opening(tokens, at)
            joined = at and (
                (tokens[at - 1].kind == "name" and tokens[at - 1].text not in KEYWORDS) or tokens[at - 1].text in ")]"
            )
            if joined:
                at -= 1
                continue
        if at > 1 and tokens[at - 1].text in (".", "|"):
            at -= 2
            continue
        return at


def _opening(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    while True:
        if tokens[at].kind == "sign":
            depth += (tokens[at].text in _CLOSE) - (tokens[at].text in "([{")
        if not depth:
            return at
        at -= 1


def _behind(tokens: Sequence[Token], at: int) -> int:
    """The token after the operand that begins with a token."""
    while tokens[at].text in ("-", "+", "not"):
        at += 1
    end = _closing(tokens, at)
    while end < len(tokens) and tokens[end].text in (".", "|", "(", "["):
        end = _closing(tokens, end + 1) if tokens[end].text in (".", "|") else _closing(tokens, end)
    return end


def _closing(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    while at < len(tokens):
        if tokens[at].kind == "sign":
            depth += (tokens[at].text in "([{") - (tokens[at].text in _CLOSE)
        at += 1
        if not depth:
            break
    return at


# --- minijinja ------------------------------------------------------------------------------------------------------


@cache
def _environment() -> Any:
    try:
        from minijinja import Environment
    except ImportError as error:
        raise UsageError("expressions of flows need a library: pip install 'perdure[flow]'") from error
    environment: Any = Environment(undefined_behavior="strict", fuel=FUEL, pycompat=False)
    for name in _REMOVED.split():
        environment.remove_filter(name)
    for name in _REMOVED_FUNCTIONS.split():
        environment.remove_global(name)
    environment.add_function("range", _range)
    environment.add_function("_unset", _unset)
    own: dict[str, Callable[..., Any]] = {
        "join": _join,
        "replace": _replace,
        "tojson": _to_json,
        "unique": _unique,
        "urlencode": _url_encode,
        "from_json": _from_json,
        "hash": _hash,
        "date": _date,
        "add_days": _add_days,
    }
    for name, function in own.items():
        environment.add_filter(name, function)
    return environment


@cache
def _engine() -> tuple[Callable[..., Any], type[Exception]]:
    """The function that evaluates, and the exception that it raises."""
    environment = _environment()
    from minijinja import TemplateError

    return environment.eval_expr, TemplateError


# How many characters filters have made in the evaluation in progress.
_made: ContextVar[int] = ContextVar("_made", default=0)


def _check_size(size: int) -> None:
    made = _made.get() + size
    if size > MOST_RESULT or made > MOST_MADE:
        raise ValueError(f"a text of it is larger than {MOST_RESULT:,} characters")
    _made.set(made)


def _check_comparisons(values: Sequence[Any], bounds: _Bounds) -> None:
    """Raise Failed if each item of a long list would be compared with a long list, or with a large value."""
    lengths, work = [1, MOST_RANGE if range in bounds.compared else 1], list(values)
    while work:
        one = work.pop()
        if isinstance(one, list) or (isinstance(one, dict | str) and isinstance(one, bounds.compared)):
            lengths.append(len(one))
        if isinstance(one, list | dict):
            work += one.values() if isinstance(one, dict) else one
    first, second = sorted(lengths)[-2:]
    if bounds.compared and first * second > MOST_COMPARED:
        raise Failed(f"it compares items of lists more than {MOST_COMPARED:,} times; let a step compute it")
    taken = [values[number] for number in bounds.taken if isinstance(values[number], str | list | dict)]
    if sum(len(msgspec.json.encode(one)) for one in taken) * second > MOST_COPIED:
        raise Failed("what it looks at for each item is too large; let a step compute it")


def _unset(number: int) -> None:
    raise Unset(number)


def _check_text(name: str, *values: Any) -> None:
    for value in values:
        if not isinstance(value, str):
            raise ValueError(f"{name} takes text, and not {value!r:.40}")


def _range(start: int, stop: int | None = None, step: int = 1) -> list[int]:
    found = range(start) if stop is None else range(start, stop, step)
    if len(found) > MOST_RANGE:
        raise ValueError(f"range() gives at most {MOST_RANGE} numbers")
    return list(found)


def _join(values: Any, by: str = "") -> str:
    _check_text("join", by)
    texts = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in values]
    _check_size(sum(map(len, texts)) + len(by) * len(texts))
    return by.join(texts)


def _replace(value: str, old: str, new: str) -> str:
    _check_text("replace", value, old, new)
    if not old:
        raise ValueError("replace('', ...) replaces nothing")
    _check_size(len(value) + value.count(old) * len(new))
    return value.replace(old, new)


def _to_json(value: Any) -> str:
    data = msgspec.json.encode(value)
    _check_size(len(data))
    return data.decode()


def _url_encode(value: Any) -> str:
    if isinstance(value, dict):
        text = "&".join(f"{_quoted(key)}={_quoted(one)}" for key, one in value.items() if one is not None)
    else:
        text = "" if value is None else _quoted(value)
    _check_size(len(text))
    return text


def _quoted(value: Any) -> str:
    return quote(value if isinstance(value, str) else str(value)).replace("~", "%7E")


def _unique(values: Any, *, case_sensitive: bool = False, attribute: str | int | None = None) -> list[Any]:
    found: dict[Any, Any] = {}
    for one in values or ():
        part = one
        for key in () if attribute is None else str(attribute).split("."):
            try:
                part = part[int(key) if isinstance(part, list) else key]
            except (LookupError, TypeError, ValueError):
                part = None
        if isinstance(part, str):
            name: Any = part if case_sensitive else part.lower()
        elif isinstance(part, list | dict):
            name = msgspec.json.encode(part, order="deterministic")
        else:
            name = (type(part) is bool, part)
        found.setdefault(name, one)
    return list(found.values())


def _from_json(text: str) -> Any:
    return msgspec.json.decode(text)


def _hash(value: Any) -> str:
    data = value.encode() if isinstance(value, str) else msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()


def _moment(value: Any) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r:.40} is no date; write 2026-11-16 or 2026-11-16T03:00:00+01:00") from None


def _date(value: Any, form: str = "%Y-%m-%d") -> str:
    if len(form) > 100 or not set(re.findall(r"%(.)", form)) <= set("YmdHMSfzjGVu%"):
        raise ValueError(f"date({form!r:.40}): use %Y %m %d %H %M %S %f %z %j %G %V %u")
    return _moment(value).strftime(form)


def _add_days(value: Any, days: float) -> str:
    moved = _moment(value) + timedelta(days=days)
    return moved.date().isoformat() if isinstance(value, str) and len(value) <= 10 else moved.isoformat()
