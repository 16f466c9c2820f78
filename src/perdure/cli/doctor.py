"""`perdure doctor`: check the store and its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import Exit
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened_itself
from perdure.cli.output import clean, table, write_json
from perdure.client.client import Client
from perdure.doctor import Check, examine, missing, place, software
from perdure.errors import PerdureError
from perdure.ports.store import Store


def doctor(
    module: Annotated[
        str | None, Parameter(help="file.py or module: also list the open runs for which it has no program.")
    ] = None,
    /,
    *,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Check the store and its environment. Reads, and changes nothing.

    Exits with 0 when no check failed (there may be warnings), and with 1
    otherwise.
    """
    programs: list[str] | None = None
    if module is not None:
        from perdure.cli.targets import load

        programs = [program.name for program in load(module).programs.values()]
    asked = opened_itself(store)
    checks = [*software(), *place(asked)]
    lacking = missing(asked)
    checks += [lacking] if lacking is not None else asyncio.run(_store(asked, programs))
    failed = any(check.verdict == "fail" for check in checks)
    if json:
        write_json({"ok": not failed, "store": store, "checks": checks})
    else:
        _show(checks)
    return Exit.FAILED if failed else Exit.OK


def _show(checks: Sequence[Check]) -> None:
    table(("check", "verdict", "found"), [(c.name, c.verdict, c.found) for c in checks], fold=("found",))
    for check in checks:
        if check.fix:
            print(clean(f"\n{check.name}: {check.fix}", "\n"))


async def _store(store: Store, programs: Sequence[str] | None) -> list[Check]:
    client = Client(store)
    try:
        _ = await client.open()
    except PerdureError as error:
        return [Check("store", "fail", store.url, str(error))]
    try:
        return await examine(client, programs)
    finally:
        await client.close()
