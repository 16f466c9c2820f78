"""Exceptions as data: describe one for the journal, and rebuild it as the class it was. Never imports a module.

A class is looked up among the builtins, in loaded modules, and in the types that the caller passes. Rebuilding calls
`__new__` and `__init__` of the builtin base, never the class's own: side effects of its constructor must not happen
again on replay. An exception that cannot be rebuilt becomes a StepError that also derives from its builtin base class:
`except OSError` means the same whether or not the module of the class is loaded.

User code may raise any class, whose methods may raise in turn: attributes of BaseException are read directly, and
everything else is guarded.
"""

from __future__ import annotations

import builtins
import sys
from base64 import b64decode
from collections import deque
from collections.abc import Iterator, Mapping
from types import MemberDescriptorType, ModuleType, TracebackType, WrapperDescriptorType
from typing import Any, get_type_hints

import msgspec

from perdure.errors import RunFailed, StepError
from perdure.kernel.values.codec import Codec

TRACEBACK = 4 * 1024
TEXT = 64 * 1024  # of a message, and of all attributes
DEPTH = 5
CHILDREN = 100
# Limits for a failure with its causes and grouped exceptions: their number, and the size of their text.
FAILURES = 300
BYTES = 4 * TEXT

ABSENT = msgspec.Raw()  # msgspec does not take Raw | None

# Modules whose frames are left out of tracebacks.
_OURS = ("perdure", "asyncio", "concurrent.futures", "threading")

# Attributes that builtin exceptions keep in C, outside of `__dict__` and `args`.
_MEMBERS: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (ImportError, ("name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
)

# Attributes of BaseException, bypassing any `__getattribute__`, `__setattr__` or property of the class.
_ARGS = BaseException.__dict__["args"]
_CAUSE = BaseException.__dict__["__cause__"]
_CONTEXT = BaseException.__dict__["__context__"]
_SUPPRESS = BaseException.__dict__["__suppress_context__"]
_TRACEBACK = BaseException.__dict__["__traceback__"]
_DICT = BaseException.__dict__["__dict__"]
_MRO, _FLAGS, _NAMES = type.__dict__["__mro__"], type.__dict__["__flags__"], type.__dict__["__dict__"]
_MODULE, _QUALNAME = type.__dict__["__module__"], type.__dict__["__qualname__"]
_MP_MAIN = "__mp_main__"
_HEAP_TYPE = 1 << 9  # in `__flags__`: the class is not a builtin


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An exception in the journal."""

    type: str
    """The class, as `module.qualname`."""
    message: str
    """Its `str()`."""
    args: msgspec.Raw = ABSENT
    """Its `args` as a JSON list; empty when they cannot be stored."""
    data: msgspec.Raw = ABSENT
    """Its attributes as a JSON object, without those that cannot be stored; empty when there are none."""
    traceback: str = ""
    """The frames of the user's code, innermost last."""
    cause: Failure | None = None
    """Its `__cause__`."""
    errors: tuple[Failure, ...] = ()
    """The exceptions of an exception group."""
    base: str = ""
    """Its builtin base class, unless that is Exception; used when its own class is not known."""
    lost: tuple[str, ...] = ()
    """The names of attributes that could not be stored."""
    binary: tuple[str | int, ...] = ()
    """Which attributes, by name, and which of `args`, by number, are bytes: in JSON they are base64 text."""

    def __str__(self) -> str:
        """One line: `ValueError: no stock`. Exceptions of perdure have their name alone, wherever their module is."""
        name = self.type.removeprefix("builtins.").removeprefix("__main__.")
        if name.startswith("perdure."):
            name = name.rpartition(".")[2]
        return f"{name}: {self.message}" if self.message else name


# --- describing -----------------------------------------------------------------------------------------------------


def describe(exc: BaseException, codec: Codec) -> Failure:
    """Describe any exception. Never raises."""
    return _Describing(codec).failure(exc, DEPTH)


def type_name(cls: type[BaseException]) -> str:
    """Name an exception class as failures do: the key of `known` in `rebuild`."""
    try:
        # In a process of multiprocessing, `__mp_main__` is the `__main__` of its parent.
        module = _MODULE.__get__(cls)
        return _text(f"{'__main__' if module == _MP_MAIN else module}.{_QUALNAME.__get__(cls)}")
    except BaseException:  # `__module__` may be anything
        return _text(_QUALNAME.__get__(cls))


def is_any_of(exc: BaseException, classes: tuple[type[BaseException], ...]) -> bool:
    """Whether an `except` of these classes catches it, without calling code of its class."""
    return any(cls in _MRO.__get__(type(exc)) for cls in classes)


def message_of(exc: BaseException) -> str:
    """The message of any exception. Never raises."""
    return _message(exc)


def raised_at(exc: BaseException) -> str:
    """Where in the user's code it was raised, as a traceback line; empty if unknown. Never raises."""
    return _traceback(_TRACEBACK.__get__(exc)).rpartition("\n")[2]


def set_cause(exc: BaseException, cause: BaseException) -> None:
    """Set the cause of an exception that has none. Never raises."""
    if exc is not cause and _CAUSE.__get__(exc) is None:
        _CAUSE.__set__(exc, cause)


class _Describing:
    """Describes one exception with its causes and members, within the limits."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._failures, self._bytes = FAILURES, BYTES

    def failure(self, exc: BaseException, depth: int) -> Failure:
        self._failures -= 1
        cls = type(exc)
        cause = _CAUSE.__get__(exc)
        if cause is None and not _SUPPRESS.__get__(exc):
            cause = _CONTEXT.__get__(exc)
        message = _message(exc)
        binary: list[str | int] = []
        args = ABSENT if self._spend(len(message)) else self._args(exc, binary)
        data, lost = self._data(exc, binary)
        errors: tuple[Failure, ...] = ()
        if issubclass(cls, BaseExceptionGroup) and depth > 1:
            children = BaseExceptionGroup.__dict__["exceptions"].__get__(exc)
            errors = tuple(self.failure(child, depth - 1) for child in children[:CHILDREN] if self._failures > 0)
        base = _builtin_base(cls)
        return Failure(
            type=type_name(cls),
            message=message if self._bytes > 0 else message[:200],
            args=args,
            data=data,
            traceback=_traceback(_TRACEBACK.__get__(exc)),
            cause=self.failure(cause, depth - 1) if cause is not None and depth > 1 and self._failures > 0 else None,
            errors=errors,
            base=base.__name__ if base not in (cls, Exception, BaseException) else "",
            lost=lost,
            binary=tuple(binary),
        )

    def _spend(self, size: int) -> bool:
        """Count the size of a text; whether the limit is exceeded."""
        self._bytes -= size
        return self._bytes <= 0

    def _args(self, exc: BaseException, binary: list[str | int]) -> msgspec.Raw:
        """The arguments that recreate the exception, including those that builtin classes do not keep in `args`."""
        if issubclass(type(exc), BaseExceptionGroup):
            # The exceptions of a group are stored as failures.
            return self._raw([BaseExceptionGroup.__dict__["message"].__get__(exc)])
        args: list[object] = list(_ARGS.__get__(exc))
        if issubclass(type(exc), OSError) and len(args) == 2:
            names = [OSError.__dict__[name].__get__(exc) for name in ("filename", "filename2")]
            if names[0] is not None:
                args.append(names[0])
                if names[1] is not None:
                    args += [None, names[1]]
        raw = self._raw(args)
        if raw:
            binary += [place for place, arg in enumerate(args) if type(arg) is bytes]
        return raw

    def _data(self, exc: BaseException, binary: list[str | int]) -> tuple[msgspec.Raw, tuple[str, ...]]:
        """The attributes that can be stored, and the names of those that cannot."""
        kept: dict[str, msgspec.Raw] = {}
        lost: list[str] = []
        size = 0
        for name, value in _attributes_of(exc):
            try:
                name.encode()
            except UnicodeError:
                continue
            raw = self._raw(_plain_notes(value) if name == "__notes__" else value)
            more = len(raw) + len(name.encode()) + 4
            if raw and size + more < TEXT:
                kept[name] = raw
                size += more
                if type(value) is bytes:
                    binary.append(name)
            elif len(lost) < CHILDREN:
                lost.append(name[:200])
        return (msgspec.Raw(msgspec.json.encode(kept)) if kept else ABSENT), tuple(lost)

    def _raw(self, value: object) -> msgspec.Raw:
        """The JSON of a value; empty if it cannot be encoded or is too large."""
        try:
            if isinstance(value, str | bytes | bytearray | list | tuple | dict | set) and len(value) > TEXT:
                return ABSENT
            data = self._codec.encode(value, "an exception")
        except BaseException:  # code of the value may raise anything
            return ABSENT
        if len(data) > TEXT or self._spend(len(data)):
            return ABSENT
        return msgspec.Raw(data)


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    """The nearest builtin base class."""
    mro: tuple[type[BaseException], ...] = _MRO.__get__(cls)
    return next(base for base in mro if not _FLAGS.__get__(base) & _HEAP_TYPE)


def _attributes_of(exc: BaseException) -> Iterator[tuple[str, object]]:
    """The attributes of an exception: in its `__dict__`, in slots, and in C."""
    found: dict[object, object] = dict(_DICT.__get__(exc) or {})
    for name, slot in _slots(type(exc)).items():
        try:
            found.setdefault(name, slot.__get__(exc))
        except AttributeError:
            pass  # not set
    for base, names in _MEMBERS:
        if issubclass(type(exc), base):
            for name in names:
                value = base.__dict__[name].__get__(exc)
                if value is not None:
                    found[name] = value
    for key, value in found.items():
        if type(key) is str:
            yield key, value


def _slots(cls: type[BaseException]) -> dict[str, MemberDescriptorType]:
    """The slots of a class and its bases."""
    found: dict[str, MemberDescriptorType] = {}
    for base in _MRO.__get__(cls):
        if _FLAGS.__get__(base) & _HEAP_TYPE:
            for name, member in _NAMES.__get__(base).items():
                if type(member) is MemberDescriptorType:
                    found.setdefault(name, member)
    return found


def _plain_notes(notes: object) -> object:
    return [note if type(note) is str else _safe_str(note) for note in notes] if isinstance(notes, list) else notes


def _safe_str(value: object) -> str:
    try:
        return str.__str__(str(value))
    except BaseException:
        return f"<{type(value).__name__} that cannot be shown>"


def _message(exc: BaseException) -> str:
    try:
        return _text(str.__str__(str(exc)))
    except BaseException:  # its `__str__` may raise anything
        pass
    name = type_name(type(exc)).rpartition(".")[2]
    try:
        # Without a usable message, show the arguments.
        args: tuple[object, ...] = _ARGS.__get__(exc)
        return _text(f"<{name} whose message cannot be read>" + (f" {args!r:.1000}" if args else ""))
    except BaseException:
        return _text(f"<{name} whose message cannot be read>")


def _text(text: str) -> str:
    return text[:TEXT].encode("utf-8", "backslashreplace").decode("utf-8")


def _traceback(traceback: TracebackType | None) -> str:
    """The innermost frames of the user's code, without source lines, which would have to be read from disk."""
    lines: deque[str] = deque()
    size = 0
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, traceback.tb_frame.f_globals.get("__name__", "")
        if not any(module == ours or module.startswith(f"{ours}.") for ours in _OURS if type(module) is str):
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
) -> Exception:
    """Rebuild the exception with its cause; a StepError if its class is not loaded. Never raises.

    `known` maps type names to classes that no module leads to, such as those made inside a function.
    """
    exc: Exception | None = None
    try:
        cls = _find(failure.type, known or {})
        if cls is StepError:
            cls = _step_error(failure.base)
        if cls is not None:
            exc = _make(cls, failure, codec, known)
    except BaseException:  # its arguments have changed, or its code raised
        exc = None
    if exc is None:
        exc = _step_error(failure.base)(failure.type, failure.message, failure.traceback, _plain_data(failure))
    if failure.cause is not None:
        _CAUSE.__set__(exc, rebuild(failure.cause, codec, known))
    return exc


def add_note(exc: BaseException, note: str) -> None:
    """Add a note to an exception. Never raises."""
    attributes = _DICT.__get__(exc)
    notes = attributes.get("__notes__")
    attributes["__notes__"] = [*notes, note] if isinstance(notes, list) else [note]


_step_errors: dict[str, type[StepError]] = {"": StepError}


def _step_error(base: str) -> type[StepError]:
    """The subclass of StepError that also derives from a builtin class."""
    found = _step_errors.get(base)
    if found is None:
        cls = getattr(builtins, base, None)
        found = StepError
        if isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, BaseExceptionGroup):
            try:
                names = {"__module__": StepError.__module__, "__qualname__": "StepError", "__doc__": StepError.__doc__}
                found = type("StepError", (StepError, cls), names)
                found("a.B", "it can be made")
            except TypeError:  # it needs arguments, such as UnicodeDecodeError
                found = StepError if cls.__base__ is None else _step_error(cls.__base__.__name__)
        _step_errors[base] = found
    return found


def _plain_data(failure: Failure) -> dict[str, Any]:
    try:
        data = msgspec.json.decode(failure.data, type=dict[str, Any]) if failure.data else {}
    except Exception:
        return {}
    return {name: value for name, value in data.items() if name != "__notes__"}


def _find(name: str, known: Mapping[str, type[BaseException]]) -> type[Exception] | None:
    cls: object = known.get(name)
    if cls is None:
        cls = _walk(name)
    if cls is BaseExceptionGroup:
        return ExceptionGroup  # its members are rebuilt as Exceptions only
    # SystemExit, KeyboardInterrupt and CancelledError would stop the process or the task that replays.
    return cls if isinstance(cls, type) and issubclass(cls, Exception) else None


def _walk(name: str) -> object:
    """The object of a dotted name in a loaded module, found without importing anything."""
    if name.startswith(f"{_MP_MAIN}."):
        name = name.replace(_MP_MAIN, "__main__", 1)
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:split]))
        if module is builtins or isinstance(module, ModuleType):
            # Not getattr: a module may import on access.
            found: object = module
            for part in parts[split:]:
                if isinstance(found, ModuleType):
                    found = ModuleType.__getattribute__(found, "__dict__").get(part)
                else:
                    found = type.__getattribute__(found, "__dict__").get(part) if isinstance(found, type) else None
            if isinstance(found, type) and found.__qualname__ == ".".join(parts[split:]) and type_name(found) == name:
                return found
    return None


def _make(
    cls: type[Exception],
    failure: Failure,
    codec: Codec | None,
    known: Mapping[str, type[BaseException]] | None,
) -> Exception | None:
    args: tuple[Any, ...] = (failure.message,)
    if failure.args:
        args = tuple(msgspec.json.decode(failure.args, type=list[Any]))
        args = tuple(_bytes(arg) if place in failure.binary else arg for place, arg in enumerate(args))
    if issubclass(cls, BaseExceptionGroup):
        children = [rebuild(child, codec, known) for child in failure.errors]
        args = (args[0], children)
    elif issubclass(cls, UnicodeDecodeError) and isinstance(args[1], str):  # an older journal
        args = (args[0], b64decode(args[1]), *args[2:])
    exc = _new(cls, args)
    slots, attributes = _slots(cls), _DICT.__get__(exc)
    for name, value in _attributes(cls, failure, codec).items():
        base = next((base for base, names in _MEMBERS if name in names and issubclass(cls, base)), None)
        if base is not None:
            base.__dict__[name].__set__(exc, value)
        elif name in slots:
            slots[name].__set__(exc, value)
        else:
            attributes[name] = value
    if issubclass(cls, StepError | RunFailed):
        # Its fields may have been too large to store, or it never had any.
        kind = attributes.setdefault("type", failure.type)
        _, found, said = failure.message.partition(f"{kind}: ")
        for name, value in {"id": "", "message": said if found else failure.message, "traceback": ""}.items():
            attributes.setdefault(name, value)
        attributes.setdefault("attributes", {})
    if not _sound(exc):
        # A `__getattr__` that reads an attribute which was not stored would recurse; with None it does not.
        for name in failure.lost:
            if name in slots:
                slots[name].__set__(exc, None)
            else:
                attributes.setdefault(name, None)
        if not _sound(exc):
            return None
    if isinstance(cls.__str__, WrapperDescriptorType) and str(exc) != failure.message:
        # Arguments came back as other types (tuples as lists, dates as text), which changes the message.
        tuples = tuple(tuple(arg) if isinstance(arg, list) else arg for arg in args)
        shown = next((a for a in (tuples, (failure.message,)) if _message_with(exc, a) == failure.message), args)
        _ARGS.__set__(exc, shown)
    elif _silent(exc):
        add_note(exc, f"its message, of which not everything could be kept: {failure.message}")
    return exc


def _bytes(text: object) -> object:
    """Decode base64 text to bytes; values that a registered codec encoded are left alone."""
    try:
        return b64decode(text, validate=True) if isinstance(text, str) else text
    except ValueError:
        return text


def _new(cls: type[Exception], args: tuple[Any, ...]) -> Exception:
    """Create an exception without running code of its class."""
    base = _builtin_base(cls)
    exc: Exception = base.__new__(cls, *args)
    if type(exc) is not cls:
        raise TypeError(f"{base.__name__}.__new__ made a {type(exc).__qualname__}")
    # The __init__ of a builtin base sets attributes from arguments (errno, encoding, value).
    base.__init__(exc, *args)
    if not issubclass(cls, OSError | BaseExceptionGroup):  # these set `args` themselves
        _ARGS.__set__(exc, args)
    return exc


def _sound(exc: Exception) -> bool:
    """Whether reading a missing attribute raises AttributeError, and nothing worse."""
    try:
        for name in ("__class__", "__cause__", "__context__", "__traceback__", "__notes__", "args", "_perdure_asks"):
            hasattr(exc, name)
    except BaseException:
        return False
    return True


def _silent(exc: Exception) -> bool:
    """Whether its message can no longer be read."""
    try:
        str(exc)
    except BaseException:
        return True
    return False


def _message_with(exc: Exception, args: tuple[Any, ...]) -> str:
    _ARGS.__set__(exc, args)
    return str(exc)


def _attributes(cls: type[Exception], failure: Failure, codec: Codec | None) -> dict[str, Any]:
    """The attributes, each decoded by the annotation of the class if it has one."""
    if not failure.data:
        return {}
    raws = msgspec.json.decode(failure.data, type=dict[str, msgspec.Raw])
    try:
        hints = get_type_hints(cls) if codec is not None else {}
    except BaseException:
        hints = {}
    attributes = {}
    for name, raw in raws.items():
        attributes[name] = msgspec.json.decode(raw)
        if name in failure.binary:
            attributes[name] = _bytes(attributes[name])
        if codec is not None and name in hints:
            try:
                attributes[name] = codec.decode(raw, hints[name], f"{failure.type}.{name}")
            except BaseException:
                pass  # keep the plain form
    return attributes
