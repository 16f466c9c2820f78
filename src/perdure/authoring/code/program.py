"""A workflow function as the kernel sees it: opened for a run, with its arguments kept by parameter name."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from hashlib import sha256
from inspect import Parameter
from tokenize import TokenError
from typing import Any

from msgspec import Raw

from perdure.authoring.code.body import Body
from perdure.authoring.code.call_graph import called_steps, workflows
from perdure.authoring.code.source_map import Code, read_code
from perdure.errors import NotDecodable, NotSerializable
from perdure.kernel.commands import StepSpec
from perdure.kernel.divergence.model import OpView
from perdure.kernel.divergence.source_map import SourceMap
from perdure.kernel.events import RunStarted
from perdure.kernel.patches import NO_HISTORY, PatchHistory
from perdure.kernel.policies.rule_names import StepNames
from perdure.kernel.policies.rules import NONE
from perdure.kernel.program import Defined, Program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.signatures import Signature, Taken
from perdure.kernel.values.types import name_of

# The function of a step, which code can call without the step.
_FUNCTIONS = frozenset({"fn", "__wrapped__"})
# In which order programs were defined: of two under one name, the later one is meant.
_NUMBERS = itertools.count()


class CodeProgram(Program):
    """A workflow function as the kernel sees it."""

    def __init__(
        self, name: str, version: str, fn: Callable[..., Coroutine[Any, Any, Any]], hints: dict[str, Any]
    ) -> None:
        self.name, self.version, self._fn = name, version, fn
        code = fn.__code__
        source = f"{code.co_filename}:{code.co_firstlineno}"
        self.defined = Defined((fn.__module__, fn.__qualname__), source, next(_NUMBERS))
        # Older versions whose runs this one can take over.
        self.accepts: tuple[str, ...] = ()
        self._signature = inspect.signature(fn)
        variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        # By parameter: its kind, whether it must be given, its type, and what to call it in an error.
        self._parameters = [
            (
                one.name,
                one.kind,
                one.default is one.empty and one.kind not in variable,
                hints.get(one.name, Any),
                f"the argument {one.name} of {name}",
            )
            for one in self._signature.parameters.values()
        ]
        self.returns = hints.get("return", Any)
        self.errors: Mapping[str, type[BaseException]] = {}
        self.rules = NONE
        self._step_names: StepNames | None = None
        self._code: Code | None = None
        self._lost_steps: dict[str, OpView | None] = {}

    @property
    def signature(self) -> str:
        """How it is called."""
        return str(self._signature).replace("'", "")

    def takes(self, codec: Codec) -> Signature:
        """What it is called with, for callers that do not have it."""
        return Signature(
            tuple(
                Taken(name, name_of(annotation), int(kind), required, codec.schema(annotation))
                for name, kind, required, annotation, _ in self._parameters
            )
        )

    def step_names(self) -> StepNames:
        """The steps that the function can be seen to call."""
        if self._step_names is None:
            self._step_names = called_steps(self._fn)
        return self._step_names

    def source_hash(self) -> str:
        """A hash of the source of the function; empty if its source is not available."""
        try:
            return sha256(inspect.getsource(self._fn).encode()).hexdigest()
        except (OSError, TypeError, SyntaxError, TokenError):  # the last two: the file has changed since
            return ""

    def source_map(self) -> SourceMap:
        """At which lines the function, and what it calls, names ops."""
        return self._read_code().source_map

    def lost_step(self, name: str) -> OpView | None:
        """What the function calls under the name of a step, if that is not a step."""
        if name not in self._lost_steps:
            self._lost_steps[name] = None if self._calls(name) else self._read_code().lost_step(name)
        return self._lost_steps[name]

    def _calls(self, name: str) -> bool:
        """Whether the function itself calls a step that its module has under this name."""
        spec = getattr(self._fn.__globals__.get(name), "spec", None)
        if name not in self._fn.__code__.co_names or not isinstance(spec, StepSpec) or spec.name != name:
            return False
        return not _FUNCTIONS.intersection(self._fn.__code__.co_names)

    def _read_code(self) -> Code:
        if self._code is None:
            self._code = read_code(self._fn)
        return self._code

    def children(self) -> Sequence[Program]:
        """The workflows that the function can be seen to call."""
        return workflows(self._fn)

    def open(self, run_id: str, started: RunStarted, codec: Codec, past: PatchHistory = NO_HISTORY) -> Body:
        """A fresh body, with its arguments decoded by their annotations when it begins."""

        def make() -> Coroutine[Any, Any, Any]:
            return self._call(started.input, codec)

        body = Body(run_id, make, self.returns, codec, self.encode_input, self.version, past)
        body.recorded, body.started = started.recorded or {}, started
        return body

    def _call(self, input: Raw, codec: Codec) -> Coroutine[Any, Any, Any]:
        args, kwargs = self.check_input(input, codec)
        return self._fn(*args, **kwargs)

    def check_input(self, input: Raw, codec: Codec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call that stored input asks for. Raises NotDecodable, which names the argument that does not fit."""
        try:
            return self.arguments(input, codec)
        except TypeError as error:
            raise NotDecodable(f"the input of {self.name}", "its arguments", str(error)) from None

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any], codec: Codec) -> bytes:
        """The arguments as one JSON object by parameter name."""
        bound = self._signature.bind(*args, **kwargs)
        arguments = {**self._defaults(codec), **bound.arguments}
        return codec.encode(arguments, f"an argument of {self.name}")

    def _defaults(self, codec: Codec) -> dict[str, Any]:
        """Default values that can be stored: a run keeps those it was started with when the code changes them."""
        found: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.default is not parameter.empty:
                try:
                    codec.encode(parameter.default, name)
                except NotSerializable:
                    continue
                found[name] = parameter.default
        return found

    def arguments(self, input: Raw, codec: Codec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call that stored input asks for: an object by parameter name, or a list by position."""
        raw = codec.decode(input, dict[str, Raw] | list[Raw], f"the input of {self.name}")
        if isinstance(raw, list):
            try:
                given: dict[str, Any] = dict(self._signature.bind(*raw).arguments)
            except TypeError as error:
                raise TypeError(f"{self.name}() cannot take the stored input: {error}") from None
        else:
            given = dict(raw)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, kind, required, annotation, what in self._parameters:
            if name not in given:
                if required:
                    raise TypeError(f"{self.name}() is missing its argument {name!r} in the stored input")
                continue
            value = given.pop(name)
            if kind is Parameter.VAR_POSITIONAL:
                items = value if isinstance(value, tuple) else codec.decode(value, list[Raw], what)
                args.extend(codec.decode(item, annotation, what) for item in items)
            elif kind is Parameter.VAR_KEYWORD:
                pairs = value if isinstance(value, dict) else codec.decode(value, dict[str, Raw], what)
                kwargs.update({key: codec.decode(item, annotation, what) for key, item in pairs.items()})
            elif kind is Parameter.KEYWORD_ONLY:
                kwargs[name] = codec.decode(value, annotation, what)
            else:
                args.append(codec.decode(value, annotation, what))
        if given:
            unknown = ", ".join(sorted(given))
            raise TypeError(f"{self.name}() has no argument {unknown}, which the stored input holds")
        return tuple(args), kwargs
