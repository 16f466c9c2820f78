"""Another process on the same file or URL. Says on standard output what it has done, and goes on when it is told to.

python child.py append PATH NAME COUNT     one run of its own, and COUNT events in a run shared with others
python child.py hold PATH                  hold the write lock until a line comes in
python child.py lease PATH OWNER           hold a lease until a line comes in
python child.py visit PATH                 open, read and close
python child.py locked PATH                whether somebody holds SQLite's shared lock on the file
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import apsw

from perdure.kernel.events import Batch, RunReleased
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.store import Store
from perdure.stores.open import open_store
from perdure.stores.sqlite.store import SqliteStore
from perdure.testing.conformance.history import History, write

SHARED_FIRST, SHARED_SIZE = 0x40000002, 510  # where SQLite locks a database file while it is connected


def say(word: str) -> None:
    print(word, flush=True)


def opened(place: str) -> Store:
    return open_store(place if "://" in place else f"sqlite:///{place}")


async def append(path: str, name: str, count: str) -> None:
    store = opened(path)
    await store.open(migrate=True)
    say("ready")
    sys.stdin.readline()
    assert await write(store, History(f"own-{name}").begin()) == [Appended()]
    next_seq = 1
    await write(store, History("shared").begin())
    for i in range(int(count)):
        while True:
            batch = Batch(next_seq, 1.0, [RunReleased(f"{name}:{i}")])
            [outcome] = await write(store, Append("shared", next_seq, [batch]))
            if isinstance(outcome, Conflict):
                assert outcome.next_seq is not None
                next_seq = outcome.next_seq
            else:
                next_seq += 1
                break
    await store.close()
    say("done")


async def hold(path: str) -> None:
    db = apsw.Connection(path)
    db.execute("begin immediate")
    say("ready")
    sys.stdin.readline()
    db.execute("rollback")
    db.close()


async def lease(path: str, owner: str) -> None:
    store = opened(path)
    await store.open(migrate=True)
    say(type(await store.leases.acquire(f"orchestrator:{owner}", owner, 1e9, 100.0)).__name__)
    sys.stdin.readline()
    await store.close()


async def visit(path: str) -> None:
    store = SqliteStore(path)
    await store.open(migrate=False)
    say(str(len(await store.runs.owners())))
    await store.close()


async def locked(path: str) -> None:
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, SHARED_SIZE, SHARED_FIRST)
        except OSError:
            say("locked")
        else:
            say("free")


if __name__ == "__main__":
    works: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        work.__name__: work for work in (append, hold, lease, visit, locked)
    }
    asyncio.run(works[sys.argv[1]](*sys.argv[2:]))
