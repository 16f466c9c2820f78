"""Maps in progress: which items or chunks have begun, and their outcomes. Decides nothing about nodes.

A map with few items begins them itself. One with many begins *chunks* of them, which are runs of their own, so that of
100,000 items only those under way are in memory, and the journal of the map has two events for each chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

import msgspec
from msgspec import Raw

from perdure.authoring.dataflow.plan import Mapped, Node
from perdure.authoring.dataflow.values import Value, record
from perdure.errors import UsageError
from perdure.kernel.chunks import CHUNK, OPEN_CHUNKS, ChunkInput, ChunkOutcome, MapShape, joined_outcomes
from perdure.kernel.commands import RunStep, StepSpec
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.items import cut, parts_of, reference

# How many items of a map may be in progress if it has no limit. Children cost more, so fewer of them, unless they wait
# for people.
WINDOW, WINDOW_OF_CHILDREN = 1000, 100


class Column:
    """A list that a map goes over: its elements, or its parts in blobs."""

    __slots__ = ("_elements", "_parts", "length")

    def __init__(self, op: str, name: str, value: Value) -> None:
        self._parts = parts_of(value.data)
        self._elements: list[Raw] = []
        if self._parts is not None:
            self.length = sum(part.n for part in self._parts)
            return
        try:
            self._elements = value.elements()
        except msgspec.MsgspecError:
            raise UsageError(
                f"{op} is mapped over {name!r}, and its value is no list: {value.data[:80].decode(errors='replace')}"
            ) from None
        self.length = len(self._elements)

    @property
    def stored(self) -> bool:
        """Whether its elements are in blobs."""
        return self._parts is not None

    def __getitem__(self, index: int) -> Value:
        return Value(bytes(self._elements[index]))

    def part(self, first: int, last: int) -> Value:
        """The elements from `first` up to `last`, as a list."""
        if self._parts is not None:
            return Value(reference(cut(self._parts, first, last)))
        return Value(b"[%b]" % b",".join(map(bytes, self._elements[first:last])))


def columns_of(op: str, over: tuple[str, ...], arguments: Mapping[str, Value]) -> dict[str, Column]:
    """The lists that a map goes over. Raises UsageError if a value is no list, or if the lengths differ."""
    columns: dict[str, Column] = {}
    for name in over:
        if name not in arguments:
            raise UsageError(f"{op} is mapped over {name!r}, which has no value; give it a list")
        columns[name] = Column(op, name, arguments[name])
    if len({column.length for column in columns.values()}) > 1:
        shown = ", ".join(f"{name} has {column.length}" for name, column in columns.items())
        raise UsageError(f"{op} is mapped over lists of different lengths: {shown}; they must agree")
    return columns


def chunk_size(mapped: Mapped, columns: Mapping[str, Column], count: int, recorded: MapShape | None) -> int | None:
    """How many items a chunk of a map has, as recorded if it was; None if the map begins its items itself."""
    if recorded is not None and (recorded.chunk is not None or not any(one.stored for one in columns.values())):
        return recorded.chunk
    if count > 2 * mapped.chunk or any(column.stored for column in columns.values()):
        return mapped.chunk
    return None


def most_failures(mapped: Mapped, count: int) -> int:
    """How many items may fail."""
    if mapped.on_error == "fail":
        return 0
    if mapped.tolerate is None:
        return count
    if isinstance(mapped.tolerate, float):
        return int(Fraction(repr(mapped.tolerate)) * count)  # by decimal arithmetic: 0.29 of 100 are 29
    return mapped.tolerate


def window_of(node: Node) -> int:
    """How many items of a map may be under way."""
    assert node.mapped is not None
    if node.mapped.limit is not None:
        return node.mapped.limit
    return WINDOW_OF_CHILDREN if node.program is not None and not node.program.asks else WINDOW


class ItemMap:
    """A map that begins its items itself. In a chunk, they are numbered from `first` on."""

    __slots__ = (
        "arguments", "batch", "columns", "count", "end", "errors", "failed", "failure", "first", "first_error", "most",
        "next", "op", "results", "running", "stopped", "window",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        arguments: dict[str, Value],
        columns: dict[str, Column],
        window: int,
        most: int,
        count: int,
        first: int = 0,
        batch: int = 1,
    ) -> None:
        # Results are kept as bytes only.
        self.op, self.arguments, self.columns, self.window, self.most = op, arguments, columns, window, most
        self.count, self.first, self.batch = count, first, batch
        self.results: list[bytes | None] = [None] * count
        # What replaces the results of failed items, if anything does.
        self.errors: dict[int, bytes] = {}
        # The item to begin next, the end of the needed items, and whether a result ended the map early.
        self.next, self.end, self.stopped = 0, count, False
        self.running = self.failed = 0
        # Why the map fails, and the error of the first item that did.
        self.failure: Failure | None = None
        self.first_error: Failure | None = None

    def begin(self, began: Callable[[str], bool]) -> Iterator[tuple[str, dict[str, Value]]]:
        """The items to begin now: op and arguments of each.

        An item that `began` before begins at once: the limit may have been higher then.
        """
        full = self.running + self.batch > self.window and self.running  # beginning several together costs less
        while self.failure is None and self.next < self.end:
            index = self.next
            if (full or self.running >= self.window) and not began(f"{self.op}[{self.first + index}]"):
                return
            self.next += 1
            self.running += 1
            columns = self.columns
            yield (
                f"{self.op}[{self.first + index}]",
                {name: columns[name][index] if name in columns else of for name, of in self.arguments.items()},
            )

    def index(self, op: str) -> int:
        """The index of an op's item."""
        return int(op[op.rindex("[") + 1 : -1]) - self.first

    def ended(self, op: str, value: Value | None) -> int:
        """An item has ended; without a value, it was skipped. Returns its index."""
        index = self.index(op)
        self.running -= 1
        self.results[index] = None if value is None else value.data
        return index

    def failed_with(self, op: str, failure: Failure, shown: bytes | None) -> None:
        """An item has failed; `shown` replaces its result."""
        self.running -= 1
        if shown is not None:
            self.errors[self.index(op)] = shown
        self.failed += 1
        self.first_error = self.first_error or failure
        if self.failed > self.most:
            self.failure = self.failure or failure

    def found(self, *, with_none: bool) -> list[bytes]:
        """The results in order. An item without one has failed, or was skipped."""
        found = self.results[: self.end]
        return [one or self.errors.get(n, b"null") for n, one in enumerate(found) if one or with_none]


class ChunkMap:
    """A map that begins chunks of its items, each a run of its own."""

    __slots__ = (
        "_arguments", "_chunks", "_columns", "_count", "_done", "_end", "_most", "_next", "_size", "_slots", "_windows",
        "failed", "failure", "op", "open",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        arguments: Mapping[str, Value],
        columns: Mapping[str, Column],
        size: int,
        window: int,
        most: int,
        count: int,
    ) -> None:
        self.op, self._columns, self._size, self._count, self._most = op, columns, size, count, most
        self._arguments = {name: value for name, value in arguments.items() if name not in columns}
        # The chunk to begin next, and the end of the needed chunks.
        self._next, self._end = 0, -(-count // size)
        # The windows of the chunks in progress; together, they are the window of the map.
        self._chunks = chunks = min(OPEN_CHUNKS, window, self._end)
        self._windows = [window // chunks + (slot < window % chunks) for slot in range(chunks)]
        self._slots = list(range(chunks))
        # By op: number and window of each chunk in progress. The results of the chunks that have ended.
        self.open: dict[str, tuple[int, int]] = {}
        self._done: dict[int, ChunkOutcome] = {}
        self.failed = 0
        self.failure: Failure | None = None

    def begin(self, node: Node, patches: dict[str, bool], began: Callable[[str], bool]) -> Iterator[RunStep]:
        """The chunks to begin now. A chunk that `began` before begins at once: the limit may have been higher then."""
        while self.failure is None and self._next < self._end:
            number = self._next
            first = number * self._size
            last = min(first + self._size, self._count)
            op = f"{self.op}[{first}-{last - 1}]"
            if self._slots:
                slot = self._slots.pop(0)
            elif began(op):
                slot = len(self._windows)
                self._windows.append(1)
            else:
                return
            self._next += 1
            over = {name: column.part(first, last) for name, column in self._columns.items()}
            self.open[op] = number, slot
            inputs = ChunkInput(
                first,
                last - first,
                self._windows[slot],
                self._most,
                {name: Raw(value.data) for name, value in self._arguments.items()},
                {name: Raw(value.data) for name, value in over.items()},
                # A limit is used to the full; without one, slightly fewer items may run for a moment.
                1 if node.mapped is None or node.mapped.limit else max(1, self._windows[slot] // 8),
            )
            spec = StepSpec(node.name, _chunk, queue=CHUNK, version="" if node.spec is None else node.spec.version)
            recorded = record({**self._arguments, **over})
            yield RunStep(op, spec, msgspec.json.encode(inputs), recorded, source=node.where, patches=patches or None)

    def left(self) -> dict[str, Value]:
        """The arguments of the chunks that have not begun, as of one chunk; empty if all have."""
        first, last = self._next * self._size, min(self._end * self._size, self._count)
        over = {name: column.part(first, last) for name, column in self._columns.items()}
        return {**self._arguments, **over} if first < last else {}

    def ended(self, op: str, value: Value) -> list[str]:
        """A chunk has ended. Returns the ops of the open chunks that are no longer needed."""
        number = self._closed(op)
        outcome = msgspec.json.decode(value.data, type=ChunkOutcome)
        self._done[number] = outcome
        self.failed += outcome.failed
        if self.failed > self._most:
            self.failure = self.failure or outcome.error
            return self.give_up()
        if outcome.stopped:
            self._end = min(self._end, number + 1)
            return [self._forget(one) for one, (other, _) in list(self.open.items()) if other > number]
        return []

    def failed_with(self, op: str, failure: Failure) -> list[str]:
        """A chunk has failed. Returns the ops of all open chunks: none is needed any longer."""
        self._closed(op)
        self.failure = self.failure or failure
        return self.give_up()

    def give_up(self) -> list[str]:
        """The map is given up. Returns the ops of its open chunks."""
        return [self._forget(op) for op in list(self.open)]

    def _closed(self, op: str) -> int:
        number, slot = self.open.pop(op)
        if slot < self._chunks:
            self._slots.append(slot)
            self._slots.sort()
        return number

    def _forget(self, op: str) -> str:
        self._closed(op)
        return op

    @property
    def result(self) -> Value:
        """The results of all items, in order."""
        return Value(joined_outcomes([self._done[number] for number in range(self._end)]))


def _chunk(**arguments: object) -> None:
    raise UsageError("a chunk of a map is executed by a run of its own")
