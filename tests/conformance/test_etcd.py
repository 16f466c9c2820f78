"""Leases in etcd hold their contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.ports.store import Store
from perdure.stores.etcd.leases import EtcdLeases
from perdure.stores.memory.store import MemoryStore
from perdure.testing.conformance import LeasesConformance


def store_with(leases: EtcdLeases) -> Store:
    """A store whose leases are in etcd."""
    store = MemoryStore()
    store.leases = leases  # type: ignore[assignment] # another backend's
    return store


class TestEtcdLeases(LeasesConformance):
    """A part of etcd that is empty, and a second connection to it."""

    @pytest.fixture
    async def store(self, etcd_url: str) -> AsyncIterator[Store]:
        async with EtcdLeases(etcd_url) as leases:
            yield store_with(leases)

    @pytest.fixture
    async def second(self, store: Store, etcd_url: str) -> AsyncIterator[Store]:
        async with EtcdLeases(etcd_url) as leases:
            yield store_with(leases)
