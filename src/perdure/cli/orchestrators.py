"""`perdure orchestrators`: who lives, and who owns what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from cyclopts import App

from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import note, table, write_json
from perdure.client.client import Client
from perdure.client.views import OrchestratorView

app = App(name="orchestrators", help="Look at orchestrators.")


@app.command(sort_key=1)
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the orchestrators that live, and those that are gone and still own runs."""

    async def ask() -> Sequence[OrchestratorView]:
        async with Client(opened(store)) as client:
            return await client.orchestrators()

    found = asyncio.run(ask())
    if json:
        write_json({"orchestrators": [asdict(one) for one in found]})
    elif not found:
        note("no orchestrator lives, and none owns a run")
    else:
        rows = [
            (
                one.name,
                "alive" if one.alive else "gone",
                str(one.running),
                str(one.waiting),
                "" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M:%S}Z",
            )
            for one in found
        ]
        table(("name", "state", "running", "waiting", "alive until"), rows, fold=("name",))
