"""Leases in etcd hold their contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from perdure.ports.store import Store
from perdure.stores.etcd.leases import EtcdLeases
from perdure.stores.external_leases import WithLeases
from perdure.stores.memory.store import MemoryStore
from perdure.testing.conformance import LeasesConformance
from tests.patience import PATIENCE


class TestEtcdLeases(LeasesConformance):
    """A part of etcd that is empty, and a second connection to it."""

    @pytest.fixture
    def memory(self) -> Store:
        return MemoryStore()

    @pytest.fixture
    async def store(self, etcd_url: str, memory: Store) -> AsyncIterator[Store]:
        async with EtcdLeases(f"{etcd_url}?timeout={PATIENCE}") as leases:
            yield WithLeases(memory, leases)

    @pytest.fixture
    async def second(self, etcd_url: str, memory: Store) -> AsyncIterator[Store]:
        async with EtcdLeases(f"{etcd_url}?timeout={PATIENCE}") as leases:
            yield WithLeases(memory, leases)
