"""Start batches: rows are written to the store as they are read, and one run is started for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from msgspec import Raw

from perdure.client.base import StoreClient
from perdure.client.gateway import RunGateway
from perdure.client.handle import RunHandle
from perdure.client.starts import Start, Starts
from perdure.errors import NotDecodable, PerdureError, UsageError
from perdure.kernel.batches import tolerance
from perdure.kernel.ids import BATCH, check_name
from perdure.kernel.invocation import Invocation, WrongCall
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.durations import Duration
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.policies.start_options import Reuse, at_least_one
from perdure.kernel.program import Program
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.items import Items


class Batches:
    """Starts batches of programs."""

    def __init__(self, base: StoreClient, gateway: RunGateway, starts: Starts) -> None:
        self._base, self._gateway, self._starts = base, gateway, starts

    async def start_batch(
        self,
        program: Program | str,
        rows: Iterable[Any],
        *,
        limit: int | None = None,
        tolerate: float | str | None = None,
        id: str | None = None,
        reuse: Reuse | None = None,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        delay: Duration | None = None,
        deadline: Duration | datetime | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
        tags: dict[str, str] | None = None,
    ) -> RunHandle[Items[Any]]:
        """Start one durable run that runs a program once for each row; `rows` need not fit in memory.

        A row is an object with the arguments by name, a list with them in order, an invocation of the program, or its
        only argument. At most `limit` rows run at a time. `tolerate` says how many may fail before the batch does: a
        number, a share such as 0.01 or "1%"; any number if it is left out. The result has one entry for each row, in
        order; that of a failed row is an object with `error`. `batch(id)` counts, `items(id)` lists, and `retry(id)`
        runs the rows that failed or never ran. The other options are those of `start`, for the batch as a whole.
        """
        self._base.check_open()
        if not isinstance(program, Program | str):
            raise UsageError(f"start_batch({program!r:.80}, ...) takes a program, such as a workflow, or its name")
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise UsageError(f"start_batch(...) takes rows in an iterable, and {rows!r:.80} is not iterable")
        limit, most = at_least_one(limit, "limit"), tolerance(tolerate)
        known: Program | None
        if isinstance(program, str):
            await self._gateway.load_program(program)
            name, known = check_name(program, "the name of a program"), self._gateway.find_program(program)
        else:
            name, known = program.name, self._gateway.program(Invocation(program.name, program, (), {}))
        if known is not None:
            await self._starts.keep(known)
        encoded = _encoded(name, known, rows, self._base.codec)
        stored = await self._base.items.store(encoded, self._base.codec, f"the batch of {name}")
        given = {"rows": stored, "limit": limit, "tolerate": most}
        batch = None if known is None else known.batch()
        return await self._starts.start(
            Start(
                Invocation(name + BATCH, batch, (), given),
                id=id,
                reuse=reuse,
                queue=queue,
                key=key,
                priority=priority,
                delay=delay,
                deadline=deadline,
                durability=durability,
                rules=rules,
                tags=tags,
            )
        )


def _encoded(name: str, program: Program | None, rows: Iterable[Any], codec: Codec) -> Iterator[Raw]:
    """The inputs of the runs for rows. Raises UsageError for a row that cannot be one, with its number."""
    for number, row in enumerate(rows):
        try:
            yield Raw(_input(name, program, row, codec))
        except PerdureError as error:
            raise UsageError(f"row {number}: {error}") from error


def _input(name: str, program: Program | None, row: Any, codec: Codec) -> bytes:
    args: tuple[Any, ...] = (row,)
    kwargs: dict[str, Any] = {}
    if isinstance(row, Invocation):
        if row.name != name:
            raise UsageError(f"it is an invocation of {row.name!r}, in a batch of {name!r}")
        args, kwargs = row.args, row.kwargs
    elif isinstance(row, Mapping):
        args, kwargs = (), dict(row)
    elif isinstance(row, list | tuple):
        args = tuple(row)
    try:
        return Invocation(name, program, args, kwargs).encode(program, codec)
    except (WrongCall, NotDecodable):
        if args:
            raise
        return codec.encode_inputs(kwargs, "the row")  # this row fails when it runs, and the others still run
