"""What a graph gives back: its values by name or by node, and why one is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from perdure.authoring.code.step import Step
from perdure.authoring.dataflow.values import or_items
from perdure.authoring.graph.nodes import Node
from perdure.kernel.hints import did_you_mean
from perdure.kernel.values.codec import Codec, OwnDecoder
from perdure.kernel.values.skips import SKIPS
from perdure.kernel.values.types import PlainForm

T = TypeVar("T")


class Outputs(Mapping[str, object], PlainForm):
    """The values of a finished graph that no node took, and those that were selected.

    By name, or typed by node: `outputs["docs"]`, `outputs[retrieve]`. A KeyError says why a value is not there.
    """

    __slots__ = ("_known", "_skipped", "_values")

    def __init__(
        self, values: Mapping[str, object], skipped: Mapping[str, str] | None = None, known: Iterable[str] = ()
    ) -> None:
        self._values, self._skipped = dict(values), dict(skipped or {})
        # The names of all values of the graph.
        self._known = frozenset(known)

    @overload
    def __getitem__(self, key: Step[..., T]) -> T: ...
    @overload
    def __getitem__(self, key: str) -> object: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, Step):
            return self._of(key)
        return self._named(key)

    def _of(self, node: Step[..., Any]) -> Any:
        outputs = node.outputs if isinstance(node, Node) else None
        name = node.wiring.name if isinstance(node, Node) else node.name
        if outputs is None:
            return self._named(name)
        if not outputs:
            raise KeyError(f"{name!r} has no value: it was made with outputs=None")
        found = tuple(self._named(one) for one in outputs)
        return found if len(found) > 1 else found[0]

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
        raise KeyError(f"{name!r} is no value of this graph; {did_you_mean(str(name), {*self._known, *self._values})}")

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

    def __repr__(self) -> str:
        return f"Outputs({self._values!r})"


class OutputsForm(OwnDecoder):
    """How the stored result of a graph becomes Outputs: each value by the annotation of its node."""

    def __init__(self, types: Mapping[str, Any], known: Iterable[str]) -> None:
        self._types, self._known = dict(types), frozenset(known)

    def __repr__(self) -> str:
        return "Outputs"

    def decoder(self, codec: Codec) -> Callable[[bytes | Raw], Any]:
        """The function that decodes a result."""
        decoders = {
            name: or_items(type, codec, codec.decoder(type, f"the value {name!r}"))
            for name, type in self._types.items()
        }
        split = msgspec.json.Decoder(dict[str, Raw]).decode
        plain = msgspec.json.decode

        def decode(data: bytes | Raw) -> Outputs:
            found = split(data)
            skipped = plain(found.pop(SKIPS)) if SKIPS in found else {}
            return Outputs({name: decoders.get(name, plain)(raw) for name, raw in found.items()}, skipped, self._known)

        return decode
