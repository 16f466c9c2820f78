"""Names: run ids, op paths and idempotency keys. Takes entropy as an argument, makes none."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Container
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from perdure.errors import InvalidId, InvalidName, UsageError


class WrongValue(UsageError, TypeError, ValueError):
    """An option has an invalid value. Also a TypeError and a ValueError, as Python would raise."""


# A text as a plain `str`: libraries such as numpy have subclasses of it, and events hold none.
plain: Callable[[str], str] = str.__str__

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
# Ten bits of a number as two characters, and our digits as those of `int(text, 32)`.
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_TO_BASE_32 = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
# A run_id; that of a child has its op path after a slash.
_CURSOR = re.compile(rf"[{_ALPHABET}]{{16}}(?:/|$)")
MAX_ID = 255
MAX_VERSION = 100
MAX_REASON = 10_000
ODD = "holds a control character or a lone surrogate"
# The prefix of perdure's own programs.
BUILT_IN = "perdure."
# The prefix of the program of a remote step.
REMOTE = "perdure.step."
# What follows the name of a program in the name of its batches: `orders[]`. No name of a program has brackets.
BATCH = "[]"
# The program of the runs that hold definitions: see client/definitions.py.
STORED = "perdure.flow"
# The program of the runs that do one thing to many others: see client/bulk_runs.py.
BULK = "perdure.bulk"
# The programs of the runs that hold credentials: see client/credentials.py. No caller of the HTTP API sees them.
TOKEN, SESSION, LINK = "perdure.token", "perdure.session", "perdure.link"
SECRET = (TOKEN, SESSION, LINK)
# The signal under which a run gets its inputs, unless another name is chosen.
INPUT = "input"


def stored_id(name: str, version: str = "") -> str:
    """The id of the run that holds a definition; without a version the latest of its name."""
    return f"{STORED}:{name}@{version}" if version else f"{STORED}:{name}"


def run_id(now: float, entropy: int, after: str = "") -> str:
    """Sixteen characters: 44 bits of milliseconds, so that ids sort by age, then 36 bits of entropy.

    Short, because every row of a journal has it. A collision is a conflict, and a new id is made. Within one
    millisecond the id comes soon `after` the last one; the step between them is up to 20 bits of entropy.
    """
    number = (int(now * 1000) & 0xFFF_FFFF_FFFF) << 36 | entropy & 0xF_FFFF_FFFF
    if after:
        last = int(after.translate(_TO_BASE_32), 32)
        if number <= last and number >> 36 == last >> 36:
            number = last + 1 + (entropy & 0xF_FFFF)
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(70, -1, -10)])


def check_cursor(cursor: str | None, what: str) -> str | None:
    """Return the cursor of a list, or raise UsageError if no page can have returned it."""
    if cursor is not None and not (isinstance(cursor, str) and _CURSOR.match(cursor)):
        raise UsageError(f"{what}(cursor={cursor!r:.60}): give the cursor of the page before")
    return cursor


def check_id(id: str) -> str:
    """Return the caller's run id, or raise InvalidId. Spaces, slashes and emoji are fine."""
    flaw = flaw_of(id, MAX_ID)
    if flaw is not None:
        raise InvalidId(str(id), flaw)
    return plain(id)


def check_asked_id(id: str) -> str:
    """Return the id of a run that a caller asks about, or raise InvalidId for one that no run can have.

    Children have longer ids than callers may give, so the length is not checked.
    """
    if not isinstance(id, str):
        of_handle = "; give handle.id" if hasattr(id, "id") and hasattr(id, "result") else ""
        raise InvalidId(str(id), f"is not a string but of type {type(id).__name__}{of_handle}")
    if _is_odd(id):
        raise InvalidId(id, ODD)
    return plain(id)


def flaw_of(key: object, limit: int) -> str | None:
    """The flaw of a name, worded to follow it in a sentence; None if it is valid."""
    if not isinstance(key, str):
        return f"is not a string but of type {type(key).__name__}"
    if not key:
        return "is empty"
    if len(key) > limit:
        return f"has {len(key):,} characters, and {limit} is the limit"
    return ODD if _is_odd(key) else None


def _is_odd(text: str) -> bool:
    return not text.isprintable() and any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in text)


def check_name(name: str, what: str) -> str:
    """Return a name that can be part of an op path, or raise InvalidName, which is a ValueError."""
    if not isinstance(name, str) or not 1 <= len(name) <= 200:
        raise InvalidName(what, name)
    if any(c in "/:[]" for c in name) or _is_odd(name):
        raise InvalidName(what, name)
    return plain(name)


def check_text(text: str | None, what: str, limit: int = 1000) -> str:
    """Return a text that can be stored, empty for None, or raise UsageError."""
    if text is None:
        return ""
    if not isinstance(text, str):
        raise UsageError(f"{what} must be a text, not {text!r:.60} of type {type(text).__name__}")
    if len(text) > limit:
        raise UsageError(f"{what} has {len(text):,} characters, and {limit:,} is the limit; put what is long elsewhere")
    if not text.isascii() and any(0xD800 <= ord(c) <= 0xDFFF for c in text):
        raise UsageError(f"{what} holds a lone surrogate, which no store can keep: {text[:60]!r}")
    return plain(text)


# A `traceparent` of W3C Trace Context, with the `tracestate` after a space where there is one.
_TRACE = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?: [\x21-\x7e][\x20-\x7e]{0,511})?")


def check_trace(trace: str) -> str:
    """Return the trace that a caller is in, or raise UsageError."""
    if not isinstance(trace, str) or not _TRACE.fullmatch(trace):
        raise UsageError(
            f"trace={trace!r:.80} is not a traceparent, such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        )
    return trace


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """The sort key of a version: a text whose numbers are compared as numbers: 9, 10, 10.1."""
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def check_version(version: object, what: str) -> str:
    """Return a version as text, or raise UsageError."""
    if isinstance(version, bool) or not isinstance(version, str | int):
        raise UsageError(f"{what} must be a text such as '2', not {version!r}")
    text = check_text(str(version), what, MAX_VERSION)
    if not text:
        raise UsageError(f"{what} is empty; leave it out, or write a text such as '2'")
    return text


def op_name(op: str) -> str:
    """The name in an op path: `embed` of `rag:1/embed:0`."""
    return op.rpartition("/")[2].partition(":")[0]


def numberless(op: str) -> str:
    """An op path without the numbers: `rag/embed` of `rag:1/embed:0`."""
    return "/".join(op_name(part) for part in op.split("/"))


def enclosing(op: str, paths: Container[str]) -> str:
    """The innermost of these op paths that an op lies within, at any depth; empty if it lies within none."""
    while (end := op.rfind("/")) >= 0:
        op = op[:end]
        if op in paths:
            return op
    return ""


def step_key(run_id: str, op: str) -> str:
    """The idempotency key of a step: the same for every attempt, on every machine."""
    return f"{run_id}/{op}"


def entropy_of(key: str) -> int:
    """Bits for `run_id` that depend only on `key`."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest())


def inputs_hash(data: bytes) -> str:
    """A short hash of a step's encoded inputs."""
    return urlsafe_b64encode(blake2b(data, digest_size=9).digest()).decode()


def derived_uuid(run_id: str, op: str) -> UUID:
    """The uuid4 of an op: random to anyone who does not know the run, the same on every replay."""
    return UUID(bytes=blake2b(step_key(run_id, op).encode(), digest_size=16).digest(), version=4)


def address(child: str, name: str) -> str:
    """The address of signals of a name: the name, which holds no slash, after the op path of the child."""
    return f"{child}/{name}" if child else name


class SignalKey(NamedTuple):
    """The key that deduplicates a signal: its id, and the op path of the child that it was sent to; empty: the run."""

    child: str
    id: str


def generated_id(entropy: str) -> str:
    """The id of a signal or an answer that its sender gave none: only its own retries bear it."""
    return f"~{entropy}"


def is_generated(id: str) -> bool:
    """Whether an id is one of `generated_id`."""
    return id.startswith("~")
