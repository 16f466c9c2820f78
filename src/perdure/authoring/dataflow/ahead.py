"""Read what the nodes that have yet to run will take of what a run holds already. Decides nothing, calls nothing.

A run that continues with other code may hold a value that a later node cannot read, or lack an input that it requires.
That shows here, before the new code takes any effect. What the code of now will make itself is not known yet, and is
left out: values of nodes that run again, values that an expression makes, values in blobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from perdure.authoring.dataflow.lists import Reader
from perdure.authoring.dataflow.lookup import DONE, OPEN, WAITING, Lookup
from perdure.authoring.dataflow.maps import ChunkMap, ItemMap
from perdure.authoring.dataflow.op_history import OpHistory
from perdure.authoring.dataflow.plan import (
    Argument,
    Carried,
    Collect,
    Computed,
    Const,
    FirstOf,
    Input,
    Node,
    Output,
    Plan,
    Source,
    outputs_in,
)
from perdure.authoring.dataflow.values import Value
from perdure.errors import ExpressionFailed, NotDecodable, NotSerializable
from perdure.kernel.commands import SECRET
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import has_references

# An argument, its value, and where the value comes from.
_Taken: TypeAlias = tuple[Argument, Value, Source]
RUNS, MAY_RUN, NEVER = "runs", "may run", "never"
# After how many values that were read there is a pause.
PART = 20


class Ahead:
    """The nodes of one execution that have yet to run.

    `left` is, by region, how many of its nodes have not ended; `maps` are the maps under way; `chosen` is, by gate, the
    nodes that it chose. `failing`: an expression that fails is a misfit, too; it may have been written since.
    """

    def __init__(
        self,
        plan: Plan,
        codec: Codec,
        history: OpHistory,
        lookup: Lookup,
        turns: Sequence[int],
        left: Sequence[int],
        maps: Mapping[int, ItemMap | ChunkMap],
        chosen: Mapping[int, frozenset[int]],
        *,
        failing: bool = False,
    ) -> None:
        self._plan, self._codec, self._history, self._lookup = plan, codec, history, lookup
        self._turns, self._left, self._maps, self._chosen = turns, left, maps, chosen
        self._failing = failing
        # What could be read already: many nodes may take one value.
        self._read: set[tuple[object, Any]] = set()

    def check(self) -> Iterator[None]:
        """Raise NotDecodable for the first value that is missing or cannot be read. Pauses after some values."""
        count = 0
        for number, node in enumerate(self._plan.nodes):
            for argument, value, origin in self._taken(number, node):
                self._check(number, node, argument, value, origin)
                count += 1
                if not count % PART:
                    yield

    def _taken(self, number: int, node: Node) -> Iterator[_Taken]:
        """The values that a node will take and that are known, with the types that it reads them by."""
        status = self._lookup.status[number]
        if number == self._plan.last:
            return  # what it takes says how the run has ended
        if status == WAITING:
            if node.question is not None and self._lookup.given_answer(node) is not None:
                return
            key = () if node.lock is None else (Argument("key", node.lock.key),)
            for one in (*node.arguments, *(node.when.arguments if node.when is not None else ()), *key):
                if isinstance(one.source, Computed):
                    yield from self._computed(number, node, one, one.source)
                    continue
                for argument, part in self._known(number, node, one, one.source):
                    if (value := self._find(part)) is not None:
                        yield argument, value, part
        elif status == OPEN and (under_way := self._maps.get(number)) is not None:
            yield from self._items(node, under_way)
        elif self._runs_again(number):
            for one in node.arguments:
                for source in self._again(number, one.source):
                    if (value := self._find(source)) is not None:
                        yield one, value, source

    def _find(self, source: Source) -> Value | None:
        try:
            return self._lookup.find(source)
        except NotSerializable:
            return None  # a bound value: the node fails
        finally:
            self._lookup.forget()

    def _computed(self, number: int, node: Node, one: Argument, source: Computed) -> Iterator[_Taken]:
        """The value of an expression, if all that it is made of is known, and nothing follows if it fails."""
        tolerated = node.on_error != "fail" or node.otherwise is not None
        if node.mapped is not None:
            tolerated = node.mapped.on_error != "fail"
        type = one.type
        if type is Any and node.spec is not None:
            type = next((known for name, known in node.spec.types if name.lstrip("*=") == one.name), Any)
            if node.mapped is not None and one.name in node.mapped.over and type is not Any:
                type = list[type]  # type: ignore[valid-type]
        if tolerated or not source.parts or (type is Any and not self._failing):
            return
        outputs = [*outputs_in(source)]
        ended = all(self._lookup.status[made.node] > OPEN and self._is_final(number, made.node) for made in outputs)
        carried = any(isinstance(part, Carried) for part in source.parts)
        when = node.when is not None and any(one is other for other in node.when.arguments)
        if not ended or carried or self._fate(number, condition=not when) != RUNS:
            return
        try:
            value = self._find(source)
        except ExpressionFailed:
            if self._failing:
                raise
            return
        if value is not None and SECRET.encode() not in value.data:
            yield Argument(one.name, source, type=type), value, outputs[0] if outputs else Input("")

    def _items(self, node: Node, under_way: ItemMap | ChunkMap) -> Iterator[_Taken]:
        """The arguments of the items of a map that have not begun."""
        assert node.mapped is not None
        if node.mapped.until is not None or under_way.failure is not None:
            return
        if isinstance(under_way, ChunkMap):
            rest = under_way.left()
            yield from ((one, rest[one.name], one.source) for one in node.arguments if one.name in rest)
            return
        for one in node.arguments:
            if one.name not in node.mapped.over:
                if one.name in under_way.arguments and under_way.next < under_way.end:
                    yield one, under_way.arguments[one.name], one.source
                continue
            item = Argument(one.name, one.source, type=(get_args(one.type) or (Any,))[0])
            for index in range(under_way.next, under_way.end):
                yield item, under_way.columns[one.name][index], one.source

    def _known(self, number: int, node: Node, one: Argument, source: Source) -> Iterator[tuple[Argument, Source]]:
        """The parts of a source whose values are known. Raises NotDecodable if there will be none."""
        if isinstance(source, Input):
            if source.name in self._lookup.input:
                yield Argument(one.name, source, type=one.type), source
            elif one.required and self._fate(number) != NEVER:
                error = self._lookup.not_given(source.name)
                error.taker = self._history.taker(number, self._op(number, node), one.name)
                error.op = error.taker.path
                raise error
        elif isinstance(source, Output):
            if self._lookup.status[source.node] == DONE and self._is_final(number, source.node):
                yield Argument(one.name, source, type=one.type), source
        elif isinstance(source, Carried | Const):
            yield Argument(one.name, source, type=one.type), source
        elif isinstance(source, Collect):
            type = (get_args(one.type) or (Any,))[0]
            for part in source.parts:
                yield from self._known(number, node, Argument(one.name, part, one.required, type=type), part)
        elif isinstance(source, FirstOf):
            for part in source.parts:
                if isinstance(part, Output) and self._lookup.status[part.node] <= OPEN:
                    return  # it may have a value yet
                if self._lookup.has(part):
                    yield from self._known(number, node, one, part)
                    return
            if all(isinstance(part, Input | Carried) for part in source.parts):
                yield from self._known(number, node, one, source.parts[-1])

    # --- which values stay ----------------------------------------------------------------------------------------

    def _is_final(self, number: int, producer: int) -> bool:
        """Whether a node takes the value that another one has now: its loop has ended, or they are in one round."""
        if not self._plan.region[producer]:
            return True
        around = {*self._regions(number)}
        return all(region in around or not self._left[region] for region in self._regions(producer))

    def _runs_again(self, number: int) -> bool:
        """Whether a node that has run may run in another round of a loop."""
        return any(region and self._left[region] for region in self._regions(number))

    def _again(self, number: int, source: Source) -> Sequence[Source]:
        """Where the next round of a node's innermost loop takes a value from that is known already."""
        if isinstance(source, FirstOf):
            source = source.parts[0]
        if isinstance(source, Carried):
            return self._plan.slots[source.slot].producers
        inside = isinstance(source, Output) and self._plan.region[number] in {*self._regions(source.node)}
        return (source,) if isinstance(source, Input | Output) and not inside else ()

    def _regions(self, number: int) -> Iterator[int]:
        region = self._plan.region[number]
        while region > 0:
            yield region
            region = self._plan.regions[region].parent

    def _fate(self, number: int, *, condition: bool = True) -> str:
        """Whether a node will run, unless another one fails: RUNS, MAY_RUN while a gate or a condition is open, NEVER.

        What it requires decides, too. With `condition=False`, its own condition does not.
        """
        nodes, status, chosen = self._plan.nodes, self._lookup.status, self._chosen
        found, seen, work = RUNS, {number}, [number]
        while work:
            one = work.pop()
            node = nodes[one]
            if node.gates and not any(one in chosen.get(gate, ()) for gate in node.gates):
                if all(status[gate] > OPEN for gate in node.gates):
                    return NEVER
                found = MAY_RUN
            if node.instead is not None:
                if status[node.instead] == DONE:
                    return NEVER
                found = MAY_RUN
            if node.when is not None and (condition or one != number):
                found = MAY_RUN
            for argument in (*node.arguments, *(node.when.arguments if node.when is not None else ())):
                if not argument.required or not isinstance(argument.source, Output):
                    continue
                maker = argument.source.node
                if status[maker] > DONE:
                    return NEVER
                if status[maker] == WAITING and maker not in seen:
                    seen.add(maker)
                    work.append(maker)
        skipping = any(node.skips_rest and status[n] <= OPEN for n, node in enumerate(nodes))
        return MAY_RUN if skipping else found

    # --- reading --------------------------------------------------------------------------------------------------

    def _check(self, number: int, node: Node, one: Argument, value: Value, source: Source) -> None:
        if one.type is Any or not value.data or has_references(value.data):
            return
        key = value.data, _hashable(one.type)
        if key in self._read:
            return
        op = self._op(number, node)
        origin, taker = self._history.origin(source, number, op), self._history.taker(number, op, one.name)
        given = isinstance(source, Input | Const)
        if origin is None:
            if not given:
                return
            origin = taker.path
        reader = Reader(self._codec, one.type, f"the argument {one.name} of {op}", origin, taker=taker)
        try:
            reader.read(value.data, exact=self._is_whole(one.type, source))
        except NotDecodable as error:
            fate = MAY_RUN if self._lookup.status[number] == DONE else self._fate(number)
            sure = given or error.lost is not None or self._has_changed(source)
            if fate == RUNS or (fate == MAY_RUN and (sure or self._is_let_through(number, source))):
                raise
            return
        self._read.add(key)

    def _is_whole(self, type: Any, source: Source) -> bool:
        """Whether a value was stored with the fields of its type and no others: as the result of a step."""
        node = self._plan.nodes[source.node] if isinstance(source, Output) and not source.path else None
        return node is not None and node.kind == "step" and node.mapped is None and bool(node.returns == type)

    def _is_let_through(self, number: int, source: Source) -> bool:
        """Whether no gate and no condition before a node depends on a value: they do not keep it from the node."""
        if self._lookup.status[number] == DONE:
            return False  # the rounds of a loop
        nodes, makers = self._plan.nodes, {output.node for output in outputs_in(source)}
        work, seen = [number], {number}
        guards = list[Argument]()
        while work:
            node = nodes[work.pop()]
            guards += node.when.arguments if node.when is not None else ()
            for gate in node.gates:
                guards += nodes[gate].arguments
            before = {output.node for one in (*node.arguments, *guards) for output in outputs_in(one.source)}
            for other in {*before, *node.gates} - seen:
                seen.add(other)
                work.append(other)
        reached, left = set[int](), {output.node for one in guards for output in outputs_in(one.source)}
        while left:
            other = left.pop()
            reached.add(other)
            left |= {output.node for one in nodes[other].arguments for output in outputs_in(one.source)} - reached
        return makers.isdisjoint(reached)

    def _has_changed(self, source: Source) -> bool:
        """Whether a recorded value is none that its node makes now. Else a gate may keep it from who cannot read it."""
        made: tuple[Output, ...] = (source,) if isinstance(source, Output) else ()
        if isinstance(source, Carried):
            made = self._plan.slots[source.slot].producers
        for output in made:
            node, value = self._plan.nodes[output.node], self._lookup.values[output.node]
            if self._lookup.status[output.node] != DONE or value is None or not value.data:
                continue
            returns = node.returns if node.question is None else node.question.answer
            if returns is Any or node.mapped is not None or has_references(value.data):
                continue
            try:
                self._codec.decode(value.data, returns, "a value")
            except NotDecodable:
                return True
        return False

    def _op(self, number: int, node: Node) -> str:
        return self._history.op_of(node, self._turns[number])


def _hashable(type: Any) -> Any:
    try:
        hash(type)
    except TypeError:
        return id(type)
    return type
