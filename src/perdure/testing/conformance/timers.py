"""The contract of timers: due runs in order, of the caller's programs, without those of owners that are alive."""

from __future__ import annotations

from perdure.kernel.events import RunStatus, WaitResolved
from perdure.ports.store import Store
from perdure.ports.timers import Due
from perdure.testing.conformance.history import (
    BEGAN,
    History,
    StoreConformance,
    finished,
    next_due,
    parked,
    released,
    timer,
    write,
    write_all,
)

CHECKOUT = ["checkout"]


async def sleeper(store: Store, run_id: str, due: float | None, owner: str = "a", program: str = "checkout") -> History:
    """A run that waits for a moment."""
    run = History(run_id, program=program)
    await write_all(store, run.begin_as(owner, timer(due)))
    return run


class TimersConformance(StoreConformance):
    """The timers of a store."""

    async def test_nothing_is_due_in_an_empty_store(self, store: Store) -> None:
        """Without runs nothing is due, and nothing will be."""
        assert list(await store.timers.due(1e12, 10, CHECKOUT, [])) == []
        assert await next_due(store, CHECKOUT, []) is None

    async def test_due_runs_come_earliest_first(self, store: Store, second: Store) -> None:
        """The order is that of their moments, whatever the order they were written in."""
        for run_id, due in [("r1", 30.0), ("r2", 10.0), ("r3", 20.0), ("r4", 10.0)]:
            await sleeper(store, run_id, due)
        found = await second.timers.due(100.0, 10, CHECKOUT, [])
        assert [(due.run_id, due.wake_at) for due in found][2:] == [("r3", 20.0), ("r1", 30.0)]
        assert {due.run_id for due in found[:2]} == {"r2", "r4"}

    async def test_a_run_is_due_at_its_moment_and_not_before(self, store: Store) -> None:
        """`wake_at <= now` is due, and nothing else."""
        await sleeper(store, "r1", 50.5)
        assert list(await store.timers.due(50.4999, 10, CHECKOUT, [])) == []
        assert list(await store.timers.due(50.5, 10, CHECKOUT, [])) == [Due("r1", "checkout", "a", 50.5, True)]

    async def test_the_number_of_due_runs_is_bounded(self, store: Store) -> None:
        """At most `limit` come, and they are the earliest."""
        for i in range(10):
            await sleeper(store, f"r{i}", 100.0 - i)
        found = await store.timers.due(1000.0, 3, CHECKOUT, [])
        assert [due.run_id for due in found] == ["r9", "r8", "r7"]

    async def test_due_runs_are_those_of_the_programs_asked_for(self, store: Store) -> None:
        """Runs that the caller cannot advance are left out."""
        await sleeper(store, "r1", 10.0, program="checkout")
        await sleeper(store, "r2", 5.0, program="refund")
        await sleeper(store, "r3", 1.0, program="other")
        assert [due.run_id for due in await store.timers.due(99.0, 9, CHECKOUT, [])] == ["r1"]
        assert [due.run_id for due in await store.timers.due(99.0, 9, ["refund", "checkout"], [])] == ["r2", "r1"]
        assert list(await store.timers.due(99.0, 9, [], [])) == []
        assert await next_due(store, CHECKOUT, []) == 10.0
        assert await next_due(store, ["refund", "checkout"], []) == 5.0
        assert await next_due(store, [], []) is None

    async def test_due_runs_are_those_of_the_versions_asked_for(self, store: Store) -> None:
        """A program with a version means runs of that version, and with none those that have no version yet."""
        for number, version in enumerate(("1", "2", "", "2"), start=1):
            history = History(f"r{number}", version=version)
            await write_all(store, history.begin_as("a", timer(10.0 * number)))
        found = {
            asked: [due.run_id for due in await store.timers.due(99.0, 9, asked, [])]
            for asked in [("checkout:1",), ("checkout:", "checkout:2"), ("checkout:3",), ("checkout",), ("other:1",)]
        }
        assert [*found.values()] == [["r1"], ["r2", "r3", "r4"], [], ["r1", "r2", "r3", "r4"], []]
        assert [await next_due(store, asked, []) for asked in found] == [10.0, 20.0, None, 10.0, None]

    async def test_runs_of_owners_to_skip_are_left_out(self, store: Store) -> None:
        """Live owners advance their own runs; runs without an owner are due for every orchestrator."""
        await sleeper(store, "r1", 10.0, owner="a")
        await sleeper(store, "r2", 20.0, owner="b")
        orphan = await sleeper(store, "r3", 30.0, owner="a")
        await write_all(store, orphan.then(released("a")))
        assert [due.run_id for due in await store.timers.due(99.0, 9, CHECKOUT, ["a"])] == ["r2", "r3"]
        assert [due.run_id for due in await store.timers.due(99.0, 9, CHECKOUT, ["a", "b"])] == ["r3"]
        assert await next_due(store, CHECKOUT, ["a"]) == 20.0
        assert await next_due(store, CHECKOUT, ["a", "b"]) == 30.0

    async def test_the_next_moment_is_the_earliest(self, store: Store) -> None:
        """`ahead` returns the earliest moment, past or future."""
        await sleeper(store, "r1", 30.0)
        await sleeper(store, "r2", None)
        assert await next_due(store, CHECKOUT, []) == 30.0
        await sleeper(store, "r3", 12.25)
        assert await next_due(store, CHECKOUT, []) == 12.25

    async def test_a_moment_that_changes_is_seen_with_the_append_that_changes_it(self, store: Store) -> None:
        """Timers are read from the rows, which change with the journal and at the same time."""
        run = await sleeper(store, "r1", 30.0)
        await write_all(store, run.then(WaitResolved("sleep:0", "timer"), timer(70.0, "sleep:1")))
        assert list(await store.timers.due(69.0, 10, CHECKOUT, [])) == []
        assert await next_due(store, CHECKOUT, []) == 70.0

    async def test_a_refused_append_moves_no_moment(self, store: Store) -> None:
        """What was not written is not due."""
        await sleeper(store, "r1", 30.0)
        stale = History("r1")
        await write(store, stale.begin_as("b", timer(5.0)))
        assert await next_due(store, CHECKOUT, []) == 30.0

    async def test_a_run_that_has_ended_or_is_parked_is_never_due(self, store: Store) -> None:
        """A run that cannot continue is not due."""
        ended, stopped = await sleeper(store, "r1", 10.0), await sleeper(store, "r2", 10.0)
        await write_all(store, ended.then(finished(RunStatus.CANCELLED)), stopped.then(parked()))
        assert list(await store.timers.due(1e12, 10, CHECKOUT, [])) == []
        assert await next_due(store, CHECKOUT, []) is None

    async def test_a_delayed_run_is_due_when_it_may_begin(self, store: Store) -> None:
        """A queued run is due at once, or at its `not_before`."""
        await write_all(store, History("r1").begin(), History("r2", not_before=BEGAN + 60).begin())
        assert [due.run_id for due in await store.timers.due(BEGAN, 10, CHECKOUT, ["a"])] == ["r1"]
        found = await store.timers.due(BEGAN + 60, 10, CHECKOUT, ["a"])
        assert list(found) == [
            Due("r1", "checkout", None, BEGAN, False),
            Due("r2", "checkout", None, BEGAN + 60, False),
        ]
