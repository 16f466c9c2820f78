"""The contract of a backend as tests: one class per port, inherited by every store of perdure and open to others.

A backend passes when each class runs green against it. Give a subclass a `store` fixture, an opened and empty store::

    from perdure.testing.conformance import JournalConformance, RunsConformance

    class OnMyStore:
        @pytest.fixture
        async def store(self) -> AsyncIterator[Store]:
            store = MyStore("...")
            await store.open(migrate=True)
            yield store
            await store.close()

    class TestMyJournal(OnMyStore, JournalConformance): ...

    class TestMyRuns(OnMyStore, RunsConformance): ...

A port that stands alone (leases in etcd, say) inherits its one class, and its `store` needs only that port. Override
`second` too where several connections to one backend are possible: races are then run between two of them. The tests
need pytest with pytest-asyncio in its `auto` mode; `pytest.register_assert_rewrite("perdure.testing.conformance")` in
a conftest makes failures tell the values they compared.

The suite sleeps for nothing, asks for no clock and knows no backend.
"""

from perdure.testing.conformance.blobs import BlobsConformance
from perdure.testing.conformance.journal import JournalConformance
from perdure.testing.conformance.leases import LeasesConformance
from perdure.testing.conformance.queues import QueuesConformance
from perdure.testing.conformance.runs import RunsConformance
from perdure.testing.conformance.timers import TimersConformance
from perdure.testing.conformance.upkeep import UpkeepConformance

__all__ = [
    "BlobsConformance",
    "JournalConformance",
    "LeasesConformance",
    "QueuesConformance",
    "RunsConformance",
    "TimersConformance",
    "UpkeepConformance",
]
