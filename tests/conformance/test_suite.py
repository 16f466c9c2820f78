"""The conformance suite itself: it says what it checks, and a backend that breaks the contract does not pass."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, get_args

import msgspec
import pytest

from perdure.kernel.events import AnyEvent, Batch, ChunkAppended
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Append, Conflict, Outcome
from perdure.ports.leases import Acquired, HeldBy
from perdure.ports.upkeep import Collected
from perdure.stores.memory.store import MemoryJournal, MemoryLeases, MemoryStore
from perdure.stores.memory.upkeep import MemoryUpkeep
from perdure.testing import conformance
from perdure.testing.conformance import JournalConformance, LeasesConformance, UpkeepConformance
from perdure.testing.conformance.journal import EVERY_EVENT

SUITES = [getattr(conformance, name) for name in conformance.__all__]


@pytest.mark.parametrize("suite", SUITES)
def test_every_check_opens_with_the_contract_it_checks(suite: type[Any]) -> None:
    checks = dict(inspect.getmembers(suite, inspect.isfunction))
    assert [name for name, check in checks.items() if name.startswith("test_") and not check.__doc__] == []


def test_one_class_may_inherit_all_suites() -> None:
    checks = [name for suite in SUITES for name in dir(suite) if name.startswith("test_")]
    assert len(set(checks)) == len(checks), "a name that two have would hide a check"


def test_every_event_is_written_with_all_of_its_fields_and_with_none_that_it_can_do_without() -> None:
    assert {type(event) for event in EVERY_EVENT} == set(get_args(AnyEvent))
    for full, bare in batched(EVERY_EVENT):
        fields = msgspec.structs.fields(type(full))
        assert [field.name for field in fields if getattr(full, field.name) == field.default] == []
        assert len(msgspec.json.encode(bare)) <= len(msgspec.json.encode(full))
        assert [getattr(bare, field.name) for field in fields if not field.required] == [
            field.default for field in fields if not field.required
        ]


def batched(events: Sequence[AnyEvent]) -> Iterator[tuple[AnyEvent, AnyEvent]]:
    return zip(events[::2], events[1::2], strict=True)


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


class Lossy(MemoryJournal):
    """Does not know a field that events have got since."""

    async def read(self, run_id: str, start: int = 0, limit: int | None = None) -> list[Batch]:
        batches = await super().read(run_id, start, limit)
        return [Batch(batch.seq, batch.at, [_without_restart(event) for event in batch.events]) for batch in batches]


def _without_restart(event: AnyEvent) -> AnyEvent:
    return msgspec.structs.replace(event, restart=False) if isinstance(event, ChunkAppended) else event


class Generous(MemoryLeases):
    """Gives a lease to whoever asks."""

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        self._leases.pop(key, None)
        return await super().acquire(key, owner, ttl, now)


class Ruthless(MemoryUpkeep):
    """Removes whatever it is told to, ended or not."""

    async def remove(self, run_ids: Sequence[str]) -> Sequence[str]:
        for run_id in run_ids:
            if (row := self._journal.rows.get(run_id)) is not None:
                self._journal.forget_row(row)
                del self._journal.batches[run_id], self._journal.head_of[run_id]
        return run_ids


class Greedy(MemoryUpkeep):
    """Collects blobs whether or not a journal refers to them."""

    async def collect(self, age: float, limit: int, *, dry_run: bool = False) -> Collected:
        count = len(self._blobs.blobs)
        self._blobs.blobs.clear()
        return Collected(count, 0)


class Hasty(MemoryUpkeep):
    """Replaces rows whatever has happened since."""

    async def reproject(self, run_id: str, expected_next: int, rows: Sequence[RunRow]) -> bool:
        head = self._journal.head_of.get(run_id)
        return await super().reproject(run_id, head.next_seq if head else 0, rows)


def broken(**ports: Any) -> MemoryStore:
    store = MemoryStore()
    for name, port in ports.items():
        setattr(store, name, port(store.journal, store.blobs) if name == "upkeep" else port())
    return store


journal: Any = JournalConformance()
leases: Any = LeasesConformance()
upkeep: Any = UpkeepConformance()


@pytest.mark.parametrize(
    ("ports", "check"),
    [
        ({"journal": Forgetful}, journal.test_creating_a_run_twice_keeps_the_first_input),
        ({"journal": Forgetful}, journal.test_an_append_behind_the_head_is_refused_with_the_real_next_number),
        ({"journal": Forgetful}, journal.test_an_append_ahead_of_the_head_is_refused_with_the_real_next_number),
        ({"journal": Timid}, journal.test_one_conflicting_append_does_not_harm_the_others_of_its_group),
        ({"journal": Exclusive}, journal.test_reading_from_a_number_includes_it),
        ({"journal": Lossy}, journal.test_every_kind_of_event_survives),
        ({"leases": Generous}, leases.test_an_expired_lease_is_taken_with_a_higher_epoch),
        ({"upkeep": Ruthless}, upkeep.test_a_run_that_has_not_ended_is_not_removed),
        ({"upkeep": Ruthless}, upkeep.test_a_run_stays_while_an_earlier_one_of_its_id_does),
        ({"upkeep": Ruthless}, upkeep.test_a_removed_run_leaves_nothing_behind),
        ({"upkeep": Greedy}, upkeep.test_a_blob_that_a_journal_refers_to_stays),
        ({"upkeep": Greedy}, upkeep.test_a_blob_that_was_put_lately_stays),
        ({"upkeep": Greedy}, upkeep.test_a_blob_that_is_kept_is_never_collected),
        ({"upkeep": Hasty}, upkeep.test_rows_are_left_alone_when_the_journal_has_gone_on),
    ],
)
async def test_a_backend_that_breaks_the_contract_does_not_pass(
    ports: dict[str, Callable[[], Any]], check: Callable[..., Awaitable[None]]
) -> None:
    store = broken(**ports)
    more = {"second": store, "start": 2} if "start" in inspect.signature(check).parameters else {"second": store}
    wanted = {name: value for name, value in more.items() if name in inspect.signature(check).parameters}
    with pytest.raises(AssertionError):
        await check(store, **wanted)
