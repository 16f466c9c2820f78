"""The contract of the rows of runs: they follow the journal, one commit with it, and can be asked for in many ways."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from perdure.errors import Corrupt
from perdure.kernel.events import (
    AnyEvent,
    Batch,
    ChildFinished,
    ChildStarted,
    RunClaimed,
    RunFinished,
    RunForked,
    RunReleased,
    RunStatus,
    StepStarted,
    WaitOpened,
    WaitResolved,
)
from perdure.kernel.projection import RunRow, child_rows, row
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.runs import Match, RunFilter, Span, Tally
from perdure.ports.store import Store
from perdure.testing.conformance.history import (
    BEGAN,
    History,
    StoreConformance,
    finished,
    listed,
    numbered,
    parked,
    released,
    step,
    timer,
    write,
    write_all,
)


async def ids(store: Store, **filter: Any) -> list[str]:
    """The run ids a filter finds, in the order they come."""
    return [found.run_id for found, _ in await store.runs.list(RunFilter(**filter))]


def rows(found: Sequence[RunRow | Corrupt]) -> list[RunRow]:
    """Rows of which none is damaged."""
    assert all(isinstance(one, RunRow) for one in found)
    return [one for one in found if isinstance(one, RunRow)]


def _children(*paths: str) -> list[AnyEvent]:
    """The beginnings of children, each of a program that is called as its op."""
    return [ChildStarted(path, path.rpartition("/")[2].partition(":")[0]) for path in paths]


class RowConformance(StoreConformance):
    """One run: its row, and how it is found."""

    async def test_a_missing_run_is_none(self, store: Store) -> None:
        """No such run is an answer, not an error."""
        assert await store.runs.get("missing") is None
        assert await store.runs.find("missing") is None
        assert list(await store.runs.finished(["missing"])) == []

    async def test_a_row_comes_back_as_it_was_written(self, store: Store, second: Store) -> None:
        """Every field of a row survives exactly, from every connection."""
        failure = Failure(
            "shop.Declined", "no — 🚫", Raw(b'["no",1.5]'), Raw(b'{"code":7}'), "File x", Failure("a.B", "")
        )
        run = History(
            "r1",
            at=1_700_000_000.123456,
            id="Bestellung № 7/ü 👍",
            program="shop.checkout",
            version="2024-01",
            incarnation=3,
            input=Raw('{"name":"Zoë 👩‍👩‍👧‍👦","x":0.30000000000000004}'.encode()),
            input_blob="b" * 64,
            tags={"kunde": "Müller", "🔑": "", "a'b\"c": "%_?"},
            forked_from="r0",
        )
        await write_all(store, run.begin_as("host-1", timer(1_700_000_099.000001)))
        assert await second.runs.get("r1") == row(run.state)
        await write_all(store, run.then(RunFinished(RunStatus.FAILED, Raw(b"[1]"), "c" * 64, failure, "because")))
        assert await second.runs.get("r1") == row(run.state)

    async def test_a_run_with_a_past_is_there_wholly_or_not_at_all(self, store: Store, second: Store) -> None:
        """A fork is created by one append of many batches, with the rows of the children in it; or refused, wholly."""
        past = History("r1", id="fork", forked_from="r0")
        append = past.then_batches(
            [past.started, RunClaimed("a", 1), *step(0)],
            [ChildStarted("pack:0", "pack", id="a child"), ChildFinished("pack:0", RunStatus.COMPLETED)],
            [RunReleased("a"), RunForked("r0", 6, 1.5, {"work:1": {"n": Raw(b"7")}}, {"phase": Raw(b'"late"')})],
        )
        append = msgspec.structs.replace(append, children=child_rows(past.state))
        await write_all(store, append)
        found = await second.runs.get("r1")
        assert found is not None
        assert (found.forked_from, found.status, found.owner) == ("r0", RunStatus.RUNNING, None)
        assert await numbered(second.journal, "r1") == listed(append)
        child = await second.runs.get("r1/pack:0")
        assert child is not None
        assert child.status is RunStatus.COMPLETED
        other = History("r2", id="fork", forked_from="r0")
        again = other.then_batches([other.started, RunClaimed("a", 1)], [RunReleased("a"), RunForked("r0", 2)])
        assert await write(second, again) == [Conflict(None)]
        assert await store.runs.get("r2") is None
        assert await store.journal.read("r2") == []

    async def test_a_row_changes_with_the_append_that_carries_it(self, store: Store, second: Store) -> None:
        """Journal and row are written in one commit: neither is ever seen without the other."""
        run = History("r1")
        for append in (run.begin(), run.then(RunClaimed("a", 1)), run.then(timer(9.0)), run.then(finished())):
            await write_all(store, append)
            found = await second.runs.find("r1")
            assert found is not None
            assert found[0] == append.row
            assert found[1].next_seq == append.next_seq

    async def test_an_append_without_a_row_leaves_the_row_as_it_is(self, store: Store) -> None:
        """A step that changes nothing in the row does not touch it; the head moves all the same."""
        run = History("r1")
        begin = run.begin_as("a")
        await write_all(store, begin)
        await write_all(store, Append("r1", 2, [Batch(2, 9.0, step(0))]))
        found = await store.runs.find("r1")
        assert found is not None
        assert found[0] == begin.row
        assert (found[1].next_seq, found[1].at) == (4, 9.0)

    async def test_a_refused_append_leaves_the_row_as_it_is(self, store: Store) -> None:
        """What was not written in the journal is not written in the row."""
        begin = History("r1").begin_as("a")
        await write_all(store, begin)
        zombie = History("r1")
        zombie.begin()
        assert await write(store, zombie.then(RunClaimed("b", 7), finished())) == [Conflict(2)]
        assert await store.runs.get("r1") == begin.row

    async def test_an_id_and_incarnation_belong_to_one_run(self, store: Store, second: Store) -> None:
        """Another run under the same id and incarnation is refused, and its journal does not come to be."""
        first = History("r1", id="order-1", input=Raw(b'["first"]')).begin()
        await write_all(store, first)
        assert await write(second, History("r2", id="order-1").begin()) == [Conflict(None)]
        assert await store.runs.get("r2") is None
        assert await store.journal.head("r2") is None
        assert await store.journal.read("r2") == []
        found = await second.runs.find("order-1")
        assert found is not None
        assert found[0] == first.row

    async def test_of_many_who_start_a_run_under_one_id_exactly_one_does(self, store: Store, second: Store) -> None:
        """The id is the idempotency key: concurrent starts make one run."""
        appends = [History(f"r{i}", id="order-1").begin() for i in range(10)]
        outcomes = await asyncio.gather(*(write((store, second)[i % 2], a) for i, a in enumerate(appends)))
        [winner] = [i for i, outcome in enumerate(outcomes) if outcome == [Appended()]]
        assert [o for o in outcomes if o != [Appended()]] == [[Conflict(None)]] * 9
        assert await ids(store) == [f"r{winner}"]

    async def test_an_id_that_is_taken_does_not_harm_the_others_of_its_group(self, store: Store) -> None:
        """A group shares a commit, not a fate; also within the group the first one wins."""
        await write_all(store, History("r1", id="order-1").begin())
        group = [
            History(f"r{i}", id=id).begin() for i, id in enumerate(["order-2", "order-1", "order-3", "order-2"], 2)
        ]
        assert await write(store, *group) == [Appended(), Conflict(None), Appended(), Conflict(None)]
        assert await ids(store) == ["r4", "r2", "r1"]
        assert [await store.journal.head(run_id) for run_id in ("r3", "r5")] == [None, None]

    async def test_the_latest_incarnation_of_an_id_is_found(self, store: Store) -> None:
        """`find` follows the caller's id; `get` names one incarnation."""
        for i in (1, 2, 3):
            # Run ids in another order: it is the incarnation that counts.
            run = History(f"r{9 - i}", id="order-1", incarnation=i)
            await write_all(store, run.begin_as("a", finished()))
        found = await store.runs.find("order-1")
        assert found is not None
        assert (found[0].run_id, found[0].incarnation) == ("r6", 3)
        first = await store.runs.get("r8")
        assert first is not None
        assert first.incarnation == 1

    async def test_ids_are_compared_exactly(self, store: Store) -> None:
        """Ids that differ in case, in spaces or in the form of a character are different ids."""
        for i, id in enumerate(["order", "Order", "order ", "ordér", "orde\u0301r"]):
            await write_all(store, History(f"r{i}", id=id).begin())
        found = await store.runs.find("Order")
        assert found is not None
        assert found[0].run_id == "r1"
        assert await store.runs.find("ORDER") is None


class ListConformance(StoreConformance):
    """Many runs: lists, and what orchestrators ask for."""

    async def test_runs_are_listed_newest_first(self, store: Store, second: Store) -> None:
        """Run ids grow with time, and a list begins with the newest; each comes with its row and its head."""
        histories = [History(f"r{i}") for i in (2, 0, 1)]
        appends = {run.run_id: run.begin_as("a", *step(0)) for run in histories}
        await write_all(store, *appends.values())
        found = await second.runs.list(RunFilter())
        assert [one.run_id for one, _ in found] == ["r2", "r1", "r0"]
        for one, head in found:
            assert one == appends[one.run_id].row
            assert head == await store.journal.head(one.run_id)

    async def test_an_empty_store_lists_nothing(self, store: Store) -> None:
        """Nothing is an answer."""
        assert await ids(store) == []
        assert list(await store.runs.owners()) == []
        assert list(await store.runs.programs()) == []

    async def test_runs_that_ask_something_are_listed_apart(self, store: Store, second: Store) -> None:
        """A run asks for as long as an approval of it is open; other filters and pages apply as well."""
        asking = [History(f"r{i}", program="a" if i % 2 else "b") for i in range(4)]
        quiet, ended = History("r4"), History("r5")
        question = WaitOpened("ship:0", "approval", name="ship")
        await write_all(store, *(run.begin_as("a", question) for run in asking))
        await write_all(store, quiet.begin_as("a", timer(9.0)), ended.begin_as("a", question))
        await write_all(store, ended.then(finished()))
        assert await ids(second, asking=True) == ["r3", "r2", "r1", "r0"]
        assert await ids(second, asking=True, program="a") == ["r3", "r1"]
        assert await ids(second, asking=True, limit=2) == ["r3", "r2"]
        assert await ids(second, asking=True, limit=2, cursor="r2") == ["r1", "r0"]
        await write_all(store, asking[3].then(WaitResolved("ship:0", "answer:ann")))
        assert await ids(second, asking=True) == ["r2", "r1", "r0"]
        assert len(await ids(second)) == 6

    async def test_runs_are_listed_by_status(self, store: Store) -> None:
        """One status or several; none means all."""
        queued, running, waiting = History("r0"), History("r1"), History("r2")
        stopped, done, failed = History("r3"), History("r4"), History("r5")
        await write_all(
            store,
            queued.begin(),
            running.begin_as("a", StepStarted("work:0")),
            waiting.begin_as("a", timer(9.0)),
            stopped.begin_as("a", parked()),
            done.begin_as("a", finished()),
            failed.begin_as("a", finished(RunStatus.FAILED)),
        )
        expected = ["queued", "running", "waiting", "parked", "completed", "failed"]
        for number, status in enumerate(expected):
            assert await ids(store, status=[RunStatus(status)]) == [f"r{number}"]
        assert await ids(store, status=[RunStatus.FAILED, RunStatus.QUEUED]) == ["r5", "r0"]
        assert await ids(store, status=[RunStatus.BAILED]) == []
        assert len(await ids(store)) == 6
        ended = [RunStatus.FAILED, RunStatus.COMPLETED, RunStatus.FAILED]
        assert await ids(store, status=ended, program="checkout") == ["r5", "r4"]
        assert await ids(store, status=[*RunStatus], program="checkout", limit=2, cursor="r4") == ["r3", "r2"]
        assert await ids(store, status=[*RunStatus], program="refund") == []

    async def test_a_run_that_changes_its_status_is_listed_once(self, store: Store, second: Store) -> None:
        """A list of several statuses is of one moment: a run that goes from one to the other is in it, and once."""
        runs = [History(f"r{number}") for number in range(4)]
        await write_all(store, *(run.begin_as("a", timer(9.0)) for run in runs))
        expected = [run.run_id for run in reversed(runs)]
        busy = True

        async def toggle() -> None:
            try:
                for number in range(30):
                    run = runs[number % len(runs)]
                    started, succeeded = step(number)
                    await write_all(store, run.then(started))
                    await write_all(store, run.then(succeeded))
            finally:
                nonlocal busy
                busy = False

        async def look() -> None:
            while busy:
                found = await ids(second, status=[RunStatus.WAITING, RunStatus.RUNNING, RunStatus.QUEUED])
                assert found == expected
                await asyncio.sleep(0)

        await asyncio.gather(toggle(), look(), look())

    async def test_runs_are_listed_by_program(self, store: Store) -> None:
        """The name is compared whole."""
        for i, program in enumerate(["checkout", "refund", "check", "checkout"]):
            await write_all(store, History(f"r{i}", program=program).begin())
        assert await ids(store, program="checkout") == ["r3", "r0"]
        assert await ids(store, program="check") == ["r2"]
        assert await ids(store, program="nothing") == []

    async def test_runs_are_listed_by_owner(self, store: Store) -> None:
        """By the current owner, compared whole: not by an earlier owner, nor by a prefix."""
        mine, theirs, taken, free = History("r0"), History("r1"), History("r2"), History("r3")
        await write_all(store, mine.begin_as("w1"), theirs.begin_as("w10"), taken.begin_as("w1"), free.begin())
        await write_all(store, taken.then(RunClaimed("w2", 2)))
        assert await ids(store, owner="w1") == ["r0"]
        assert await ids(store, owner="w2") == ["r2"]
        assert await ids(store, owner="w") == []
        assert await ids(store, owner="") == []

    async def test_runs_are_listed_by_queue(self, store: Store) -> None:
        """Also those of the queue that are under way or have ended."""
        queued, begun, other, none = (History(f"r{i}", queue=q) for i, q in enumerate(["mail", "mail", "mails", ""]))
        await write_all(store, queued.begin(), begun.begin_as("a", finished()), other.begin(), none.begin())
        assert await ids(store, queue="mail") == ["r1", "r0"]
        assert await ids(store, queue="mail", status=[RunStatus.QUEUED]) == ["r0"]
        assert await ids(store, queue="%") == []

    async def test_runs_are_listed_by_parent_and_by_root(self, store: Store, second: Store) -> None:
        """A root is its own; those whose run_id only begins like that of the root are no part of its tree."""
        family, detached = History("r1"), History("r2", parent="r1")
        others = [History("r10"), History("r1.5"), History("r0")]
        append = family.begin_as("a", *_children("pack:0", "pack:0/wrap:0", "send:0"))
        await write_all(store, msgspec.structs.replace(append, children=child_rows(family.state)))
        await write_all(store, detached.begin(), *(run.begin() for run in others))
        tree = ["r1/send:0", "r1/pack:0/wrap:0", "r1/pack:0", "r1"]
        assert await ids(second, root="r1") == tree
        assert await ids(second, root="r1", limit=2) == tree[:2]
        assert await ids(second, root="r1", limit=2, cursor=tree[1]) == tree[2:]
        assert await ids(second, root="r1", program="pack") == ["r1/pack:0"]
        assert await ids(second, root="r2") == ["r2"]
        assert await ids(second, root="r") == []
        assert await ids(second, parent="r1") == ["r2", "r1/send:0", "r1/pack:0"]
        assert await ids(second, parent="r1/pack:0") == ["r1/pack:0/wrap:0"]
        assert await ids(second, parent="r1", root="r1") == ["r1/send:0", "r1/pack:0"]

    async def test_runs_are_listed_by_the_time_before_which_they_were_created(self, store: Store) -> None:
        """From `since` on and before `until`, so that two spans that meet have no run in common and miss none."""
        for i in range(5):
            await write_all(store, History(f"r{i}", at=BEGAN + i / 4).begin())
        assert await ids(store, until=BEGAN + 0.5) == ["r1", "r0"]
        assert await ids(store, since=BEGAN + 0.25, until=BEGAN + 0.75) == ["r2", "r1"]
        assert await ids(store, since=BEGAN + 0.5, until=BEGAN + 0.5) == []

    async def test_runs_are_listed_by_how_their_ids_begin(self, store: Store) -> None:
        """The prefix is literal: it has no wildcards."""
        given = ["order-1", "order-2", "Order-3", "order_4", "ord%r-5", "órder-6", "x-order-7"]
        await write_all(store, *(History(f"r{i}", id=id).begin() for i, id in enumerate(given)))
        assert await ids(store, id_prefix="order-") == ["r1", "r0"]
        assert await ids(store, id_prefix="order_") == ["r3"]
        assert await ids(store, id_prefix="ord%") == ["r4"]
        assert await ids(store, id_prefix="ó") == ["r5"]
        assert await ids(store, id_prefix="order-1") == ["r0"]
        assert await ids(store, id_prefix="order-1x") == []
        for pattern in ("*", "[o]", "\\", "%rder"):
            assert await ids(store, id_prefix=pattern) == []
        assert await ids(store, id_prefix="ord", limit=2) == ["r4", "r3"]
        assert await ids(store, id_prefix="ord", limit=2, cursor="r3") == ["r1", "r0"]

    async def test_children_can_be_left_out(self, store: Store) -> None:
        """Only roots: detached children are roots of their own journals, and pages have no holes."""
        family, detached = History("r1"), History("r2", parent="r1")
        append = family.begin_as("a", *_children("pack:0", "send:0"))
        await write_all(store, msgspec.structs.replace(append, children=child_rows(family.state)))
        await write_all(store, detached.begin(), History("r0").begin())
        assert await ids(store, roots=True) == ["r2", "r1", "r0"]
        assert await ids(store, roots=True, limit=2, cursor="r2") == ["r1", "r0"]
        assert await ids(store, roots=True, parent="r1") == ["r2"]

    async def test_rows_can_come_without_their_values(self, store: Store, second: Store) -> None:
        """Inputs and outputs are left out, and everything else is as it was written."""
        failure = Failure("shop.Declined", "no", Raw(b'["no"]'))
        run = History("r1", input=Raw(b'["x"]'), tags={"a": "b"}, program="p")
        await write_all(store, run.begin_as("a"))
        await write_all(store, run.then(RunFinished(RunStatus.FAILED, Raw(b"[1]"), "", failure, "because")))
        [(found, head)] = await second.runs.list(RunFilter(values=False))
        assert found == msgspec.structs.replace(row(run.state), input=Raw(b"null"), output=Raw(b"null"))
        assert head == await store.journal.head("r1")

    async def test_runs_are_found_by_a_value_of_their_input(self, store: Store) -> None:
        """A text is compared whole, a number by its size; a list of arguments may be skipped in the path."""
        inputs = [
            rb'["order-1",{"customer":"ann","qty":5}]',
            rb'{"customer":"ann","deep":{"customer":"bo\"b"},"qty":50}',
            rb'[{"customer":"Ann","qty":5.0,"list":[{"sku":"x"},{"sku":null}]}]',
            rb'["customer:ann"]',
            rb'[{"qty":true,"n":9007199254740993}]',
        ]
        await write_all(store, *(History(f"r{i}", input=Raw(text)).begin() for i, text in enumerate(inputs)))

        async def found(path: str, value: str, **filter: Any) -> list[str]:
            parts = tuple(path.split(".")) if path else ()
            return await ids(store, match=Match("input", value, parts), **filter)

        assert await found("customer", "ann") == ["r1", "r0"]
        assert await found("1.customer", "ann") == ["r0"]
        assert await found("customer", "ann", limit=1) == ["r1"]
        assert await found("customer", "ann", cursor="r1") == ["r0"]
        assert await found("customer", "an") == []
        assert await found("deep.customer", 'bo"b') == ["r1"]
        assert await found("qty", "5") == ["r2", "r0"]
        assert await found("qty", "5.0") == ["r2", "r0"]
        assert await found("qty", "true") == ["r4"]
        assert await found("n", "9007199254740993") == ["r4"]
        assert await found("n", "9007199254740992") == []
        assert await found("list.0.sku", "x") == ["r2"]
        assert await found("list.1.sku", "null") == ["r2"]
        assert await found("0", "order-1") == ["r0"]
        assert await found("", "order-1") == ["r0"]
        assert await found("customer", "%") == []
        # Rows without values are compared with theirs all the same.
        assert await found("customer", "ann", values=False, floor="r1") == ["r1"]

    async def test_runs_are_found_by_their_output_and_by_the_text_of_their_error(self, store: Store) -> None:
        """An error is found by a part of its type, message, causes or reason; a run that goes on has no output."""
        cause = Failure("builtins.OSError", "line busy")
        failed, done, going = History("r1"), History("r2"), History("r3")
        await write_all(store, *(run.begin_as("a") for run in (failed, done, going)))
        failure = Failure("shop.Declined", 'card 17: DECLINED \u2014 "no"', cause=cause)
        await write_all(store, failed.then(RunFinished(RunStatus.FAILED, error=failure, reason="Gave up")))
        await write_all(store, done.then(RunFinished(RunStatus.COMPLETED, Raw(b'{"id":null,"sum":17}'))))
        for text in ("declined", "Declined: card 17", '17: declined \u2014 "no"', "LINE BUSY", "gave up", "OSError"):
            assert await ids(store, match=Match("error", text)) == ["r1"], text
        assert await ids(store, match=Match("error", "accepted")) == []
        assert await ids(store, match=Match("output", "17", ("sum",))) == ["r2"]
        assert await ids(store, match=Match("output", "null", ("id",))) == ["r2"]
        assert await ids(store, match=Match("output", "null")) == ["r1"]

    async def test_a_search_ends_at_its_floor(self, store: Store) -> None:
        """The floor is so many runs below the cursor, or there is none."""
        await write_all(store, *(History(f"r{i}", program="pq"[i % 2]).begin() for i in range(6)))
        assert await store.runs.nth(2) == "r3"
        assert await store.runs.nth(2, "r3") == "r0"
        assert await store.runs.nth(5) == "r0"
        assert await store.runs.nth(6) is None
        assert await ids(store, floor="r3") == ["r5", "r4", "r3"]
        assert await ids(store, floor="r2", program="p", cursor="r4") == ["r2"]

    async def test_a_page_of_several_statuses_is_in_order(self, store: Store) -> None:
        """Also where one status has more runs than fit in a page."""
        for i in range(9):
            run = History(f"r{i}")
            await write_all(store, run.begin_as("a", finished()) if i % 3 else run.begin())
        both = [RunStatus.COMPLETED, RunStatus.QUEUED]
        assert await ids(store, status=both, limit=4) == ["r8", "r7", "r6", "r5"]
        assert await ids(store, status=both, limit=4, cursor="r5") == ["r4", "r3", "r2", "r1"]

    async def test_runs_are_counted_by_program_and_status(self, store: Store, second: Store) -> None:
        """Of each no more than a bound, which is told."""
        assert list(await store.runs.counts(9)) == []
        for i in range(7):
            run = History(f"r{i}", program="pq"[i % 2])
            await write_all(store, run.begin_as("a", finished()) if i > 2 else run.begin())
        expected = [
            Tally("p", RunStatus.COMPLETED, 2),
            Tally("p", RunStatus.QUEUED, 2),
            Tally("q", RunStatus.COMPLETED, 2),
            Tally("q", RunStatus.QUEUED, 1),
        ]
        assert list(await second.runs.counts(9)) == expected
        assert [(one.count, one.bounded) for one in await second.runs.counts(1)] == [(1, True)] * 3 + [(1, False)]

    async def test_runs_that_ended_are_counted_in_buckets(self, store: Store) -> None:
        """From the first moment on and before the last; runs that go on, and empty buckets, are left out."""
        for i in range(6):
            run = History(f"r{i}", at=BEGAN + i, program="pq"[i % 2])
            status = RunStatus.FAILED if i == 3 else RunStatus.COMPLETED
            await write_all(store, run.begin_as("a", finished(status)) if i < 5 else run.begin())
        span = Span(BEGAN + 1, BEGAN + 5, 2)
        completed, failed = RunStatus.COMPLETED, RunStatus.FAILED
        assert list(await store.runs.count_ended(span, None, 9)) == [
            Tally("p", completed, 1, 0),
            Tally("p", completed, 1, 1),
            Tally("q", completed, 1, 0),
            Tally("q", failed, 1, 1),
        ]
        assert [one.bucket for one in await store.runs.count_ended(span, "p", 9)] == [0, 1]
        assert list(await store.runs.count_ended(Span(BEGAN - 9, BEGAN, 3), None, 9)) == []

    async def test_runs_of_built_in_programs_can_be_left_out(self, store: Store) -> None:
        """By how the names of their programs begin, and by nothing else; they are counted in no page."""
        for i, program in enumerate(["checkout", "perdure.schedule", "perdure", "PERDURE.x", "my.perdure.x"]):
            await write_all(store, History(f"r{i}", program=program).begin())
        assert await ids(store) == ["r4", "r3", "r2", "r1", "r0"]
        assert await ids(store, built_in=False) == ["r4", "r3", "r2", "r0"]
        assert await ids(store, built_in=False, limit=2, cursor="r3") == ["r2", "r0"]
        assert await ids(store, program="perdure.schedule") == ["r1"]

    async def test_runs_are_listed_by_tags(self, store: Store) -> None:
        """Every tag asked for must be there with that value; a run may have more."""
        tags = [{"team": "a"}, {"team": "a", "env": "prod"}, {"team": "b", "env": "prod"}, None, {"größe": "👍 'x\"%"}]
        for i, tag in enumerate(tags):
            await write_all(store, History(f"r{i}", tags=tag).begin())
        assert await ids(store, tags={"team": "a"}) == ["r1", "r0"]
        assert await ids(store, tags={"team": "a", "env": "prod"}) == ["r1"]
        assert await ids(store, tags={"env": "prod"}) == ["r2", "r1"]
        assert await ids(store, tags={"größe": "👍 'x\"%"}) == ["r4"]
        assert await ids(store, tags={"team": "%"}) == []
        assert await ids(store, tags={"missing": ""}) == []

    async def test_runs_are_listed_whose_journals_have_grown_since_a_moment(self, store: Store) -> None:
        """A run with an event of that moment is included, whenever it was created; a child's journal is its root's."""
        histories = [History(f"r{i}", at=BEGAN + i) for i in range(4)]
        await write_all(store, *(run.begin_as("a") for run in histories))
        histories[1].at = BEGAN + 10
        await write_all(store, histories[1].then(finished()))
        assert await ids(store, changed_since=BEGAN + 3) == ["r3", "r1"]
        assert await ids(store, changed_since=BEGAN + 3, limit=1, cursor="r3") == ["r1"]
        assert await ids(store, changed_since=BEGAN + 3, status=[RunStatus.COMPLETED], values=False) == ["r1"]
        assert await ids(store, changed_since=BEGAN + 11) == []

    async def test_runs_are_listed_since_a_moment(self, store: Store) -> None:
        """A run that was created at that moment is included."""
        for i in range(4):
            await write_all(store, History(f"r{i}", at=BEGAN + i).begin())
        assert await ids(store, since=BEGAN + 2) == ["r3", "r2"]
        assert await ids(store, since=BEGAN + 2.5) == ["r3"]
        assert await ids(store, since=BEGAN + 9) == []

    async def test_filters_are_combined(self, store: Store) -> None:
        """Every filter that is given must match."""
        for i in range(8):
            run = History(f"r{i}", at=BEGAN + i, program="pq"[i % 2], tags={"third": str(i % 3)})
            await write_all(store, run.begin_as("a", finished()) if i > 3 else run.begin())
        wanted = {"status": [RunStatus.COMPLETED], "program": "q", "tags": {"third": "1"}}
        assert await ids(store, **wanted) == ["r7"]
        assert await ids(store, **wanted, since=BEGAN + 7.5) == []

    async def test_a_page_is_bounded_by_its_limit(self, store: Store) -> None:
        """At most `limit` runs come, and they are the newest that match."""
        await write_all(store, *(History(f"r{i}", program="pq"[i % 2]).begin() for i in range(6)))
        assert await ids(store, limit=2) == ["r5", "r4"]
        assert await ids(store, limit=2, program="p") == ["r4", "r2"]

    async def test_pages_repeat_nothing_and_miss_nothing(self, store: Store) -> None:
        """The cursor is the last run of the page before, and runs that arrive meanwhile disturb no page."""
        await write_all(store, *(History(f"r{i:02}").begin() for i in range(10)))
        found: list[str] = []
        while page := await ids(store, limit=3, cursor=found[-1] if found else None):
            found += page
            await write_all(store, History(f"s{len(found):02}").begin())
        assert found == [f"r{i:02}" for i in reversed(range(10))]

    async def test_runs_are_found_by_owner(self, store: Store) -> None:
        """Owners, status and programs must match; oldest first, at most `limit`."""
        for i, owner in enumerate("abcab"):
            await write_all(store, History(f"r{i}").begin_as(owner, StepStarted("work:0")))
        await write_all(store, History("r5").begin_as("a", timer(9.0)))
        await write_all(store, History("r6", program="refund").begin_as("a", StepStarted("work:0")))
        await write_all(store, History("r7").begin_as("a", finished()))
        running, programs = RunStatus.RUNNING, ["checkout"]
        assert list(await store.runs.owned(["a"], running, programs, 9)) == ["r0", "r3"]
        assert list(await store.runs.owned(["b", "a"], running, programs, 9)) == ["r0", "r1", "r3", "r4"]
        assert list(await store.runs.owned(["b", "a"], running, programs, 3)) == ["r0", "r1", "r3"]
        assert list(await store.runs.owned(["a"], RunStatus.WAITING, programs, 9)) == ["r5"]
        assert list(await store.runs.owned(["a"], running, ["refund", "checkout"], 9)) == ["r0", "r3", "r6"]
        assert list(await store.runs.owned([], running, programs, 9)) == []
        assert list(await store.runs.owned(["a"], running, [], 9)) == []
        assert list(await store.runs.owned(["missing"], running, programs, 9)) == []
        await write_all(store, History("r8", version="2").begin_as("a", StepStarted("work:0")))
        assert list(await store.runs.owned(["a"], running, ["checkout:2", "checkout:"], 9)) == ["r8"]
        assert list(await store.runs.owned(["a"], running, ["checkout:1", "checkout:2"], 2)) == ["r0", "r3"]

    async def test_owners_are_those_of_runs_that_are_not_finished(self, store: Store) -> None:
        """Each owner comes once: runs that ended or were released have none, and parked ones do."""
        kept, ended, left, stopped = History("r1"), History("r2"), History("r3"), History("r4")
        await write_all(
            store,
            kept.begin_as("a"),
            History("r5").begin_as("a"),
            ended.begin_as("b", finished()),
            left.begin_as("c", released("c")),
            stopped.begin_as("d", parked()),
            History("r6").begin(),
        )
        assert sorted(await store.runs.owners()) == ["a", "d"]

    async def test_programs_are_those_of_runs_that_are_not_finished(self, store: Store) -> None:
        """Each program comes once, whether its runs have an owner or not."""
        await write_all(
            store,
            History("r1", program="p").begin(),
            History("r2", program="p").begin_as("a"),
            History("r3", program="q").begin_as("a", finished()),
            History("r4", program="s").begin_as("a", parked()),
        )
        assert sorted(await store.runs.programs()) == ["p", "s"]

    async def test_runs_that_have_ended_or_are_parked_are_told(self, store: Store, second: Store) -> None:
        """Of these runs, those that have ended or are parked come with their rows."""
        ends = {status: History(f"r-{status}") for status in RunStatus if status.finished}
        await write_all(store, *(run.begin_as("a", finished(status)) for status, run in ends.items()))
        stopped = History("r-parked")
        await write_all(store, stopped.begin_as("a", parked()), History("r-running").begin_as("a"))
        await write_all(store, History("r-queued").begin(), History("r-unasked").begin_as("a", finished()))
        asked = [*(run.run_id for run in ends.values()), "r-parked", "r-running", "r-queued", "missing"]
        found = {one.run_id: one for one in rows(await second.runs.finished(asked))}
        assert found == {run.run_id: row(run.state) for run in (*ends.values(), stopped)}
        assert list(await second.runs.finished([])) == []


class RunsConformance(RowConformance, ListConformance):
    """The rows of runs of a store."""
