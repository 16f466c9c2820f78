"""The contract of queues: limits that hold in the append that begins a run, and turns that are fair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure.kernel.events import (
    CancelRequested,
    InputReplaced,
    RunClaimed,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStatus,
)
from perdure.kernel.policies.queues import Queue, Rate
from perdure.ports.journal import Append, Appended, Conflict, Full
from perdure.ports.queues import QueueStats, Waiting
from perdure.ports.store import Store
from perdure.ports.timers import Ahead
from perdure.testing.conformance.history import (
    BEGAN,
    History,
    StoreConformance,
    finished,
    next_due,
    numbered,
    parked,
    timer,
    write,
    write_all,
)

PROGRAMS = ["checkout"]
LATER = BEGAN + 1000.0


async def queued(store: Store, run_id: str, key: str = "", *, queue: str = "emails", **fields: Any) -> History:
    """A run that waits in a queue."""
    run = History(run_id, queue=queue, queue_key=key, **fields)
    await write_all(store, run.begin())
    return run


def claim(run: History, queue: Queue, at: float = LATER, owner: str = "a") -> Append:
    """The append by which a run begins."""
    run.at = at
    return msgspec.structs.replace(run.then(RunClaimed(owner, 1)), admit=queue)


async def picked(store: Store, queue: Queue, room: int = 100, now: float = LATER) -> Sequence[str]:
    """Whose turn it is."""
    return list((await store.queues.pick(queue, room, now, PROGRAMS)).run_ids)


EMAILS = Queue("emails")


class AdmissionConformance(StoreConformance):
    """The limits of queues: part of the append that begins a run."""

    async def test_no_more_runs_begin_than_the_queue_allows_at_once(self, store: Store, second: Store) -> None:
        """Runs that began and have not ended count, with any owner or none; a refused append writes nothing."""
        two = Queue("emails", concurrency=2)
        runs = [await queued(store, f"r{i}") for i in range(4)]
        assert await write(store, claim(runs[0], two)) == [Appended()]
        assert await write(second, claim(runs[1], two, owner="b")) == [Appended()]
        refused = claim(runs[2], two)
        assert await write(store, refused) == [Full(None)]
        assert len(await numbered(store.journal, "r2")) == 1
        row = await store.runs.get("r2")
        assert row is not None
        assert row.status is RunStatus.QUEUED
        await write_all(second, runs[1].then(finished()))
        assert await write(store, refused) == [Appended()]
        assert await write(store, claim(runs[3], two)) == [Full(None)]

    async def test_runs_that_begin_in_one_commit_count_each_other(self, store: Store) -> None:
        """A group of appends is no way around a limit, and others in the group are not held up."""
        three = Queue("emails", concurrency=3)
        runs = [await queued(store, f"r{i}") for i in range(6)]
        other = await queued(store, "other", queue="other")
        group = [claim(run, three) for run in runs]
        group.insert(4, claim(other, Queue("other", concurrency=1)))
        outcomes = await write(store, *group)
        assert outcomes == [Appended()] * 3 + [Full(None), Appended(), Full(None), Full(None)]

    async def test_waiting_parked_and_released_runs_still_count(self, store: Store) -> None:
        """A slot is free when its run has ended, and not before."""
        one = Queue("emails", concurrency=1)
        first, next_one = await queued(store, "r1"), await queued(store, "r2")
        await write_all(store, claim(first, one))
        refused = claim(next_one, one)
        for events in ([timer(BEGAN + 99999)], [parked()], [RunResumed(), RunPaused()]):
            await write_all(store, first.then(*events))
            assert await write(store, refused) == [Full(None)]
        await write_all(store, first.then(CancelRequested(), RunFinished(RunStatus.CANCELLED)))
        assert await write(store, refused) == [Appended()]

    async def test_a_key_has_a_limit_of_its_own(self, store: Store) -> None:
        """One tenant's runs do not take the room of another's."""
        limits = Queue("emails", concurrency=3, per_key=1)
        runs = [await queued(store, f"r{i}", key) for i, key in enumerate("aabbc")]
        outcomes = await write(store, *(claim(run, limits) for run in runs))
        assert outcomes == [Appended(), Full(None), Appended(), Full(None), Appended()]

    async def test_a_rate_holds_in_every_window(self, store: Store) -> None:
        """The refusal says when the next may begin, and then it may."""
        three = Queue("emails", rate=Rate(3, per=10.0))
        runs = [await queued(store, f"r{i}") for i in range(7)]
        for run, at in zip(runs, (0.0, 1.0, 2.0), strict=False):
            await write_all(store, claim(run, three, LATER + at))
            await write_all(store, run.then(finished()))
        assert await write(store, claim(runs[3], three, LATER + 9.5)) == [Full(LATER + 10.0)]
        runs[3] = await self._again(store, "r3")
        assert await write(store, claim(runs[3], three, LATER + 10.0)) == [Appended()]
        assert await write(store, claim(runs[4], three, LATER + 10.5)) == [Full(LATER + 11.0)]

    async def test_a_rate_holds_for_clocks_that_disagree(self, store: Store) -> None:
        """Starts a little ahead count too; those far ahead, by a clock that was set back since, do not."""
        one = Queue("emails", rate=Rate(1, per=10.0))
        runs = [await queued(store, f"r{i}") for i in range(3)]
        await write_all(store, claim(runs[0], one, LATER + 5.0))
        assert await write(store, claim(runs[1], one, LATER)) == [Full(LATER + 15.0)]
        assert await write(store, claim(runs[2], one, LATER - 3600.0 + 5.0 + 3000.0)) == [Appended()]

    async def _again(self, store: Store, run_id: str) -> History:
        run = History(run_id, queue="emails")
        run.begin()
        return run

    async def test_a_conflict_comes_before_a_limit(self, store: Store) -> None:
        """A stale append is a Conflict, whether there is room or not."""
        one = Queue("emails", concurrency=1)
        run, other = await queued(store, "r1"), await queued(store, "r2")
        await write_all(store, claim(run, one))
        stale = claim(await self._again(store, "r2"), one, owner="b")
        await write_all(store, other.then(RunPaused()))
        assert await write(store, stale) == [Conflict(2)]

    async def test_of_two_that_claim_the_last_place_one_gets_it(self, store: Store, second: Store) -> None:
        """Limits are checked in the append itself, not before it."""
        for number in range(10):
            one = Queue(f"q{number}", concurrency=1)
            runs = [await queued(store, f"r{number}-{i}", queue=one.name) for i in range(2)]
            outcomes = await asyncio.gather(write(store, claim(runs[0], one)), write(second, claim(runs[1], one)))
            assert sorted(map(str, outcomes)) == sorted(map(str, ([Appended()], [Full(None)])))


class QueuesConformance(AdmissionConformance):
    """The queues of a store: limits, turns, and what there is."""

    async def test_runs_of_one_key_begin_in_the_order_they_came(self, store: Store) -> None:
        """First come, first served."""
        for i in range(5):
            await queued(store, f"r{i}", at=BEGAN + i)
        assert await picked(store, EMAILS) == ["r0", "r1", "r2", "r3", "r4"]
        assert await picked(store, EMAILS, room=2) == ["r0", "r1"]

    async def test_a_higher_priority_goes_first(self, store: Store) -> None:
        """A negative priority comes after the default."""
        for i, priority in enumerate((0, 5, -3, 5, 1)):
            await queued(store, f"r{i}", at=BEGAN + i, priority=priority)
        assert await picked(store, EMAILS) == ["r1", "r3", "r4", "r0", "r2"]

    async def test_keys_take_turns(self, store: Store) -> None:
        """Each key begins one run in turn, however many runs a key has."""
        for i in range(4):
            await queued(store, f"a{i}", "a", at=BEGAN + i)
        await queued(store, "b0", "b", at=BEGAN + 10)
        await queued(store, "c0", "c", at=BEGAN + 11)
        await queued(store, "c1", "c", at=BEGAN + 12)
        assert await picked(store, EMAILS) == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]
        assert await picked(store, EMAILS, room=2) == ["a0", "b0"]

    async def test_the_key_served_least_recently_is_first(self, store: Store) -> None:
        """A key that was never served comes before all others."""
        for i, key in enumerate("abc"):
            run = await queued(store, f"{key}0", key)
            await write_all(store, claim(run, EMAILS, LATER + (2 - i)))
            await queued(store, f"{key}1", key)
        await queued(store, "d1", "d")
        assert await picked(store, EMAILS, now=LATER + 10) == ["d1", "c1", "b1", "a1"]

    async def test_a_key_that_is_full_does_not_block_the_others(self, store: Store) -> None:
        """Its runs wait, and are not even offered."""
        limits = Queue("emails", per_key=2)
        for i in range(5):
            await queued(store, f"a{i}", "a", at=BEGAN + i)
        await queued(store, "b0", "b", at=BEGAN + 9)
        assert await picked(store, limits) == ["a0", "b0", "a1"]
        for i in range(2):
            run = await queued(store, f"b-{i}", "b")
            await write_all(store, claim(run, limits))
        assert await picked(store, limits) == ["a0", "a1"]

    async def test_no_more_are_picked_than_there_is_room_for(self, store: Store) -> None:
        """The limits bound the picks, and `until` is when the rate allows more."""
        limits = Queue("emails", concurrency=3, rate=Rate(4, per=10.0))
        runs = [await queued(store, f"r{i}", at=BEGAN + i) for i in range(8)]
        assert await picked(store, limits) == ["r0", "r1", "r2"]
        for run in runs[:3]:
            await write_all(store, claim(run, limits, LATER))
        assert await picked(store, limits) == []
        for run in runs[:3]:
            await write_all(store, run.then(finished()))
        assert await picked(store, limits) == ["r3"]
        await write_all(store, claim(runs[3], limits, LATER + 1))
        await write_all(store, runs[3].then(finished()))
        picks = await store.queues.pick(limits, 10, LATER + 2, PROGRAMS)
        assert (list(picks.run_ids), picks.until) == ([], LATER + 10.0)

    async def test_delayed_runs_are_picked_when_their_moment_has_come(self, store: Store) -> None:
        """Until then, `until` is that moment."""
        await queued(store, "r1", not_before=LATER + 50)
        await queued(store, "r2", not_before=LATER + 20)
        assert list(await store.queues.waiting(None)) == [Waiting("emails", LATER + 20)]
        picks = await store.queues.pick(EMAILS, 10, LATER, PROGRAMS)
        assert (list(picks.run_ids), picks.until) == ([], LATER + 20)
        await queued(store, "r3")
        assert list(await store.queues.waiting(None)) == [Waiting("emails", BEGAN)]
        picks = await store.queues.pick(EMAILS, 10, LATER + 20, PROGRAMS)
        assert (list(picks.run_ids), picks.until) == (["r3", "r2"], LATER + 50)

    async def test_runs_of_programs_one_has_not_are_left_to_others(self, store: Store) -> None:
        """Runs of other programs do not block those that can be picked."""
        await queued(store, "r1", program="other")
        await queued(store, "r2")
        assert await picked(store, EMAILS) == ["r2"]
        assert list((await store.queues.pick(EMAILS, 9, LATER, ["other", "checkout"])).run_ids) == ["r1", "r2"]
        assert list((await store.queues.pick(EMAILS, 9, LATER, [])).run_ids) == []

    async def test_runs_of_versions_one_has_not_are_left_to_others(self, store: Store) -> None:
        """Runs of other versions do not block those that can be picked."""
        for number, version in enumerate(("1", "1", "2", ""), start=1):
            await queued(store, f"r{number}", version=version)
        assert list((await store.queues.pick(EMAILS, 1, LATER, ["checkout:2"])).run_ids) == ["r3"]
        assert list((await store.queues.pick(EMAILS, 9, LATER, ["checkout:", "checkout:2"])).run_ids) == ["r3", "r4"]

    async def test_only_runs_that_wait_are_picked(self, store: Store) -> None:
        """Not those that began, ended, are paused or parked, or are in no queue at all."""
        begun, ended, paused, stopped = [await queued(store, f"r{i}") for i in range(4)]
        await write_all(store, claim(begun, EMAILS), History("plain").begin())
        await write_all(store, ended.then(CancelRequested(), RunFinished(RunStatus.CANCELLED)))
        await write_all(store, paused.then(RunPaused()), stopped.then(parked()))
        assert await picked(store, EMAILS) == []
        assert list(await store.queues.waiting(None)) == []
        await write_all(store, paused.then(RunResumed()), stopped.then(RunResumed()))
        assert await picked(store, EMAILS) == ["r2", "r3"]

    async def test_a_run_that_is_started_again_before_it_began_has_the_new_input(self, store: Store) -> None:
        """Its row has the new input, and the new `not_before`."""
        run = await queued(store, "r1", not_before=LATER)
        await write_all(store, run.then(InputReplaced(Raw(b'["new"]'), "", LATER + 60, 7)))
        row = await store.runs.get("r1")
        assert row is not None
        assert (bytes(row.input), row.not_before, row.priority) == (b'["new"]', LATER + 60, 7)
        assert await picked(store, EMAILS, now=LATER + 59) == []
        assert await picked(store, EMAILS, now=LATER + 60) == ["r1"]

    # --- what there is --------------------------------------------------------------------------------------------

    async def test_queues_with_waiting_runs_are_known_by_name(self, store: Store) -> None:
        """All queues, or those that are named."""
        for i, queue in enumerate(("gpu", "emails", "reports")):
            await queued(store, f"r{i}", queue=queue, at=BEGAN + i)
        found = await store.queues.waiting(None)
        assert [(w.queue, w.first) for w in found] == [
            ("emails", BEGAN + 1),
            ("gpu", BEGAN),
            ("reports", BEGAN + 2),
        ]
        assert [w.queue for w in await store.queues.waiting(["gpu", "nothing"])] == ["gpu"]
        assert list(await store.queues.waiting([])) == []

    async def test_what_is_ahead_is_told_at_once(self, store: Store) -> None:
        """The next timer and the queues that wait, as one answer."""
        assert await store.timers.ahead(PROGRAMS, []) == Ahead(None, [])
        await write_all(store, History("t").begin_as("a", timer(BEGAN + 5)))
        await queued(store, "r1", queue="gpu", at=BEGAN + 1)
        await queued(store, "r2", queue="emails")
        waiting = [Waiting("emails", BEGAN), Waiting("gpu", BEGAN + 1)]
        assert await store.timers.ahead(PROGRAMS, []) == Ahead(BEGAN + 5, waiting)
        assert await store.timers.ahead(PROGRAMS, ["a"], ["gpu"]) == Ahead(None, waiting[1:])

    async def test_a_queue_is_told_in_numbers(self, store: Store) -> None:
        """What waits, what is under way, and since when the first waits."""
        assert list(await store.queues.stats()) == []
        runs = [await queued(store, f"r{i}", at=BEGAN + i) for i in range(5)]
        await queued(store, "g", queue="gpu", at=BEGAN + 100)
        for run in runs[:3]:
            await write_all(store, claim(run, EMAILS))
        await write_all(store, runs[0].then(finished()))
        assert list(await store.queues.stats()) == [
            QueueStats("emails", 2, 2, BEGAN + 3),
            QueueStats("gpu", 1, 0, BEGAN + 100),
        ]
        for run in runs[1:3]:
            await write_all(store, run.then(finished()))
        for run in runs[3:]:
            await write_all(store, run.then(CancelRequested(), RunFinished(RunStatus.CANCELLED)))
        assert [stats.queue for stats in await store.queues.stats()] == ["gpu"]

    @pytest.mark.parametrize("served", [None, ["gpu"]])
    async def test_timers_and_owned_runs_can_be_asked_for_by_queue(
        self, store: Store, served: Sequence[str] | None
    ) -> None:
        """An engine that serves some queues gets only their runs."""
        plain, gpu = History("plain"), await queued(store, "gpu", queue="gpu")
        await write_all(store, plain.begin_as("a"), claim(gpu, Queue("gpu")))
        expected = ["gpu"] if served else ["gpu", "plain"]
        assert sorted(await store.runs.owned(["a"], RunStatus.RUNNING, PROGRAMS, 10, served)) == expected
        await write_all(store, plain.then(timer(BEGAN + 5)), gpu.then(timer(BEGAN + 7)))
        found = await store.timers.due(LATER, 10, PROGRAMS, [], served)
        assert sorted(due.run_id for due in found) == expected
        assert await next_due(store, PROGRAMS, [], served) == (BEGAN + 7 if served else BEGAN + 5)
