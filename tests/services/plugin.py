"""Fixtures that give tests PostgreSQL, Redis and etcd.

`postgres_url`, `redis_url` and `etcd_url` are empty and the test's own; the server behind them is shared by all tests
of the session. `postgres_url` has the tables of a store already, `bare_url` has nothing. `servers` makes private ones,
to be stopped, killed and paused. A server that cannot be had is an error of the test, never a reason to leave it out.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure.ports.store import Store
from perdure.stores.memory.store import MemoryStore
from tests.services.servers import Etcd, Postgres, Redis, Server, Standby, roomy
from tests.services.shared import Shared, empty_etcd, empty_postgres, empty_redis

S = TypeVar("S", bound=Server)

SHARED: pytest.StashKey[Shared] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """A place for the servers of the session; in a worker, the one that its controller made.

    What tests write lies in memory, too. `make soak` has its stores on the disk.
    """
    if config.option.markexpr != "soak":
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(roomy()))
    told = getattr(config, "workerinput", None)
    if told is None:
        config.stash[SHARED] = Shared.make()
    else:
        config.stash[SHARED] = Shared(Path(told["services"]), told["services_watch"])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker of xdist where the servers are."""
    shared = node.config.stash[SHARED]
    node.workerinput["services"] = str(shared.directory)
    node.workerinput["services_watch"] = shared.watch


def pytest_unconfigure(config: pytest.Config) -> None:
    """The session that made the place ends its servers."""
    if not hasattr(config, "workerinput") and SHARED in config.stash:
        config.stash[SHARED].end()


class Servers:
    """Makes private servers. Each is started with `start`, or as `with servers.postgres() as server`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._made: list[Server] = []

    def postgres(self, settings: Mapping[str, str] = {}) -> Postgres:
        """PostgreSQL with these settings."""
        return self._keep(Postgres(self._directory(), settings=settings))

    def standby(self, primary: Postgres) -> Standby:
        """PostgreSQL that follows another one, which is stopped."""
        return self._keep(Standby(self._directory(), primary))

    def redis(self, settings: Mapping[str, str] = {}) -> Redis:
        """Redis with these settings."""
        return self._keep(Redis(self._directory(), settings=settings))

    def etcd(self, settings: Mapping[str, str] = {}) -> Etcd:
        """etcd with these settings."""
        return self._keep(Etcd(self._directory(), settings=settings))

    def end(self) -> None:
        """End all of them."""
        for server in self._made:
            server.end()

    def _directory(self) -> Path:
        return self._shared.directory / f"private-{uuid.uuid4().hex[:12]}"

    def _keep(self, server: S) -> S:
        self._made.append(server)
        return server


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Shared:
    """The servers of the session."""
    return pytestconfig.stash[SHARED]


@pytest.fixture
def servers(services: Shared) -> Iterator[Servers]:
    """Private servers, which end with the test."""
    servers = Servers(services)
    yield servers
    servers.end()


@pytest.fixture
def postgres_url(services: Shared) -> Iterator[str]:
    """A database of PostgreSQL with empty tables."""
    with empty_postgres(services, tables=True) as url:
        yield url


@pytest.fixture
def bare_url(services: Shared) -> Iterator[str]:
    """A database of PostgreSQL with nothing in it."""
    with empty_postgres(services) as url:
        yield url


@pytest.fixture
def redis_url(services: Shared) -> Iterator[str]:
    """An empty database of Redis."""
    with empty_redis(services) as url:
        yield url


STORES = ("memory", "file", "sqlite", "postgres", "redis")
# For tests of what lies above the stores: one in this process, one behind a network. `make soak` has the others.
on_two_stores = pytest.mark.parametrize(
    "any_url",
    [pytest.param(kind, marks=() if kind in ("sqlite", "redis") else pytest.mark.soak) for kind in STORES],
    indirect=True,
)


@pytest.fixture(params=STORES)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store of each kind is."""
    urls = {"memory": "memory://", "file": f"file:///{tmp_path}/store", "sqlite": f"sqlite:///{tmp_path}/runs.db"}
    return urls.get(request.param) or str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def place(any_url: str) -> str | Store:
    """Where an empty store of each kind is. One in memory is itself shared, as there is no other way to it."""
    return MemoryStore() if any_url == "memory://" else any_url


@pytest.fixture
def etcd_url(services: Shared) -> str:
    """An empty part of the keys of etcd: `etcd://127.0.0.1:PORT/...`."""
    return empty_etcd(services)
