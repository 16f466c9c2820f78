"""`@workflow`: a plain `async def` that survives the death of its process."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from perdure.authoring.code.body import Called, to_await
from perdure.authoring.code.hints import hints_of, local_errors
from perdure.authoring.code.program import CodeProgram
from perdure.authoring.code.step import refuse_method
from perdure.kernel.divergence.model import Divergence
from perdure.kernel.divergence.repair import Repair
from perdure.kernel.divergence.source import Source
from perdure.kernel.ids import check_name, check_version
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.rules import RulesLike, rules_of
from perdure.kernel.policies.versions import check_accepts

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(CodeProgram, Generic[P, R]):
    """A workflow. Calling it makes an Invocation; nothing runs yet.

    `fn` is the function itself, for unit tests; `name` and `version` identify the program in the store.
    """

    def __init__(self, name: str, version: str, fn: Callable[P, Coroutine[Any, Any, R]], hints: dict[str, Any]) -> None:
        super().__init__(name, version, fn, hints)
        self.fn = fn
        self.__name__ = fn.__name__
        self.__qualname__ = fn.__qualname__
        self.__module__ = fn.__module__
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Invocation[R]:
        """What to run, with its arguments; give it to `start` or `run`."""
        self._by_name(args, kwargs)  # a wrong call fails here, at the user's line
        return to_await(Called(self.name, self, args, kwargs), sys._getframe(1), f"{self.name}(...)")

    def repairs(self, recorded: Source, divergence: Divergence) -> Iterable[Repair]:
        """Changes of its source that may let an older run continue."""
        from perdure.authoring.code.repairs import repairs  # only when a run diverged

        return repairs(self, recorded, divergence)

    def with_function(self, fn: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        """The same workflow with another function of the same signature."""
        made = copy.copy(self)
        made._fn = made.fn = made.__wrapped__ = fn
        made._source = made._code = made._map = made._step_names = None
        made._lost = {}
        return made

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *, name: str | None = None, version: str = "1", accepts: Iterable[str] = (), rules: RulesLike = ()
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    fn: Callable[..., Coroutine[Any, Any, Any]] | None = None,
    /,
    *,
    name: str | None = None,
    version: str = "1",
    accepts: Iterable[str] = (),
    rules: RulesLike = (),
) -> Any:
    """Make an `async def` a workflow: `@workflow` or `@workflow(name="fulfil", version="3")`.

    A run keeps the version that it was started with; `accepts` names older versions whose runs this code continues:
    `@workflow(version="3", accepts=("1", "2"))`.
    `rules` give policies to the steps of its runs: `rules=[rule("charge", timeout=5)]`.
    """

    def make(fn: Callable[..., Coroutine[Any, Any, Any]], depth: int = 1) -> Workflow[..., Any]:
        if isinstance(fn, staticmethod):
            fn = fn.__func__
        refuse_method(fn, "workflow")
        if not inspect.iscoroutinefunction(fn):
            raise TypeError(f"@workflow needs an `async def`; {getattr(fn, '__qualname__', fn)!r} is not one")
        program = check_name(name or fn.__name__, "the name of a workflow")
        number = check_version(version, f"the version of {program}")
        made: Workflow[..., Any] = Workflow(program, number, fn, hints_of(fn, depth + 1))
        made.accepts = check_accepts(accepts, number, f"@workflow {program}")
        made.errors = local_errors(fn, depth + 1)
        made.rules = rules_of(rules, f"@workflow {program}")
        return made

    return make if fn is None else make(fn, 2)
