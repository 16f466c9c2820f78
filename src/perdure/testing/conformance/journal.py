"""The contract of the journal: compare-and-swap per run, all or nothing per append, no gaps, faithful values."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Raw

from perdure.kernel.events import (
    AnyEvent,
    Batch,
    RunClaimed,
    RunFinished,
    RunReleased,
    RunStarted,
    RunStatus,
    StepStarted,
    StepSucceeded,
    ValueRecorded,
)
from perdure.kernel.values.failures import Failure
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.store import Store
from perdure.testing.conformance.history import (
    History,
    StoreConformance,
    listed,
    numbered,
    parked,
    step,
    write,
    write_all,
)

VALUES: dict[str, Any] = {
    "nothing": None,
    "accents": "Zoë Müller, naïve café",
    "emoji": "👩‍👩‍👧‍👦 🏴‍☠️ 🇨🇭",
    "scripts": "日本語 العربية עברית ไทย",
    "control characters": 'tab\t newline\n quote" backslash\\ nul\u0000 delete\x7f',
    "separators": "\u2028\u2029\ufeff",
    "sql": "'; drop table perdure_journal; -- %s ?1 :name",
    "floats": [0.1 + 0.2, 1e308, 5e-324, -0.0, 1 / 3, 1700000000.123456],
    "large integers": [2**53 + 1, -(2**63), 2**64 - 1],
    "nested": {"a": [{"b": [[], {}, None, True, False, ""]}]},
    "empty key": {"": 1, " ": 2, "ключ": 3, "🔑": 4},
    "large": "0123456789abcdef" * 16_384,
}

# Failures hold failures: made by hand, where the rest is made from the types of fields.
_FAILURE = Failure("builtins.ValueError", "no — 🚫", Raw(b'["no"]'), traceback="File x", cause=Failure("a.B", "why"))
_OF_TYPE: dict[Any, Any] = {
    Failure: _FAILURE,
    RunStatus: RunStatus.FAILED,
    Raw: Raw('{"total":12.5,"é":"🚫"}'.encode()),
    Any: {"any": [1, None]},
    str: "shop.py:12 — é 🚫",
    bool: True,
    int: 3,
    float: 1_700_000_001.25,
    datetime: datetime(2023, 11, 14, 22, 13, 21, 250_000, UTC),
}


def _value_of(hint: Any) -> Any:
    """A value of a field with this annotation that is not its default."""
    if hint in _OF_TYPE:
        return _OF_TYPE[hint]
    of, parts = get_origin(hint), [part for part in get_args(hint) if part not in (type(None), ...)]
    if of is dict:
        return {"key é": _value_of(parts[1])}
    if of is tuple:
        of_any_length = ... in get_args(hint)
        return tuple(_value_of(part) for part in (parts * 2 if of_any_length else parts))
    return _value_of(parts[0]) if parts else _with_all_fields(hint)


def _with_all_fields(kind: type[Any]) -> Any:
    return kind(**{name: _value_of(hint) for name, hint in get_type_hints(kind).items()})


def _with_required_fields(kind: type[Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(
        **{field.name: _value_of(hints[field.name]) for field in msgspec.structs.fields(kind) if field.required}
    )


# Every class of event twice: with a value in every field, and with defaults wherever there are some.
EVERY_EVENT: list[AnyEvent] = [
    make(kind) for kind in get_args(AnyEvent) for make in (_with_all_fields, _with_required_fields)
]


class StartConformance(StoreConformance):
    """Runs that begin in the commit of another."""

    async def test_runs_that_an_append_starts_are_created_with_it(self, store: Store) -> None:
        """`starts` are new journals: there with the append that names them."""
        parent, child = History("parent"), History("child", parent="parent")
        await write_all(store, parent.begin_as("a"))
        begin = child.begin()
        await write_all(store, msgspec.structs.replace(parent.then(*step(0)), starts=[begin]))
        assert await numbered(store.journal, "child") == listed(begin)
        assert await store.runs.get("child") == begin.row

    async def test_a_refused_append_starts_nothing(self, store: Store) -> None:
        """All or nothing covers what an append starts."""
        parent, stale, child = History("parent"), History("parent"), History("child")
        await write_all(store, parent.begin_as("a"), parent.then(*step(0)))
        stale.begin_as("a")
        refused = msgspec.structs.replace(stale.then(*step(1)), starts=[child.begin()])
        assert await write(store, refused) == [Conflict(4)]
        assert await store.journal.head("child") is None
        assert await store.runs.get("child") is None

    async def test_a_run_that_was_started_before_is_left_as_it_is(self, store: Store) -> None:
        """An append that starts a run whose run_id or id exists is written all the same, and starts nothing."""
        parent, child = History("parent"), History("child", id="it")
        await write_all(store, parent.begin_as("a"), child.begin_as("b"))
        before = await numbered(store.journal, "child")
        again, other, fresh = History("child", id="it"), History("other", id="it"), History("fresh")
        starts = [again.begin(), other.begin(), fresh.begin()]
        await write_all(store, msgspec.structs.replace(parent.then(*step(0)), starts=starts))
        assert await numbered(store.journal, "child") == before
        assert await store.journal.head("other") is None
        assert await store.journal.head("fresh") is not None

    async def test_a_run_that_an_append_starts_may_have_a_past_and_the_id_of_the_one_that_ends(
        self, store: Store
    ) -> None:
        """A start of several batches, as the next incarnation under an id, with the rows of its children."""
        ends, goes_on = History("old", id="it"), History("new", id="it", incarnation=2, forked_from="old")
        await write_all(store, ends.begin_as("a"), ends.then(*step(0), parked()))
        begin = goes_on.then_batches([goes_on.started, RunClaimed("a", 1)], step(0), [RunReleased("a")])
        assert begin.row is not None
        child = msgspec.structs.replace(begin.row, run_id="new/part:0", id="part", root="new", parent="new")
        begin = msgspec.structs.replace(begin, children=[child])
        over = ends.then(RunFinished(RunStatus.CANCELLED, continued_as="new"))
        await write_all(store, msgspec.structs.replace(over, starts=[begin]))
        found = await store.runs.find("it")
        assert found is not None
        assert found[0] == begin.row
        assert await numbered(store.journal, "new") == listed(begin)
        assert await store.runs.get("new/part:0") == child
        assert await store.runs.get("old") == over.row


class AppendConformance(StoreConformance):
    """Writing a journal."""

    async def test_rows_of_children_live_with_the_journal_of_their_root(self, store: Store) -> None:
        """A row of a child is put with an append to its root, found by its id, and has the root's head."""
        root, other = History("root"), History("other")
        begin = root.begin_as("a")
        assert begin.row is not None
        child = msgspec.structs.replace(begin.row, run_id="root/refund:0", id="it", root="root", parent="root")
        twin = msgspec.structs.replace(child, run_id="other/refund:0", root="other", parent="other")
        await write_all(store, msgspec.structs.replace(begin, children=[child]))
        await write_all(store, msgspec.structs.replace(other.begin_as("a"), children=[twin]))
        ended = msgspec.structs.replace(child, status=RunStatus.COMPLETED, finished_at=root.at, output=Raw(b"7"))
        await write_all(store, msgspec.structs.replace(root.then(*step(0)), children=[ended]))
        assert await store.runs.get("root/refund:0") == ended
        found = await store.runs.find("it")
        assert found is not None
        assert found[0].id == "it"
        head = await store.journal.head(found[0].root)
        assert found[1] == head

    async def test_a_new_journal_begins_at_number_zero(self, store: Store) -> None:
        """Appending at 0 creates the journal, and its events are numbered from 0."""
        run = History("r1")
        append = run.begin(RunClaimed("host", 1))
        assert await write(store, append) == [Appended()]
        assert await numbered(store.journal, "r1") == listed(append)

    async def test_creating_a_run_twice_keeps_the_first_input(self, store: Store) -> None:
        """A journal is created once: a second creation is refused and changes nothing."""
        first = History("r1", input=Raw(b'["first"]')).begin()
        assert await write(store, first) == [Appended()]
        assert await write(store, History("r1", input=Raw(b'["second"]')).begin()) == [Conflict(1)]
        assert await numbered(store.journal, "r1") == listed(first)

    async def test_an_append_behind_the_head_is_refused_with_the_real_next_number(self, store: Store) -> None:
        """Compare-and-swap: a writer that missed events writes nothing, and learns where the journal ends."""
        run = History("r1")
        written = [run.begin(), run.then(*step(0)), run.then(*step(1))]
        await write_all(store, written[0])
        await write_all(store, written[1])
        await write_all(store, written[2])
        stale = Append("r1", 1, [Batch(1, 9.0, step(7))])
        assert await write(store, stale) == [Conflict(5)]
        assert await numbered(store.journal, "r1") == listed(*written)

    async def test_an_append_ahead_of_the_head_is_refused_with_the_real_next_number(self, store: Store) -> None:
        """Compare-and-swap: no append can leave a gap."""
        begin = History("r1").begin()
        await write_all(store, begin)
        early = Append("r1", 4, [Batch(4, 9.0, step(7))])
        assert await write(store, early) == [Conflict(1)]
        assert await numbered(store.journal, "r1") == listed(begin)

    async def test_an_append_to_a_journal_that_does_not_exist_is_refused(self, store: Store) -> None:
        """The next number of a journal that does not exist is 0."""
        assert await write(store, Append("missing", 3, [Batch(3, 9.0, step(0))])) == [Conflict(0)]
        assert await store.journal.head("missing") is None
        assert await store.journal.read("missing") == []

    async def test_a_refused_append_leaves_the_head_as_it_was(self, store: Store) -> None:
        """Nothing was written means nothing: neither events, nor number, nor time, nor size."""
        await write_all(store, History("r1").begin())
        before = await store.journal.head("r1")
        await write(store, Append("r1", 0, [Batch(0, 99.0, step(0))]), Append("r1", 9, [Batch(9, 99.0, step(0))]))
        assert await store.journal.head("r1") == before

    async def test_a_group_answers_each_append_in_order(self, store: Store) -> None:
        """One outcome per append, in the order of the appends."""
        runs = [History(f"r{i}") for i in range(5)]
        await write_all(store, *(run.begin() for run in runs))
        group = [run.then(*step(0)) for run in runs]
        group[1] = Append("r1", 0, [Batch(0, 9.0, step(0))])
        group[3] = Append("r3", 7, [Batch(7, 9.0, step(0))])
        assert await write(store, *group) == [Appended(), Conflict(1), Appended(), Conflict(1), Appended()]

    async def test_one_conflicting_append_does_not_harm_the_others_of_its_group(self, store: Store) -> None:
        """A group shares a commit, not a fate."""
        good, bad, new = History("good"), History("bad"), History("new")
        begins = [good.begin(), bad.begin()]
        await write_all(store, *begins)
        more, created = good.then(*step(0)), new.begin()
        stale = Append("bad", 0, [Batch(0, 9.0, step(0))])
        assert await write(store, more, stale, created) == [Appended(), Conflict(1), Appended()]
        assert await numbered(store.journal, "good") == listed(begins[0], more)
        assert await numbered(store.journal, "bad") == listed(begins[1])
        assert await numbered(store.journal, "new") == listed(created)

    async def test_an_append_of_several_batches_is_written_whole_or_not_at_all(self, store: Store) -> None:
        """All batches of an append follow each other, each with its own time; of a refused one there is none."""
        run = History("r1")
        append = run.then_batches([run.started], step(0), step(1))
        refused = Append("r1", 1, [Batch(1, 9.0, step(8)), Batch(3, 9.5, step(9))])
        assert await write(store, append, refused) == [Appended(), Conflict(5)]
        found = await store.journal.read("r1")
        assert [(batch.seq, batch.at) for batch in found] == [(batch.seq, batch.at) for batch in append.batches]
        assert await numbered(store.journal, "r1") == listed(append)

    async def test_two_appends_to_one_journal_in_a_group_follow_each_other(self, store: Store) -> None:
        """Appends of a group take effect in their order, also on one journal."""
        run = History("r1")
        appends = [run.begin(), run.then(*step(0)), run.then(*step(1))]
        assert await write(store, *appends) == [Appended()] * 3
        assert await numbered(store.journal, "r1") == listed(*appends)

    async def test_an_empty_group_writes_nothing(self, store: Store) -> None:
        """No append, no outcome."""
        assert await write(store) == []

    async def test_events_are_numbered_without_gaps(self, store: Store) -> None:
        """However the events were grouped into appends, their numbers are 0, 1, 2, and so on."""
        run = History("r1")
        appends = [run.begin()]
        for size in (1, 3, 1, 7, 2):
            appends.append(run.then(*(ValueRecorded(f"now:{size}.{i}", "now") for i in range(size))))
        for append in appends:
            await write_all(store, append)
        assert await numbered(store.journal, "r1") == listed(*appends)

    async def test_of_two_writers_that_race_for_a_number_exactly_one_wins(self, store: Store, second: Store) -> None:
        """Compare-and-swap holds between connections."""
        begin = History("r1").begin()
        await write_all(store, begin)
        for number in range(1, 20):
            contenders = [Append("r1", number, [Batch(number, 9.0, [RunClaimed(who, number)])]) for who in "ab"]
            outcomes = await asyncio.gather(write(store, contenders[0]), write(second, contenders[1]))
            winners = [i for i, [outcome] in enumerate(outcomes) if outcome == Appended()]
            assert len(winners) == 1
            assert outcomes[1 - winners[0]] == [Conflict(number + 1)]
            assert await numbered(store.journal, "r1", number) == [(number, RunClaimed("ab"[winners[0]], number))]

    async def test_of_two_creators_of_a_journal_exactly_one_wins(self, store: Store, second: Store) -> None:
        """Creation is a compare-and-swap too: the loser finds the winner's input."""
        appends = [History("r1", input=Raw(data)).begin() for data in (b'["a"]', b'["b"]')]
        outcomes = await asyncio.gather(write(store, appends[0]), write(second, appends[1]))
        assert sorted(map(str, outcomes)) == sorted(map(str, ([Appended()], [Conflict(1)])))
        winner = appends[0 if outcomes[0] == [Appended()] else 1]
        assert await numbered(second.journal, "r1") == listed(winner)

    async def test_writers_that_try_again_lose_nothing(self, store: Store, second: Store) -> None:
        """A refused writer that reads where the journal ends and appends there gets every event in, once."""
        await write_all(store, History("r1").begin())

        async def insist(on: Store, name: str) -> None:
            next_seq: int | None = 1
            for i in range(25):
                while True:
                    assert next_seq is not None
                    event = RunReleased(f"{name}{i}")
                    [outcome] = await write(on, Append("r1", next_seq, [Batch(next_seq, 9.0, [event])]))
                    if isinstance(outcome, Appended):
                        next_seq += 1
                        break
                    assert isinstance(outcome, Conflict)
                    next_seq = outcome.next_seq

        await asyncio.gather(insist(store, "a"), insist(second, "b"))
        found = await numbered(store.journal, "r1")
        assert [seq for seq, _ in found] == list(range(51))
        names = [event.owner for _, event in found if isinstance(event, RunReleased)]
        assert [name for name in names if name[0] == "a"] == [f"a{i}" for i in range(25)]
        assert [name for name in names if name[0] == "b"] == [f"b{i}" for i in range(25)]

    async def test_an_append_that_may_skip_the_disk_is_read_back_all_the_same(
        self, store: Store, second: Store
    ) -> None:
        """`fsync=False` weakens what survives power loss, and nothing else."""
        run = History("r1")
        appends = [run.begin(), run.then(*step(0), fsync=False), run.then(*step(1))]
        for append in appends:
            await write_all(store, append)
        assert await numbered(second.journal, "r1") == listed(*appends)


class ReadConformance(StoreConformance):
    """Reading a journal."""

    async def written(self, store: Store) -> list[tuple[int, AnyEvent]]:
        """A journal of three batches: numbers 0, 1 to 4 and 5 to 6."""
        run = History("r1")
        appends = [run.begin(), run.then(*step(0), *step(1)), run.then(*step(2))]
        for append in appends:
            await write_all(store, append)
        return listed(*appends)

    async def test_a_journal_that_does_not_exist_is_empty(self, store: Store) -> None:
        """A missing run is an answer, not an error."""
        assert await store.journal.read("missing") == []
        assert await store.journal.read("missing", 3, 5) == []
        assert await store.journal.head("missing") is None
        assert await store.journal.read_many(["missing"]) == {}

    @pytest.mark.parametrize("start", range(9))
    async def test_reading_from_a_number_includes_it(self, store: Store, start: int) -> None:
        """Reading starts at the number asked for, also in the middle of a batch; past the end there is nothing."""
        expected = await self.written(store)
        assert await numbered(store.journal, "r1", start) == expected[start:]

    @pytest.mark.parametrize("start", [0, 1, 3, 5])
    @pytest.mark.parametrize("limit", [0, 1, 2, 3, 100])
    async def test_reading_is_bounded_by_its_limit(self, store: Store, start: int, limit: int) -> None:
        """At most `limit` events come, also when that ends in the middle of a batch."""
        expected = await self.written(store)
        assert await numbered(store.journal, "r1", start, limit) == expected[start : start + limit]

    @pytest.mark.parametrize("page", [1, 2, 3, 5])
    async def test_reading_page_by_page_gives_every_event_once(self, store: Store, page: int) -> None:
        """The number after the last event of a page begins the next page."""
        expected = await self.written(store)
        found: list[tuple[int, AnyEvent]] = []
        while more := await numbered(store.journal, "r1", len(found), page):
            found += more
        assert found == expected

    async def test_events_keep_the_time_of_their_batch(self, store: Store) -> None:
        """Times come back exactly, also of a batch that is read in part."""
        times = [1_700_000_000.123456, 1_700_000_000.1234562, 1e-3, 4e9]
        batches = [Batch(2 * i, at, step(i)) for i, at in enumerate(times)]
        await write_all(store, Append("r1", 0, batches))
        assert [batch.at for batch in await store.journal.read("r1")] == times
        assert [batch.at for batch in await store.journal.read("r1", 3, 2)] == times[1:3]

    async def test_the_head_tells_where_a_journal_ends(self, store: Store) -> None:
        """The head has the next number and the time of the last batch, and its size grows with the events."""
        run = History("r1", at=100.0)
        await write_all(store, run.begin())
        first = await store.journal.head("r1")
        await write_all(store, run.then_batches(step(0), step(1)))
        last = await store.journal.head("r1")
        assert first is not None
        assert last is not None
        assert (first.next_seq, first.at) == (1, 100.0)
        assert (last.next_seq, last.at) == (5, 102.0)
        assert 0 < first.size < last.size

    async def test_many_heads_are_read_at_once(self, store: Store, second: Store) -> None:
        """`heads` gives the next number of each journal that there is, as `head` does."""
        runs = [History(f"r{i}") for i in range(4)]
        await write_all(store, *(run.begin() for run in runs))
        await write_all(store, runs[1].then(*step(0)), runs[2].then(*step(0), *step(1)))
        assert await second.journal.heads(["r0", "r1", "r2", "missing"]) == {"r0": 1, "r1": 3, "r2": 5}
        assert await second.journal.heads([]) == {}

    async def test_many_journals_are_read_at_once(self, store: Store) -> None:
        """`read_many` gives whole journals by run id, and leaves out those that do not exist."""
        runs = [History(f"r{i:03}") for i in range(60)]
        begins = {run.run_id: run.begin() for run in runs}
        await write_all(store, *begins.values())
        more = {run.run_id: run.then(*step(0)) for run in runs}
        await write_all(store, *more.values())
        wanted = [run.run_id for run in runs[::2]]
        found = await store.journal.read_many([*wanted, "missing"])
        assert set(found) == set(wanted)
        for run_id in wanted:
            batches = found[run_id]
            assert isinstance(batches, list)
            assert batches == [*begins[run_id].batches, *more[run_id].batches]

    async def test_reading_no_journals_gives_none(self, store: Store) -> None:
        """`read_many` of nothing is nothing."""
        await write_all(store, History("r1").begin())
        assert await store.journal.read_many([]) == {}

    @pytest.mark.parametrize("name", VALUES)
    async def test_values_survive_exactly(self, store: Store, second: Store, name: str) -> None:
        """What was written is what is read: the same bytes of every value, whatever is in it."""
        data = msgspec.json.encode(VALUES[name])
        run = History("r1", input=Raw(data), tags={"name": name})
        append = run.begin(StepStarted("work:0"), StepSucceeded("work:0", Raw(data)))
        await write_all(store, append)
        [batch] = await second.journal.read("r1")
        started, _, succeeded = batch.events
        assert isinstance(started, RunStarted)
        assert isinstance(succeeded, StepSucceeded)
        assert bytes(started.input) == bytes(succeeded.value) == data
        assert msgspec.json.decode(succeeded.value) == VALUES[name]

    async def test_every_kind_of_event_survives(self, store: Store, second: Store) -> None:
        """Events come back as the same class with the same fields."""
        await write_all(store, Append("r1", 0, [Batch(0, 1.5, EVERY_EVENT)]))
        [batch] = await second.journal.read("r1")
        assert list(batch.events) == EVERY_EVENT

    async def test_a_writer_cannot_change_what_it_has_written(self, store: Store) -> None:
        """A store keeps no part of what it was handed."""
        events: list[AnyEvent] = [History("r1").started, *step(0)]
        batches = [Batch(0, 1.0, events)]
        append = Append("r1", 0, batches)
        expected = listed(append)
        await write_all(store, append)
        events.clear()
        batches.clear()
        assert await numbered(store.journal, "r1") == expected

    async def test_a_reader_cannot_change_what_is_written(self, store: Store) -> None:
        """A store hands out no part of what it keeps."""
        expected = await self.written(store)
        for batch in await store.journal.read("r1"):
            assert isinstance(batch.events, list)
            batch.events.clear()
        assert await numbered(store.journal, "r1") == expected


class RewriteConformance(StoreConformance):
    """The contract of putting a whole journal in the place of another."""

    async def test_a_journal_is_replaced_whole(self, store: Store, second: Store) -> None:
        """What is read afterwards is what was given, with its numbers; the row and other journals stay."""
        run, other = History("r1"), History("r2")
        await write_all(store, run.begin(*step(0), *step(1)), other.begin())
        row, before = await store.runs.get("r1"), await store.journal.head("r1")
        assert before is not None
        version = store.version()
        batches = [Batch(0, run.at, [run.started]), Batch(1, run.at + 1, step(1))]
        assert await store.journal.rewrite("r1", 5, batches) == Appended()
        assert store.version() != version
        assert await second.journal.read("r1") == batches
        head = await second.journal.head("r1")
        assert head is not None
        assert (head.next_seq, head.at, head.size < before.size) == (3, run.at + 1, True)
        assert await second.runs.get("r1") == row
        assert await numbered(second.journal, "r2") == [(0, other.started)]

    async def test_a_journal_that_has_grown_or_is_not_there_is_not_replaced(self, store: Store) -> None:
        """The next number must be the one that was expected."""
        run = History("r1")
        begin = run.begin(*step(0))
        await write_all(store, begin)
        versions = []
        for _ in range(3):
            versions.append(store.version())
            assert await store.journal.rewrite("r1", 2, [Batch(0, 1.0, [run.started])]) == Conflict(3)
            assert await store.journal.rewrite("r2", 0, [Batch(0, 1.0, [run.started])]) == Conflict(0)
        assert await numbered(store.journal, "r1") == listed(begin)
        # Once it may move meanwhile, when the write before has settled; what is refused does not move it.
        assert len({*versions, store.version()}) <= 2


class JournalConformance(StartConformance, AppendConformance, ReadConformance, RewriteConformance):
    """The journal of a store."""
