"""Dependences in a run: which recorded ops must run again when one of them gets another outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from types import MappingProxyType
from typing import Any

import msgspec

from perdure.authoring.dataflow.plan import (
    Argument,
    Carried,
    Collect,
    Computed,
    FirstOf,
    Input,
    Node,
    Output,
    Path,
    Plan,
    Source,
    outputs_in,
    outputs_of,
)
from perdure.authoring.dataflow.values import Value
from perdure.kernel.chunks import chunk_range
from perdure.kernel.program import Dataflow
from perdure.kernel.values.codec import OwnDecoder


class Dependence(Dataflow):
    """The dependences in a plan. Ops are given by path, with the number of the event that began each.

    `inputs`: the names of inputs for callers, where they differ from those in the plan.
    """

    def __init__(self, plan: Plan, inputs: Mapping[str, str] = MappingProxyType({})) -> None:
        self._plan = plan
        self._inputs = {external: internal for internal, external in inputs.items()}
        self._numbers = {node.name: number for number, node in enumerate(plan.nodes)}
        self._numbers |= {former: self._numbers[name] for former, name in plan.renamed.items()}

    def affected(self, path: str, ops: Mapping[str, int]) -> set[str]:
        """The ops that depend on the outcome of the op at this path, without that op."""
        first, _, rest = path.partition("/")
        name, turn = turn_of(first)
        number = self._numbers.get(name)
        if number is None:
            return set()
        found = set[str]()
        began = ops.get(path, min((at for op, at in ops.items() if op.startswith(f"{first}/")), default=-1))
        program = self._plan.nodes[number].program
        if rest and program is not None:
            inner = {op[len(first) + 1 :]: at for op, at in ops.items() if op.startswith(f"{first}/")}
            flow = program.dataflow
            again = {op for op, at in inner.items() if at > began} if flow is None else flow.affected(rest, inner)
            found |= {f"{first}/{op}" for op in again}
        return found | self._behind(number, turn, began, ops)

    def taking(self, name: str, ops: Mapping[str, int]) -> set[str]:
        """The ops that depend on an input of the program."""
        found, name = set[str](), self._inputs.get(name, name)
        for number, node in enumerate(self._plan.nodes):
            if any(_takes(argument.source, name) for argument in _arguments(node)):
                found |= {op for op in ops if self._numbers.get(turn_of(op.partition("/")[0])[0]) == number}
                found |= self._behind(number, -1, -1, ops)
        return found

    def maker(self, name: str, ops: Mapping[str, int]) -> tuple[str, Path] | None:
        """The op that made a value last, and the path of the value in its outcome; None if no op made it."""
        return self._latest(self._plan.values.get(name, ()), ops)

    def type_of(self, path: str) -> Any:
        """The type of the outcome of an op; Any if it is not known."""
        first, _, rest = path.partition("/")
        number = self._numbers.get(turn_of(first)[0])
        if number is None:  # a node that the plan has retired
            return Any
        node = self._plan.nodes[number]
        if rest:
            flow = None if node.program is None else node.program.dataflow
            return Any if flow is None else flow.type_of(rest)
        if node.question is not None:
            return node.question.answer
        returns = node.returns
        if node.kind == "gate" or isinstance(returns, OwnDecoder):
            return Any
        if node.mapped is None or "[" in first:
            return returns
        return list[returns | None] if node.mapped.on_error == "none" else list[returns]  # type: ignore[valid-type]

    def _latest(self, outputs: Iterable[Output], ops: Mapping[str, int]) -> tuple[str, Path] | None:
        """The op that made one of these values last. The value of a nested graph is made by an op inside it."""
        makers = {output.node: output.path for output in outputs}
        latest = (
            (at, op, makers[number])
            for op, at in ops.items()
            if "/" not in op and "[" not in op and (number := self._numbers.get(turn_of(op)[0])) in makers
        )
        found = max(latest, default=None)
        if found is None:
            return None
        _, op, path = found
        node = self._plan.nodes[self._numbers[turn_of(op)[0]]]
        flow = None if node.program is None or node.mapped is not None else node.program.dataflow
        if isinstance(flow, Dependence):
            inside = flow._of_result(
                path, {one[len(op) + 1 :]: at for one, at in ops.items() if one.startswith(f"{op}/")}
            )
            if inside is not None:
                return f"{op}/{inside[0]}", inside[1]
        return op, path

    def _of_result(self, path: Path, ops: Mapping[str, int]) -> tuple[str, Path] | None:
        """The op that made a part of the result."""
        results = dict(self._plan.results)
        if self._plan.single:
            path = (*results, *path)
        if not path or path[0] not in results:
            return None
        found = self._latest(outputs_in(results[str(path[0])]), ops)
        return None if found is None else (found[0], (*found[1], *path[1:]))

    def named(self, op: str, outcome: Any) -> dict[str, Any]:
        """The values by name that the outcome of an op holds, as plain JSON."""
        encoded = Value(msgspec.json.encode(outcome))
        made = self._made.get(self._numbers.get(turn_of(op)[0], -1), ())
        parts = {name: encoded.part(path) for name, path in made}
        return {name: msgspec.json.decode(part.data) for name, part in parts.items() if part is not None}

    def stands_for(self, op: str) -> bool:
        """Whether None replaces the result of an item that has none."""
        number = self._numbers.get(turn_of(op)[0]) if op.endswith("]") and chunk_range(op) is None else None
        mapped = None if number is None else self._plan.nodes[number].mapped
        return mapped is not None and mapped.on_error == "none"

    @property
    def values(self) -> Iterable[str]:
        """The names of all values that its nodes make."""
        return self._plan.values

    def _behind(self, number: int, turn: int, began: int, ops: Mapping[str, int]) -> set[str]:
        """The ops of this plan that depend on a turn of a node."""
        within, ever = _reached(number, self._forward), _reached(number, self._all)
        region = self._plan.region
        found = set[str]()
        # By child that runs again: which of its ops run again.
        inside: dict[str, set[str] | None] = {}
        for op, at in ops.items():
            first, _, rest = op.partition("/")
            name, other_turn = turn_of(first)
            other = self._numbers.get(name)
            if other is None or other not in ever:
                continue
            if turn >= 0 and region[other] == region[number]:
                again = other_turn > turn or (other_turn == turn and other in within)
            else:
                again = at > began
            if again and rest:
                if first not in inside:
                    inside[first] = self._inside(other, {number, *ever}, first, ops)
                among = inside[first]
                again = among is None or op in among
            if again:
                found.add(op)
        return found

    def _inside(self, number: int, makers: Set[int], op: str, ops: Mapping[str, int]) -> set[str] | None:
        """The ops in a child that depend on the values of these nodes; None if all of them may."""
        node = self._plan.nodes[number]
        flow = None if node.program is None else node.program.dataflow
        if flow is None or not makers.isdisjoint((*node.gates, *node.after)):
            return None
        given = {
            argument.name
            for argument in node.arguments
            if any(output.node in makers for output in self._outputs_of(argument.source))
        }
        if not given or (node.mapped is not None and not given.isdisjoint(node.mapped.over)):
            return None
        inner = {one[len(op) + 1 :]: at for one, at in ops.items() if one.startswith(f"{op}/")}
        return {f"{op}/{one}" for name in given for one in flow.taking(name, inner)}

    def _outputs_of(self, source: Source) -> Iterable[Output]:
        """The outputs that a source takes, with those that earlier rounds carried over."""
        yield from outputs_in(source)
        for slot in _slots(source):
            yield from self._plan.slots[slot].producers

    @cached_property
    def _made(self) -> dict[int, list[tuple[str, Path]]]:
        """By node: the values that it makes."""
        found: dict[int, list[tuple[str, Path]]] = {}
        for name, outputs in self._plan.values.items():
            for output in outputs:
                found.setdefault(output.node, []).append((name, output.path))
        return found

    @cached_property
    def _forward(self) -> dict[int, set[int]]:
        """By node: the nodes that take its value, or are its targets, in the same round."""
        found: dict[int, set[int]] = {}
        for number, node in enumerate(self._plan.nodes):
            for before in {*node.gates, *(output.node for output in outputs_of(node))}:
                found.setdefault(before, set()).add(number)
        return found

    @cached_property
    def _all(self) -> dict[int, set[int]]:
        """As `_forward`, across rounds as well."""
        found = {number: set(behind) for number, behind in self._forward.items()}
        for region in self._plan.regions:
            for gate in region.gates:
                found.setdefault(gate, set()).add(region.entry)
        for number, node in enumerate(self._plan.nodes):
            for argument in _arguments(node):
                for slot in _slots(argument.source):
                    for output in self._plan.slots[slot].producers:
                        found.setdefault(output.node, set()).add(number)
        return found


def turn_of(op: str) -> tuple[str, int]:
    """The name and the turn in an op path: `fetch` and 0 of `fetch:0[17]`."""
    name, _, number = op.partition(":")
    turn = number.partition("[")[0]
    return name, int(turn) if turn.isdecimal() else 0


def _reached(number: int, edges: Mapping[int, Iterable[int]]) -> set[int]:
    found, work = set[int](), [number]
    while work:
        for other in edges.get(work.pop(), ()):
            if other not in found:
                found.add(other)
                work.append(other)
    return found


def _arguments(node: Node) -> tuple[Argument, ...]:
    found = node.arguments if node.when is None else (*node.arguments, *node.when.arguments)
    others = (node.otherwise, None if node.lock is None else node.lock.key)
    return (*found, *(Argument("", source) for source in others if source is not None))


def _takes(source: Source, name: str) -> bool:
    if isinstance(source, Collect | FirstOf | Computed):
        return any(_takes(part, name) for part in source.parts)
    return isinstance(source, Input) and source.name == name


def _slots(source: Source) -> Iterable[int]:
    if isinstance(source, Carried):
        yield source.slot
    elif isinstance(source, Collect | FirstOf | Computed):
        for part in source.parts:
            yield from _slots(part)
