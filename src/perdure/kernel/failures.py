"""Exceptions as data: describe one for the journal, and rebuild it as the class it was. Never imports a module.

A class is looked for where it already is: among the builtins, in loaded modules, or in the types the caller knows.
Rebuilding calls `__new__` and the builtin base's `__init__`, never the class's own: what an exception's constructor
does to the world must not happen again on replay. An exception that cannot be rebuilt becomes a StepError.
"""

from __future__ import annotations

import builtins
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Mapping
from types import ModuleType, TracebackType, WrapperDescriptorType
from typing import Any, get_type_hints

import msgspec

from perdure.errors import StepError
from perdure.kernel.codec import Codec

TRACEBACK = 4 * 1024
TEXT = 64 * 1024  # an error is to be read: more than this of its message, or of one attribute, is not
DEPTH = 5
CHILDREN = 100

ABSENT = msgspec.Raw()  # msgspec does not take Raw | None

# Frames that tell a user nothing about their own code.
_OURS = ("perdure", "asyncio", "concurrent.futures", "threading")

# Attributes that builtin exceptions keep in C, out of reach of `__dict__` and `args`.
_MEMBERS: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (ImportError, ("name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception in the journal."""

    type: str
    """The class, as `module.qualname`."""
    message: str
    """What `str()` said of it."""
    args: msgspec.Raw = ABSENT
    """Its `args` as a JSON list; empty when they cannot be stored, and the message stands for them."""
    data: msgspec.Raw = ABSENT
    """Its attributes as a JSON object, without those that cannot be stored; empty when there are none."""
    traceback: str = ""
    """The frames of the user's code, innermost last."""
    cause: Failure | None = None
    """What it was raised from."""
    errors: tuple[Failure, ...] = ()
    """The exceptions of an exception group."""

    def __str__(self) -> str:
        """As an exception is said in one line: `ValueError: no stock`."""
        name = self.type.removeprefix("builtins.").removeprefix("__main__.")
        return f"{name}: {self.message}" if self.message else name


# --- describing -----------------------------------------------------------------------------------------------------


def describe(exc: BaseException, codec: Codec) -> Failure:
    """Describe an exception, whatever it is. Never raises."""
    return _describe(exc, codec, DEPTH)


def type_name(cls: type[BaseException]) -> str:
    """Name an exception class as failures do: the key of `known` in `rebuild`."""
    return _text(f"{cls.__module__}.{cls.__qualname__}")


def _describe(exc: BaseException, codec: Codec, depth: int) -> Failure:
    cause = exc.__cause__
    if cause is None and not exc.__suppress_context__:
        cause = exc.__context__
    args = _args(exc)
    errors: tuple[Failure, ...] = ()
    if isinstance(exc, BaseExceptionGroup) and depth > 1:
        errors = tuple(_describe(child, codec, depth - 1) for child in exc.exceptions[:CHILDREN])
    return Failure(
        type=type_name(type(exc)),
        message=_message(exc),
        args=_raw(args, codec) if args is not None else ABSENT,
        data=_data(exc, codec),
        traceback=_traceback(exc.__traceback__),
        cause=_describe(cause, codec, depth - 1) if cause is not None and depth > 1 else None,
        errors=errors,
    )


def _message(exc: BaseException) -> str:
    try:
        return _text(str(exc))
    except Exception:
        return f"<{type(exc).__qualname__} whose message cannot be read>"


def _text(text: str) -> str:
    return text[:TEXT].encode("utf-8", "backslashreplace").decode("utf-8")


def _args(exc: BaseException) -> list[object] | None:
    """Give the arguments that make the same exception again. Those kept elsewhere than in `args` are added."""
    try:
        if isinstance(exc, BaseExceptionGroup):
            return [exc.message]  # the exceptions are kept as failures
        args: list[object] = list(exc.args)
        if isinstance(exc, OSError) and len(args) == 2 and exc.filename is not None:
            args.append(exc.filename)
            if exc.filename2 is not None:
                args += [None, exc.filename2]
        return args
    except Exception:
        return None


def _data(exc: BaseException, codec: Codec) -> msgspec.Raw:
    try:
        attributes = dict(vars(exc))
        for base, names in _MEMBERS:
            if isinstance(exc, base):
                attributes |= {name: getattr(exc, name) for name in names if getattr(exc, name, None) is not None}
    except Exception:
        return ABSENT
    kept = {name: raw for name, item in attributes.items() if (raw := _raw(item, codec))}
    return _raw(kept, codec) if kept else ABSENT


def _raw(value: object, codec: Codec) -> msgspec.Raw:
    """Give the JSON of a value; empty when it has none, or too much."""
    try:
        data = codec.encode(value, "an exception")
    except Exception:
        return ABSENT
    return msgspec.Raw(data) if len(data) <= TEXT else ABSENT


def _traceback(traceback: TracebackType | None) -> str:
    """Give the innermost frames of the user's code. Source lines are left out: they would have to be read."""
    lines: deque[str] = deque()
    size = 0
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__", ""))
        if not any(module == ours or module.startswith(f"{ours}.") for ours in _OURS):
            line = _text(f'File "{code.co_filename}", line {traceback.tb_lineno}, in {code.co_qualname}')[-TRACEBACK:]
            lines.append(line)
            size += len(line.encode()) + 1
            while size > TRACEBACK:
                size -= len(lines.popleft().encode()) + 1
        traceback = traceback.tb_next
    return "\n".join(lines)


# --- rebuilding -----------------------------------------------------------------------------------------------------


def rebuild(
    failure: Failure, codec: Codec | None = None, known: Mapping[str, type[BaseException]] | None = None
) -> BaseException:
    """Make the exception again, with its cause; a StepError where its class is not here. Never raises.

    `known` maps type names to classes that no module leads to, such as those made inside a function.
    """
    exc: BaseException | None = None
    cls = _find(failure.type, known or {})
    if cls is not None:
        try:
            exc = _make(cls, failure, codec, known)
        except Exception:  # its `__new__` wants something else, or its arguments are not what they were
            exc = None
    if exc is None:
        exc = StepError(failure.type, failure.message)
    if failure.cause is not None:
        exc.__cause__ = rebuild(failure.cause, codec, known)
    return exc


def _find(name: str, known: Mapping[str, type[BaseException]]) -> type[Exception] | None:
    cls: object = known.get(name)
    if cls is None:
        cls = _walk(name)
    if cls is BaseExceptionGroup:
        return ExceptionGroup  # its exceptions can be rebuilt as Exceptions only
    # SystemExit, KeyboardInterrupt and CancelledError would stop the process or the task that replays.
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else None


def _walk(name: str) -> object:
    """Follow a name into a loaded module, looking at what is there without causing anything to be loaded."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if module is builtins or isinstance(module, ModuleType):
            # Not getattr: modules may import on access.
            found: object = module
            for part in parts[split:]:
                if isinstance(found, ModuleType):
                    found = ModuleType.__getattribute__(found, "__dict__").get(part)
                else:
                    found = type.__getattribute__(found, "__dict__").get(part) if isinstance(found, type) else None
            if (
                isinstance(found, type)
                and found.__module__ == ".".join(parts[:split])
                and found.__qualname__ == ".".join(parts[split:])
            ):
                return found
    return None


def _make(
    cls: type[Exception],
    failure: Failure,
    codec: Codec | None,
    known: Mapping[str, type[BaseException]] | None,
) -> Exception:
    args: tuple[Any, ...] = (failure.message,)
    if failure.args:
        args = tuple(msgspec.json.decode(failure.args, type=list[Any]))
    if issubclass(cls, BaseExceptionGroup):
        children = [rebuild(child, codec, known) for child in failure.errors]
        args = (args[0], children)
    elif issubclass(cls, UnicodeDecodeError):
        args = (args[0], b64decode(args[1]), *args[2:])
    exc = _new(cls, args)
    for name, value in _attributes(cls, failure, codec).items():
        if any(issubclass(cls, base) and name in names for base, names in _MEMBERS):
            object.__setattr__(exc, name, value)
        else:
            exc.__dict__[name] = value
    if isinstance(cls.__str__, WrapperDescriptorType) and str(exc) != failure.message:
        # Arguments came back as other types (tuples as lists, dates as text), and it shows.
        tuples = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
        exc.args = next((a for a in (tuples, (failure.message,)) if _says(exc, a) == failure.message), args)
    return exc


def _new(cls: type[Exception], args: tuple[Any, ...]) -> Exception:
    """Make an exception without the code of its own `__init__`."""
    exc = cls.__new__(cls, *args)
    if type(exc) is not cls:
        raise TypeError(f"{cls.__qualname__}.__new__ made a {type(exc).__qualname__}")
    # Builtin exceptions keep some arguments as attributes (errno, encoding, value): their own __init__ sets those.
    base = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    base.__init__(exc, *args)  # type: ignore[misc]  # of the builtin base, never of a subclass
    if not issubclass(cls, OSError | BaseExceptionGroup):  # these have chosen what `args` shows
        exc.args = args
    return exc


def _says(exc: Exception, args: tuple[Any, ...]) -> str:
    exc.args = args
    return str(exc)


def _attributes(cls: type[Exception], failure: Failure, codec: Codec | None) -> dict[str, Any]:
    """Give the attributes, each as the class annotates it if it does."""
    if not failure.data:
        return {}
    raws = msgspec.json.decode(failure.data, type=dict[str, msgspec.Raw])
    try:
        hints = get_type_hints(cls) if codec is not None else {}
    except Exception:
        hints = {}
    attributes = {}
    for name, raw in raws.items():
        attributes[name] = msgspec.json.decode(raw)
        if codec is not None and name in hints:
            try:
                attributes[name] = codec.decode(raw, hints[name], f"{failure.type}.{name}")
            except Exception:
                pass  # its plain form says more than nothing
    return attributes
