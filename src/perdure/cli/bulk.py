"""`perdure runs retry`, `cancel`, `pause`, `resume`, `signal`: the same for every run that matches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened, point, tags_of
from perdure.cli.output import clean, note, write_json

if TYPE_CHECKING:
    from perdure.client.bulk import BulkReport

Reason = Annotated[str | None, Parameter(help="The reason; it is recorded in the journals.")]
# The page size of the client's bulk calls.
PAGE = 1000


@Parameter(name="*")
@dataclass(frozen=True)
class Which:
    """Which runs."""

    status: Annotated[list[str] | None, Parameter(negative="", help="Only runs in this status; may be repeated.")] = (
        None
    )
    program: Annotated[str | None, Parameter(help="Only runs of this program.")] = None
    tag: Annotated[
        list[str] | None, Parameter(negative="", help="Only runs with this tag, as key=value; may be repeated.")
    ] = None
    since: Annotated[str | None, Parameter(help="Only runs started since then: 2h (ago), 7d, 2026-11-16T03:00Z.")] = (
        None
    )
    until: Annotated[str | None, Parameter(help="Only runs started before then, in the same form.")] = None
    owner: Annotated[str | None, Parameter(help="Only runs that this orchestrator owns.")] = None
    queue: Annotated[str | None, Parameter(help="Only runs of this queue.")] = None
    parent: Annotated[str | None, Parameter(help="Only the children of this run, by its id or run_id.")] = None
    root: Annotated[str | None, Parameter(help="Only this run and all children in its tree.")] = None
    id_prefix: Annotated[str | None, Parameter(help="Only runs whose id begins with this.")] = None
    roots: Annotated[bool, Parameter(negative="", help="Leave out child runs.")] = False
    search: Annotated[
        str | None, Parameter(help="Only runs with this value: input.customer=ann, output.total=17, error='timed out'.")
    ] = None

    def given(self) -> dict[str, Any]:
        """The filters as arguments for the client, without those that were not given."""
        found: dict[str, Any] = {
            "status": [one for given in self.status or () for one in given.split(",")] or None,
            "tags": tags_of(self.tag or []) or None,
            "since": None if self.since is None else point(self.since, "--since"),
            "until": None if self.until is None else point(self.until, "--until"),
        }
        for name in ("program", "owner", "queue", "parent", "root", "id_prefix", "search"):
            found[name] = getattr(self, name)
        found["roots"] = self.roots or None
        return {name: value for name, value in found.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True)
class Filters(Which):
    """Which runs to change."""

    limit: Annotated[int | None, Parameter(help="The maximum number of runs; by default all that match.")] = None
    dry_run: Annotated[bool, Parameter(negative="", help="Only show which runs would be changed.")] = False


# Built once, for all runs.
ANY = Which()
_ALL = Filters()


def retry(
    id: Annotated[str | None, Parameter(help="The id of one run; without it, the options select runs.")] = None,
    /,
    *,
    max_rounds: Annotated[
        int | None, Parameter(help="How many rounds the loops of a graph may have from now on; of one run.")
    ] = None,
    filters: Filters = _ALL,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int | None:
    """Retry a failed or cancelled run, or all that match, such as --program fulfil. What succeeded is kept."""
    if id is not None:
        if filters != _ALL:
            raise Problem(f"give either the id {id!r} or options that select runs, not both")
        from perdure.cli.forking import retry_one

        retry_one(id, store, json, max_rounds)
        return None
    if max_rounds is not None:
        raise Problem("--max-rounds is for one run: give its id, as in `perdure runs retry ID --max-rounds 2000`")
    return _all(store, json, filters, "retried", lambda client, **which: client.retry_many(**which))


def cancel(
    *, reason: Reason = None, filters: Filters = _ALL, store: StoreUrl = DEFAULT_STORE, json: AsJson = False
) -> int:
    """Cancel every unfinished run that matches. `perdure cancel ID` cancels one."""
    return _all(store, json, filters, "cancelled", lambda client, **which: client.cancel_many(reason, **which))


def pause(
    *, reason: Reason = None, filters: Filters = _ALL, store: StoreUrl = DEFAULT_STORE, json: AsJson = False
) -> int:
    """Pause every run that matches: no new step starts. `perdure pause ID` pauses one."""
    return _all(store, json, filters, "paused", lambda client, **which: client.pause_many(reason, **which))


def resume(*, filters: Filters = _ALL, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> int:
    """Continue every paused run that matches. `perdure resume ID` continues one."""
    return _all(store, json, filters, "resumed", lambda client, **which: client.resume_many(**which))


def signal(
    name: Annotated[str, Parameter(help="The name of the signal.")],
    /,
    *,
    input: Annotated[str | None, Parameter(name="--input", help="JSON, @file.json, or - for stdin.")] = None,
    signal_id: Annotated[str | None, Parameter(help="A signal with the same id is delivered once.")] = None,
    filters: Filters = _ALL,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Send a signal to every unfinished run that matches. `perdure signal ID NAME` sends it to one."""
    from perdure.cli.inputs import read

    payload = None if input is None else read(input)
    return _all(
        store,
        json,
        filters,
        "signalled",
        lambda client, **which: client.signal_many(name, payload, signal_id, **which),
    )


def _all(
    store: str,
    json: bool,
    filters: Filters,
    done: str,
    many: Callable[..., Awaitable[BulkReport[Any]]],
) -> int:
    """Apply a bulk call page by page, and report each run for which it did not succeed."""
    if filters.limit is not None and filters.limit < 1:
        raise Problem(f"--limit {filters.limit} must be at least 1")
    given = filters.given()
    if not given:
        raise Problem("name the runs, as in --program fulfil or --status failed; --dry-run shows which they would be")
    reports = asyncio.run(_pages(store, filters, given, many))
    applied = [item for report in reports for item in report if item.error is None]
    skipped = {id(item) for report in reports for item in report.skipped}
    failed = [item for report in reports for item in report.failed]
    if json:
        write_json(
            {
                "dry_run": filters.dry_run,
                "done": [item.id for item in applied if id(item) not in skipped],
                "skipped": [item.id for item in applied if id(item) in skipped],
                "failed": [{"id": item.id, "error": str(item.error)} for item in failed],
            }
        )
    else:
        for item in applied:
            if id(item) not in skipped:
                print(clean(item.id))
        for item in failed:
            named = repr(item.id) in str(item.error)
            note(str(item.error) if named else f"run {item.id!r}: {item.error}")
        count = len(applied) - len(skipped)
        runs = f"{count} run{'' if count == 1 else 's'}"
        note(f"{runs} would be {done}" if filters.dry_run else f"{runs} {done}")
        if skipped:
            note(f"{len(skipped)} skipped: there was nothing to do")
        if failed:
            note(f"{len(failed)} failed")
    return Exit.FAILED if failed else Exit.OK


async def _pages(
    store: str, filters: Filters, given: dict[str, Any], many: Callable[..., Awaitable[BulkReport[Any]]]
) -> list[BulkReport[Any]]:
    # Imported here, so that commands that only list runs start faster.
    from perdure.cli.clients import client_of
    from perdure.errors import StoreUnavailable

    reports: list[BulkReport[Any]] = []
    left, cursor = filters.limit, None
    async with client_of(opened(store)) as client:
        while left is None or left > 0:
            limit = PAGE if left is None else min(PAGE, left)
            report = await many(client, limit=limit, cursor=cursor, dry_run=filters.dry_run, **given)
            reports.append(report)
            cursor = report.cursor
            left = None if left is None else left - len(report)
            if cursor is None or any(isinstance(item.error, StoreUnavailable) for item in report.failed):
                break
    return reports
