"""The arguments of a call by name: recorded, compared, and bound to the parameters that the code has now.

An op records its arguments as one text, `order,items#Xq3kPz0a["o-1"]`: the names that were given, in the order of the
call, and the values as JSON. A value of more than `SMALL` bytes has a digest behind its name in place of a value.
Texts that differ are compared by name: a default may be given or left out, keywords may change places, and a parameter
may be renamed. A call that was recorded is made again by name, too: parameters may have moved since.
"""

from __future__ import annotations

import inspect
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from inspect import Parameter
from itertools import count
from operator import itemgetter
from typing import Any, get_args, get_origin

import msgspec
from msgspec import Raw

from perdure.errors import NotDecodable, NotSerializable
from perdure.kernel.commands import RunStep, StartChild, StepSpec
from perdure.kernel.ids import inputs_hash
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.earlier_forms import earlier_forms, other_orders
from perdure.kernel.values.items import has_references, is_items
from perdure.kernel.values.value_versions import VERSION_KEY, versions_in

# The types of parameters with their names, as in StepSpec: `*`, `**` and `=` mark variable and keyword-only ones.
Types = Sequence[tuple[str, Any]]

VAR_POSITIONAL, VAR_KEYWORD = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
KEYWORD_ONLY = Parameter.KEYWORD_ONLY
# The longest value, in bytes of JSON, that the record of an op shows; and the longest list in which all are so short.
SMALL = 32
ALL_SMALL = SMALL + 2
# The longest record, in characters; a longer one has one digest, under this name.
_LONGEST, ALL = 1000, "arguments"
# How much of a value an explanation shows.
_SHOWN = 120
_values = msgspec.json.Decoder(list[Raw]).decode
# Encodes the defaults of parameters, to compare them.
_PLAIN = Codec()


# The value of a parameter that was not given.
DEFAULT: Any = object()


# --- names ----------------------------------------------------------------------------------------------------------


def prefixes(types: Types) -> tuple[str, ...]:
    """The names in the record of a call with no, one, two ... positional arguments and no keywords."""
    plain = _plain(types)
    return tuple(",".join(plain[:given]) for given in range(len(plain) + 1))


def call_names(types: Types, positional: int, keywords: Iterable[str] = ()) -> tuple[str, ...]:
    """The parameter names of the arguments of a call, in order; `*rest` for each that `*rest` receives.

    Where the parameters are not known, an argument has its position for a name.
    """
    plain = _plain(types)
    rest = next((name for name, _ in types if name.startswith("*") and not name.startswith("**")), "")
    by_position = (plain[n] if n < len(plain) else rest or str(n) for n in range(positional))
    return (*by_position, *keywords)


def positional_names(types: Types) -> tuple[str, ...]:
    """The parameters that take positional arguments, in order."""
    return tuple(name for name, _ in types if not name.startswith(("=", "**")))


def names_of(command: RunStep) -> tuple[str, ...]:
    """The parameter names of the encoded arguments of a step."""
    return call_names(command.spec.types, command.positional, command.keywords)


def by_name(names: Sequence[str], inputs: bytes | Raw) -> dict[str, Any]:
    """Encoded arguments as plain values by name; those of a `*rest` are a list."""
    return _gathered(names, msgspec.json.decode(inputs))


def raw_by_name(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Positional values by the names of the parameters at their positions; the last name may be a `*rest`.

    Raises TypeError if there are more values than parameters.
    """
    rest = names[-1] if names and names[-1].startswith("*") else ""
    if len(values) > len(names) and not rest:
        raise TypeError(f"too many positional arguments: {len(values)}, and there are {len(names)} parameters for them")
    given = [*names[: len(values)], *[rest] * (len(values) - len(names))]
    return _gathered(given, values)


def named_input(input: Raw, names: Sequence[str]) -> Raw:
    """Stored input by the names of the parameters of its positional arguments.

    Input that has names is returned unchanged, and so are more arguments than names, which the program will refuse.
    """
    if not names or not bytes(input).startswith(b"["):
        return input
    values = _values(input)
    fits = len(values) <= len(names) or names[-1].startswith("*")
    return Raw(msgspec.json.encode(raw_by_name(names, values))) if fits else input


def _gathered(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if name.startswith("*"):
            found.setdefault(name[1:], []).append(value)
        else:
            found[name] = value
    return found


def _plain(types: Types) -> list[str]:
    return [name for name, _ in types if not name.startswith(("*", "="))]


# --- binding --------------------------------------------------------------------------------------------------------

Arguments = tuple[list[tuple[Parameter, Any]], dict[str, tuple[Parameter, Any]]]


def bind(name: str, parameters: Iterable[Parameter], given: Mapping[str, Any]) -> Arguments:
    """Bind arguments by name, and give the positional and the keyword ones, each with its parameter.

    A positional parameter that was not given has DEFAULT, so that later ones keep their positions. The arguments of a
    `*rest` are a list, those of a `**more` are beside the others, because one of them may be a parameter now.
    Raises TypeError for an argument without a parameter, and for a required parameter without an argument.
    """
    args: list[tuple[Parameter, Any]] = []
    kwargs: dict[str, tuple[Parameter, Any]] = {}
    left = dict(given)
    optional: list[str] = []
    missing = ""
    for one in parameters:
        kind = one.kind
        if kind is VAR_KEYWORD:
            kwargs.update({key: (one, value) for key, value in left.items()})
            left = {}
        elif one.name in left:
            value = left.pop(one.name)
            if kind is VAR_POSITIONAL:
                args.extend((one, item) for item in value)
            elif kind is KEYWORD_ONLY:
                kwargs[one.name] = one, value
            else:
                args.append((one, value))
        elif kind is not VAR_POSITIONAL:
            if one.default is one.empty:
                missing = missing or one.name
            else:
                optional.append(one.name)
            if kind is not KEYWORD_ONLY:
                args.append((one, DEFAULT))
    if missing:
        raise TypeError(_missing(name, missing, left))
    if left:
        raise TypeError(_unknown(name, left, optional))
    return args, kwargs


def _missing(name: str, missing: str, left: Mapping[str, Any]) -> str:
    cause = f"{name}() is missing its argument {missing!r} in the stored input"
    if left:
        return f"{cause}, which holds {', '.join(left)}; a parameter that was renamed keeps its old name"
    return f"{cause}; give the parameter a default"


def _unknown(name: str, left: Mapping[str, Any], optional: Sequence[str]) -> str:
    held = ", ".join(f"{key} = {_given(left[key])}" for key in sorted(left))
    cause = f"{name}() has no argument {', '.join(sorted(left))}, which the stored input holds ({held})"
    if optional:
        return f"{cause}; if it was renamed to {' or '.join(optional)}, keep the old name"
    return f"{cause}; keep the parameter for runs that were started with it"


def _given(value: Any) -> str:
    if isinstance(value, Raw):
        return _shown(bytes(value).decode())
    return ", ".join(map(_given, value)) if isinstance(value, list | tuple) else "..."


def argument_types(command: RunStep, secret: Collection[str] = ()) -> Any:
    """The type of the list of encoded arguments of a call. What is `secret` may be anything: its value is not there."""
    types = command.spec.types
    by_name = {name.lstrip("="): annotation for name, annotation in types}
    positional = [annotation for name, annotation in types if not name.startswith(("*", "="))]
    variable = next((t for n, t in types if n.startswith("*") and not n.startswith("**")), Any)
    keyword = next((t for n, t in types if n.startswith("**")), Any)
    result = [positional[i] if i < len(positional) else variable for i in range(command.positional)]
    result += [by_name.get(name, keyword) for name in command.keywords]
    if secret:
        names = [name.lstrip("*=") for name in names_of(command)]
        result = [Any if name in secret else t for name, t in zip(names, result, strict=True)]
    return tuple[tuple(result)] if any(t is not Any for t in result) else list[Any]  # type: ignore[misc]


def check_call(command: RunStep, codec: Codec) -> None:
    """Raise NotDecodable for a step that was called and has no outcome yet, and cannot be called so any more."""
    what = f"the arguments of {command.op}"
    if not _gives_all(command):
        try:
            signature = inspect.signature(command.spec.fn)
        except (TypeError, ValueError):  # a builtin without a signature
            return
        try:
            signature.bind(*[None] * command.positional, **dict.fromkeys(command.keywords))
        except TypeError as error:
            known = f"those of {command.spec.name}{signature}".replace("'", "")
            raise NotDecodable(what, known, f"{error} (called at {command.source})") from None
    if command.references:
        return  # what is not loaded is checked when the step is called
    types = argument_types(command, dict(command.spec.secrets))
    try:
        codec.decode(command.inputs, _of_loaded(types, command.inputs), what)
    except NotDecodable as error:
        raise NotDecodable(what, error.type, f"{error.reason} (called at {command.source})") from None


def _of_loaded(types: Any, inputs: bytes) -> Any:
    """The types of arguments, of which those may be anything that are lists whose items are not loaded."""
    if not has_references(inputs) or get_origin(types) is not tuple:
        return types
    values = msgspec.json.decode(inputs, type=list[Raw])
    known = zip(get_args(types), values, strict=True)
    return tuple[tuple(one if is_items(one) or not has_references(bytes(value)) else Any for one, value in known)]  # type: ignore[misc]


def _gives_all(command: RunStep) -> bool:
    """Whether a call gives each parameter by position, as most do. Many runs that are loaded at once are checked."""
    types = command.spec.types
    given = 0 < command.positional == len(types) and not command.keywords
    return given and not any(name.startswith(("*", "=")) for name, _ in types)


def check_remote_call(command: RunStep, codec: Codec) -> None:
    """Raise NotDecodable for a remote step that is recorded with arguments which its parameters do not take."""
    names = [] if is_former(command.inputs_hash) else [*_parsed(command.inputs_hash)]
    if ALL in names or any(name.isdecimal() or name.startswith("?") for name in names):
        return
    try:
        parameters = inspect.signature(command.spec.fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        bind(command.spec.name, parameters, {name.lstrip("*"): () for name in names})
    except TypeError as error:
        what = f"the input of the step {command.spec.name}"
        raise NotDecodable(what, "its arguments", f"{error} (called at {command.source})") from None
    check_call(command, codec)


def rebound(
    spec: StepSpec, names: Sequence[str], keywords: Sequence[str], inputs: bytes
) -> tuple[bytes, int, tuple[str, ...]]:
    """A call of a step that other code recorded, for the parameters of now: its inputs, positions and keywords.

    `names` are the parameters of its positional arguments then. Raises TypeError if it does not fit.
    """
    unchanged = inputs, len(names), tuple(keywords)
    try:
        parameters = inspect.signature(spec.fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return unchanged
    args, kwargs = bind(spec.name, parameters, _gathered((*names, *keywords), _values(inputs)))
    while args and args[-1][1] is DEFAULT:
        args.pop()
    if [one.name for one, _ in args] == [name.lstrip("*") for name in names]:
        return unchanged
    values = [_encoded(one.default, one.name) if value is DEFAULT else value for one, value in args]
    data = msgspec.json.encode([*values, *(value for _, value in kwargs.values())])
    return data, len(values), tuple(kwargs)


def _encoded(default: Any, name: str) -> Raw:
    try:
        return Raw(_PLAIN.encode_inputs(default, name))
    except NotSerializable as error:
        raise TypeError(f"{name} was not given, and its default comes before others that were: {error}") from None


# --- the record of a call -------------------------------------------------------------------------------------------


def recorded_call(names: Sequence[str], inputs: bytes) -> str:
    """The record of a call, from the names of its arguments and their encoded list."""
    values = _with_rest(names, _values(inputs))
    text = recorded_values({name: (value, None) for name, value in values.items()})
    return text + versions_in(inputs) if VERSION_KEY in inputs else text


def recorded_values(values: Mapping[str, tuple[bytes | Raw, str | None]]) -> str:
    """The record of a call with these encoded values by name; each with its digest, if that is known."""
    shown: list[str] = []
    small: list[Raw] = []
    for name, (value, digest) in values.items():
        name = name if name.lstrip("*").isidentifier() or name.isdecimal() else f"?{digest_of(name.encode())}"
        if digest or len(value) > SMALL:
            shown.append(f"{name}#{digest or digest_of(bytes(value))}")
        else:
            shown.append(name)
            small.append(Raw(value))
    text = f"{','.join(shown)}{msgspec.json.encode(small).decode()}"
    if len(text) > _LONGEST:
        every = {name: Raw(value) for name, (value, _) in sorted(values.items(), key=itemgetter(0))}
        text = f"{ALL}#{digest_of(msgspec.json.encode(every))}[]"
    return text


def _with_rest(names: Sequence[str], values: Sequence[Raw]) -> dict[str, Raw]:
    """Encoded values by name, those of a `*rest` as one list."""
    rest = [value for name, value in zip(names, values, strict=True) if name.startswith("*")]
    found = dict(zip(names, values, strict=True))
    return found | {name: Raw(msgspec.json.encode(rest)) for name in found if name.startswith("*")} if rest else found


def digest_of(data: bytes) -> str:
    """The short digest of a value in the record of a call."""
    return urlsafe_b64encode(blake2b(data, digest_size=6).digest()).decode()


def digest_alone(data: bytes) -> str:
    """The digest of a value if the record of a call shows no more of it than that; otherwise empty."""
    return "" if len(data) <= SMALL or VERSION_KEY in data else digest_of(data)


def may_be_long(names: Iterable[str]) -> bool:
    """Whether the record of a call with arguments of these names may be too long: then it shows one digest of all."""
    return sum(len(name) + SMALL + 2 for name in names) > _LONGEST


def loaded_call(command: RunStep, values: Mapping[str, Raw]) -> RunStep:
    """The same call, with the arguments in place that are in these blobs."""
    given = _values(command.inputs)
    for position, blob in command.references:
        given[position] = values[blob]
    return msgspec.structs.replace(command, inputs=msgspec.json.encode(given), references=(), unread=())


def former_hash(command: RunStep | StartChild) -> str:
    """The hash of a call in journals from before calls were recorded by name."""
    if isinstance(command, StartChild):
        data = command.input
        return inputs_hash(data) + versions_in(data)
    data = command.inputs
    return inputs_hash(data + repr(command.keywords).encode() if command.keywords else data) + versions_in(data)


def is_former(recorded: str) -> bool:
    """Whether the record of a call is a hash, from before calls were recorded by name."""
    return "[" not in recorded


# --- comparison -----------------------------------------------------------------------------------------------------


class ArgumentChange(msgspec.Struct, frozen=True):
    """An argument that differs from the recorded one; both as JSON.

    None where it is not given; "" where it is too long for the record.
    """

    name: str
    was: str | None
    now: str | None

    def __str__(self) -> str:
        """`urls: was ["u1"], now ["u1", "u2"]`."""
        was = "not given" if self.was is None else _shown(self.was) or "another value, too long for the journal"
        now = "not given" if self.now is None else _shown(self.now) or "others"
        return f"{self.name}: was {was}, now {now}"


def same_call(recorded: str, command: RunStep | StartChild) -> bool:
    """Whether the record of a call is that of a command. Records with other value versions cannot be compared."""
    current = command.inputs_hash
    if recorded == current or _versions(recorded) != _versions(current):
        return True
    if is_former(recorded) or is_former(current):
        return recorded == former_hash(command)
    return not _differences(recorded, command)


def same_record(recorded: str, other: str) -> bool:
    """Whether two records may be of the same call, if there is no command to compare with."""
    return recorded == other or _versions(recorded) != _versions(other) or is_former(recorded) != is_former(other)


def changes(recorded: str, command: RunStep | StartChild) -> list[ArgumentChange]:
    """The arguments of a command that differ from the recorded ones; none if the record does not show them."""
    if is_former(recorded) or is_former(command.inputs_hash):
        return []
    full = _full(command)
    return [
        ArgumentChange(name.lstrip("*"), _literal(was), None if now is None else full.get(name) or _literal(now))
        for name, was, now in _differences(recorded, command)
    ]


def _differences(recorded: str, command: RunStep | StartChild) -> list[tuple[str, str | None, str | None]]:
    was, now = _parsed(recorded), _parsed(command.inputs_hash)
    if was and all(name.isdecimal() for name in was):
        # The recording code knew no names: its arguments are those at the same positions.
        names = list(now)
        was = {names[n] if n < len(names) else name: value for n, (name, value) in enumerate(was.items())}
    known, default = _parameters(command)
    gone = [name for name in was if name not in now and name not in known]
    added = [name for name in now if name not in was]
    for old, new in zip(gone, added, strict=False):
        if was[old] == now[new]:  # renamed
            del was[old], now[new]
    found: list[tuple[str, str | None, str | None]] = []
    for name in [*was, *(name for name in now if name not in was)]:
        before, after = was.get(name), now.get(name)
        if before == after:
            continue
        if before is None or after is None:
            if (before or after) != default(name):
                found.append((name, before, after))
        elif not _same_value(before, after) and before not in _earlier(name, command):
            found.append((name, before, after))
    return found


def _same_value(before: str, after: str) -> bool:
    """Whether two JSON values of a record differ only in the order of fields. Of a digest nothing is known."""
    if before[:1] not in "[{" or before[:1] != after[:1] or len(before) != len(after):
        return False
    return _sorted(before) == _sorted(after)


def _sorted(text: str) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text), order="deterministic")


def _earlier(name: str, command: RunStep | StartChild) -> Iterator[str]:
    """The records of an argument from before its type got fields with defaults, or with its fields in another order."""
    types = command.spec.types if isinstance(command, RunStep) else getattr(command.own, "types", ())
    annotation = next((annotation for one, annotation in types if one.lstrip("=") == name), Any)
    data = _full(command).get(name)
    if data is None or annotation is Any or data[:1] not in "[{":
        return
    try:
        value = _PLAIN.decode(data.encode(), annotation, name)
    except NotDecodable:
        return
    plain = msgspec.json.decode(data)
    for form in (*earlier_forms(value, plain), *other_orders(value, plain)):
        yield _record(msgspec.json.encode(form))


def _parsed(text: str) -> dict[str, str]:
    """The values of a recorded call by name: as JSON, or a digest behind a `#`; those of a `*rest` as a list."""
    names, _, rest = text.partition("[")
    values = iter(_values("[" + rest.rpartition("]")[0] + "]"))
    found: dict[str, str] = {}
    for entry in names.split(",") if names else ():
        name, digested, digest = entry.partition("#")
        found[name] = f"#{digest}" if digested else bytes(next(values)).decode()
    return found


def _parameters(command: RunStep | StartChild) -> tuple[set[str], Callable[[str], str | None]]:
    """The names of the parameters of what is called, and the record of each default."""
    if isinstance(command, RunStep):
        types, defaults = command.spec.types, defaults_of(command.spec.fn)
    else:
        types = getattr(command.own, "types", ())
        defaults = getattr(command.own, "defaults", {})

    def default(name: str) -> str | None:
        try:
            return None if name not in defaults else _record(_PLAIN.encode_inputs(defaults[name], name))
        except NotSerializable:
            return None

    return {name.lstrip("=") for name, _ in types}, default


def _record(data: bytes) -> str:
    return data.decode() if len(data) <= SMALL else f"#{digest_of(data)}"


def defaults_of(fn: Callable[..., Any]) -> Mapping[str, Any]:
    """The defaults of the parameters of a function, by name."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def _versions(recorded: str) -> str:
    return recorded.rpartition("]")[2].partition("~")[2]


# --- explanation ----------------------------------------------------------------------------------------------------


def _full(command: RunStep | StartChild) -> dict[str, str]:
    """The arguments of a command as JSON by name."""
    if isinstance(command, StartChild):
        given = msgspec.json.decode(command.input, type=dict[str, Raw] | list[Raw])
        pairs = given.items() if isinstance(given, dict) else zip(map(str, count()), given, strict=False)
        return {name: bytes(value).decode() for name, value in pairs}
    found = _with_rest(names_of(command), _values(command.inputs))
    return {name: bytes(value).decode() for name, value in found.items()}


def _literal(value: str | None) -> str | None:
    return "" if value is not None and value.startswith("#") else value


def _shown(value: str) -> str:
    """JSON as a message shows it, shortened."""
    text = json.dumps(json.loads(value), ensure_ascii=False) if value else ""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
