"""What the journal of a run holds about the ops of its plan, and whether the present code can read it.

A run may continue with other code than that with which it began. A value that was recorded before must then be readable
with the types that the present nodes declare: the run is parked where it is not, before a new op takes the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.lists import Reader
from perdure.authoring.dataflow.lookup import Lookup
from perdure.authoring.dataflow.plan import Argument, Carried, Collect, FirstOf, Input, Node, Output, Plan, Source
from perdure.authoring.dataflow.values import Value
from perdure.kernel.chunks import ChunkInput
from perdure.kernel.commands import RunStep
from perdure.kernel.divergence.model import OpView
from perdure.kernel.patches import PatchHistory
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import has_references, parts_of


class OpHistory:
    """The past of a run by ops: under which path a turn began, what was decided in it, where a value was recorded."""

    __slots__ = ("_codec", "_lookup", "_past", "_plan", "_recorded", "_turns")

    def __init__(
        self,
        plan: Plan,
        codec: Codec,
        past: PatchHistory,
        recorded: Mapping[str, Raw],
        turns: Sequence[int],
        lookup: Lookup,
    ) -> None:
        self._plan, self._codec, self._past, self._recorded = plan, codec, past, recorded
        # By node, both of the execution: its turns so far, and its value in this round.
        self._turns, self._lookup = turns, lookup

    def op_of(self, node: Node, turn: int) -> str:
        """The op path of a turn; a node that was renamed keeps the name under which this turn began."""
        for former, name in self._plan.renamed.items():
            op = f"{former}:{turn}"
            if name == node.name and (self._past.began(op) or self.decision(op) is not None):
                return op
        return f"{node.name}:{turn}"

    def decision(self, op: str) -> Raw | None:
        """What a gate, a condition or a map was recorded to have decided."""
        known = self._past.decided(op)
        return known if known is not None else self._recorded.get(op)

    def origin(self, source: Source, number: int, op: str) -> str | None:
        """The op that recorded a value before this code began to advance the run; None for a value of this code.

        `op` of node `number` takes the value. An input was recorded by no op: `op` stands for it.
        """
        if isinstance(source, Output | Carried):
            made = (source,) if isinstance(source, Output) else self._plan.slots[source.slot].producers
            for output in made:
                node = self._plan.nodes[output.node]
                turn = max(0, self._turns[output.node] - 1 - (output.node == number))
                before = self.op_of(node, turn)
                if self._past.began(before) or self._past.decided(before) is not None:
                    return self._past.whole(before)
                if node.question is not None and self._lookup.given_answer(node) is not None:
                    return self._past.whole(op)
            return None
        if isinstance(source, Input):
            return self._past.whole(op)
        if isinstance(source, Collect):
            return next((found for one in source.parts if (found := self.origin(one, number, op)) is not None), None)
        if isinstance(source, FirstOf):
            part = next((one for one in source.parts if self._lookup.has(one)), None)
            return None if part is None else self.origin(part, number, op)
        return None

    def unread(
        self, number: int, op: str, of: Iterable[Argument], arguments: Mapping[str, Value]
    ) -> tuple[dict[str, list[Reader]], tuple[tuple[str, Reader], ...]]:
        """Read the recorded arguments of a new op. Raises NotDecodable if the code cannot read one of them.

        Returns the readers of those in blobs: for the first part of each long list, by blob, to be read before the op
        begins; and for whole values, which are read when it begins.
        """
        parts: dict[str, list[Reader]] = {}
        whole: list[tuple[str, Reader]] = []
        for one in of:
            value = arguments.get(one.name)
            if value is None or one.type is Any or (origin := self.origin(one.source, number, op)) is None:
                continue
            reader = Reader(
                self._codec,
                one.type,
                f"the argument {one.name} of {op}",
                origin,
                taker=self.taker(number, op, one.name),
            )
            first = next(iter(parts_of(value.data) or ()), None)
            if not value.data:
                whole.append((value.blob, reader))
            elif first is not None:
                parts.setdefault(first.blob, []).append(reader.of_part(first))
            elif not has_references(value.data):
                reader.read(value.data)
        return parts, tuple(whole)

    def taker(self, number: int, op: str, name: str = "") -> OpView:
        """A node as the one that takes a value, under this name. The line is that of the code that does."""
        node = self._plan.nodes[number]
        kind, where = "gate" if node.kind == "gate" else "node", _taken_at(node, name)
        return OpView(kind, self._past.whole(op), node.name, source=where)

    def check_item(self, node: Node, op: str, arguments: Mapping[str, Value]) -> None:
        """Raise NotDecodable if the code cannot read a new item of a map that began under other code."""
        assert node.mapped is not None
        for one in node.arguments:
            value = arguments.get(one.name)
            type = one.type
            if one.name in node.mapped.over:
                type = (get_args(type) or (Any,))[0]
            if value is not None and value.data:
                self._check(one.name, type, value.data, op)

    def check_chunk(self, node: Node, command: RunStep) -> None:
        """Raise NotDecodable if the code cannot read the items of a new chunk of a map that began under other code.

        Items in blobs are read by the chunk.
        """
        if not self.is_known_map(command.op):
            return
        given = msgspec.json.decode(command.inputs, type=ChunkInput)
        for one in node.arguments:
            value = given.over.get(one.name, given.arguments.get(one.name))
            if value is not None:
                self._check(one.name, one.type, bytes(value), command.op)

    def is_known_map(self, op: str) -> bool:
        """Whether the map of an item, or of a chunk, is recorded. All items of a new one were read when it began."""
        return self.decision(op[: op.rindex("[")]) is not None

    def _check(self, name: str, type: Any, data: bytes, op: str) -> None:
        if type is not Any and not has_references(data):
            Reader(self._codec, type, f"the argument {name} of {op}", self._past.whole(op)).read(data)


def _taken_at(node: Node, name: str) -> str:
    """The line of a node that takes a value under this name: in a program, that of the code in it."""
    program = node.program
    if program is None:
        return node.where
    inside: Plan | None = getattr(program, "plan", None)
    if inside is None:
        return node.where if program.defined is None else program.defined.source
    taking = (one for one in inside.nodes if any(_is_input(argument.source, name) for argument in one.arguments))
    taker = next(taking, None)
    return node.where if taker is None else _taken_at(taker, name)


def _is_input(source: Source, name: str) -> bool:
    return isinstance(source, Input) and source.name == name
