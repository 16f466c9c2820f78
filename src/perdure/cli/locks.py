"""`perdure locks`: list locks with their holders, and release them."""

from __future__ import annotations

import sys
from typing import Annotated, TypeVar

from cyclopts import App, Parameter

from perdure.cli.clients import with_reader
from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, AsJson, StoreUrl, opened
from perdure.cli.output import distance, note, table, when, write_json
from perdure.client.locks import LockView
from perdure.client.reader import Reader

app = App(name="locks", help="List locks, and release them.")

T = TypeVar("T")


@app.command(sort_key=1)
def ls(*, store: StoreUrl = DEFAULT_STORE, json: AsJson = False) -> None:
    """List the locks that are held."""
    held = with_reader(opened(store), lambda client: client.locks.list())
    if json:
        write_json({"locks": held})
    elif not held:
        note("no lock is held")
    else:
        expires = distance if sys.stdout.isatty() else when
        rows = [(lock.key, lock.id or "", lock.owner, str(lock.token), expires(lock.expires_at)) for lock in held]
        table(("key", "run", "owner", "token", "expires"), rows, fold=("key", "run", "owner"))


@app.command(sort_key=2)
def release(
    key: Annotated[str, Parameter(help="The key of the lock.")],
    /,
    *,
    force: Annotated[
        bool, Parameter(negative="", help="Release it from any holder, even one that is still working.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    json: AsJson = False,
) -> None:
    """Release a lock of a run that has ended; with --force, of any holder."""
    released = with_reader(opened(store), lambda client: _release(client, key, force))
    if json:
        write_json({"released": released})
    elif released is None:
        note(f"the lock {key!r} is not held")
    else:
        note(f"the lock {key!r} was released; its holder was {released.owner}")


async def _release(client: Reader, key: str, force: bool) -> LockView | None:
    held = await client.locks.get(key)
    if held is None or force:
        return await client.locks.force_release(key) if held is not None else None
    run = await client.get(held.owner.partition("/")[0])
    if run is None or not run.status.finished:
        whose = f"run {run.id!r}, which is {run.status.value}" if run is not None else "which is not a run"
        raise Problem(
            f"the lock {key!r} is held by {held.owner}, {whose}; if its holder has died, it expires at "
            f"{when(held.expires_at)}. --force releases it now; if its holder is alive, there may then be two"
        )
    await client.locks.release(key, held.owner)
    return held
