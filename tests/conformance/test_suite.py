"""The conformance suite itself: it says what it checks, and a backend that breaks the contract does not pass."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from perdure.kernel.events import Batch
from perdure.ports.journal import Append, Conflict, Outcome
from perdure.ports.leases import Acquired, HeldBy
from perdure.stores.memory.store import MemoryJournal, MemoryLeases, MemoryStore
from perdure.testing import conformance
from perdure.testing.conformance import JournalConformance, LeasesConformance

SUITES = [getattr(conformance, name) for name in conformance.__all__]


@pytest.mark.parametrize("suite", SUITES)
def test_every_check_opens_with_the_contract_it_checks(suite: type[Any]) -> None:
    checks = dict(inspect.getmembers(suite, inspect.isfunction))
    assert [name for name, check in checks.items() if name.startswith("test_") and not check.__doc__] == []


class Forgetful(MemoryJournal):
    """Writes wherever it is told to."""

    def _append(self, append: Append) -> Outcome:
        outcome = super()._append(append)
        if not isinstance(outcome, Conflict) or outcome.next_seq is None:
            return outcome
        return super()._append(Append(append.run_id, outcome.next_seq, append.batches, append.row))


class Timid(MemoryJournal):
    """Gives up a whole group because of one of it."""

    def append(self, appends: Sequence[Append]) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for append in appends:
            outcomes += super().append([append])
            if isinstance(outcomes[-1], Conflict):
                return outcomes + outcomes[-1:] * (len(appends) - len(outcomes))
        return outcomes


class Exclusive(MemoryJournal):
    """Reads from after the number asked for."""

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        return await super().read(run_id, start + 1 if start else 0, limit)


class Generous(MemoryLeases):
    """Gives a lease to whoever asks."""

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        self._leases.pop(key, None)
        return await super().acquire(key, owner, ttl, now)


def broken(**ports: Any) -> MemoryStore:
    store = MemoryStore()
    for name, port in ports.items():
        setattr(store, name, port)
    return store


journal: Any = JournalConformance()
leases: Any = LeasesConformance()


@pytest.mark.parametrize(
    ("ports", "check"),
    [
        ({"journal": Forgetful}, journal.test_creating_a_run_twice_keeps_the_first_input),
        ({"journal": Forgetful}, journal.test_an_append_behind_the_head_is_refused_with_the_real_next_number),
        ({"journal": Forgetful}, journal.test_an_append_ahead_of_the_head_is_refused_with_the_real_next_number),
        ({"journal": Timid}, journal.test_one_conflicting_append_does_not_harm_the_others_of_its_group),
        ({"journal": Exclusive}, journal.test_reading_from_a_number_includes_it),
        ({"leases": Generous}, leases.test_an_expired_lease_is_taken_with_a_higher_epoch),
    ],
)
async def test_a_backend_that_breaks_the_contract_does_not_pass(
    ports: dict[str, Callable[[], Any]], check: Callable[..., Awaitable[None]]
) -> None:
    store = broken(**{name: make() for name, make in ports.items()})
    more = {"second": store, "start": 2} if "start" in inspect.signature(check).parameters else {"second": store}
    wanted = {name: value for name, value in more.items() if name in inspect.signature(check).parameters}
    with pytest.raises(AssertionError):
        await check(store, **wanted)
