"""Many runs at once, for code that does not await."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, cast

from perdure.blocking.handle import RunHandle
from perdure.blocking.loop import Loop
from perdure.client.bulk import BulkReport
from perdure.client.client import Client
from perdure.client.handle import RunHandle as AsyncRunHandle
from perdure.client.queries import RunFilters
from perdure.client.starts import Start
from perdure.kernel.inbound import Accepted, AlreadyFinished, Cancelled, Duplicate, Finished, NotFound
from perdure.kernel.invocation import Invocation

R = TypeVar("R")


class InBulk:
    """Starts many runs, and tells many runs the same thing."""

    _client: Client
    _loop: Loop

    def start_many(self, starts: Iterable[Invocation[R] | Start[R]]) -> BulkReport[RunHandle[R]]:
        """Start many runs in few commits: invocations, or `Start(invocation, id=..., ...)` with options of its own."""
        return self._handles(self._loop.wait(self._client.start_many(starts)))

    def retry_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[RunHandle[Any]]:
        """Retry the runs that match, those that failed unless `status` says otherwise."""
        retried = self._client.retry_many(limit=limit, cursor=cursor, dry_run=dry_run, **filters)
        return self._handles(self._loop.wait(retried))

    def cancel_many(
        self,
        reason: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Cancelled | AlreadyFinished]:
        """Ask the unfinished runs that match to end."""
        return self._loop.wait(self._client.cancel_many(reason, limit=limit, cursor=cursor, dry_run=dry_run, **filters))

    def pause_many(
        self,
        reason: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Finished]:
        """Let no new step begin of the runs that match."""
        return self._loop.wait(self._client.pause_many(reason, limit=limit, cursor=cursor, dry_run=dry_run, **filters))

    def resume_many(
        self, *, limit: int = 1000, cursor: str | None = None, dry_run: bool = False, **filters: Unpack[RunFilters]
    ) -> BulkReport[Accepted | Finished]:
        """Let the paused runs that match go on."""
        return self._loop.wait(self._client.resume_many(limit=limit, cursor=cursor, dry_run=dry_run, **filters))

    def signal_many(
        self,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        *,
        limit: int = 1000,
        cursor: str | None = None,
        dry_run: bool = False,
        **filters: Unpack[RunFilters],
    ) -> BulkReport[Accepted | Duplicate | NotFound | Finished]:
        """Send the unfinished runs that match a signal."""
        return self._loop.wait(
            self._client.signal_many(name, payload, signal_id, limit=limit, cursor=cursor, dry_run=dry_run, **filters)
        )

    def _handles(self, report: BulkReport[AsyncRunHandle[R]]) -> BulkReport[RunHandle[R]]:
        items = [
            replace(item, result=None if item.result is None else cast("Any", RunHandle(item.result, self._loop)))
            for item in report.items
        ]
        return BulkReport(cast("Any", items), report.cursor, report.dry_run)
