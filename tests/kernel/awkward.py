"""Exceptions that are hard to record and to rebuild, for tests."""

from __future__ import annotations

import email.message
import io
import socket
import subprocess
import threading
import urllib.error
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

SOCKET = socket.socket()
SOCKET.close()


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Delegating(Exception):
    """Like urllib's HTTPError: missing attributes are looked up in an attribute that cannot be stored."""

    def __init__(self, message: str, inner: object) -> None:
        super().__init__(message)
        self.code, self.inner = 404, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["inner"], name)


class Endless(Exception):
    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.inner = object()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Guarded(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Slotted(Exception):
    __slots__ = ("__hidden", "code", "lock", "unset")

    def __init__(self, code: int) -> None:
        super().__init__(f"slot {code}")
        self.code, self.lock, self.__hidden = code, threading.Lock(), "h"

    @property
    def hidden(self) -> str:
        return self.__hidden


class Required(Exception):
    def __init__(self, a: int, *, b: int) -> None:
        self.a, self.b = a, b

    def __str__(self) -> str:
        return f"{self.a} and {self.b}"


class Shy(Exception):
    """Its properties raise, and its message depends on something that cannot be stored."""

    def __init__(self, response: object) -> None:
        self.response, self.status = response, 503

    @property
    def body(self) -> str:
        raise SystemExit("read")

    def __str__(self) -> str:
        return f"answered {self.response.status}"  # type: ignore[attr-defined]


class Wrong(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    def __reduce__(self) -> Any:
        raise SystemExit(4)

    def __eq__(self, other: object) -> bool:
        raise SystemExit(5)

    __hash__ = None  # type: ignore[assignment]


class Sly(str):
    def __getitem__(self, key: Any) -> Any:
        raise SystemExit(1)

    def encode(self, *args: Any) -> Any:
        raise SystemExit(2)


class SlyMessage(Exception):
    def __str__(self) -> str:
        return Sly("sly")


class Meta(type):
    @property
    def __mro__(cls) -> Any:
        raise RuntimeError("no bases")

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __instancecheck__(cls, other: Any) -> bool:
        raise RuntimeError("no instances")

    def __call__(cls, *args: Any) -> Any:
        return Exception.__new__(cls, *args)  # type: ignore[arg-type]


class Meddling(Exception, metaclass=Meta):
    pass


class Masked(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no args")

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no traceback")


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


class BadNotes(Exception):
    def __init__(self, notes: object) -> None:
        super().__init__("noted")
        self.__dict__["__notes__"] = notes


def caught(code: str) -> BaseException:
    try:
        exec(code, {})  # noqa: S102
    except Exception as exc:
        return exc
    raise AssertionError(code)


def http_error() -> urllib.error.HTTPError:
    headers = email.message.Message()
    return urllib.error.HTTPError("http://x", 404, "Not Found", headers, io.BytesIO(b"gone"))


def with_attributes(**attributes: object) -> Exception:
    made = ValueError("with")
    made.__dict__.update(attributes)
    return made


def _cyclic() -> list[object]:
    made: list[object] = []
    made.append(made)
    return made


AWKWARD: dict[str, Callable[[], BaseException]] = {
    "http error": http_error,
    "http error without a body": lambda: urllib.error.HTTPError("http://x", 500, "m", None, None),  # type: ignore[arg-type]
    "url error": lambda: urllib.error.URLError(OSError(1, "x")),
    "delegates": lambda: Delegating("d", threading.Lock()),
    "endless getattr": lambda: Endless("e"),
    "getattribute raises": lambda: Guarded("g"),
    "slots": lambda: Slotted(7),
    "required arguments": lambda: Required(1, b=2),
    "properties raise": lambda: Shy(SimpleNamespace(status=503)),
    "str and repr": lambda: Wrong("w"),
    "exits": lambda: Leaving("l"),
    "sly text": lambda: SlyMessage("s"),
    "metaclass": lambda: Meddling("m"),
    "masked": lambda: Masked("m"),
    "frozen": lambda: Frozen("f"),
    "notes of numbers": lambda: BadNotes([1, object(), Rude()]),
    "notes are no list": lambda: BadNotes(5),
    "notes are a thing": lambda: BadNotes(object()),
    "socket": lambda: with_attributes(socket=SOCKET, code=5),
    "a thread and a lock": lambda: with_attributes(thread=threading.current_thread(), lock=threading.Lock(), code=5),
    "a cycle": lambda: with_attributes(cycle=_cyclic(), code=5),
    "surrogates": lambda: with_attributes(**{"\ud800": 1, "text": "\ud800", "code": 5}),
    "huge": lambda: with_attributes(huge="x" * 10**7, many=list(range(10**6)), code=5),
    "keys that are no names": lambda: with_attributes(code=5, **{"a b": 1}),
    "a group of them": lambda: ExceptionGroup("g", [http_error(), Guarded("g"), Slotted(1), Leaving("l")]),
    "a base group of them": lambda: BaseExceptionGroup("g", [SystemExit(1), http_error(), KeyboardInterrupt()]),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt("k"),
    "generator exit": lambda: GeneratorExit("g"),
    "stop": lambda: StopIteration(object()),
    "stop async": lambda: StopAsyncIteration(object()),
    "json": lambda: caught("import json; json.loads('{')"),
    "unpickled": lambda: subprocess.CalledProcessError(3, ["ls"], b"out", b"err"),
}
