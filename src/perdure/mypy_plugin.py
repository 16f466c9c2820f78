"""A mypy plugin: a `def` step, or node of a graph, called outside of async code has the type that its function returns.

    [tool.mypy]
    plugins = ["perdure.mypy_plugin"]

A workflow body is always `async def`, and there a call of a step is awaited. Anywhere else it is a plain call. Type
annotations cannot say "awaitable here, a value there", so without the plugin mypy sees an awaitable in both places; use
`step.fn(...)` in plain code then.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import FuncItem
from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, Type, get_proper_type

_CALLS = {
    "perdure.authoring.code.step.DefStep.__call__",
    "perdure.authoring.code.step.Step.__call__",
    "perdure.authoring.graph.nodes.DefNode.__call__",
}


class _Perdure(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _plain_call if fullname in _CALLS else None


def _plain_call(context: MethodContext) -> Type:
    step = get_proper_type(context.type)
    scope = getattr(context.api, "scope", None)
    function = None if scope is None else scope.current_function()
    if isinstance(function, FuncItem) and function.is_coroutine:
        return context.default_return_type
    if isinstance(step, Instance) and step.type.name in ("DefStep", "DefNode") and len(step.args) == 2:
        return step.args[1]
    return context.default_return_type


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return _Perdure
