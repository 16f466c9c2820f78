"""One call for many runs: the outcome of each is reported, and a failure does not stop the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.queries import Queries, RunFilters
from perdure.errors import NoSuchRun, StoreUnavailable, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import check_cursor
from perdure.kernel.inbound import AlreadyFinished, Duplicate, Finished, NotFound
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Head
from perdure.ports.runs import RunFilter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# How many runs are handled at a time: few enough to leave the loop free, many enough to share commits.
AT_ONCE = 100
UNFINISHED = tuple(status for status in RunStatus if not status.finished)
_NOTHING_TO_DO = (AlreadyFinished, Finished, Duplicate, NotFound)


@dataclass(frozen=True, slots=True)
class BulkItem(Generic[T_co]):
    """The outcome for one run: a `result`, or an `error`. `index` is its position in the request."""

    index: int
    id: str
    result: T_co | None = None
    error: Exception | None = None

    @property
    def skipped(self) -> bool:
        """Whether there was nothing to do: the run had ended, or it was a duplicate."""
        return isinstance(self.result, _NOTHING_TO_DO)


@dataclass(frozen=True, slots=True)
class BulkReport(Generic[T_co]):
    """The outcome for many runs, in order.

    A `cursor` means that there may be more: pass it to the same call to continue. With `dry_run` nothing was done, and
    `items` are the runs that would have been acted on.
    """

    items: Sequence[BulkItem[T_co]]
    cursor: str | None = None
    dry_run: bool = False

    @property
    def done(self) -> list[T_co]:
        """The results of the runs that were acted on: handles, or what the call for one run returns."""
        return [item.result for item in self.items if item.result is not None and not item.skipped]

    @property
    def skipped(self) -> list[BulkItem[T_co]]:
        """Runs for which there was nothing to do: they had ended, or it was a duplicate."""
        return [item for item in self.items if item.skipped]

    @property
    def failed(self) -> list[BulkItem[T_co]]:
        """Runs for which the call failed, each with its `error`."""
        return [item for item in self.items if item.error is not None]

    def raise_failed(self) -> None:
        """Raise the errors as one ExceptionGroup, if there are any."""
        if errors := [item.error for item in self.items if item.error is not None]:
            raise ExceptionGroup(f"{len(errors)} of {len(self.items)} runs", errors)

    def __iter__(self) -> Iterator[BulkItem[T_co]]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Bulk:
    """Makes one call for many runs."""

    def __init__(self, base: StoreClient, queries: Queries) -> None:
        self._base, self._queries = base, queries

    async def each(
        self,
        what: str,
        filters: RunFilters,
        status: Sequence[RunStatus],
        act: Callable[[str], Awaitable[T]],
        limit: int,
        cursor: str | None,
        dry_run: bool,
        *,
        latest: bool = False,
    ) -> BulkReport[T]:
        """Call `act` with every run that matches, a few at a time; stop where the store is out of reach, and say where.

        `status` is the default for filters without a status. With `latest`, only the latest run under an id counts.
        """
        self._base.check_open()
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise UsageError(f"{what}(limit={limit!r}): give a maximum number of runs, at least 1")
        if unknown := sorted(filters.keys() - RunFilters.__annotations__.keys()):
            raise UsageError(f"{what}() has no filter {unknown[0]!r}; it has {', '.join(RunFilters.__annotations__)}")
        given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        # Empty tags, the prefix "" and roots=False exclude nothing. Empty ids or statuses match no run.
        if not any(value or name in ("ids", "status") for name, value in given.items()):
            raise UsageError(f"{what}() without a filter would select every run; select some, as in program='fulfil'")
        _ = check_cursor(cursor, what)
        if "ids" in given:
            return await self._named(what, given, act, limit, cursor, dry_run)
        items: list[BulkItem[T]] = []
        matching = await self._queries.filter(what, cast("RunFilters", {"status": status, **given}))
        while True:
            want = min(AT_ONCE, limit - len(items))
            rows, cursor = await self.page(matching, cursor, want, latest=latest)
            page = [row.run_id for row in rows]
            items += await self.act_on(page, act, len(items), dry_run)
            lost = any(isinstance(item.error, StoreUnavailable) for item in items[-len(page) :] if page)
            if cursor is None or len(items) >= limit or lost:
                return BulkReport(items, cursor, dry_run)

    async def _named(
        self,
        what: str,
        given: dict[str, Any],
        act: Callable[[str], Awaitable[T]],
        limit: int,
        cursor: str | None,
        dry_run: bool,
    ) -> BulkReport[T]:
        if len(given) > 1 or cursor is not None:
            raise UsageError(f"{what}(ids=[...]) already selects runs; leave out other filters and the cursor")
        if isinstance(given["ids"], str):
            raise UsageError(f"{what}(ids={given['ids']!r}) is one string; give a list, as in ids=[{given['ids']!r}]")
        if not isinstance(given["ids"], Iterable):
            raise UsageError(f"{what}(ids={given['ids']!r:.80}): give the ids in a list")
        ids = list(dict.fromkeys(given["ids"]))
        if len(ids) > limit:
            raise UsageError(f"{what}(ids=[...]) names {len(ids):,} runs, more than limit={limit:,}")
        items: list[BulkItem[T]] = []
        for start in range(0, len(ids), AT_ONCE):
            items += await self.act_on(ids[start : start + AT_ONCE], act, start, dry_run)
        return BulkReport(items, None, dry_run)

    async def page(
        self,
        matching: RunFilter,
        cursor: str | None,
        want: int,
        *,
        latest: bool,
        only: Callable[[RunRow, Head], bool] = lambda row, head: True,
    ) -> tuple[list[RunRow], str | None]:
        """The next matching runs, and the cursor after them; None at the end.

        `only`: leave out other matching runs, which the cursor does not mention.
        """
        page: list[RunRow] = []
        while True:
            filter = replace(matching, limit=AT_ONCE, cursor=cursor)
            found = await self._base.store.runs.list(filter)
            for run, head in found:
                cursor = run.run_id
                if not only(run, head):
                    continue
                if await self._goes_with_its_root(run, matching) or (latest and not await self._is_latest(run)):
                    continue
                page.append(run)
                if len(page) == want:
                    return page, cursor
            if len(found) < AT_ONCE:
                return page, None

    async def _is_latest(self, run: RunRow) -> bool:
        found = await self._base.store.runs.find(run.id)
        return found is None or found[0].run_id == run.run_id

    async def _goes_with_its_root(self, run: RunRow, matching: RunFilter) -> bool:
        """Whether the root of a child matches as well: acting on the root is enough, and better for the child."""
        root = await self._base.store.runs.get(run.root) if run.root else None
        return root is not None and matching.fits(root)

    async def act_on(
        self, ids: Sequence[str], act: Callable[[str], Awaitable[T]], first: int, dry_run: bool
    ) -> list[BulkItem[T]]:
        """Call `act` with each of these runs; `first` is the index of the first."""

        async def one(index: int, run: str) -> BulkItem[T]:
            id = run
            try:
                found = await self._base.find(run)
                if found is None:
                    raise NoSuchRun(run)
                id = found[0].id
                return BulkItem(index, id, None if dry_run else await act(run))
            except Exception as error:
                return BulkItem(index, id, error=error)

        return await asyncio.gather(*(one(index, run) for index, run in enumerate(ids, first)))
