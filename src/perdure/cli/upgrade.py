"""`perdure upgrade-check`: check whether open runs fit the code of a module, before it is deployed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from perdure.cli.exits import Exit
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl
from perdure.cli.output import clean, note, write_json
from perdure.cli.targets import load
from perdure.client.client import Client
from perdure.client.upgrade import Checked
from perdure.client.upgrade import upgrade_check as checked
from perdure.kernel.history.upgrade import Fit
from perdure.kernel.policies.versions import Programs
from perdure.kernel.values.codec import TypeCodec
from perdure.stores.open import open_store

TITLES = {Fit.PATCH: "needs a patch", Fit.BREAKS: "breaks"}
# How many ids stand for a group of runs with the same problem.
EXAMPLES = 3


def upgrade_check(
    module: Annotated[str, Parameter(help="file.py or module with the new workflows.")],
    /,
    *,
    sample: Annotated[int | None, Parameter(help="Check only this many runs, spread over all.")] = None,
    format: Annotated[
        Literal["text", "json", "github"], Parameter(help="github: annotations for GitHub Actions.")
    ] = "text",
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Replay every open run against the code of a module. It calls no step and writes nothing.

    Exits with 0 when all runs are safe, and with 1 when any needs a patch or
    breaks.
    """
    target = load(module)
    programs = Programs(target.programs.values())
    counts, found = asyncio.run(_check(store, programs, target.codecs, sample))
    if format == "github":
        _annotate(found)
    elif json or format == "json":
        runs = [{name: getattr(run, name) for name in run.__struct_fields__} for run in found]
        write_json({"checked": sum(counts.values()), **{fit.value: counts[fit] for fit in Fit}, "runs": runs})
    else:
        _show(found)
        total = sum(counts.values())
        note(
            f"{total} open run{'' if total == 1 else 's'}: " + ", ".join(f"{counts[fit]} {_title(fit)}" for fit in Fit)
        )
    return Exit.FAILED if found else Exit.OK


async def _check(
    store: str, programs: Programs, codecs: Sequence[TypeCodec[Any]], sample: int | None
) -> tuple[dict[Fit, int], list[Checked]]:
    counts, found = dict.fromkeys(Fit, 0), []
    async with Client(open_store(store), codecs=codecs) as client:
        async for run in checked(client, programs, sample=sample):
            counts[run.fit] += 1
            if run.fit is not Fit.SAFE:
                found.append(run)
    return counts, found


def _classes(found: Sequence[Checked]) -> Iterator[tuple[Checked, str]]:
    """One run for all that do not fit for the same reason, with a line about them."""
    groups: dict[tuple[str, ...], list[Checked]] = {}
    for run in found:
        groups.setdefault((run.fit, run.program, run.version, run.kind, run.source or run.title), []).append(run)
    for (fit, program, version, *_), runs in sorted(groups.items(), key=lambda group: -len(group[1])):
        named = ", ".join(run.id for run in runs[:EXAMPLES]) + (", …" if len(runs) > EXAMPLES else "")
        count = f"{len(runs):,} runs" if len(runs) > 1 else "1 run"
        which = f"{count} of {program}{f', version {version}' if version else ''} ({named})"
        yield runs[0], f"{_title(Fit(fit))}: {which}: {runs[0].title}"


def _show(found: Sequence[Checked]) -> None:
    """One line for each class of runs that do not fit, with the explanation of one of them."""
    for run, line in _classes(found):
        print(clean(line))
        for more in _details(run).splitlines():
            print(clean(f"    {more}".rstrip()))


def _details(run: Checked) -> str:
    """The explanation without its title."""
    return run.reason.partition("\n\n")[2]


def _annotate(found: Sequence[Checked]) -> None:
    """The same as annotations of the lines that do not fit."""
    for run, line in _classes(found):
        file, _, number = run.source.rpartition(":")
        where = f"file={_escaped(file, ',:')},line={number}," if number.isdigit() else ""
        text = _escaped(f"{line}\n\n{_details(run)}".rstrip())
        print(f"::error {where}title=perdure upgrade-check::{text}")


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(c):02X}" if c in "%\r\n" + more else c for c in clean(text, keep="\n"))


def _title(fit: Fit) -> str:
    return TITLES.get(fit, "safe")
