"""From a URL to a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.errors import InvalidStoreUrl, UsageError
from perdure.ports.leases import Leases
from perdure.ports.store import Store
from perdure.stores.options import connections, flag, read_options
from perdure.stores.url import masked

if TYPE_CHECKING:
    from perdure.stores.etcd.leases import EtcdLeases

POSTGRES = {"postgresql", "postgres"}
REDIS = {"redis", "rediss"}
LATER = {"nats"}
ETCD = {"etcd", "etcds"}
SERVERS = {"http", "https"}
STORES = {"memory", "sqlite", "file", *POSTGRES, *REDIS, *LATER}
CHOICE = "use 'sqlite:///...', 'postgresql://...', 'redis://...', 'file:///...' or 'memory://'"


def open_store(url: str | os.PathLike[str] | Store) -> Store:
    """The store of a URL, not connected yet. A Store is returned unchanged."""
    if isinstance(url, os.PathLike):
        from perdure.stores.sqlite.store import SqliteStore

        return SqliteStore(os.fspath(url))
    if not isinstance(url, str):
        if not hasattr(url, "journal"):
            raise InvalidStoreUrl(f"{url!r:.80}", "a store is named by a URL, such as 'sqlite:///flows.db'")
        return url
    scheme, separator, rest = url.partition("://")
    if not separator:
        begun, colon, _ = url.partition(":")
        url = masked(url)
        if colon and begun in STORES | ETCD:
            raise InvalidStoreUrl(url, f"a store is named by a URL, which begins with '{begun}://'")
        raise InvalidStoreUrl(url, f"a store is named by a URL; for a file write 'sqlite:///{url}'")
    if scheme == "memory":
        from perdure.stores.memory.store import MemoryStore

        if rest:
            raise InvalidStoreUrl(url, "a store in memory has no name and no options; write 'memory://'")
        return MemoryStore()
    if scheme == "sqlite":
        # As in SQLAlchemy: three slashes for a relative path, four for an absolute one.
        if not rest.startswith("/"):
            raise InvalidStoreUrl(url, f"write three slashes before a relative path: 'sqlite:///{rest}'")
        return _sqlite(url, rest[1:])
    if scheme == "file":
        path, _, query = rest.partition("?")
        if not path.startswith("/") or not path.strip("/"):
            example = f"file:///{path.strip('/') or 'runs'}"
            raise InvalidStoreUrl(url, f"write three slashes before a relative path: {example!r}")
        read_options(url, query, ())
        from perdure.stores.file.store import FileStore

        return FileStore(path[1:])
    if scheme in POSTGRES:
        from perdure.stores.postgres.store import PostgresStore

        return PostgresStore(url)
    if scheme in REDIS:
        try:
            from perdure.stores.redis.store import RedisStore
        except ImportError as error:
            raise InvalidStoreUrl(masked(url), "it needs a library: pip install 'perdure[redis]'") from error
        return RedisStore(url)
    if scheme in ETCD:
        url = masked(url)
        raise InvalidStoreUrl(url, f"etcd keeps leases, and runs need a store beside it: Engine(store, leases={url!r})")
    if scheme in LATER:
        raise InvalidStoreUrl(masked(url), f"this version of perdure has no {scheme} store; {CHOICE}")
    if scheme in SERVERS:
        raise InvalidStoreUrl(
            masked(url),
            "this is the address of a server; commands that read or that send messages accept it, and this one needs "
            f"the store itself: {CHOICE}",
        )
    raise InvalidStoreUrl(masked(url), f"{scheme!r} is not a known backend; {CHOICE}")


def _sqlite(url: str, rest: str) -> Store:
    path, _, query = rest.partition("?")
    if not path or path == ":memory:":
        raise InvalidStoreUrl(url, IN_MEMORY)
    given = read_options(url, query, ("mode", "migrate", "pool"), SQLITE_HINTS)
    mode = given.get("mode", "rwc")
    if mode not in ("rwc", "rw"):
        raise InvalidStoreUrl(url, SQLITE_MODES.get(mode, f"mode={mode[:20]!r} must be rwc or rw"))
    from perdure.stores.sqlite.store import SqliteStore

    return SqliteStore(
        path,
        create=mode == "rwc",
        auto_migrate=flag(url, given, "migrate") is not False,
        pool=connections(url, given, 1),
    )


IN_MEMORY = "it names no file; for a store in memory, use 'memory://'"
SQLITE_MODES = {
    "memory": "mode=memory would keep nothing; for a store in memory, use 'memory://'",
    "ro": "an engine writes, and a client writes on request; leave mode=ro out, or make the file and its "
    "directory read-only for those who may only look",
}
SQLITE_HINTS = {
    "cache": "processes share the file itself; leave it out",
    "immutable": "a store changes; leave it out",
    "vfs": "name it in code: SqliteStore(path, vfs=...)",
    "timeout": "a process waits up to 10 s for another that writes; leave it out",
}


def with_leases(store: Store, leases: str | Leases | None) -> Store:
    """The store with external leases: at a URL, in an object, or none for `"none"`."""
    if leases is None:
        return store
    from perdure.stores.external_leases import WithLeases

    if not isinstance(leases, str):
        if not hasattr(leases, "acquire"):
            raise UsageError(f"leases={leases!r:.80}: give their URL, such as 'etcd://host:2379', or 'none'")
        return WithLeases(store, leases)
    if leases == "none":
        from perdure.stores.single_orchestrator import NoLeases

        return WithLeases(store, NoLeases(store.leases))
    opened = open_leases(leases)
    return WithLeases(store, opened, opened.close)


def open_leases(url: str) -> EtcdLeases:
    """The leases that a URL names, not connected yet."""
    scheme, shown = url.partition("://")[0], masked(url)
    if scheme not in ETCD:
        near = f"; for those of the store leave leases={shown!r} out" if scheme in STORES else ""
        raise InvalidStoreUrl(shown, f"leases are kept at 'etcd://host:2379', or nowhere with 'none'{near}", "leases")
    try:
        from perdure.stores.etcd.leases import EtcdLeases
    except ImportError as error:
        raise InvalidStoreUrl(shown, "it needs a library: pip install 'perdure[etcd]'", "leases") from error
    return EtcdLeases(url)
