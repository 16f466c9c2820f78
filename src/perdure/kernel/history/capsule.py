"""One run in one file: its journal, its large values, and which program wrote them. Trusts nothing it is given.

A capsule is a head of fixed size (magic, format, sizes, SHA-256 of all the rest) and JSON under zlib. The sizes are
checked before memory is allocated, the hash before anything is decompressed, and the journal before it is returned. The
hash proves that a file is as it was written, not who wrote it.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import accumulate
from typing import Any, NoReturn

import msgspec
from msgspec import Raw

from perdure.errors import InvalidCapsule, PerdureError, UsageError
from perdure.kernel.events import AnyEvent, Batch, ChildStarted, RunFinished, RunStarted, SnapshotTaken, references
from perdure.kernel.ids import check_id
from perdure.kernel.projection import row
from perdure.kernel.state import RunState
from perdure.kernel.step_records import steps
from perdure.kernel.values.limits import blob_id

MAGIC = b"PERDURE\x1a"
FORMAT = 1
# The size limit of a capsule as JSON. A journal is at most 50 MiB by default; the rest is for blobs.
MOST = 256 * 1024 * 1024
# The limit of events: more than fit into a journal of 50 MiB, and few enough to be read quickly.
MOST_EVENTS = 1_000_000
_PIECE = 256 * 1024
_HEAD = struct.Struct(">8sHQQ")
HEAD_SIZE = _HEAD.size + 32
# zlib adds a little to incompressible data.
MOST_BYTES = MOST + MOST // 1000 + HEAD_SIZE + 64
# The last second that datetime can represent.
_LATEST = 253_402_300_799.0
_MOST_PATH = 4000
# The nesting limit of values: every supported Python must be able to decode them, also from a deeper call stack.
DEEPEST = 500
_MARGIN = 256
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STEPS = tuple({"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(byte), 0) for byte in range(256))
_OTHERS = bytes(byte for byte in range(256) if not _STEPS[byte])
_MOMENTS = ("retry_at", "deadline", "not_before", "escalate_at")
_BLOBS = ("blob", "input_blob")


class Capsule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run outside any store.

    `source` is the hash of the program's source, if the exporter had it. `redacted` are the paths whose values were
    removed. `continued_from` and `continued_as` are the incarnations before and after this one, and `detached` the
    detached children; none of those are included.
    """

    run_id: str
    id: str
    program: str
    version: str
    batches: list[Batch]
    blobs: dict[str, bytes] = {}
    source: str = ""
    exported_at: float = 0.0
    redacted: tuple[str, ...] = ()
    continued_from: str = ""
    continued_as: str = ""
    detached: tuple[str, ...] = ()

    @property
    def started(self) -> RunStarted:
        """The first event of the journal."""
        first = self.batches[0].events[0]
        assert isinstance(first, RunStarted)
        return first


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Capsule).decode


def capsule_of(
    run_id: str, batches: list[Batch], blobs: dict[str, bytes], *, source: str = "", now: float = 0.0
) -> Capsule:
    """A capsule of a journal and its blobs."""
    started, ended = batches[0].events[0], batches[-1].events[-1]
    assert isinstance(started, RunStarted)
    detached = tuple(e.detached for b in batches for e in b.events if isinstance(e, ChildStarted) and e.detached)
    return Capsule(
        run_id,
        started.id,
        started.program,
        started.version,
        batches,
        blobs,
        source,
        now,
        continued_from=started.continued_from,
        continued_as=ended.continued_as if isinstance(ended, RunFinished) else "",
        detached=detached,
    )


def encode_capsule(capsule: Capsule) -> bytes:
    """The capsule as the bytes of a file."""
    # In parts: a thread that encodes a large capsule lets other threads have their turn.
    head, mark, rest = _encode(msgspec.structs.replace(capsule, batches=[])).partition(b'"batches":[]')
    plain = b"".join([head, b'"batches":[', b",".join(map(_encode, capsule.batches)), b"]", rest])
    assert mark
    if len(plain) > MOST:
        raise UsageError(
            f"run {capsule.id!r} takes {len(plain):,} bytes with its large values, and a capsule at most {MOST:,}; "
            "copy the store instead"
        )
    return _seal(zlib.compress(plain, 6), len(plain))


def _seal(body: bytes, plain: int) -> bytes:
    head = _HEAD.pack(MAGIC, FORMAT, len(body), plain)
    return head + sha256(head + body).digest() + body


def decode_capsule(data: bytes) -> Capsule:
    """The inverse of `encode_capsule`. Raises InvalidCapsule for anything that it could not have written."""
    return read_capsule(data)[0]


def read_capsule(data: bytes) -> tuple[Capsule, RunState]:
    """As `decode_capsule`, with the state that checking the journal has folded."""
    plain = _open(bytes(data))
    try:
        capsule = _decode(plain)
    except RecursionError:
        _refuse("its values are nested too deeply")
    except (msgspec.MsgspecError, ValueError) as error:
        _refuse(f"what it holds cannot be read: {error}")
    del plain
    return capsule, check(capsule)


def _open(data: bytes) -> bytearray:
    """The JSON of a capsule, after its sizes and hash have been checked."""
    if data[: len(MAGIC)] != MAGIC[: len(data)] or not data:
        _refuse("it does not begin as one; `perdure export` writes them")
    if len(data) < HEAD_SIZE:
        _refuse("it is cut off")
    _, format, size, declared = _HEAD.unpack_from(data)
    if format != FORMAT:
        _refuse(f"it has format {format}, and this perdure reads format {FORMAT}; a newer perdure may have written it")
    if declared > MOST:
        _refuse(f"it says that it holds {declared:,} bytes, and {MOST:,} is the limit")
    if size != len(data) - HEAD_SIZE:
        _refuse(f"it says that {size:,} bytes follow its head, and there are {len(data) - HEAD_SIZE:,}")
    view = memoryview(data)
    digest = sha256(view[: _HEAD.size])
    digest.update(view[HEAD_SIZE:])
    if digest.digest() != data[_HEAD.size : HEAD_SIZE]:
        _refuse("its hash does not match: it was damaged or changed")
    return _inflate(view[HEAD_SIZE:], declared)


def _inflate(body: memoryview, declared: int) -> bytearray:
    """Decompress a body piece by piece, and never more than the declared size."""
    inflater, plain = zlib.decompressobj(), bytearray()
    try:
        for start in range(0, len(body), _PIECE):
            piece: bytes | memoryview = body[start : start + _PIECE]
            while piece and len(plain) <= declared:
                plain += inflater.decompress(piece, min(_PIECE, declared + 1 - len(plain)))
                piece = inflater.unconsumed_tail
    except zlib.error as error:
        _refuse(f"it cannot be inflated: {error}")
    if len(plain) != declared or not inflater.eof or inflater.unused_data:
        _refuse(f"it says that it holds {declared:,} bytes, and holds another number of them")
    if plain.count(b'{"type":') > MOST_EVENTS:
        _refuse(f"it holds more than {MOST_EVENTS:,} events")
    return plain


# --- what a journal must be -----------------------------------------------------------------------------------------


def check(capsule: Capsule) -> RunState:
    """Fold the journal of a capsule; raises InvalidCapsule unless a store can hold it and a reader can decode it."""
    try:
        check_id(capsule.run_id)
        if "/" in capsule.run_id:
            _refuse(f"its run_id {capsule.run_id[:60]!r} holds a slash")
        for id, data in capsule.blobs.items():
            if blob_id(data) != id:
                _refuse(f"the blob {id[:64]} is not what its hash says")
            _readable(data, f"the blob {id}")
        state = _fold(capsule)
        made = row(state)
        if (made.id, made.program, made.version) != (capsule.id, capsule.program, capsule.version):
            _refuse("its head names another run than its journal")
        steps(capsule.batches)
        return state
    except InvalidCapsule:
        raise
    except PerdureError as error:
        _refuse(str(error))
    except Exception as error:  # a forged journal can raise anything
        _refuse(f"no engine could have written its journal ({type(error).__name__}: {error})")


def _fold(capsule: Capsule) -> RunState:
    state, at = RunState(capsule.run_id), 0.0
    if not capsule.batches:
        _refuse("its journal is empty")
    for batch in capsule.batches:
        if batch.seq != state.next_seq:
            what = "entries are missing" if batch.seq > state.next_seq else "entries come twice"
            _refuse(f"{what} in its journal at number {state.next_seq}")
        if not batch.events:
            _refuse(f"a batch of its journal is empty at number {batch.seq}")
        if not at <= batch.at <= _LATEST:
            _refuse(f"the time of entry {batch.seq} is {batch.at!r}, before the entry in front of it or no time")
        at = batch.at
        for event in batch.events:
            where = f"entry {state.next_seq}"
            if isinstance(event, RunStarted) != (state.next_seq == 0):
                _refuse("its journal does not begin with RunStarted, or begins twice")
            if state.finished is not None:
                _refuse(f"its journal goes on after its end, at {where}")
            _check_event(event, where, capsule.blobs)
            state.fold(event, at)
    assert state.started is not None
    check_id(state.started.id)
    return state


def _check_event(event: AnyEvent, where: str, blobs: Mapping[str, bytes]) -> None:
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, Raw):
            _readable(value, where)
        elif isinstance(value, bool):
            continue
        elif isinstance(value, int):
            if not -(2**63) <= value < 2**63:
                _refuse(f"{name}={value} of {where} is larger than any store can keep")
        elif name in _MOMENTS and value is not None:
            if not 0.0 <= value <= _LATEST:
                _refuse(f"{name}={value!r} of {where} is no time")
        elif name in ("op", "child") and len(value) > _MOST_PATH:
            _refuse(f"the op path of {where} has {len(value):,} characters")
        elif name == "chunks":
            for chunk in value:
                _readable(chunk, where)
        elif name in _BLOBS and value and value not in blobs and not isinstance(event, SnapshotTaken):
            _refuse(f"the blob {value[:64]} of {where} is not in it")


def _readable(data: bytes | Raw, where: str) -> None:
    data = bytes(data)
    try:
        msgspec.json.decode(b"[" * _MARGIN + data + b"]" * _MARGIN)
        deep = data.count(b"[") + data.count(b"{") > DEEPEST and _depth(data) > DEEPEST
    except RecursionError:
        deep = True
    except (msgspec.MsgspecError, ValueError) as error:
        _refuse(f"a value of {where} is no JSON: {error}")
    if deep:
        _refuse(f"a value of {where} is nested too deeply")


def _depth(data: bytes) -> int:
    """How deeply a JSON value is nested."""
    brackets = _TEXTS.sub(b"", data).translate(None, _OTHERS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0)


def _refuse(reason: str) -> NoReturn:
    raise InvalidCapsule(reason) from None


# --- offloaded values -----------------------------------------------------------------------------------------------


def blobs_of(batches: list[Batch]) -> list[str]:
    """The ids of the blobs that a journal refers to, each once."""
    found: dict[str, None] = {}
    for batch in batches:
        for event in batch.events:
            if not isinstance(event, SnapshotTaken):
                found.update(dict.fromkeys(references([event])))
    return list(found)


def inflated(capsule: Capsule) -> Iterator[tuple[int, float, AnyEvent]]:
    """The events of a capsule with their number and time, and with offloaded values in place."""
    for batch in capsule.batches:
        for i, event in enumerate(batch.events):
            yield batch.seq + i, batch.at, with_blobs(event, capsule.blobs)


def with_blobs(event: AnyEvent, blobs: Mapping[str, bytes]) -> AnyEvent:
    """An event with its offloaded value in place."""
    for field, name in (("value", "blob"), ("input", "input_blob")):
        blob = getattr(event, name, "")
        if blob and hasattr(event, field):
            changes: dict[str, Any] = {field: Raw(blobs[blob])}
            return msgspec.structs.replace(event, **changes)
    return event
