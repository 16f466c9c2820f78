"""The values of a flow, JSON with expressions and Stepflow's forms in it, as functions of the values that they refer
to.

A function takes the encoded values of all its references, None for those that do not exist, and returns JSON. It raises
Missing if it needs a value that does not exist, and ExpressionFailed if it cannot be evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.authoring.dataflow.values import Value
from perdure.authoring.flow.expressions import (
    UNSET,
    Expression,
    Failed,
    Path,
    Reference,
    Unset,
    Wrong,
    encode,
    expression_of,
    find_end,
)
from perdure.authoring.flow.tree import Item, Mark, Problems
from perdure.errors import ExpressionFailed
from perdure.kernel.commands import SECRET
from perdure.kernel.hints import did_you_mean

Given: TypeAlias = Sequence[Value | None]
Evaluate: TypeAlias = Callable[[Given], bytes]
OPEN = "${{"
_STEP = re.compile(r"""[A-Za-z_][\w-]*|\[(?:[0-9]+|"[^"]*"|'[^']*')\]""")


class Scope(Protocol):
    """The references that are possible at one place of a flow."""

    def slot(self, reference: Reference) -> tuple[int, Path]:
        """The position of the referenced value among the given ones, and the path inside it. Raises Wrong."""
        ...

    def secret(self, reference: Reference) -> str | None:
        """The name of the secret that a reference names; None if it names no secret. Raises Wrong."""
        ...

    def parts(self, reference: Reference) -> list[str] | None:
        """The keys of an object whose entries are looked up one by one; None for any other reference."""
        ...


class Missing(Exception):
    """A value that is needed does not exist; `slot` is its position among the given values."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        super().__init__(slot)


class Template:
    """A value of a flow, as JSON.

    `constant` is the value, if it has no references; `whole` is the slot of a value that is a single reference.
    `secrets` are the places in it that have names of secrets, as `{"$secret": ...}`. A flow has thousands of templates,
    so they are objects with slots: the garbage collector would have to visit every cell of closures.
    """

    __slots__ = ()
    constant: bytes | None = None
    whole: int | None = None
    secrets: tuple[Path, ...] = ()

    def evaluate(self, given: Given) -> bytes:
        """The value. Raises Missing and ExpressionFailed."""
        raise NotImplementedError


class _Fixed(Template):
    __slots__ = ("constant", "secrets")

    def __init__(self, constant: bytes, secrets: tuple[Path, ...] = ()) -> None:
        self.constant, self.secrets = constant, secrets

    def evaluate(self, given: Given) -> bytes:
        assert self.constant is not None
        return self.constant


class _Joined(Template):
    __slots__ = ("_keys", "_parts", "secrets")

    def __init__(self, parts: Sequence[Template], keys: Sequence[str] | None, secrets: tuple[Path, ...]) -> None:
        self._parts, self._keys, self.secrets = parts, keys, secrets

    def evaluate(self, given: Given) -> bytes:
        return _glued([part.evaluate(given) for part in self._parts], self._keys)


class _Written(Template):
    """A text with expressions in it."""

    __slots__ = ("_pieces", "_where", "secrets")

    def __init__(self, pieces: Sequence[str | Template], where: str, secrets: tuple[Path, ...]) -> None:
        self._pieces, self._where, self.secrets = pieces, where, secrets

    def evaluate(self, given: Given) -> bytes:
        pieces = _written(self._pieces, given, self._where)
        return msgspec.json.encode({SECRET: pieces} if self.secrets else "".join(map(str, pieces)))


class _Whole(Template):
    """A single reference, whose value is not decoded."""

    __slots__ = ("_reference", "_where", "whole")

    def __init__(self, slot: int, reference: Reference, where: str) -> None:
        self.whole, self._reference, self._where = slot, reference, where

    def evaluate(self, given: Given) -> bytes:
        assert self.whole is not None
        return _found(given, self.whole, (), self._where, self._reference)


class _Part(Template):
    """As _Whole, for a part of a value."""

    __slots__ = ("_path", "_reference", "_slot", "_where")

    def __init__(self, slot: int, path: Path, reference: Reference, where: str) -> None:
        self._slot, self._path, self._reference, self._where = slot, path, reference, where

    def evaluate(self, given: Given) -> bytes:
        return _found(given, self._slot, self._path, self._where, self._reference)


class _Computed(Template):
    __slots__ = ("_expression", "_slots", "_where")

    def __init__(self, expression: Expression, slots: Sequence[tuple[int, Path]], where: str) -> None:
        self._expression, self._slots, self._where = expression, slots, where

    def evaluate(self, given: Given) -> bytes:
        return _evaluated(self._expression, self._slots, given, self._where)


class _Form(Template):
    """A form of Stepflow."""

    __slots__ = ("_evaluate",)

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate

    def evaluate(self, given: Given) -> bytes:
        return self._evaluate(given)


def template(item: Item, scope: Scope, problems: Problems) -> Template:
    """The template of a value. Problems are noted; the template of an invalid value is null."""
    value = item.value
    if isinstance(value, str):
        return _text(item, scope, problems)
    if isinstance(value, list):
        return _joined([template(one, scope, problems) for one in value], None)
    if isinstance(value, dict):
        form = next((key for key in value if key in _FORMS), None)
        if form is not None:
            return _form(form, item, scope, problems)
        return _joined([template(one, scope, problems) for one in value.values()], list(value))
    return _fixed(value)


def _fixed(value: Any) -> Template:
    return _Fixed(msgspec.json.encode(value))


def _secret(name: str) -> Template:
    return _Fixed(msgspec.json.encode({SECRET: name}), ((),))


def _joined(parts: Sequence[Template], keys: Sequence[str] | None) -> Template:
    places: Sequence[str | int] = range(len(parts)) if keys is None else keys
    secrets = tuple((place, *path) for place, part in zip(places, parts, strict=True) for path in part.secrets)
    if all(part.constant is not None for part in parts):
        return _Fixed(_glued([part.constant or b"" for part in parts], keys), secrets)
    return _Joined(parts, keys, secrets)


def _glued(parts: Sequence[bytes], keys: Sequence[str] | None) -> bytes:
    if keys is None:
        return b"[%b]" % b",".join(parts)
    return b"{%b}" % b",".join(
        [b"%b:%b" % (msgspec.json.encode(key), part) for key, part in zip(keys, parts, strict=True)]
    )


# --- texts ----------------------------------------------------------------------------------------------------------


def _text(item: Item, scope: Scope, problems: Problems) -> Template:
    text: str = item.value
    if OPEN not in text:
        if re.fullmatch(r"\s*\{\{.*\}\}\s*", text):
            problems.warn(item.mark, "F021", f"{text.strip()} is plain text; an expression is written ${{{{ x }}}}")
        return _fixed(text)
    parts: list[str | Template] = []
    rest, at = "", 0
    while True:
        found = text.find(OPEN, at)
        if found < 0:
            rest += text[at:]
            break
        if found and text[found - 1] == "$":
            rest += text[at : found - 1] + OPEN  # $${{ stands for a literal ${{
            at = found + len(OPEN)
            continue
        rest += text[at:found]
        end = find_end(text, found + len(OPEN))
        if end < 0:
            problems.add(item.at(found), "F010", "the expression that begins here has no `}}`")
            return _fixed(None)
        parts += [rest, _expression(text[found + len(OPEN) : end], item, found + len(OPEN), scope, problems)]
        rest, at = "", end + 2
    parts.append(rest)
    pieces = [part for part in parts if part != ""]
    if len(pieces) == 1 and isinstance(pieces[0], Template):
        return pieces[0]
    if all(isinstance(piece, str) for piece in pieces):
        return _fixed("".join(map(str, pieces)))
    where = _place(problems.file, item.mark)
    secret = any(isinstance(piece, Template) and piece.secrets for piece in pieces)
    return _Written(pieces, where, ((),) if secret else ())


def _written(pieces: Sequence[str | Template], given: Given, where: str) -> list[Any]:
    """The parts of a text; a secret is an object."""
    texts: list[Any] = []
    for piece in pieces:
        if isinstance(piece, str):
            texts.append(piece)
            continue
        data = piece.evaluate(given)
        value = msgspec.json.decode(data)
        if piece.secrets:
            texts.append(value)
            continue
        if value is None or isinstance(value, dict | list):
            kind = "null" if value is None else "an object" if isinstance(value, dict) else "a list"
            raise ExpressionFailed(
                where, f"an expression in a text gives {kind}; it must give text, a number or a bool"
            )
        texts.append(value if isinstance(value, str) else data.decode())
    return texts


def _expression(text: str, item: Item, offset: int, scope: Scope, problems: Problems) -> Template:
    try:
        expression = expression_of(text)
    except Wrong as wrong:
        problems.add(item.at(offset + wrong.at), wrong.code, str(wrong))
        return _fixed(None)
    slots: list[tuple[int, Path]] = []
    keys = scope.parts(expression.references[0]) if expression.lone else None
    if keys is not None:
        return _joined([_expression(f"{text.strip()}.{key}", item, offset, scope, problems) for key in keys], keys)
    for reference in expression.references:
        try:
            name = scope.secret(reference)
            if name is not None and expression.lone:
                return _secret(name)
            if name is not None:
                raise Wrong(
                    "F014", reference.at, "a secret is used as it is, alone or in a text: nothing computes with it"
                )
            slots.append(scope.slot(reference))
        except Wrong as wrong:
            problems.add(item.at(offset + wrong.at), wrong.code, str(wrong))
    if len(slots) < len(expression.references):
        return _fixed(None)
    where = _place(problems.file, item.at(offset))
    if expression.lone:
        (slot, path) = slots[0]
        if not path:
            return _Whole(slot, expression.references[0], where)
        return _Part(slot, path, expression.references[0], where)
    return _Computed(expression, slots, where)


def _found(given: Given, slot: int, path: Path, where: str, reference: Reference) -> bytes:
    """The value of a single reference, not decoded."""
    value = given[slot]
    if value is None:
        raise Missing(slot)
    part = value.part(path) if path else value
    if part is None:
        raise ExpressionFailed(where, _no_such(reference.text, reference, path, value))
    return part.data


def _evaluated(expression: Expression, slots: Sequence[tuple[int, Path]], given: Given, where: str) -> bytes:
    parts: list[Value | None] = []
    for slot, path in slots:
        value = given[slot]
        parts.append(None if value is None else value.part(path) if path else value)
    try:
        expression.check_sizes([0 if part is None else len(part.data) for part in parts])
        return encode(expression.evaluate(_decoded(slots, parts)))
    except Unset as unset:
        slot, path = slots[unset.number]
        value = given[slot]
        if value is None:
            raise Missing(slot) from None
        reference = expression.references[unset.number]
        raise ExpressionFailed(where, _no_such(expression.text.strip(), reference, path, value)) from None
    except Failed as failed:
        raise ExpressionFailed(where, f"${{{{ {expression.text.strip()} }}}} has no value: {failed}") from None


def _decoded(slots: Sequence[tuple[int, Path]], parts: Sequence[Value | None]) -> list[Any]:
    """The values of references; what is named several times is decoded once."""
    found: dict[tuple[int, Path], Any] = {}
    for slot, part in zip(slots, parts, strict=True):
        if slot not in found:
            found[slot] = UNSET if part is None else msgspec.json.decode(part.data)
    return [found[slot] for slot in slots]


def _no_such(text: str, reference: Reference, path: Path, value: Value) -> str:
    """Why a path has no value."""
    whole = f"${{{{ {text} }}}} has no value"
    known = reference.root + "".join(_shown(key) for key in reference.path[: len(reference.path) - len(path)])
    for number, key in enumerate(path):
        inner = value.part(path[:number]) if number else value
        if inner is None or inner.part(path[number : number + 1]) is not None:
            continue
        found = msgspec.json.decode(inner.data)
        if isinstance(found, dict):
            return f"{whole}: {known} has no {key!r}; {did_you_mean(str(key), found)} (or write | default(...))"
        kind = f"a list of {len(found)}" if isinstance(found, list) else "null" if found is None else "no object"
        return f"{whole}: {known} is {kind}, and has no {key!r} (or write | default(...))"
    return whole


def _shown(key: str | int) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def _place(file: str, mark: Mark) -> str:
    return f"{file}:{mark.line}:{mark.column}"


# --- Stepflow's forms -----------------------------------------------------------------------------------------------

# By the key that identifies a form: its other keys, and whether each is required.
_FORMS: Mapping[str, Mapping[str, bool]] = {
    "$step": {"path": False},
    "$input": {},
    "$variable": {"default": False},
    "$literal": {},
    "$if": {"then": True, "else": False},
    "$coalesce": {},
}


def is_form(item: Item) -> bool:
    """Whether a value is one of Stepflow's forms."""
    return isinstance(item.value, dict) and any(key in _FORMS for key in item.value)


def _form(form: str, item: Item, scope: Scope, problems: Problems) -> Template:
    value: dict[str, Item] = item.value
    wrong = False
    for key in value:
        if key != form and key not in _FORMS[form]:
            hint = did_you_mean(key, _FORMS[form])
            problems.add(item.keys.get(key, item.mark), "F005", f"{form} has no key {key!r} beside it; {hint}")
            wrong = True
    for key, must in _FORMS[form].items():
        if must and key not in value:
            problems.add(item.mark, "F006", f"{form} needs {key!r}")
            wrong = True
    inner = value[form]
    if wrong:
        return _fixed(None)
    if form == "$literal":
        return _fixed(inner.plain())
    if form == "$if":
        otherwise = value.get("else")
        last = _fixed(None) if otherwise is None else template(otherwise, scope, problems)
        return _chosen(template(inner, scope, problems), template(value["then"], scope, problems), last)
    if form == "$coalesce":
        if not isinstance(inner.value, list):
            problems.add(inner.mark, "F002", "$coalesce is a list of values")
            return _fixed(None)
        return _first([template(one, scope, problems) for one in inner.value])
    if not isinstance(inner.value, str):
        problems.add(inner.mark, "F002", f"{form} is text")
        return _fixed(None)
    return _reference(form, item, scope, problems)


def _reference(form: str, item: Item, scope: Scope, problems: Problems) -> Template:
    value: dict[str, Item] = item.value
    inner = value[form]
    path = inner if form != "$step" else value.get("path")
    keys: list[str | int] | None = [] if path is None else stepflow_path(path.value)
    if keys is None or (path is not None and not isinstance(path.value, str)):
        at = item.mark if path is None else path.mark
        problems.add(at, "F002", 'a path is a name, or $.a.b[0]["c"]: fields and positions only')
        return _fixed(None)
    root = {"$step": "steps", "$input": "input", "$variable": "vars"}[form]
    if form == "$step":
        keys = [inner.value, *keys]
    text = root + "".join(_shown(key) for key in keys)
    reference = Reference(root, tuple(keys), 0, text)
    try:
        name = scope.secret(reference)
        if name is not None:
            return _secret(name)
        slot, rest = scope.slot(reference)
    except Wrong as wrong:
        problems.add(inner.mark, wrong.code, str(wrong))
        return _fixed(None)
    where = _place(problems.file, inner.mark)
    default = template(value["default"], scope, problems) if "default" in value else None

    def evaluate(given: Given) -> bytes:
        found = given[slot]
        if found is None:
            if default is not None:
                return default.evaluate(given)
            raise Missing(slot)
        if found.data == b"null" and form == "$step":
            return b"null"  # every part of null is null
        part = found.part(rest) if rest else found
        if part is not None:
            return part.data
        if default is not None:
            return default.evaluate(given)
        raise ExpressionFailed(where, _no_such(text, reference, rest, found))

    return _Form(evaluate)


def stepflow_path(text: Any) -> list[str | int] | None:
    """The keys of a path of Stepflow; None for what is no path."""
    if not isinstance(text, str):
        return None
    if text == "$":
        return []
    rest = text[2:] if text.startswith("$.") else text[1:] if text.startswith("$[") else text
    if rest == text and not text.startswith("["):
        return [text] if "." not in text and "[" not in text else stepflow_path(f"$.{text}")
    found: list[str | int] = []
    at = 0
    while at < len(rest):
        match = _STEP.match(rest, at)
        if match is None:
            return None
        piece = match[0]
        if piece.startswith("["):
            inner = piece[1:-1]
            found.append(int(inner) if inner.isdecimal() else inner[1:-1])
        else:
            found.append(piece)
        at = match.end()
        if at < len(rest) and rest[at] == ".":
            at += 1
        elif at < len(rest) and rest[at] != "[":
            return None
    return found


def _chosen(condition: Template, then: Template, otherwise: Template) -> Template:
    def evaluate(given: Given) -> bytes:
        try:
            holds = condition.evaluate(given) not in (b"null", b"false")
        except (Missing, ExpressionFailed):
            holds = False
        return (then if holds else otherwise).evaluate(given)

    return _Form(evaluate)


def _first(parts: Sequence[Template]) -> Template:
    def evaluate(given: Given) -> bytes:
        for part in parts:
            try:
                found = part.evaluate(given)
            except Missing:
                continue
            if found != b"null":
                return found
        return b"null"

    return _Form(evaluate)
