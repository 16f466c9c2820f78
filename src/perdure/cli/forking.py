"""`perdure runs fork`, `travel`, and `retry` of one run: new runs with the past of others, for engines to execute."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, RunId, StoreUrl, opened
from perdure.cli.output import note, write_json
from perdure.client.views import RunView

if TYPE_CHECKING:
    from perdure.client.client import Client
    from perdure.client.handle import RunHandle

NewId = Annotated[str | None, Parameter(help="The id of the new run; by default one is generated.")]


def fork(
    id: RunId,
    /,
    *,
    at: Annotated[
        str | None, Parameter(help="Where to fork: an op path (right before that op), or the number of an event.")
    ] = None,
    set: Annotated[
        list[str] | None, Parameter(negative="", help="OP=JSON: another outcome for an op; may be repeated.")
    ] = None,
    state: Annotated[
        list[str] | None, Parameter(negative="", help="KEY=JSON: another published value; may be repeated.")
    ] = None,
    input: Annotated[
        str | None, Parameter(help="Other arguments for the workflow: a JSON object, @file.json, or - for stdin.")
    ] = None,
    new_id: NewId = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Start a run with the past of another up to a point. The original does not change."""
    place = int(at) if at is not None and at.isdecimal() else at
    edits, values = _assigned(set or [], "--set", "charge:0=12"), _assigned(state or [], "--state", 'phase="late"')
    inputs = _object(input)
    _begin(store, id, json, "forked", lambda c: c.fork(id, place, edits, inputs, new_id, state=values))


def travel(
    id: RunId,
    step: Annotated[str, Parameter(help="The op path of the step to go back to.")],
    /,
    *,
    input: Annotated[
        str | None, Parameter(help="Other arguments for the step: a JSON object, @file.json, or - for stdin.")
    ] = None,
    new_id: NewId = None,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Start a run that continues right before a step of another run, with other arguments for that step."""
    inputs = _object(input)
    _begin(store, id, json, "forked", lambda client: client.time_travel(id, step, inputs, new_id))


def retry_one(id: str, store: str, json: bool, max_rounds: int | None) -> None:
    """Continue a run that failed or was cancelled, with everything that succeeded."""
    _begin(store, id, json, "retried", lambda client: client.retry(id, max_rounds=max_rounds))


def _begin(store: str, id: str, json: bool, done: str, work: Callable[[Client], Awaitable[RunHandle[Any]]]) -> None:
    # Imported here: commands that only list runs need not wait for what forks them.
    from perdure.cli.clients import client_of

    async def begin() -> RunView | None:
        async with client_of(opened(store)) as client:
            return await client.get((await work(client)).run_id)

    view = asyncio.run(begin())
    assert view is not None
    if json:
        write_json({"id": view.id, "run_id": view.run_id, "forked_from": view.forked_from, "status": view.status})
        return
    print(view.id)
    new = f" as {view.id!r}" if view.id != id else ""
    note(f"run {id!r} {done}{new}; an engine that has {view.program} continues it")


def _assigned(given: list[str], option: str, example: str) -> dict[str, Any]:
    from perdure.cli.inputs import parse

    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise Problem(f"{option} {one!r} is not NAME=JSON, as in {option} {example!r}")
        found[name] = parse(value, f"{option} {name}")
    return found


def _object(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    from perdure.cli.inputs import read

    value = read(given)
    if not isinstance(value, dict):
        raise Problem("--input passes arguments by name: a JSON object, as in --input '{\"amount\": 12}'")
    return value
