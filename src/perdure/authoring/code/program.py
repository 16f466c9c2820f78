"""A workflow function as the kernel sees it: opened for a run, with its arguments kept by parameter name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Raw

from perdure.authoring.code.body import Body
from perdure.authoring.code.reach import reach
from perdure.errors import NotSerializable
from perdure.kernel.codec import Codec
from perdure.kernel.events import RunStarted
from perdure.kernel.reach import Reach
from perdure.kernel.rules import NONE


class CodeProgram:
    """A workflow function as the kernel sees it."""

    def __init__(
        self, name: str, version: str, fn: Callable[..., Coroutine[Any, Any, Any]], hints: dict[str, Any]
    ) -> None:
        self.name, self.version, self._fn = name, version, fn
        self._signature = inspect.signature(fn)
        self._hints = hints
        self.returns = hints.get("return", Any)
        self.errors: dict[str, type[BaseException]] = {}
        self.rules = NONE
        self._reach: Reach | None = None

    def reach(self) -> Reach:
        """The steps that the function can be seen to call."""
        if self._reach is None:
            self._reach = reach(self._fn)
        return self._reach

    def open(self, run_id: str, started: RunStarted, codec: Codec) -> Body:
        """A fresh body, with its arguments decoded by their annotations when it begins."""
        return Body(run_id, lambda: self._call(started.input, codec), self.returns, codec, self.encode_input)

    def _call(self, input: Raw, codec: Codec) -> Coroutine[Any, Any, Any]:
        args, kwargs = self.arguments(input, codec)
        return self._fn(*args, **kwargs)

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
        signature = self._signature
        if isinstance(raw, list):
            try:
                bound = signature.bind(*raw)
            except TypeError as error:
                raise TypeError(f"{self.name}() cannot take the stored input: {error}") from None
        else:
            bound = signature.bind_partial()
            bound.arguments.update(raw)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in signature.parameters.items():
            if name not in bound.arguments:
                if parameter.default is parameter.empty and parameter.kind not in (
                    parameter.VAR_POSITIONAL,
                    parameter.VAR_KEYWORD,
                ):
                    raise TypeError(f"{self.name}() is missing its argument {name!r} in the stored input")
                continue
            annotation = self._hints.get(name, Any)
            what = f"the argument {name} of {self.name}"
            value = bound.arguments[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                items = value if isinstance(value, tuple) else codec.decode(value, list[Raw], what)
                args.extend(codec.decode(item, annotation, what) for item in items)
            elif parameter.kind is parameter.VAR_KEYWORD:
                pairs = value if isinstance(value, dict) else codec.decode(value, dict[str, Raw], what)
                kwargs.update({key: codec.decode(item, annotation, what) for key, item in pairs.items()})
            elif parameter.kind is parameter.KEYWORD_ONLY:
                kwargs[name] = codec.decode(value, annotation, what)
            else:
                args.append(codec.decode(value, annotation, what))
        unknown = set(bound.arguments) - set(signature.parameters)
        if unknown:
            raise TypeError(f"{self.name}() has no argument {', '.join(sorted(unknown))}, which the stored input holds")
        return tuple(args), kwargs
