"""From a URL to a store: what is named, and what a wrong name is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import InvalidStoreUrl
from perdure.stores.memory.store import MemoryStore
from perdure.stores.open import open_leases, open_store
from perdure.stores.sql.sqlite import SqliteStore


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
