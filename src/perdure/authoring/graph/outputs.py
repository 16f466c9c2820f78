"""The result of a graph: its values by name or by node, and why a value is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar, overload

from perdure.authoring.code.step import Step
from perdure.authoring.graph.nodes import Node
from perdure.kernel.hints import did_you_mean
from perdure.kernel.values.items import as_items
from perdure.kernel.values.skips import SKIPS
from perdure.kernel.values.types import PlainForm

T = TypeVar("T")


class Outputs(Mapping[str, object], PlainForm):
    """The values of a finished graph that no node took, and those that were selected.

    By name, or typed by node: `outputs["docs"]`, `outputs[retrieve]`. A KeyError says why a value is not there.
    """

    __slots__ = ("_convert", "_skipped", "_values")

    # For a subclass made for one graph: the types of its outputs, and the names of all of its values.
    _types: ClassVar[Mapping[str, Any]] = {}
    _known: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        values: Mapping[str, object],
        skipped: Mapping[str, str] | None = None,
        convert: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._values, self._skipped = dict(values), dict(skipped or {})
        # Decodes values of unknown type once a node gives the type.
        self._convert = convert

    @classmethod
    def of(cls, types: Mapping[str, Any], known: Iterable[str]) -> type[Outputs]:
        """The class of the outputs of a graph, by which they are decoded: each value by the annotation of its node."""
        names = {"__slots__": (), "__module__": "perdure.graph", "_types": dict(types), "_known": frozenset(known)}
        return type("Outputs", (cls,), names)

    @classmethod
    def made(cls, plain: Any, convert: Callable[[Any, Any], Any]) -> Self:
        """The outputs from their stored form."""
        if not isinstance(plain, dict):
            raise ValueError(f"Expected `object`, got `{type(plain).__name__}`")
        types = cls._types
        values = {name: convert(one, as_items(one, types.get(name, Any))) for name, one in plain.items()}
        return cls(values, values.pop(SKIPS, None), convert)

    @overload
    def __getitem__(self, key: Step[..., T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> object: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Step):
            return self._of(key)
        return self._named(key)

    def _of(self, node: Step[..., Any]) -> Any:
        drawn = (node if isinstance(node, Node) else Node(node.spec)).draft()
        made = {one.name: one.type for one in drawn.makes if not one.weak}
        if not made:
            raise KeyError(f"{drawn.node.name!r} has no value: it was made with outputs=None")
        found = tuple(self._typed(name, type) for name, type in made.items())
        return found if len(found) > 1 else found[0]

    def _typed(self, name: str, type: Any) -> object:
        value = self._named(name)
        return value if self._convert is None or name in self._types else self._convert(value, type)

    def _named(self, name: Any) -> object:
        if name in self._values:
            return self._values[name]
        if name in self._skipped:
            raise KeyError(f"{name!r} has no value: {self._skipped[name]}")
        if name in self._known:
            raise KeyError(
                f"{name!r} is not kept, because another node takes it; keep it with graph.select({name!r}, ...) or "
                f"output={name!r}"
            )
        raise KeyError(
            f"{name!r} is not a value of this graph; {did_you_mean(str(name), {*self._known, *self._values})}"
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def skipped(self) -> Mapping[str, str]:
        """The values that are missing, with the reason."""
        return dict(self._skipped)

    @property
    def plain(self) -> dict[str, object]:
        """The values as a dict."""
        return dict(self._values)

    def __eq__(self, other: object) -> bool:
        return dict(self._values) == (dict(other._values) if isinstance(other, Outputs) else other)

    def __hash__(self) -> int:
        return hash(frozenset(self._values))

    def __reduce__(self) -> tuple[Any, ...]:
        return Outputs, (self._values, self._skipped)

    def __repr__(self) -> str:
        return f"Outputs({self._values!r})"
