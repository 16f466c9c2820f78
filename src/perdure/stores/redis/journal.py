"""The journal in Redis: one script appends to all runs that are ready, each by compare and swap."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

from perdure.errors import Corrupt, StoreUnavailable
from perdure.kernel.events import BLOB_MARK, Batch, RunStarted, encode_events, references
from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Append, Appended, Conflict, Full, Head, Outcome
from perdure.stores.redis.entries import decode, entry
from perdure.stores.redis.notifications import Notifications
from perdure.stores.redis.rows import head_of, pack
from perdure.stores.redis.scripts import APPEND, HEADS, READ, REWRITE, SETTLE
from perdure.stores.redis.server import LostReply, Server, Texts
from perdure.stores.sqlshared.entries import cut

APPENDED = Appended()
# So many journals are read by one script: the server does nothing else while it runs.
READ_AT_ONCE = 50
FIRST_RETRY, LAST_RETRY = 0.05, 2.0


class RedisJournal:
    """Journals on one server."""

    def __init__(self, server: Server, notifications: Notifications) -> None:
        self._server, self._notifications = server, notifications

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome] | Awaitable[Sequence[Outcome]]:
        """Write each append wholly or not at all, in one script."""
        if not appends:
            return []
        # Encoded at once: the caller may change its lists when it has the awaitable.
        texts = Texts()
        return self._append(appends, [_prepare(append, texts) for append in appends], texts)

    async def _append(
        self, appends: Sequence[Append], prepared: list[tuple[Any, ...]], texts: Texts
    ) -> Sequence[Outcome]:
        token = secrets.token_hex(8)
        try:
            answers = await self._server.once(APPEND, (token, prepared), *texts.all)
        except LostReply as lost:
            return await self._resolve_lost(appends, prepared, texts, token, lost)
        self._notifications.committed(answers[0])
        return [_outcome(append, answer) for append, answer in zip(appends, answers[1:], strict=True)]

    async def _resolve_lost(
        self, appends: Sequence[Append], prepared: list[tuple[Any, ...]], texts: Texts, token: str, lost: LostReply
    ) -> Sequence[Outcome]:
        """Find out what became of an append whose reply was lost. What was not written is written now, or refused."""
        places = [(one[0], one[1], one[5][0]) for one in prepared]
        answers = await self._persist((token, places), lost, *texts.all)
        self._notifications.committed(answers[0])
        done = [bool(answer) for answer in answers[1:]]
        left = [i for i, written in enumerate(done) if not written]
        rest: Iterator[Outcome] = iter(())
        if left:
            rest = iter(await self._append([appends[i] for i in left], [prepared[i] for i in left], texts))
        return [APPENDED if written else next(rest) for written in done]

    async def _persist(self, arguments: Any, lost: LostReply, *texts: bytes) -> Any:
        """Retry until there is an answer: an append must not be reported as failed while that is unknown."""
        delay = FIRST_RETRY
        while True:
            try:
                return await self._server.once(SETTLE, arguments, *texts)
            except (LostReply, StoreUnavailable):
                if not self._server.is_open:
                    raise self._server.unreachable(lost) from lost
            await asyncio.sleep(delay)
            delay = min(2 * delay, LAST_RETRY)

    async def rewrite(self, run_id: str, expected_next: int, batches: Sequence[Batch]) -> Outcome:
        """Replace a whole journal by these batches."""
        append = Append(run_id, expected_next, batches)
        texts = Texts()
        one = _prepare(append, texts)
        while True:
            token = secrets.token_hex(8)
            try:
                answers = await self._server.once(REWRITE, (*one[:6], one[9], token), *texts.all)
            except LostReply as lost:
                await self._persist((token, ()), lost)
                head = await self.head(run_id)
                if head == Head(append.next_seq, batches[-1].at, one[4]):
                    self._notifications.committed((await self._persist((token, ()), lost))[0])
                    return APPENDED
            else:
                self._notifications.committed(answers[0])
                return _outcome(append, answers[1])

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        """The events from number `start` on, at most `limit` of them."""
        [(head, entries)] = await self._server.call(READ, ((run_id,), start, limit))
        return cut(decode(run_id, head, entries, start, whole=limit is None), start, limit)

    async def read_many(self, run_ids: Sequence[str]) -> dict[str, list[Batch] | Exception]:
        """Whole journals; a damaged journal is returned as its error."""
        journals: dict[str, list[Batch] | Exception] = {}
        for first in range(0, len(run_ids), READ_AT_ONCE):
            some = run_ids[first : first + READ_AT_ONCE]
            answers = await self._server.call(READ, (some, 0, None))
            for run_id, (head, entries) in zip(some, answers, strict=True):
                try:
                    if found := decode(run_id, head, entries, 0, whole=True):
                        journals[run_id] = found
                except Corrupt as error:
                    journals[run_id] = error
        return journals

    async def heads(self, run_ids: Sequence[str]) -> dict[str, int]:
        """The next number of each of these journals that exists."""
        if not run_ids:
            return {}
        answers = await self._server.call(HEADS, list(run_ids))
        return {run_id: int(found) for run_id, found in zip(run_ids, answers, strict=True) if found is not None}

    async def head(self, run_id: str) -> Head | None:
        """The end of the journal."""
        key = f"{self._server.address.prefix}head:{run_id}"
        return head_of(await self._server.query("HMGET", key, "n", "t", "s"))


def _prepare(append: Append, texts: Texts) -> tuple[Any, ...]:
    """An append as the script takes it; lua/append.lua has the same positions, from 1 on."""
    run_id, size, entries = append.run_id, 0, []
    blobs: list[str] = []
    for batch in append.batches:
        data = encode_events(batch.events)
        size += len(data)
        entries.append(texts.put(entry(run_id, batch.seq, batch.at, data)))
        if BLOB_MARK in data:
            blobs += references(batch.events)
    return (
        run_id,
        append.expected_next,
        append.next_seq,
        repr(append.batches[-1].at),
        size,
        entries,
        None if append.row is None else pack(append.row, texts),
        [pack(child, texts) for child in append.children],
        [_prepare(start, texts) for start in append.starts],
        blobs,
        None if append.admit is None or append.row is None else _limits(append.admit, append.row),
        _deadline(append) if append.expected_next == 0 else None,
    )


def _deadline(append: Append) -> str | None:
    """The deadline of a new run."""
    first = append.batches[0].events[0]
    return repr(first.deadline) if isinstance(first, RunStarted) and first.deadline is not None else None


def _limits(queue: Queue, row: RunRow) -> tuple[Any, ...]:
    if queue.rate is None or row.began_at is None:
        return queue.concurrency, queue.per_key
    per = queue.rate.seconds
    return queue.concurrency, queue.per_key, queue.rate.count, repr(row.began_at - per), repr(row.began_at + per)


def _outcome(append: Append, answer: Any) -> Outcome:
    match answer:
        case 1:
            return APPENDED
        case [2, next_seq]:
            return Conflict(next_seq)
        case [3, nth] if append.admit is not None and append.admit.rate is not None:
            return Full(float(nth) + append.admit.rate.seconds)
        case [3]:
            return Full()
        case _:
            return Conflict(None)
