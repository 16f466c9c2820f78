"""Invocations: a program with its arguments, not started."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Generator, Iterable
from types import CoroutineType
from typing import Any, Generic, Never, NoReturn, TypeVar

from msgspec import Raw

from perdure.errors import NotSerializable, UsageError
from perdure.kernel.program import Program, encode_arguments, is_program
from perdure.kernel.values.arguments import call_names, named_input, positional_names, recorded_call
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.raised import is_a

R = TypeVar("R", covariant=True)


class WrongCall(UsageError, TypeError):
    """The TypeError that Python would raise for a call that does not fit."""


class Invocation(Coroutine[object, Never, R], Generic[R]):
    """A program with its arguments, not started. `R` is what its run will return.

    A coroutine by its type, so that gather, create_task and task groups take it inside a workflow, where awaiting it is
    a child run. Anywhere else it says what to do instead.
    """

    __slots__ = ("args", "kwargs", "name", "program")

    def __init__(self, name: str, program: Program | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.program, self.args, self.kwargs = name, program, args, kwargs

    def encode(self, program: Program | None, codec: Codec) -> bytes:
        """The arguments as JSON: an object by parameter name, or a list when the names are not known."""
        try:
            if program is None:
                return encode_arguments(self.name, self.args, self.kwargs, codec)
            return program.encode_input(self.args, self.kwargs, codec)
        except NotSerializable:
            check_arguments(self.name, (*self.args, *self.kwargs.values()))
            raise
        except TypeError as error:
            if program is None:
                raise
            known = f"it is {program.name}{program.signature}"
            raise WrongCall(f"{self.name}() cannot be called like this: {error}; {known}") from None

    def record(self, codec: Codec) -> str:
        """The arguments as the op of a child records them: those that were given, by name."""
        types = () if self.program is None else self.program.types
        inputs = codec.encode_inputs((*self.args, *self.kwargs.values()), f"an argument of {self.name}")
        return recorded_call(call_names(types, len(self.args), self.kwargs), inputs)

    @property
    def returns(self) -> Any:
        """The type of the result, if the program declares it."""
        return Any if self.program is None else self.program.returns

    def __repr__(self) -> str:
        arguments = [repr(a) for a in self.args] + [f"{k}={v!r}" for k, v in self.kwargs.items()]
        return f"<{self.name}({', '.join(arguments)}), not started>"

    def __await__(self) -> Generator[Any, None, R]:
        self._refuse()

    def send(self, value: Never, /) -> object:
        """Not here: only a workflow can await it."""
        self._refuse()

    def throw(self, *error: Any) -> object:
        """Not here: only a workflow can await it."""
        self._refuse()

    def close(self) -> None:
        """Nothing has begun."""

    def _refuse(self) -> NoReturn:
        raise UsageError(
            f"{self.name}(...) is a workflow that has not been started: use `await engine.start(...)`, "
            "`await engine.run(...)` or perdure.run(...)"
        )


def check_invocation(given: object, what: str) -> None:
    """Refuse anything but an invocation, and say what to write. `what` is the call, such as `start`."""
    if isinstance(given, Invocation):
        return
    name = getattr(given, "__name__", "")
    if inspect.iscoroutine(given):
        given.close()  # or Python would also warn that it was never awaited
        raise UsageError(
            f"{what}() needs an invocation of a workflow, and {name}(...) is a plain coroutine: of a step, or of a "
            f"function without @workflow. Give it the workflow with its arguments, as in {what}(fulfil(order))"
        )
    if is_program(given):
        raise UsageError(f"{what}() needs an invocation, the workflow with its arguments; write {what}({name}(...))")
    if hasattr(given, "spec"):
        raise UsageError(
            f"{what}({name}): {name} is a step, which a workflow calls. Call it in one, and {what} that: "
            f"{what}(fulfil(order))"
        )
    if isinstance(given, str):
        raise UsageError(
            f"{what}({given!r:.80}): to name a program that is not at hand, write {what}(call({given!r:.80}))"
        )
    raise UsageError(f"{what}() needs an invocation such as fulfil(order), not {given!r:.80}")


def check_arguments(name: str, args: Iterable[object]) -> None:
    """Explain an argument that cannot be encoded because it was not awaited or run."""
    for given in args:
        if is_a(given, Invocation):
            raise UsageError(
                f"{name}(...) is given {given.name}(...), which has not been run: give it the result, as in "
                f"{name}(await ...), or let the workflow itself await it"
            )
        if is_a(given, CoroutineType):
            given.close()
            raise UsageError(f"{name}(...) is given the coroutine {given.__name__}(...), which is not awaited")


class EncodedInvocation(Invocation[Any]):
    """An invocation whose input is already encoded; its program need not be loaded here."""

    __slots__ = ("_input", "rules", "schedule", "scheduled_at")

    def __init__(
        self,
        name: str,
        input: bytes,
        schedule: str = "",
        scheduled_at: float | None = None,
        rules: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, None, (), {})
        self._input = input
        # The schedule that starts it, the tick, and the encoded rules.
        self.schedule, self.scheduled_at, self.rules = schedule, scheduled_at, rules

    def encode(self, program: Program | None, codec: Codec) -> bytes:
        """The encoded input; by parameter name, if the program is here."""
        names = () if program is None else positional_names(program.types)
        return bytes(named_input(Raw(self._input), names))
