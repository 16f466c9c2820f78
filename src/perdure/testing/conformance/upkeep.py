"""The contract of upkeep: ended runs are removed wholly, what is referred to stays, rows are rebuilt from journals."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from perdure.kernel.events import (
    NULL,
    ChildFinished,
    ChildStarted,
    RunFinished,
    RunForked,
    RunStatus,
    SnapshotTaken,
    StepStarted,
    StepSucceeded,
    references,
)
from perdure.kernel.projection import child_rows
from perdure.kernel.state import fold
from perdure.ports.journal import Append, Appended
from perdure.ports.runs import RunFilter
from perdure.ports.store import Store
from perdure.ports.upkeep import Collected, Ended, Load
from perdure.testing.conformance.history import (
    BEGAN,
    History,
    StoreConformance,
    finished,
    next_due,
    parked,
    timer,
    write,
    write_all,
)

EVER = 1e11
OVER = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.BAILED)


async def over(store: Store, run_id: str, status: RunStatus = RunStatus.COMPLETED, **fields: Any) -> History:
    """A run that has begun and ended, in two appends."""
    history = History(run_id, **fields)
    await write_all(store, history.begin_as("node-1"), history.then(finished(status)))
    return history


def family(run_id: str, *ends: ChildFinished) -> tuple[History, Append]:
    """A run with two children in its journal, one of them the other's; and the append that creates them."""
    history = History(run_id, id=f"id of {run_id}")
    first = history.begin_as("node-1", ChildStarted("a:0", "part"), ChildStarted("a:0/b:0", "part"), *ends)
    return history, msgspec.structs.replace(first, children=child_rows(history.state))


class CollectConformance(StoreConformance):
    """The blobs of a store that nothing refers to."""

    async def test_a_blob_that_a_journal_refers_to_stays(self, store: Store, second: Store) -> None:
        """Every kind of reference counts: inputs, results of steps and children, outputs and snapshots."""
        blobs = [await store.blobs.put(b"%d" % number) for number in range(6)]
        history = History("r1", input=NULL, input_blob=blobs[0])
        await write_all(
            store,
            history.begin_as("node-1", ChildStarted("a:0", "part", input_blob=blobs[1])),
            history.then(StepStarted("w:0"), StepSucceeded("w:0", NULL, blob=blobs[2])),
            history.then_batches(
                [ChildFinished("a:0", RunStatus.COMPLETED, blob=blobs[3])], [SnapshotTaken(2, blobs[4])]
            ),
            history.then(RunFinished(RunStatus.COMPLETED, blob=blobs[5])),
        )
        assert await second.upkeep.collect(0, 100) == Collected(0, 0)
        for number, blob in enumerate(blobs):
            assert await store.blobs.get(blob) == b"%d" % number

    async def test_a_blob_goes_when_the_last_journal_that_refers_to_it_does(self, store: Store) -> None:
        """Two runs may share a value: it stays for as long as one of them does."""
        blob = await store.blobs.put(b"a large value")
        for run_id in ("r1", "r2"):
            await over(store, run_id, input=NULL, input_blob=blob)
        await store.upkeep.remove(["r1"])
        assert await store.upkeep.collect(0, 100) == Collected(0, 0)
        await store.upkeep.remove(["r2"])
        assert await store.upkeep.collect(0, 100, dry_run=True) == Collected(1, 13)
        assert await store.blobs.get(blob) == b"a large value"
        assert await store.upkeep.collect(0, 100) == Collected(1, 13)
        assert await store.blobs.get(blob) is None
        assert await store.upkeep.collect(0, 100) == Collected(0, 0)

    async def test_a_run_that_starts_others_refers_for_each_to_what_it_needs(self, store: Store) -> None:
        """A journal that another run's append creates has references of its own."""
        blob = await store.blobs.put(b"the input of a detached child")
        history = History("r1")
        child = History("r2", input=NULL, input_blob=blob)
        first = msgspec.structs.replace(history.begin_as("node-1"), starts=[child.begin()])
        await write_all(store, first)
        await write_all(store, history.then(finished()))
        await store.upkeep.remove(["r1"])
        assert await store.upkeep.collect(0, 100) == Collected(0, 0)
        await write_all(store, child.then(finished()))
        await store.upkeep.remove(["r2"])
        assert await store.upkeep.collect(0, 100) == Collected(1, 29)

    async def test_an_append_that_is_refused_refers_to_nothing(self, store: Store) -> None:
        """Only what is in a journal counts."""
        blob = await store.blobs.put(b"never recorded")
        history = History("r1")
        await write_all(store, history.begin_as("node-1"))
        refused = History("r1", input=NULL, input_blob=blob).begin_as("node-2")
        assert await write(store, refused) != [Appended()]
        assert await store.upkeep.collect(0, 100) == Collected(1, 14)

    async def test_a_journal_that_was_compacted_refers_to_what_it_still_holds(self, store: Store) -> None:
        """Blobs that compaction no longer refers to, snapshots above all, are collected."""
        kept, dropped = await store.blobs.put(b"kept"), await store.blobs.put(b"dropped")
        history = History("r1", input=NULL, input_blob=kept)
        await write_all(
            store, history.begin_as("node-1"), history.then(SnapshotTaken(2, dropped)), history.then(finished())
        )
        batches = await store.journal.read("r1")
        left = [batch for batch in batches if dropped not in references(batch.events)]
        left[-1] = msgspec.structs.replace(left[-1], seq=left[-2].seq + len(left[-2].events))
        assert await store.journal.rewrite("r1", history.state.next_seq, left) == Appended()
        assert await store.upkeep.collect(0, 100) == Collected(1, 7)
        assert await store.blobs.get(kept) == b"kept"

    async def test_values_that_look_like_references_are_none(self, store: Store) -> None:
        """A user's value that looks like a reference neither keeps a blob nor hides a real reference."""
        blob = await store.blobs.put(b"x")
        value = msgspec.json.encode({"blob": blob, "input_blob": blob, "text": '"blob":"'})
        history = History("r1", input=Raw(value))
        await write_all(store, history.begin_as("n", StepStarted("w:0"), StepSucceeded("w:0", Raw(value))))
        assert await store.upkeep.collect(0, 100) == Collected(1, 1)
        assert len(await store.journal.read("r1")) == 1

    async def test_a_blob_that_was_put_lately_stays(self, store: Store) -> None:
        """An event may be about to refer to it; putting it again makes it young again."""
        blob = await store.blobs.put(b"on its way")
        assert await store.upkeep.collect(3600, 100) == Collected(0, 0)
        assert await store.blobs.get(blob) == b"on its way"
        await over(store, "r1", input=NULL, input_blob=blob)
        assert await store.upkeep.collect(0, 100) == Collected(0, 0)

    async def test_blobs_are_collected_in_small_parts(self, store: Store) -> None:
        """At most so many at once, and in the end all of them."""
        for number in range(5):
            await store.blobs.put(b"%d" % number)
        found = [(await store.upkeep.collect(0, 2)).blobs for _ in range(4)]
        assert found == [2, 2, 1, 0]

    async def test_a_blob_that_is_kept_is_never_collected(self, store: Store, second: Store) -> None:
        """Whether `keep` comes before or after a run refers to it, and even once that run is removed."""
        blobs = [await store.blobs.put(b"mine"), await store.blobs.put(b"mine too")]
        await store.upkeep.keep(blobs[0])
        for number, blob in enumerate(blobs):
            await over(store, f"r{number}", input=NULL, input_blob=blob)
        for blob in blobs:
            await second.upkeep.keep(blob)
        await store.upkeep.remove(["r0", "r1"])
        assert await second.upkeep.collect(0, 100) == Collected(0, 0)
        assert [await store.blobs.get(blob) for blob in blobs] == [b"mine", b"mine too"]

    async def test_a_run_that_shares_the_past_of_another_keeps_its_blobs(self, store: Store) -> None:
        """A forked run refers to the blobs of its past itself, and outlives the run it was forked from."""
        blob = await store.blobs.put(b"a result of the past")
        past = (StepStarted("w:0"), StepSucceeded("w:0", NULL, blob=blob))
        origin, fork = History("r1"), History("r2", forked_from="r1")
        await write_all(
            store, origin.begin_as("n", *past), origin.then(finished()), fork.begin(*past, RunForked("r1", 4))
        )
        assert list(await store.upkeep.remove(["r1"])) == ["r1"]
        assert await store.upkeep.collect(0, 100) == Collected(0, 0)
        assert await store.blobs.get(blob) == b"a result of the past"


class UpkeepConformance(CollectConformance):
    """The upkeep of a store."""

    # --- loads ---

    async def test_loads_count_the_unfinished_runs_of_each_owner(self, store: Store, second: Store) -> None:
        """Runs without an owner come first, then owners by name; ended runs do not count."""
        histories = [History(f"r{number}") for number in range(7)]
        await write_all(
            store,
            histories[0].begin(),
            histories[1].begin_as("node-2"),
            histories[2].begin_as("node-2", timer(BEGAN + 99)),
            histories[3].begin_as("node-2", parked()),
            histories[4].begin_as("node-1"),
            histories[5].begin_as("node-1"),
            histories[6].begin_as("node-3"),
        )
        await write_all(store, histories[6].then(finished()))
        found = {load.owner: load for load in await second.upkeep.loads()}
        assert found[None] == Load(None, 0, 1)
        assert found["node-1"] == Load("node-1", 2, 0)
        assert (found["node-2"].running, found["node-2"].waiting) == (1, 2)
        assert "node-3" not in found
        assert [load.owner for load in await store.upkeep.loads()] == [None, "node-1", "node-2"]

    async def test_an_empty_store_has_no_loads(self, store: Store) -> None:
        """An empty store has no load."""
        assert list(await store.upkeep.loads()) == []

    async def test_children_in_a_journal_are_no_load_of_their_own(self, store: Store) -> None:
        """A root and its children count as one run."""
        await write_all(store, family("r1")[1])
        assert list(await store.upkeep.loads()) == [Load("node-1", 1, 0)]

    # --- ended ---

    async def test_runs_that_ended_are_told_with_their_size(self, store: Store, second: Store) -> None:
        """Pruning reports what it removes, and how large it is."""
        history = await over(store, "r1", RunStatus.FAILED, id="order 1")
        head = await store.journal.head("r1")
        assert head is not None
        assert list(await second.upkeep.list_ended(EVER, OVER, 10)) == [
            Ended("r1", "order 1", "checkout", RunStatus.FAILED, history.at - 1.0, head.size)
        ]

    @pytest.mark.parametrize("status", OVER)
    async def test_only_the_statuses_asked_for_are_told(self, store: Store, status: RunStatus) -> None:
        """Runs in other statuses are left out."""
        for each in OVER:
            await over(store, f"r-{each}", each)
        assert [ended.run_id for ended in await store.upkeep.list_ended(EVER, [status], 10)] == [f"r-{status}"]
        assert list(await store.upkeep.list_ended(EVER, [], 10)) == []

    async def test_what_ended_at_that_moment_or_later_is_not_told(self, store: Store) -> None:
        """`before` is exclusive."""
        history = await over(store, "r1")
        ended_at = history.at - 1.0
        assert list(await store.upkeep.list_ended(ended_at, OVER, 10)) == []
        assert len(await store.upkeep.list_ended(ended_at + 0.001, OVER, 10)) == 1

    async def test_what_has_not_ended_is_never_told(self, store: Store) -> None:
        """Not even when the statuses that are asked for are those of unfinished runs."""
        await write_all(
            store, History("r1").begin(), History("r2").begin_as("n", parked()), History("r3").begin_as("n")
        )
        assert list(await store.upkeep.list_ended(EVER, list(RunStatus), 10)) == []

    async def test_ended_runs_come_page_by_page_in_order(self, store: Store) -> None:
        """The last run_id of a page is the cursor of the next; together they are all, each once."""
        for number in (3, 1, 4, 0, 2):
            await over(store, f"r{number}")
        seen: list[str] = []
        while page := await store.upkeep.list_ended(EVER, OVER, 2, seen[-1] if seen else ""):
            assert len(page) <= 2
            seen += [ended.run_id for ended in page]
        assert seen == ["r0", "r1", "r2", "r3", "r4"]

    async def test_children_in_a_journal_are_not_told(self, store: Store) -> None:
        """Children are removed with their root."""
        history, first = family(
            "r1", ChildFinished("a:0/b:0", RunStatus.COMPLETED), ChildFinished("a:0", RunStatus.FAILED)
        )
        await write_all(store, first)
        assert list(await store.upkeep.list_ended(EVER, OVER, 10)) == []
        await write_all(store, history.then(finished()))
        assert [ended.run_id for ended in await store.upkeep.list_ended(EVER, OVER, 10)] == ["r1"]

    # --- remove ---

    async def test_a_removed_run_leaves_nothing_behind(self, store: Store, second: Store) -> None:
        """No port finds its journal, head or row, nor those of its children."""
        history, first = family(
            "r1", ChildFinished("a:0/b:0", RunStatus.COMPLETED), ChildFinished("a:0", RunStatus.FAILED)
        )
        await write_all(store, first, History("r10").begin())
        await write_all(store, history.then(finished()))
        assert list(await store.upkeep.remove(["r1"])) == ["r1"]
        assert await second.journal.read("r1") == []
        assert await second.journal.head("r1") is None
        assert await second.journal.heads(["r1"]) == {}
        for run_id in ("r1", "r1/a:0", "r1/a:0/b:0"):
            assert await second.runs.get(run_id) is None
        assert await second.runs.find("id of r1") is None
        assert await second.runs.find("id of r1/a:0") is None
        assert list(await second.runs.finished(["r1"])) == []
        assert [row.run_id for row, _ in await second.runs.list(RunFilter())] == ["r10"]
        assert list(await second.upkeep.list_ended(EVER, OVER, 10)) == []
        assert list(await second.upkeep.journals("", 10)) == ["r10"]

    async def test_a_run_that_has_not_ended_is_not_removed(self, store: Store) -> None:
        """The store checks that, not the caller."""
        history = History("r1")
        await write_all(store, history.begin_as("node-1"), History("r2").begin(), History("r3").begin_as("n", parked()))
        assert list(await store.upkeep.remove(["r1", "r2", "r3", "none"])) == []
        await write_all(store, history.then(finished()))
        assert list(await store.upkeep.remove(["r1", "r2", "r3", "none"])) == ["r1"]
        assert await store.journal.heads(["r1", "r2", "r3"]) == {"r2": 1, "r3": 3}

    async def test_removing_nothing_or_twice_is_no_error(self, store: Store) -> None:
        """Two processes may prune at once, and each run is removed by one of them."""
        for number in range(4):
            await over(store, f"r{number}")
        assert list(await store.upkeep.remove([])) == []
        everyone = [f"r{number}" for number in range(4)]
        removed = await asyncio.gather(*(store.upkeep.remove(everyone) for _ in range(3)))
        assert sorted(run_id for some in removed for run_id in some) == everyone

    async def test_the_id_of_a_removed_run_is_free(self, store: Store) -> None:
        """A removed run leaves its id free."""
        await over(store, "r1", id="order 1")
        await store.upkeep.remove(["r1"])
        again = await over(store, "r2", id="order 1")
        assert await store.runs.get("r2") is not None
        found = await store.runs.find("order 1")
        assert found is not None
        assert found[0].run_id == again.run_id

    async def test_a_run_stays_while_an_earlier_one_of_its_id_does(self, store: Store) -> None:
        """The latest incarnation is the outcome under its id: an earlier one must not become the latest."""
        await over(store, "r1", RunStatus.FAILED, id="order 1")
        await over(store, "r2", id="order 1", incarnation=2)
        assert list(await store.upkeep.remove(["r2"])) == []
        assert await store.runs.get("r2") is not None
        assert sorted(await store.upkeep.remove(["r2", "r1"])) == ["r1", "r2"]

    async def test_an_earlier_incarnation_may_go_alone(self, store: Store) -> None:
        """A run that continues as new ones may be pruned from its oldest incarnation on."""
        history = History("r1", id="order 1")
        end = RunFinished(RunStatus.COMPLETED, continued_as="r2")
        await write_all(store, history.begin_as("node-1"), history.then(end))
        later = History("r2", id="order 1", incarnation=2, continued_from="r1")
        await write_all(store, later.begin_as("node-1"))
        assert list(await store.upkeep.remove(["r1"])) == ["r1"]
        found = await store.runs.find("order 1")
        assert found is not None
        assert found[0].run_id == "r2"
        await write_all(store, later.then(finished()))

    # --- journals and reproject ---

    async def test_journals_come_page_by_page_in_order(self, store: Store) -> None:
        """All journals, of finished and unfinished runs, each once; children have none of their own."""
        await write_all(store, family("r2")[1], History("r3").begin(), History("r1").begin())
        await over(store, "r0")
        assert list(await store.upkeep.journals("", 3)) == ["r0", "r1", "r2"]
        assert list(await store.upkeep.journals("r2", 3)) == ["r3"]
        assert list(await store.upkeep.journals("r3", 3)) == []

    async def test_rows_are_replaced_by_those_that_are_given(self, store: Store, second: Store) -> None:
        """A wrong row is corrected, and a missing row is restored."""
        history, first = family("r1")
        await write_all(store, first)
        state = fold("r1", await store.journal.read("r1"))
        right = [first.row, *child_rows(state)]
        assert first.row is not None
        wrong = msgspec.structs.replace(first.row, status=RunStatus.PARKED, wake_at=5.0, tags={"wrong": "yes"})
        assert await store.upkeep.reproject("r1", history.state.next_seq, [wrong])
        assert await second.runs.get("r1") == wrong
        assert await second.runs.get("r1/a:0") is None
        assert await store.upkeep.reproject("r1", history.state.next_seq, [row for row in right if row is not None])
        for row in right:
            assert row is not None
            assert await second.runs.get(row.run_id) == row
        found = await second.runs.find("id of r1")
        assert found is not None
        assert found[0] == first.row
        assert await next_due(second, ["checkout"], []) == first.row.wake_at
        await write_all(store, history.then(finished()))

    async def test_rows_are_left_alone_when_the_journal_has_gone_on(self, store: Store) -> None:
        """Rows that were computed from an older journal must not replace newer ones."""
        history = History("r1")
        first = history.begin_as("node-1")
        await write_all(store, first, history.then(timer(BEGAN + 9)))
        assert first.row is not None
        assert not await store.upkeep.reproject("r1", 2, [first.row])
        assert not await store.upkeep.reproject("none", 2, [first.row])
        row = await store.runs.get("r1")
        assert row is not None
        assert row.status is RunStatus.WAITING

    async def test_a_row_of_a_queue_counts_as_what_it_is_now(self, store: Store) -> None:
        """A run that is no longer queued takes no place in line."""
        history = History("r1", queue="mail")
        first = history.begin()
        await write_all(store, first)
        assert first.row is not None
        assert await store.upkeep.reproject("r1", 1, [first.row])
        assert [(stats.queue, stats.queued) for stats in await store.queues.stats()] == [("mail", 1)]
        over = msgspec.structs.replace(first.row, status=RunStatus.CANCELLED, finished_at=BEGAN)
        assert await store.upkeep.reproject("r1", 1, [over])
        assert list(await store.queues.stats()) == []
