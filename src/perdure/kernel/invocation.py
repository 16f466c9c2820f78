"""What to run: a program and its arguments."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, Generic, Never, NoReturn, TypeVar

from perdure.errors import UsageError
from perdure.kernel.codec import Codec
from perdure.kernel.commands import Program

R = TypeVar("R", covariant=True)


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
        by_name = getattr(program, "encode_input", None)
        if by_name is not None:
            return bytes(by_name(self.args, self.kwargs, codec))
        if self.args and self.kwargs:
            raise UsageError(
                f"call({self.name!r}, ...) mixes positional and keyword arguments for a program that is not loaded "
                "here; pass all of them by keyword"
            )
        return codec.encode(self.kwargs or list(self.args), f"an argument of {self.name}")

    @property
    def returns(self) -> Any:
        """The type of the result, where the program says it."""
        return getattr(self.program, "returns", Any)

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


class Recorded(Invocation[Any]):
    """An invocation whose input has been encoded before; its program need not be known here."""

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
        # The schedule that starts it, and for which tick; and rules as a journal keeps them.
        self.schedule, self.scheduled_at, self.rules = schedule, scheduled_at, rules

    def encode(self, program: Program | None, codec: Codec) -> bytes:
        """The input as it was recorded."""
        return self._input
