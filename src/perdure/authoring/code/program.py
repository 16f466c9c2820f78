"""A workflow function as the kernel sees it: opened for a run, with its arguments kept by parameter name."""

from __future__ import annotations

import inspect
import itertools
import linecache
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import Any

import msgspec
from msgspec import Raw

from perdure.authoring.code.body import Body
from perdure.authoring.code.call_graph import called_steps, spec_of, workflows
from perdure.authoring.code.loop import short
from perdure.authoring.code.new_calls import called, new_call
from perdure.authoring.code.source import read_source
from perdure.authoring.code.source_map import Code, read_code, read_map
from perdure.authoring.code.step import parameter_types
from perdure.errors import NotDecodable, NotSerializable
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source import NO_SOURCE, Source
from perdure.kernel.divergence.source_map import SourceMap
from perdure.kernel.events import RunStarted
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.rules import NONE, StepNames
from perdure.kernel.program import Defined, Program
from perdure.kernel.values.arguments import DEFAULT, bind, defaults_of, raw_by_name
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import is_a
from perdure.kernel.values.signatures import Signature, Taken, shown
from perdure.kernel.values.types import name_of

# The function of a step, which code can call without the step.
_FUNCTIONS = frozenset({"fn", "__wrapped__"})
# In which order programs were defined: of two under one name, the later one is meant.
_NUMBERS = itertools.count()
_DEF = re.compile(r"\s*(async\s+)?def\s")
# How many lines decorators may take.
_DECORATORS = 50
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class CodeProgram(Program):
    """A workflow function as the kernel sees it."""

    def __init__(
        self, name: str, version: str, fn: Callable[..., Coroutine[Any, Any, Any]], hints: dict[str, Any]
    ) -> None:
        self.name, self.version, self._fn = name, version, fn
        source = f"{short(fn.__code__.co_filename)}:{_line_of(fn)}"
        self.defined: Defined = Defined((fn.__module__, fn.__qualname__), source, next(_NUMBERS))
        # Older versions whose runs this one can take over.
        self.accepts: tuple[str, ...] = ()
        self._signature = inspect.signature(fn)
        self.types = parameter_types(fn, hints)
        self.defaults = defaults_of(fn)
        self._parameters = tuple(self._signature.parameters.values())
        self._variable = [one for one in self._parameters if one.kind in _VARIABLE]
        # The parameters of a plain call, by position, and how many of them it needs.
        self._positional = [one.name for one in self._parameters if one.kind in _POSITIONAL]
        needed = [one for one in self._parameters if one.default is one.empty and one not in self._variable]
        self._needed = len(needed) if all(one.kind in _POSITIONAL for one in needed) else len(self._parameters) + 1
        self._required = {one.name for one in needed}
        # Whether every parameter may be given by its name, and whether each may also be given by position.
        self._by_names = all(
            one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) for one in self._parameters
        )
        self._by_position = len(self._positional) == len(self._parameters)
        # By parameter: its type, and what to call it in an error.
        self._annotations = {
            one.name: (hints.get(one.name, Any), f"the argument {one.name} of {name}") for one in self._parameters
        }
        self.returns = hints.get("return", Any)
        self.errors: Mapping[str, type[BaseException]] = {}
        self.rules = NONE
        self._step_names: StepNames | None = None
        self._code: Code | None = None
        self._map: SourceMap | None = None
        self._fields: bool | None = None
        self._lost: dict[tuple[str, str, str], OpView | None] = {}
        self._source: Source | None = None

    @property
    def signature(self) -> str:
        """How it is called."""
        return shown(self._signature)

    def call_signature(self, codec: Codec) -> Signature:
        """What it is called with, for callers that do not have it."""
        return Signature(
            tuple(
                Taken(
                    one.name,
                    name_of(self._annotations[one.name][0]),
                    int(one.kind),
                    one.default is one.empty and one.kind not in _VARIABLE,
                    codec.schema(self._annotations[one.name][0]),
                )
                for one in self._parameters
            )
        )

    def step_names(self) -> StepNames:
        """The steps that the function can be seen to call."""
        if self._step_names is None:
            self._step_names = called_steps(self._fn)
        return self._step_names

    def source(self) -> Source:
        """The source of the function and of those that it reaches."""
        if self._source is None:
            self._source = read_source(self._fn, self.types)
        return self._source

    def source_map(self) -> SourceMap:
        """At which lines the function, and what it calls, names ops."""
        if self._map is None:
            self._map = read_map(self._fn)
        return self._map

    def lost(self, name: str, source: str = "", function: str = "", before: Source = NO_SOURCE) -> OpView | None:
        """What the function calls as it is, in place of a recorded step or child: see Program."""
        key = name, function, before.digest()
        if key not in self._lost:
            self._lost[key] = None if self._calls(name) else self._find_lost(name, source, function, before)
        return self._lost[key]

    def _find_lost(self, name: str, source: str, function: str, before: Source) -> OpView | None:
        code = self._read_code()
        found = code.lost(name, source, function)
        if not before.parts or (found is not None and not _was_called(found, name, function, before)):
            return found
        if name not in code.shown:
            # The code may ask for it in a way that does not show; it calls the function itself, and did not before.
            for one in sorted(set(function.split()) & code.plain.keys() - code.shown - called(before)):
                return code.plain[one]
        if not code.closed or code.may_ask_for(name):
            return None
        return new_call(before, self.source(), code.steps | code.children)

    def _calls(self, name: str) -> bool:
        """Whether the function itself calls a step or a workflow that its module has under this name."""
        found = self._fn.__globals__.get(name)
        one = found if is_a(found, CodeProgram) else spec_of(found)
        is_one = one is not None and one.name == name
        return is_one and name in self._fn.__code__.co_names and _FUNCTIONS.isdisjoint(self._fn.__code__.co_names)

    def _read_code(self) -> Code:
        if self._code is None:
            self._code = read_code(self._fn)
        return self._code

    def batch(self) -> Program:
        """The program of its batches."""
        return self._batches

    @cached_property
    def _batches(self) -> Program:
        from perdure.authoring.dataflow.batch import Batches  # brings graphs in, which code does without

        return Batches(self)

    def children(self) -> Sequence[Program]:
        """The workflows that the function can be seen to call."""
        return workflows(self._fn)

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Body:
        """A fresh body, with its arguments decoded by their annotations when it begins."""

        def make(names: Sequence[str]) -> Coroutine[Any, Any, Any]:
            args, kwargs = self.check_input(started.input, codec, names, exact=started.exact == 2)
            return self._fn(*args, **kwargs)

        body = Body(run_id, make, self.returns, codec, self._encode_next, self.version, past)
        body.recorded, body.started = started.recorded or {}, started
        if started.exact:
            body.decode = codec.decode_exact
        return body

    def check_input(
        self, input: Raw, codec: Codec, names: Sequence[str] = (), *, exact: bool = False
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call that stored input asks for. Raises NotDecodable, which names the argument that does not fit.

        `names`: the parameters to which positional arguments were bound when the run began. `exact`: the input was
        stored with the fields of its types and no others.
        """
        try:
            return self._bound(self._given(input, codec, names), codec, exact)
        except TypeError as error:
            raise NotDecodable(f"the input of {self.name}", "its arguments", f"{error} ({self._place()})") from None
        except NotDecodable as error:
            placed = NotDecodable(error.what, error.type, f"{error.reason} ({self._place()})")
            placed.lost = error.lost
            raise placed from None

    def _place(self) -> str:
        """Where it is defined, for messages."""
        return f"{self.name} is at {self.defined.source}"

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The arguments as one JSON object by parameter name."""
        arguments = {**self._defaults(codec), **self._by_name(args, kwargs)}
        data = codec.encode(arguments, f"an argument of {self.name}")
        return self._exact(data, codec) if self._has_fields(codec) else data

    def _encode_next(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec, check: bool) -> bytes:
        """The arguments of `continue_as`."""
        data = self.encode_input(args, kwargs, codec)
        if check:
            self.check_input(Raw(data), codec)
        return data

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by parameter name; raises TypeError for a wrong call."""
        if not kwargs and self._needed <= len(args) <= len(self._positional):
            return dict(zip(self._positional, args, strict=False))
        if self._by_names and len(args) <= len(self._positional) and kwargs.keys() <= self._annotations.keys():
            found = dict(zip(self._positional, args, strict=False))
            if found.keys().isdisjoint(kwargs) and self._required <= found.keys() | kwargs.keys():
                found.update(kwargs)
                return {name: found[name] for name in self._annotations if name in found}
        return self._signature.bind(*args, **kwargs).arguments

    def _has_fields(self, codec: Codec) -> bool:
        if self._fields is None:
            self._fields = any(codec.has_fields(annotation) for annotation, _ in self._annotations.values())
        return self._fields

    def _exact(self, data: bytes, codec: Codec) -> bytes:
        """Encoded arguments with the fields of their types and no others: a caller may have passed plain dicts."""
        raw = msgspec.json.decode(data, type=dict[str, Raw])
        for one in self._parameters:
            annotation, what = self._annotations[one.name]
            if one.name in raw and one not in self._variable:
                try:
                    value = codec.decode(raw[one.name], annotation, what)
                except NotDecodable:
                    continue  # it is refused, with the reason, where the input is checked
                raw[one.name] = Raw(codec.exact(bytes(raw[one.name]), value, annotation, what))
        return msgspec.json.encode(raw)

    def _defaults(self, codec: Codec) -> dict[str, Any]:
        """Default values that can be stored: a run keeps those it was started with when the code changes them."""
        found: dict[str, Any] = {}
        for name, default in self.defaults.items():
            try:
                codec.encode(default, name)
            except NotSerializable:
                continue
            found[name] = default
        return found

    def _given(self, input: Raw, codec: Codec, names: Sequence[str]) -> dict[str, Any]:
        """Stored arguments by name: they are an object by parameter name, or a list by position."""
        raw = codec.decode(input, dict[str, Raw] | list[Raw], f"the input of {self.name}")
        if isinstance(raw, dict):
            return raw
        try:
            return raw_by_name(names, raw) if names else dict(self._signature.bind(*raw).arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}() cannot take the stored input: {error}") from None

    def _bound(self, given: dict[str, Any], codec: Codec, exact: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with stored arguments, by the parameters of now; one that was not stored has its default."""
        if self._by_position and given.keys() == self._annotations.keys():
            decode = codec.decode_exact if exact else codec.decode
            return tuple([decode(given[name], of, what) for name, (of, what) in self._annotations.items()]), {}
        args, kwargs = bind(self.name, self._parameters, self._spread(given, codec) if self._variable else given)
        return (
            tuple(
                [one.default if value is DEFAULT else self._decoded(one, value, codec, exact) for one, value in args]
            ),
            {name: self._decoded(one, value, codec, exact) for name, (one, value) in kwargs.items()},
        )

    def _decoded(self, parameter: Parameter, value: Raw, codec: Codec, exact: bool) -> Any:
        annotation, what = self._annotations[parameter.name]
        return (codec.decode_exact if exact else codec.decode)(value, annotation, what)

    def _spread(self, given: dict[str, Any], codec: Codec) -> dict[str, Any]:
        """The arguments with those of a `*rest` as a list, and those of a `**more` beside the others."""
        found = dict(given)
        for one in self._variable:
            value = given.get(one.name)
            if isinstance(value, Raw) and one.kind is Parameter.VAR_POSITIONAL:
                found[one.name] = codec.decode(value, list[Raw], self._annotations[one.name][1])
            elif value is not None and one.kind is Parameter.VAR_KEYWORD:
                del found[one.name]
                found.update(codec.decode(value, dict[str, Raw], self._annotations[one.name][1]))
        return found


def _was_called(found: OpView, name: str, function: str, before: Source) -> bool:
    """Whether a function was taken for a lost step by its line alone, and the old code called it as well."""
    return found.name != name and found.name not in function.split() and found.name in called(before)


def _line_of(fn: Callable[..., Any]) -> int:
    """The line of the `def`, where the parameters are. That of the code is the line of the first decorator."""
    code = fn.__code__
    lines = range(code.co_firstlineno, code.co_firstlineno + _DECORATORS)
    is_def = (line for line in lines if _DEF.match(linecache.getline(code.co_filename, line)))
    return next(is_def, code.co_firstlineno)
