"""The component `blob` of flows: keeps a value in the store under its hash, and gets it back."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.errors import Corrupt, UsageError


async def blob(put: Any = msgspec.UNSET, get: str = "") -> Any:
    """Keep a value in the store, and return its `id`: `put`. Or get the value back that has an id: `get`.

    The id is the hash of the value: the same value has the same id, in every run and on every machine. It stays until
    it is removed by hand.
    """
    if (put is msgspec.UNSET) == (get == ""):
        raise UsageError("blob takes `put`, a value to keep, or `get`, the id of one")
    from perdure.engine.step_context import step_context  # a flow is checked without an engine

    owner = step_context().owner
    items = None if owner is None else owner.services.runner.items
    assert items is not None
    if put is not msgspec.UNSET:
        return {"id": await items.put(msgspec.json.encode(put))}
    try:
        return msgspec.json.decode(await items.load(get))
    except Corrupt:
        raise UsageError(f"there is no blob {get!r:.100} in this store") from None
    except msgspec.DecodeError:
        raise UsageError(f"the blob {get} holds no JSON; read it in a step of your own") from None
