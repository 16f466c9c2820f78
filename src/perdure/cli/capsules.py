"""`perdure export`, `import` and `compact`: a run in a file, and a journal that takes less room."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.clients import client_of, with_client
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, is_remote, opened, settings
from perdure.cli.output import note, write_json
from perdure.client.base import StoreClient
from perdure.client.client import Client
from perdure.client.gateway import StoreGateway
from perdure.client.pruning import write_whole
from perdure.client.views import RunView
from perdure.kernel.history.capsule import MOST_BYTES
from perdure.kernel.program import Program
from perdure.ports.store import Store
from perdure.stores.open import open_store


def export(
    id: RunId,
    /,
    *,
    output: Annotated[str, Parameter(name=["--output", "-o"], help="The file to write.")],
    redact: Annotated[
        list[str] | None,
        Parameter(
            negative="", help="Redact the value at this path, such as $.card.number or charge:0.$.pan; may be repeated."
        ),
    ] = None,
    code: Annotated[str | None, Parameter(help="file.py or module: include the hash of the program's source.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Write a run to a file, a capsule: its journal with its children, its values, and which program wrote it."""
    programs: dict[str, Program] = {}
    if code is not None:
        from perdure.cli.targets import load

        programs = {program.name: program for program in load(code).programs.values()}

    async def export_run() -> bytes:
        remote = is_remote(store)
        async with client_of(opened(store)) if remote else _Knowing(open_store(store), programs) as client:
            return await client.export(id, redact=redact or ())

    data = asyncio.run(export_run())
    try:
        write_whole(output, data)
    except OSError as error:
        raise Problem(f"cannot write {output}: {error.strerror}") from error
    if json:
        write_json({"id": id, "file": output, "bytes": len(data), "redacted": redact or []})
    else:
        note(f"run {id!r} was written to {output} ({len(data):,} bytes)")


def import_(
    file: Annotated[str, Parameter(help="A capsule, written by `perdure export`.")],
    /,
    *,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Import a run from a capsule into a store, for reading and replaying. No engine executes it.

    An unfinished run is parked. A file that was damaged or changed is refused.
    """
    data = _read(file)

    async def import_run() -> RunView:
        into = opened(store)
        # A store of its own is a good place for a run from elsewhere, and need not exist yet.
        await into.open(migrate=True)
        await into.close()
        async with client_of(into) as client:
            return await client.import_run(data)

    view = asyncio.run(import_run())
    if json:
        write_json(view)
    else:
        show = shlex.join(["perdure", "runs", "show", view.id, *([] if store == DEFAULT_STORE else ["--store", store])])
        note(f"run {view.id!r} of {view.program} was imported into {store} ({view.status}); to read it: {show}")


def compact(
    id: RunId,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Only report what would be removed.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Remove chunks and progress from the journal of a finished run.

    Results, attempts, errors, owners, signals and answers stay. Events are
    renumbered.
    """
    report = with_client(open_store(store), lambda client: client.compact(id, dry_run=dry_run))
    if json:
        write_json(report)
    else:
        became = "would become" if dry_run else "became"
        note(
            f"the journal of run {id!r}: {report.events_before:,} events ({report.bytes_before:,} bytes) {became} "
            f"{report.events_after:,} ({report.bytes_after:,} bytes)"
        )


class _Knowing(Client):
    """A client that has programs, to name the source of a run's."""

    def __init__(self, store: Store, programs: dict[str, Program]) -> None:
        super().__init__(store, redact=settings().redact or ())
        self._assemble(self._base, _KnownPrograms(self._base, programs))


class _KnownPrograms(StoreGateway):
    def __init__(self, base: StoreClient, programs: dict[str, Program]) -> None:
        super().__init__(base, base.resolve)
        self._programs = programs

    def find_program(self, name: str, version: str = "") -> Program | None:
        return self._programs.get(name)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            # One byte more than there can be: enough to be refused, whatever the file is.
            return file.read(MOST_BYTES + 1)
    except OSError as error:
        raise Problem(f"cannot read {path}: {error.strerror}") from error
