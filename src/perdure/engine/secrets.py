"""Put secrets into the arguments of steps where they are executed, and keep them out of all that is recorded of them.

A secret is the value of a variable of the environment. The journal has its name, at places that the program knows
beforehand: an argument that only looks like a secret is data.
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
# A shorter text is part of others by chance, and could not be kept out of them.
SHORTEST = 4
# Lines of a secret, and its encoded forms, that are masked by themselves.
_SHORTEST_PART = 8


class Secrets:
    """The secrets that this process has given to steps."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        # The texts of which failures have no first and no last part: secrets, and lines of them, as errors quote them.
        self._ends: list[str] = []
        # Steps emit from threads.
        self._lock = threading.Lock()

    def put_in(self, command: RunStep) -> bytes:
        """The encoded arguments of a call, with the secrets in their places. Raises UsageError for one that is not set.

        What has taken the place of a secret since, as the arguments of a run that was forked, is left as it is.
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
        """The text that a name stands for, or the pieces of a text."""
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
        """The first characters of a text, without secrets: also without one that goes on where the text is cut."""
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
        """A failure without secrets in its texts, also of its causes, and without the ends of secrets.

        Errors quote values, and cut them. In results an end is left as it is: it may be a word like any other.
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
    """A text without secrets, and without what has their first characters, or their last ones."""
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
    """How many characters two texts begin with alike."""
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


# --- the forms in which a secret is found ----------------------------------------------------------------------------


def _forms(secrets: Iterable[str]) -> list[str]:
    """Patterns of secrets, longer ones first: as they are, escaped, in URLs, and in Base64."""
    texts = set(secrets)
    texts.update(line for one in secrets for line in one.splitlines() if len(line) >= _SHORTEST_PART)
    found: list[str] = []
    for text in sorted(texts, key=len, reverse=True):
        found += ["".join(_character(one) for one in text), *_in_base64(text.encode())]
    return found


def _quoted(secrets: Iterable[str]) -> list[str]:
    """Secrets and their lines, as they are, as Python and JSON write them, and as URLs do; longer ones first."""
    texts = {line for one in secrets for line in (one, *one.splitlines())}
    ways = {way for one in texts for way in (one, repr(one)[1:-1], json.dumps(one)[1:-1], quote(one, safe=""))}
    return sorted((way for way in ways if len(way) > _SHORTEST_PART), key=len, reverse=True)


def _character(one: str) -> str:
    """A character, as such, as a URL has it, and as JSON or Python write it, also when they do so more than once."""
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
    """The characters of Base64 that this text alone decides, for each place in a longer text where it may begin."""
    found = []
    for before in range(3):
        text = b64encode(bytes(before) + data).decode()
        part = text[-(-before * 4 // 3) : (before + len(data)) * 4 // 3]
        if len(part) >= _SHORTEST_PART:
            found.append("".join({"+": "[-+]", "/": "[_/]"}.get(one, one) for one in part))
    return found
