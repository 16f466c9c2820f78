"""`perdure orchestrators`: which are alive, and what they own."""

from __future__ import annotations

from dataclasses import asdict

from cyclopts import App

from perdure.cli.clients import with_reader
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import note, table, when, write_json

app = App(name="orchestrators", help="Show the orchestrators.")


@app.command(sort_key=1)
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the orchestrators that are alive, and those that are gone and still own runs."""
    found = with_reader(opened(store), lambda client: client.orchestrators())
    if json:
        write_json({"orchestrators": [asdict(one) for one in found]})
    elif not found:
        note("no orchestrator is alive, and none owns a run")
    else:
        rows = [
            (
                one.name,
                "alive" if one.alive else "gone",
                str(one.running),
                str(one.waiting),
                when(one.expires_at),
            )
            for one in found
        ]
        table(("name", "state", "running", "waiting", "lease ends"), rows, fold=("name",))
