"""Runs of `perdure.bulk`: durable bulk actions, which continue without their caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.client.base import StoreClient
from perdure.client.bulk import AT_ONCE, UNFINISHED, Bulk
from perdure.client.forking import Forks
from perdure.client.handle import RunHandle
from perdure.client.messages import Messages
from perdure.client.queries import Queries, RunFilters
from perdure.client.starts import Start, Starts
from perdure.errors import NoSuchRun, UsageError
from perdure.kernel.events import RunStatus
from perdure.kernel.ids import BUILT_IN, BULK, REMOTE, check_name
from perdure.kernel.invocation import Invocation
from perdure.kernel.projection import RunRow
from perdure.kernel.values.redact import redacted_row
from perdure.kernel.values.redaction import Redaction
from perdure.ports.journal import Head

# How many failures are kept, with the ids of their runs.
FAILURES = 1000

Action: TypeAlias = Literal["cancel", "pause", "resume", "retry", "signal"]
# By action: the statuses if the filters name none.
STATUSES: dict[Action, tuple[RunStatus, ...]] = {
    "cancel": UNFINISHED,
    "pause": (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING),
    "resume": (RunStatus.PAUSED,),
    "retry": (RunStatus.FAILED,),
    "signal": UNFINISHED,
}


class Filters(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which runs, as in `list()`. `parked`: only those parked with this kind of reason."""

    status: tuple[RunStatus, ...] = ()
    program: str | None = None
    tags: dict[str, str] | None = None
    since: datetime | None = None
    until: datetime | None = None
    owner: str | None = None
    parent: str | None = None
    root: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    search: str | None = None
    roots: bool = False
    parked: str | None = None

    def given(self) -> RunFilters:
        """The filters as arguments of `list()`."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "parked"}
        found: RunFilters = {name: value for name, value in fields.items() if value}  # type: ignore[assignment]
        return found


class BulkRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action on `ids`, or on the runs that match the filters.

    `programs`: only runs of these programs. `by` is the caller, and `redact` the parts of values that the caller may
    not see, and that their filters do not find.
    """

    action: Action
    ids: tuple[str, ...] | None = None
    filters: Filters = Filters()
    reason: str | None = None
    name: str | None = None
    payload: Any = None
    signal_id: str | None = None
    by: str | None = None
    programs: tuple[str, ...] | None = None
    redact: tuple[str, ...] = ()


class Selected(msgspec.Struct, frozen=True):
    """The next runs, by run_id; the given ids that are no runs; and the cursor of the next page, None at the end."""

    run_ids: tuple[str, ...]
    failures: tuple[tuple[str, str], ...] = ()
    cursor: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """Counts of handled runs. `failures` has the first failed ids, each with its error."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    failures: tuple[tuple[str, str], ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The counts, without the failures."""
        return {"done": self.done, "skipped": self.skipped, "failed": self.failed}

    def plus(self, other: Progress) -> Progress:
        """The sum of both."""
        return Progress(
            self.done + other.done,
            self.skipped + other.skipped,
            self.failed + other.failed,
            (*self.failures, *other.failures)[:FAILURES],
        )


class BulkRuns:
    """Starts bulk runs, and performs their actions page by page."""

    def __init__(
        self, base: StoreClient, queries: Queries, messages: Messages, forks: Forks, starts: Starts, bulk: Bulk
    ) -> None:
        self._base, self._queries, self._messages, self._forks = base, queries, messages, forks
        self._starts, self._bulk = starts, bulk

    async def start(self, request: BulkRequest, id: str | None = None) -> RunHandle[Any]:
        """Start a run for the action, once under an id. Any engine executes it."""
        _check(request)
        _ = await self._queries.filter("bulk", request.filters.given())
        invocation: Invocation[Any] = Invocation(
            BULK, None, (), {"request": request, "progress": Progress(), "cursor": None}
        )
        tags = {"action": request.action, **({"by": request.by} if request.by else {})}
        return await self._starts.start(Start(invocation, id=id, tags=tags))

    async def select(self, request: BulkRequest, cursor: str | None) -> Selected:
        """The next runs to act on, as they are now, so that a repeated attempt acts on the same ones."""
        if request.ids is not None:
            return await self._named(request, int(cursor or 0))
        filters = request.filters.given()
        matching = await self._queries.filter("bulk", {"status": STATUSES[request.action], **filters})
        redaction = Redaction(request.redact)
        guessing = bool(redaction) and (matching.match is not None or bool(matching.tags))
        matching = replace(matching, values=guessing)
        heads: dict[str, Head] = {}

        def only(row: RunRow, head: Head) -> bool:
            heads[row.run_id] = head
            return _may(request, row) and (not guessing or matching.fits(redacted_row(row, redaction), head))

        rows, cursor = await self._bulk.page(matching, cursor, AT_ONCE, latest=request.action == "retry", only=only)
        if (kind := request.filters.parked) is not None:
            rows = [row for row, _ in await self._queries.parked_as([(row, heads[row.run_id]) for row in rows], kind)]
        return Selected(tuple(row.run_id for row in rows), (), cursor)

    async def _named(self, request: BulkRequest, start: int) -> Selected:
        ids = request.ids or ()
        run_ids: list[str] = []
        failures: list[tuple[str, str]] = []
        for id in ids[start : start + AT_ONCE]:
            found = await self._base.find(id)
            if found is None or not _may(request, found[0]):
                failures.append((id, str(NoSuchRun(id))))
            else:
                run_ids.append(found[0].run_id)
        end = start + AT_ONCE
        return Selected(tuple(run_ids), tuple(failures), str(end) if end < len(ids) else None)

    async def act(self, request: BulkRequest, selected: Selected, key: str) -> Progress:
        """Act on the selected runs; `key` deduplicates the messages of a repeated attempt."""
        items = await self._bulk.act_on(selected.run_ids, self._action(request, key), 0, dry_run=False)
        failures = [*selected.failures, *((item.id, str(item.error)) for item in items if item.error is not None)]
        skipped = sum(item.skipped for item in items)
        failed = len(failures)
        done = len(items) + len(selected.failures) - failed - skipped
        return Progress(done, skipped, failed, tuple(failures[:FAILURES]))

    def _action(self, request: BulkRequest, key: str) -> Callable[[str], Awaitable[Any]]:
        messages, reason, by = self._messages, request.reason, request.by
        name, signal_id = request.name or "", request.signal_id or key
        actions: dict[Action, Callable[[str], Awaitable[Any]]] = {
            "cancel": lambda id: messages.cancel(id, reason, by=by),
            "pause": lambda id: messages.pause(id, reason, by=by),
            "resume": lambda id: messages.resume(id, by=by),
            "retry": lambda id: self._forks.retry(id, by=by),
            "signal": lambda id: messages.signal(id, name, request.payload, signal_id),
        }
        return actions[request.action]


def _may(request: BulkRequest, row: RunRow) -> bool:
    """Whether a run may be acted on: not one of perdure's own, such as a schedule, unless it is a remote step."""
    built_in = row.program.startswith(BUILT_IN) and not row.program.startswith(REMOTE)
    return not built_in and (request.programs is None or row.program in request.programs)


def _check(request: BulkRequest) -> None:
    """Raise UsageError for a request without runs or with both ids and filters, or with wrong options."""
    given: Sequence[str] = [*request.filters.given()]
    if (request.ids is None) == (given in ([], ["roots"])):
        raise UsageError("bulk: give the ids of runs, or a filter such as a status or a program")
    if request.action == "signal":
        check_name(request.name or "", "the name of a signal")
