"""Put secrets into the arguments of steps when they are executed, and mask them in everything that is recorded.

A secret is the value of an environment variable. The journal has only its name, at places that the program declares: an
argument that merely looks like a secret is data.
"""

from __future__ import annotations

import json
import os
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import msgspec

from perdure.errors import UsageError
from perdure.kernel.commands import SECRET, Place, RunStep
from perdure.kernel.values.arguments import names_of
from perdure.kernel.values.failures import Failure

MASK = "***"
# A shorter text occurs in other texts by chance, and could not be masked in them.
SHORTEST = 4
# The shortest line of a secret, and the shortest encoded form, that is masked separately.
_SHORTEST_PART = 8


class Secrets:
    """The secrets that this process has given to steps."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        # Texts whose beginning and end are masked in failures: secrets and their lines, as errors quote them.
        self._ends: list[str] = []
        # Steps may emit from threads.
        self._lock = threading.Lock()

    def put_in(self, command: RunStep) -> bytes:
        """The encoded arguments of a call, with the secrets in their places. Raises UsageError for one that is not set.

        If a fork has replaced a secret by another argument, that argument stays.
        """
        places = dict(command.spec.secrets)
        inputs: list[Any] = msgspec.json.decode(command.inputs)
        for number, name in enumerate(names_of(command)):
            for path in places.get(name.lstrip("*="), ()):
                inputs[number] = self._put(inputs[number], path)
        return msgspec.json.encode(inputs)

    def _put(self, value: Any, path: Place) -> Any:
        if not path:
            return self._value(value[SECRET]) if isinstance(value, dict) and value.keys() == {SECRET} else value
        first, rest = path[0], path[1:]
        if isinstance(value, dict):
            return {key: self._put(one, rest) if key == first else one for key, one in value.items()}
        if isinstance(value, list):
            return [self._put(one, rest) if number == first else one for number, one in enumerate(value)]
        return value

    def _value(self, stored: Any) -> str:
        """The value of a secret, or a text with values of secrets in it."""
        if isinstance(stored, list):
            return "".join(one if isinstance(one, str) else self._value(one[SECRET]) for one in stored)
        found = os.environ.get(stored)
        if not found:
            raise UsageError(
                f"the secret {stored} is not set where this step runs; set the environment variable {stored}"
            )
        if len(found) < SHORTEST:
            raise UsageError(
                f"the secret {stored} has less than {SHORTEST} characters, and could not be kept out of what the step "
                "says; use a longer one"
            )
        with self._lock:
            if found not in self._known:
                self._known.add(found)
                self._pattern = re.compile("|".join(_forms(self._known)))
                self._ends = _quoted(self._known)
        return found

    def shortened(self, text: str, most: int) -> str:
        """The first characters of a text, without secrets, including one that is cut at the end."""
        pieces, at = list[str](), 0
        for found in () if self._pattern is None else self._pattern.finditer(text):
            if found.start() >= most:
                break
            pieces += [text[at : found.start()], MASK]
            at = found.end()
        return "".join([*pieces, text[at:most]])

    def mask(self, data: bytes) -> bytes:
        """An encoded value without secrets in its texts."""
        pattern = self._pattern
        if pattern is None or pattern.search(data.decode()) is None:
            return data
        return msgspec.json.encode(_masked(msgspec.json.decode(data), lambda text: pattern.sub(MASK, text)))

    def mask_failure(self, failure: Failure) -> Failure:
        """A failure, with its causes, without secrets and without beginnings and ends of secrets.

        Errors quote parts of values. In results, the beginning or end of a secret is not masked: it may be an ordinary
        word.
        """
        pattern = self._pattern
        if pattern is None:
            return failure
        ends = tuple(self._ends)
        plain = _masked(msgspec.json.decode(msgspec.json.encode(failure)), lambda text: _endless(text, pattern, ends))
        return msgspec.json.decode(msgspec.json.encode(plain), type=Failure)


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        return {mask(key): _masked(one, mask) for key, one in value.items()}
    if isinstance(value, list):
        return [_masked(one, mask) for one in value]
    return value


def _endless(text: str, pattern: re.Pattern[str], ends: Iterable[str]) -> str:
    """A text without secrets, and without their first or last characters."""
    text = pattern.sub(MASK, text)
    for secret in ends:
        at = 0
        while (at := text.find(secret[:_SHORTEST_PART], at)) >= 0:
            end = at + _common(text[at : at + len(secret)], secret)
            text, at = text[:at] + MASK + text[end:], at + len(MASK)
        at = 0
        while (at := text.find(secret[-_SHORTEST_PART:], at)) >= 0:
            end = at + _SHORTEST_PART
            at = end - _common(text[max(0, end - len(secret)) : end][::-1], secret[::-1])
            text, at = text[:at] + MASK + text[end:], at + len(MASK)
    return text


def _common(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


# --- the forms in which a secret is found ----------------------------------------------------------------------------


def _forms(secrets: Iterable[str]) -> list[str]:
    """Patterns of secrets, longer ones first: in plain form, escaped, in URLs, and in Base64."""
    texts = set(secrets)
    texts.update(line for one in secrets for line in one.splitlines() if len(line) >= _SHORTEST_PART)
    found: list[str] = []
    for text in sorted(texts, key=len, reverse=True):
        found += ["".join(_character(one) for one in text), *_in_base64(text.encode())]
    return found


def _quoted(secrets: Iterable[str]) -> list[str]:
    """Secrets and their lines, in plain form and as Python, JSON and URLs write them; longer ones first."""
    texts = {line for one in secrets for line in (one, *one.splitlines())}
    ways = {way for one in texts for way in (one, repr(one)[1:-1], json.dumps(one)[1:-1], quote(one, safe=""))}
    return sorted((way for way in ways if len(way) > _SHORTEST_PART), key=len, reverse=True)


def _character(one: str) -> str:
    """A pattern for a character in plain form, in a URL, or escaped by JSON or Python, once or repeatedly."""
    data = one.encode("utf-8", "surrogatepass")
    ways = [re.escape(one), "".join(f"%(?i:{byte:02X})" for byte in data)]
    if one == " ":
        ways.append(r"\+")
    if one in "\"'\\/":
        ways.append(r"\\+" + re.escape(one))
    if one in "\n\r\t":
        ways.append(r"\\+" + {"\n": "n", "\r": "r", "\t": "t"}[one])
    if not one.isascii() or not one.isprintable():
        units = one.encode("utf-16-be", "surrogatepass")
        escaped = "".join(r"\\+u(?i:" + units[at : at + 2].hex() + ")" for at in range(0, len(units), 2))
        ways += [escaped, "".join(rf"\\+x(?i:{byte:02x})" for byte in data)]
    return f"(?:{'|'.join(ways)})"


def _in_base64(data: bytes) -> list[str]:
    """The Base64 characters that depend on this text alone, for each alignment in a longer text."""
    found = []
    for before in range(3):
        text = b64encode(bytes(before) + data).decode()
        part = text[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]
        if len(part) >= _SHORTEST_PART:
            found.append("".join({"+": "[-+]", "/": "[_/]"}.get(one, one) for one in part))
    return found
