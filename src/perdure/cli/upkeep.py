"""`perdure prune` and `perdure rebuild`: remove old runs, and recompute rows from journals."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.clients import with_client
from perdure.cli.exits import Exit
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, age, seconds
from perdure.cli.output import note, table, write_json
from perdure.client.pruning import NOT_ARCHIVED, PruneReport
from perdure.stores.open import open_store

# How many problems are listed one by one.
SHOWN = 20


def prune(
    *,
    older_than: Annotated[str, Parameter(help="How long ago a run must have ended: 30d, 12h, 90m, 45s, 2w.")],
    status: Annotated[
        list[str] | None,
        Parameter(negative="", help="How it must have ended: completed, failed, cancelled, bailed; may be repeated."),
    ] = None,
    archive: Annotated[str | None, Parameter(help="Write each run into a capsule in this directory first.")] = None,
    grace: Annotated[str, Parameter(help="Keep blobs that were put within this time.")] = "1h",
    items: Annotated[
        bool, Parameter(negative="", help="Remove only the journals of the items of long maps; the runs stay.")
    ] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Only report what would be removed.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Remove runs that ended long ago, with their children, and large values to which no journal refers.

    Without --status, only completed runs are removed. Unfinished runs never
    are. Exits with 1 when a run was kept because it could not be archived.
    """
    longest, patience = age(older_than, "--older-than"), seconds(grace, "--grace")
    statuses = [one for given in status or ["completed"] for one in given.split(",")]
    report = with_client(
        open_store(store), lambda c: c.prune(longest, statuses, dry_run, archive=archive, grace=patience, items=items)
    )
    if json:
        write_json(report)
    else:
        _show_pruned(report)
    return Exit.FAILED if any(kept.reason.startswith(NOT_ARCHIVED) for kept in report.kept) else Exit.OK


def _show_pruned(report: PruneReport) -> None:
    would = "would be " if report.dry_run else ""
    archived = f", {report.archived:,} of them archived" if report.archived else ""
    runs, blobs = _count(report.runs, "run"), _count(report.blobs, "blob")
    note(f"{runs} {would}pruned ({report.bytes:,} bytes){archived}")
    note(f"{blobs} {would}collected ({report.blob_bytes:,} bytes)")
    for kept in report.kept[:SHOWN]:
        note(f"run {kept.id!r} ({kept.run_id}) is kept: {kept.reason}")
    if len(report.kept) > SHOWN:
        note(f"and {len(report.kept) - SHOWN:,} more are kept")


def rebuild(
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Only report what differs.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Recompute the rows of all runs from their journals, report differences, and repair them.

    Exits with 1 when a journal is damaged, and when a dry run found
    differences.
    """
    report = with_client(open_store(store), lambda client: client.rebuild(dry_run=dry_run))
    if json:
        write_json(report)
    else:
        rows = [(d.id, d.run_id, d.column, _text(d.stored), _text(d.computed)) for d in report.differences[:SHOWN]]
        if rows:
            table(("run", "run_id", "column", "stored", "computed"), rows, fold=("run", "stored", "computed"))
        if len(report.differences) > SHOWN:
            note(f"and {len(report.differences) - SHOWN:,} more differences")
        for damaged in report.damaged:
            note(f"the journal of run_id {damaged.run_id} is damaged: {damaged.reason}")
        for run_id in report.busy:
            note(f"run_id {run_id} changed while it was compared; try again")
        repaired = "would be repaired" if dry_run else "repaired"
        note(f"{_count(report.journals, 'journal')} read, {_count(report.mended, 'run')} {repaired}")
    return Exit.FAILED if report.damaged or (dry_run and report.differences) else Exit.OK


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _text(value: object) -> str:
    return "" if value is None else str(value)
