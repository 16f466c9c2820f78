"""`perdure runs inspect`: where the code of a run stood at an op, and what it knew there."""

from __future__ import annotations

import asyncio
import linecache
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perdure.cli.clients import reader_of, view_of
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened, settings
from perdure.cli.output import clean, note, write_json
from perdure.errors import Diverged, UsageError
from perdure.kernel.events import Batch, RunStarted
from perdure.kernel.values.codec import Codec
from perdure.ports.blobs import sources_of
from perdure.ports.store import definitions_of

if TYPE_CHECKING:
    from perdure.authoring.code.frames import SuspendedTask
    from perdure.cli.targets import Target
    from perdure.kernel.divergence.source import Source
    from perdure.kernel.policies.versions import Programs


def inspect(
    id: RunId,
    /,
    *,
    at: Annotated[
        str | None, Parameter(help="An op path, or the number of an event; by default the end of its journal.")
    ] = None,
    module: Annotated[
        str | None, Parameter(help="The file or module of the workflow; by default the file in its journal.")
    ] = None,
    width: Annotated[int, Parameter(help="How many characters of a value are shown.")] = 200,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Replay a run up to an op, without effects, and show the current line and its variables."""
    from perdure.authoring.code.frames import inspect as look
    from perdure.kernel.divergence.repair import Repairs
    from perdure.kernel.policies.versions import Programs

    run_id, started, batches, codec, files, sources, definitions = asyncio.run(_read(store, id))
    programs = _shown(definitions if module is None else (), started)
    source = f"the stored definition of {started.program}"
    if programs is None:
        target = _target(module, started.program, files)
        programs, source = Programs(target.programs.values()), target.source
    place = int(at) if at is not None and at.isdecimal() else at
    try:
        found = look(programs, codec, run_id, started, batches, place, max(20, width))
    except Diverged as error:
        # With both sides, where the code of then is known; no change of the code is tried.
        explained = Repairs(programs).repaired(error, batches, sources, lambda others: False)
        raise Problem(f"{explained}\nThe code in {source} is not the code that this run was recorded with") from error
    if json:
        write_json({"id": started.id, "run_id": run_id, "at": at, "tasks": found})
    else:
        _show(found, id, at)


def arguments_of(store: str, id: str, module: str | None) -> dict[str, dict[str, Any]]:
    """The arguments of the steps of a run by op path, from replay; none if the code is not available."""
    from perdure.authoring.code.frames import arguments
    from perdure.kernel.policies.versions import Programs

    run_id, started, batches, codec, files, _, definitions = asyncio.run(_read(store, id))
    programs = _shown(definitions if module is None else (), started)
    if programs is not None:
        return arguments(programs, codec, run_id, started, batches)
    try:
        target = _target(module, started.program, files)
        return arguments(Programs(target.programs.values()), codec, run_id, started, batches)
    except (Problem, UsageError) as error:
        if module is not None:
            raise
        note(f"only recorded inputs are shown: {error}")
        return {}


async def _read(
    store: str, id: str
) -> tuple[str, RunStarted, Sequence[Batch], Codec, list[str], dict[str, Source], Sequence[bytes]]:
    """A run with its journal, the files that its workflow may be in, the likeliest first, its sources of then, and the
    definitions of flows."""
    async with reader_of(opened(store)) as client:
        view = await view_of(client, id)
        batches = await client.store.journal.read(view.root)
        started = await client.payloads.with_input(batches)
        sources = await sources_of(client.store.blobs, batches)
        # The first part of a stored source is the workflow's; its ops may be asked for in other files.
        files = [part.file for source in reversed(sources.values()) for part in source.parts[:1]]
        ops = (getattr(event, "source", "") for batch in batches for event in batch.events)
        files += [op.rpartition(":")[0] for op in ops]
        whole, definitions = await client.payloads.inflate(batches), await definitions_of(client.store, batches)
        return view.root, started, whole, client.codec, files, sources, definitions


def _shown(definitions: Sequence[bytes], started: RunStarted) -> Programs | None:
    """The programs of a run of a flow; None for a run of something else."""
    from perdure.stored import shown

    programs = shown(definitions) if definitions else None
    return programs if programs is not None and programs.serves(started.program, started.version) else None


def _target(module: str | None, program: str, files: Sequence[str]) -> Target:
    """The module that was given; else the first file, or the module of the settings, that has the workflow."""
    from perdure.cli.targets import load

    here = [file for file in dict.fromkeys(files) if file.endswith(".py") and os.path.isfile(file)]
    tried = [module] if module is not None else [*here, *filter(None, [settings().module])]
    for place in tried:
        target = load(place)
        if any(known.name == program for known in target.programs.values()):
            return target
    if tried:
        raise Problem(f"{', '.join(tried)} has no workflow named {program!r}; give its file with --module")
    named = next((file for file in files if file), "")
    where = f"it was executed from {named}, which is not here" if named else "its journal names no file"
    raise Problem(f"the workflow {program!r} was not found: {where}; say where it is with --module")


def _show(found: Sequence[SuspendedTask], id: str, at: str | None) -> None:
    if not found:
        note(f"run {id!r} has ended" if at is None else f"no task of run {id!r} was running at {at}")
        return
    for number, task in enumerate(found):
        waits = f", waits for {task.waits_for}" if task.waits_for else ""
        print(("\n" if number else "") + clean(f"{task.program} {task.task}".strip() + waits))
        for frame in task.frames:
            if frame.source:
                print(clean(f"  {frame.source} in {frame.function}"))
            code = _line(frame.source)
            if code:
                print(clean(f"    > {code}"))
            for name, value in frame.variables.items():
                print(clean(f"    {name} = {value}"))


def _line(source: str) -> str:
    """The text of a line, `file:line` or `file:line:column`, if the file is here."""
    found = re.fullmatch(r"(.+?):([0-9]+)(?::[0-9]+)?", source)
    return "" if found is None else linecache.getline(os.path.abspath(found[1]), int(found[2])).strip()
