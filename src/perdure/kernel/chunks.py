"""The data that a long map and the runs of its chunks exchange. Describes, never executes.

A map with many items runs in chunks. Each chunk is a run, and its items are ops in the journal of that run. The run of
the map records two events for each chunk: that it began, and its outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from perdure.kernel.ids import step_key
from perdure.kernel.values.failures import Failure
from perdure.kernel.values.items import KEY, Part, reference

if TYPE_CHECKING:
    from perdure.kernel.state import RunState

NULL = Raw(b"null")
# The queue of a step that stands for a chunk. The chunk's run is in no queue.
CHUNK = "perdure.map"
# The prefix of the program of a chunk's run, before the name of the program that has the map.
MAP = "perdure.map."
# The reason of a cancellation that lets the running items of a chunk end, and begins no more.
DRAIN = "something beside it failed"
# The op by which the run of a chunk takes over the outcomes of an earlier one, before any of its items run.
KEEP = "<keep>:0"
# How many chunks of a map may be open.
OPEN_CHUNKS = 8


class MapShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a map has recorded: how many items it has, how many of them are in a chunk if it runs in chunks.

    If a caller has replaced its results, they are `results`, and no item runs.
    """

    n: int
    chunk: int | None = None
    results: Raw = NULL


class ChunkInput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The input of a chunk: `count` items from number `first` on, at most `window` at a time, `batch` of them at once.

    `over` has the lists of which each item takes one value, and `arguments` the values that all items take. The
    chunk fails if more than `most` items do.
    """

    first: int
    count: int
    window: int
    most: int
    arguments: dict[str, Raw]
    over: dict[str, Raw]
    batch: int = 1


class ChunkResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The results of a chunk's items in order, how many items failed, and the first error.

    `stopped`: no item after these is needed.
    """

    results: list[Raw]
    # By path: the parts of the results that other nodes take separately, as lists.
    columns: dict[str, list[Raw]] = {}
    failed: int = 0
    error: Failure | None = None
    stopped: bool = False
    # The numbers of the items that have failed or were skipped.
    without: tuple[int, ...] = ()


class ChunkOutcome(msgspec.Struct, frozen=True, omit_defaults=True, rename={"parts": KEY}):
    """As `ChunkResults`, with the results in blobs. `run` is the run of the chunk."""

    parts: tuple[Part, ...]
    columns: dict[str, tuple[Part, ...]] = {}
    run: str = ""
    failed: int = 0
    error: Failure | None = None
    stopped: bool = False
    without: tuple[int, ...] = ()


def open_chunks(state: RunState) -> dict[str, str]:
    """The chunks that a run has under way, by op, with the ids of their runs."""
    return {
        op: step_key(state.run_id, op) for op, one in state.ops.items() if one.kind == "remote" and one.name == CHUNK
    }


def joined_outcomes(outcomes: Sequence[ChunkOutcome]) -> bytes:
    """The results of chunks, in this order, as one encoded reference."""
    parts = [part for outcome in outcomes for part in outcome.parts]
    if not parts:
        return b"[]"
    columns: dict[str, tuple[Part, ...]] = {}
    for outcome in outcomes:
        for path, of in outcome.columns.items():
            columns[path] = (*columns.get(path, ()), *of)
    return msgspec.json.encode(ChunkOutcome(tuple(parts), columns))


def column(data: bytes, path: str) -> bytes | None:
    """The part of the results at a path, as an encoded reference; None if no node takes it separately."""
    parts = msgspec.json.decode(data, type=ChunkOutcome).columns.get(path)
    return None if parts is None else reference(parts) if parts else b"[]"


def chunk_of(path: str, ops: Iterable[str]) -> tuple[str, str]:
    """The op of the chunk, among these, that has an item or an op in one, and where in it: `3`, or `3/load:0`.

    Empty if there is none.
    """
    for op in ops:
        numbers, before = chunk_range(op), op[: op.rfind("[") + 1]
        if numbers is not None and path.startswith(before):
            number, _, rest = path[len(before) :].partition("]")
            if number.isdecimal() and numbers[0] <= int(number) <= numbers[1]:
                return op, number + rest
    return "", ""


def chunk_range(op: str) -> tuple[int, int] | None:
    """The numbers of the first and the last item of a chunk, by its op: 500 and 999 of `fetch:0[500-999]`."""
    first, dash, last = op[op.rfind("[") + 1 : -1].partition("-")
    return (int(first), int(last)) if dash and op.endswith("]") and first.isdecimal() and last.isdecimal() else None
