"""One run of a chunk of a map: its items, as the run of the map would have run them."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.execution import DataflowExecution
from perdure.authoring.dataflow.lookup import OPEN
from perdure.authoring.dataflow.maps import ItemMap, columns_of
from perdure.authoring.dataflow.plan import Argument, Input, Node, Output, Plan, Region
from perdure.authoring.dataflow.values import Value, path_key
from perdure.kernel.chunks import ChunkInput, ChunkResults
from perdure.kernel.events import NULL, RunClaimed, RunStarted
from perdure.kernel.patches import PatchHistory
from perdure.kernel.values.codec import Codec


class ChunkExecution(DataflowExecution):
    """The items of a chunk: a plan of the one node that is mapped, from its turn on."""

    _is_chunk = True

    def __init__(self, of: Plan, node: Node, turn: int, started: RunStarted, codec: Codec, past: PatchHistory) -> None:
        chunk = msgspec.json.decode(started.input, type=ChunkInput)
        arguments = tuple(
            Argument(one.name, Input(one.name), one.required, one.keyword, one.type) for one in node.arguments
        )
        alone = msgspec.structs.replace(
            node, arguments=arguments, when=None, gates=(), after=(), on_error="fail", otherwise=None, instead=None
        )
        plan = Plan(
            (alone,),
            (Region(nodes=(0,)),),
            region=(0,),
            consumers=((),),
            waits=(0,),
            reads=((),),
            kept=frozenset({0}),
            results=((node.name, Output(0)),),
            single=True,
        )
        super().__init__(plan, msgspec.structs.replace(started, input=NULL), codec, past)
        # The items are kept in memory only once.
        self._chunk = msgspec.structs.replace(chunk, arguments={}, over={})
        self._lookup.input = {name: Value(bytes(value)) for name, value in {**chunk.arguments, **chunk.over}.items()}
        self._turns[0] = turn
        assert started.remote is not None
        self.patches = dict(started.remote.patches or {})
        # The parts of its results that nodes of the graph take separately.
        outputs = (output for made in of.values.values() for output in made if of.nodes[output.node].name == node.name)
        self._columns = {path_key(output.path): output.path for output in outputs if output.path}
        # The op's name in the run of the map; the node may have been renamed since.
        self._named = started.remote.op.rpartition("/")[2].rpartition("[")[0]

    def _take_input(self, event: RunClaimed) -> None:
        """Nothing: the input of a chunk is taken in `__init__`."""

    def _map(self, number: int, node: Node, op: str, arguments: dict[str, Value]) -> None:
        chunk, mapped = self._chunk, node.mapped
        assert mapped is not None
        columns = columns_of(op, mapped.over, arguments)
        self._status[number] = OPEN
        self._lookup.input = {}
        self._maps[number] = ItemMap(
            self._named, arguments, columns, chunk.window, chunk.most, chunk.count, chunk.first, chunk.batch
        )
        self._go_on(number)

    def _items_done(self, number: int, items: ItemMap) -> None:
        mapped = self._plan.nodes[number].mapped
        assert mapped is not None
        found = [Raw(one) for one in items.found(with_none=mapped.on_error == "none")]
        whole = Value(msgspec.json.encode(found))
        columns = {key: value.elements() for key, path in self._columns.items() if (value := whole.part(path))}
        without = tuple([items.first + n for n, one in enumerate(items.results[: items.end]) if one is None])
        results = ChunkResults(found, columns, items.failed, items.first_error, items.stopped, without)
        self._done(number, Value(msgspec.json.encode(results)))
