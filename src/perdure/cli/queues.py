"""`perdure queues`: how many runs of each queue wait, and how many are in progress."""

from __future__ import annotations

from cyclopts import App

from perdure.cli.clients import with_reader
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import note, table, write_json
from perdure.kernel.policies.durations import span

app = App(name="queues", help="Show the queues.")


@app.command(sort_key=1)
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the queues that have runs: how many wait, how many are in progress, and the longest wait."""
    queues = with_reader(opened(store), lambda client: client.queues())
    if json:
        # Limits belong to the engines that serve a queue; the store does not know them.
        write_json(
            {"queues": [{"name": q.name, "queued": q.queued, "running": q.running, "oldest": q.oldest} for q in queues]}
        )
    elif not queues:
        note("no queue has runs")
    else:
        rows = [
            (q.name, str(q.queued), str(q.running), "" if q.oldest is None else f"{span(q.oldest)}") for q in queues
        ]
        table(("queue", "queued", "running", "longest wait"), rows, fold=("queue",))
