"""From a URL to a store: what is named, and what a wrong name is answered with."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from perdure.errors import InvalidStoreUrl, SchemaMismatch
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_leases, open_store
from perdure.stores.sqlite import migrating
from perdure.stores.sqlite.store import SqliteStore
from tests.patience import PATIENCE


def test_a_path_names_an_sqlite_file(tmp_path: Path) -> None:
    assert open_store(tmp_path / "x.db").url == f"sqlite:///{tmp_path}/x.db"


@pytest.mark.parametrize("url", ["sqlite:///x.db", "sqlite:////var/lib/x.db", "sqlite:///a b/ü.db"])
def test_an_sqlite_url_names_an_sqlite_file(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, SqliteStore)
    assert store.url == url


def test_a_store_in_memory_is_always_a_new_one() -> None:
    one, other = open_store("memory://"), open_store("memory://")
    assert isinstance(one, MemoryStore)
    assert one is not other


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert open_store(store) is store


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("runs.db", "write 'sqlite:///runs.db'"),
        ("sqlite://runs.db", "'sqlite:///runs.db'"),
        ("sqlite:///", "memory://"),
        ("sqlite:///:memory:", "memory://"),
        ("mysql://x", "use 'sqlite:///...', 'postgresql://...', 'redis://...', 'file:///...' or 'memory://'"),
        ("postgres:/db/shop", "begins with 'postgres://'"),
        ("sqlite:shop.db", "begins with 'sqlite://'"),
        ("nats://x", "no nats store"),
        ("memory://flows", "has no name and no options"),
        ("memory://?pool=3", "has no name and no options"),
        ("sqlite:///runs.db?mode=ro", "leave mode=ro out"),
        ("sqlite:///runs.db?mode=memory", "use 'memory://'"),
        ("sqlite:///runs.db?mode=x", "mode='x' must be rwc or rw"),
        ("sqlite:///runs.db?modes=rw", "it has no option 'modes'; did you mean 'mode'?"),
        ("sqlite:///runs.db?cache=shared", "it has no option 'cache'; processes share the file itself"),
        ("sqlite:///runs.db?migrate=maybe", "migrate='maybe' must be true or false"),
        ("sqlite:///runs.db?pool=0", "pool='0' is not a number of connections"),
        ("sqlite:///runs.db?pool=2&pool=3", "its option 'pool' is given twice"),
        ("sqlite:///runs.db?pool", "what follows '?' must be options"),
        ("sqlite:///?mode=rwc", "memory://"),
        ("file:///runs?pool=2", "it has no option 'pool'; this store has none"),
        ("postgresql://db/x?poool=2", "it has no option 'poool'; did you mean 'pool'?"),
        ("postgresql://db/x?shema=a", "it has no option 'shema'; did you mean 'schema'?"),
        ("postgresql://db/x?sslmod=require", "it has no option 'sslmod'; did you mean 'sslmode'?"),
        ("postgresql://db/x?search_path=a", "it has no option 'search_path'; use schema=NAME"),
        ("postgresql://db/x?client_encoding=latin1", "texts are always sent in UTF-8"),
        ("postgresql://db/x?migrate=1", "migrate='1' must be true or false"),
        ("postgresql://db/x?schema=a&schema=b", "its option 'schema' is given twice"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_one_that_does(url: str, cure: str) -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        open_store(url)
    assert caught.value.url == url
    assert cure in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cret@host/db",
        "nats://me:s3cret@host",
        "etcd://me:s3cret@host",
        "postgresql:me:s3cret@host/db",
        "me:s3cret@host/db",
        "mongodb://host/db?password=s3cret",
    ],
)
def test_a_password_in_a_url_that_names_no_store_is_not_shown(url: str) -> None:
    for opening in (open_store, open_leases):
        if opening is open_leases and url.startswith("etcd"):
            continue  # that names leases
        with pytest.raises(InvalidStoreUrl) as refused:
            _ = opening(url)
        assert "s3cret" not in str(refused.value)


def test_a_path_may_have_a_question_mark(tmp_path: Path) -> None:
    assert open_store(tmp_path / "x?mode=ro.db").url == f"sqlite:///{tmp_path}/x?mode=ro.db"


@pytest.mark.parametrize(("options", "why"), [("mode=rw", "mode=rw keeps"), ("migrate=false", "migrate=false keeps")])
async def test_an_engine_creates_no_file_where_it_may_not(tmp_path: Path, options: str, why: str) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(InvalidStoreUrl, match=rf"{why}.*create it with `perdure migrate --store {url}`"):
        await open_store(f"{url}?{options}").open(migrate=True)
    assert list(tmp_path.iterdir()) == []
    made = SqliteStore(str(tmp_path / "x.db"))
    await made.migrations.apply()
    store = open_store(f"{url}?{options}")
    await store.open(migrate=True)
    await store.close()


async def test_an_engine_migrates_no_file_where_it_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with monkeypatch.context() as before:
        before.setattr(migrating, "MIGRATIONS", migrating.MIGRATIONS[:-1])
        await SqliteStore(str(tmp_path / "x.db")).migrations.apply()
    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await open_store(f"{url}?migrate=false").open(migrate=True)
    store = open_store(f"{url}?migrate=true")
    await store.open(migrate=True)
    await store.close()


async def test_the_pool_of_an_sqlite_store_reads_at_once(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/x.db?pool=3")
    assert isinstance(store, SqliteStore)
    await store.open(migrate=True)
    # Each waits in its thread until all three are there: one thread would wait for ever.
    meeting = threading.Barrier(3)
    database = store._database
    for _ in range(3):
        assert database._bulk is not None
        db = database._bulk.get()
        db.create_scalar_function("meet", lambda *_: meeting.wait(PATIENCE))
        database._bulk.put(db)
    found = await asyncio.gather(*(database.read("select meet()") for _ in range(3)))
    assert sorted(rows[0][0] for rows in found) == [0, 1, 2]
    await store.close()
