"""`perdure migrate`: update the schema of a store, or show what that would do."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import Exit, Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl
from perdure.cli.output import note, table, write_json
from perdure.kernel.events import moment
from perdure.stores.open import open_store
from perdure.stores.sqlshared.schema import Applied, Migration, Migrations, migrations_of


def migrate(
    *,
    status: Annotated[
        bool,
        Parameter(negative="", help="Only list what is applied and pending; exits with 1 if something is pending."),
    ] = False,
    sql: Annotated[bool, Parameter(negative="", help="Only print the SQL, to apply it by hand.")] = False,
    dry_run: Annotated[bool, Parameter(negative="", help="Apply it in a transaction, and roll back.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> int:
    """Update the schema of a store.

    Any number of processes may call this at once, and engines may keep working:
    each migration says which older versions of perdure it works with.
    """
    if status + sql + dry_run > 1:
        raise Problem("--status, --sql and --dry-run exclude each other; give one of them")
    migrations = migrations_of(open_store(store))
    if migrations is None:
        note(f"{store.partition('://')[0]} stores have no schema: there is nothing to migrate")
        if json:
            write_json({"applied": [], "pending": []})
        return Exit.OK
    if status:
        return asyncio.run(_status(migrations, json))
    if sql:
        script = asyncio.run(migrations.sql())
        print(script, end="")
        if not script:
            note("the schema is up to date: there is nothing to apply")
        return Exit.OK
    done = asyncio.run(migrations.apply(dry_run=dry_run))
    if json:
        write_json({"dry_run": dry_run, "applied": [one.name for one in done]})
    elif not done:
        note("the schema is up to date")
    for one in done if not json else ():
        print(f"{one.name} {'would be applied' if dry_run else 'applied'}", file=sys.stdout)
    return Exit.OK


async def _status(migrations: Migrations, json: bool) -> int:
    applied, pending = await migrations.applied(), await migrations.pending()
    if json:
        write_json({"applied": [_facts(one) for one in applied], "pending": [_facts(one) for one in pending]})
    else:
        done = [(str(a.number), a.name, _date(a), str(a.works_with)) for a in applied]
        todo = [(str(p.number), p.name, "pending", str(p.works_with)) for p in pending]
        table(("number", "name", "applied", "works with"), done + todo)
    return Exit.FAILED if pending else Exit.OK


def _date(applied: Applied) -> str:
    return moment(applied.applied_at).isoformat(" ", "seconds")


def _facts(one: Applied | Migration) -> dict[str, object]:
    facts: dict[str, object] = {
        "number": one.number,
        "name": one.name,
        "checksum": one.checksum,
        "works_with": one.works_with,
    }
    return facts | {"applied_at": moment(one.applied_at)} if isinstance(one, Applied) else facts
