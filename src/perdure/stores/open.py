"""From a URL to a store."""

from __future__ import annotations

import os

from perdure.errors import InvalidStoreUrl
from perdure.ports.store import Store

LATER = {"postgresql", "postgres", "redis", "nats", "etcd", "file"}


def open_store(url: str | os.PathLike[str] | Store) -> Store:
    """The store a URL names, not connected yet. A store is returned as it is."""
    if isinstance(url, os.PathLike):
        url = f"sqlite:///{os.fspath(url)}"
    if not isinstance(url, str):
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise InvalidStoreUrl(url, f"a store is named by a URL; for a file write 'sqlite:///{url}'")
    if scheme == "memory":
        from perdure.stores.memory.store import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        # As in SQLAlchemy: three slashes for a relative path, four for an absolute one.
        if not rest.startswith("/"):
            raise InvalidStoreUrl(url, f"write three slashes before a relative path: 'sqlite:///{rest}'")
        path = rest[1:]
        if not path or path == ":memory:":
            raise InvalidStoreUrl(url, "it names no file; for a store that lives in memory use 'memory://'")
        from perdure.stores.sql.sqlite import SqliteStore

        return SqliteStore(path)
    if scheme in LATER:
        raise InvalidStoreUrl(url, f"this version of perdure has no {scheme} store; use 'sqlite:///...' or 'memory://'")
    raise InvalidStoreUrl(url, f"{scheme!r} is no known backend; use 'sqlite:///...' or 'memory://'")
