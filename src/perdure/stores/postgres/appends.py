"""Appends as one statement: compare and swap the heads of many runs, and write the events and rows of those that match.

A statement is a transaction of its own, so a group of appends costs one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.kernel.events import BLOB_MARK, InputReplaced, encode_events, references
from perdure.kernel.policies.queues import Queue
from perdure.ports.journal import Append
from perdure.stores.postgres.rows import arrays, bindings, by_column
from perdure.stores.sqlshared.entries import checksum
from perdure.stores.sqlshared.rows import CHANGED_IN_CHILD, CHANGED_IN_RUN, CHANGED_WITH_INPUT, TABLE, WIDTH, compose

# The commonest append: one batch of a run that exists, and nothing else.
STEP = """
    with head as (
        update perdure_heads set next_seq = $3, at = $4, size = size + $5
        where run_id = $1 and next_seq = $2 returning run_id
    )
    insert into perdure_journal (run_id, seq, at, checksum, events)
    select $1::text, $2::bigint, $4::float8, $6::bigint, $7::text from head
    returning run_id
"""
# The same without waiting for the disk: a statement of its own, because an unused column in the answer costs time too.
LAZY_STEP = STEP.rstrip() + ", set_config('synchronous_commit', 'off', true)"
# A group of such appends.
STEPS = """
    with appended as materialized (
        select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::float8[], $5::bigint[])
            as w (run_id, expected, next_seq, at, size)
    ), swapped as (
        update perdure_heads h set next_seq = w.next_seq, at = w.at, size = h.size + w.size
        from appended w where h.run_id = w.run_id and h.next_seq = w.expected returning h.run_id
    ), entries as (
        insert into perdure_journal (run_id, seq, at, checksum, events)
        select e.* from unnest($6::text[], $7::bigint[], $8::float8[], $9::bigint[], $10::text[])
            as e (run_id, seq, at, checksum, events)
        where e.run_id in (select run_id from swapped)
    )
    select run_id, (select set_config('synchronous_commit', 'off', true) where $11::bool) from swapped
"""
# The number of the first parameter for rows. The payload of the notification comes after them.
_FIRST = 18
_NEW_INPUTS = sorted(set(CHANGED_WITH_INPUT) - set(CHANGED_IN_RUN), key=TABLE.index)
# Anything. Rows are of four kinds: of a new run (n), changed (c), changed with a new input (i), of a child (k), whose
# `journal` is its root's. A run is created when neither its run_id nor its id is taken.
GROUP = compose(
    """
    with appended as materialized (
        select * from unnest($1::text[], $2::bigint[], $3::bigint[], $4::float8[], $5::bigint[], $6::bool[])
            as w (run_id, expected, next_seq, at, size, has_row)
    ), wanted as materialized (
        select * from unnest($16::text[], $17::text[], <arrays>) as r (kind, journal, <columns>)
    ), swapped as (
        update perdure_heads h set next_seq = w.next_seq, at = w.at, size = h.size + w.size
        from appended w where w.expected > 0 and h.run_id = w.run_id and h.next_seq = w.expected returning h.run_id
    ), fresh as (
        insert into perdure_runs (<columns>) select <selected>
        from wanted r where r.kind = 'n' and not exists (select 1 from perdure_heads h where h.run_id = r.run_id)
        on conflict do nothing returning run_id
    ), created as (
        insert into perdure_heads (run_id, next_seq, at, size)
        select w.run_id, w.next_seq, w.at, w.size from appended w
        where w.expected = 0 and (not w.has_row or w.run_id in (select run_id from fresh))
        on conflict do nothing returning run_id
    ), done as materialized (
        select run_id from swapped union all select run_id from created
    ), entries as (
        insert into perdure_journal (run_id, seq, at, checksum, events)
        select e.* from unnest($7::text[], $8::bigint[], $9::float8[], $10::bigint[], $11::text[])
            as e (run_id, seq, at, checksum, events)
        where e.run_id in (select run_id from done)
    ), changed as (
        update perdure_runs o set <changes>
        from wanted r where r.kind in ('c', 'i') and o.run_id = r.run_id and r.run_id in (select run_id from swapped)
    ), children as (
        insert into perdure_runs as o (<columns>) select <selected>
        from wanted r where r.kind = 'k' and r.journal in (select run_id from done)
        on conflict (run_id) do update set <of_child>
    ), uses as (
        insert into perdure_blob_uses (blob_id, run_id)
        select u.blob_id, u.run_id from unnest($12::text[], $13::text[]) as u (blob_id, run_id)
        where u.run_id in (select run_id from done) on conflict do nothing
    )
    select run_id, (select set_config('synchronous_commit', 'off', true) where $15::bool),
        (select pg_notify($14::text, <notice>::text) where <notice>::text <> '')
    from done
""",
    arrays=arrays(_FIRST),
    columns=", ".join(TABLE),
    selected=", ".join(f"r.{name}" for name in TABLE),
    changes=", ".join(
        [f"{name} = r.{name}" for name in CHANGED_IN_RUN]
        + [f"{name} = case r.kind when 'i' then r.{name} else o.{name} end" for name in _NEW_INPUTS]
    ),
    of_child=", ".join(f"{name} = excluded.{name}" for name in CHANGED_IN_CHILD),
    notice=f"${_FIRST + WIDTH}",
)
NEW, CHANGED, NEW_INPUT, CHILD = "n", "c", "i", "k"


class Prepared(msgspec.Struct):
    """One append, encoded before its turn comes: the connection is held for the server's time, not for Python's."""

    append: Append
    next_seq: int
    at: float
    size: int
    events: list[tuple[Any, ...]]
    rows: list[tuple[Any, ...]]
    uses: list[tuple[str, str]]
    starts: list[Prepared]

    @property
    def plain(self) -> bool:
        """Whether it changes a head and a journal and nothing else."""
        return not self.rows and not self.uses and self.append.expected_next > 0

    @property
    def single(self) -> bool:
        """Whether it is plain, of one batch, and depends on nothing else."""
        return self.plain and len(self.events) == 1 and not self.starts and self.append.admit is None

    @property
    def admit(self) -> Queue | None:
        """The limits under which it is written; None if there are none, and nothing needs to be counted."""
        queue = self.append.admit
        if queue is None or (queue.concurrency is None and queue.per_key is None and queue.rate is None):
            return None
        return queue


def prepare(append: Append) -> Prepared:
    """Encode an append."""
    run_id, size, events, uses = append.run_id, 0, [], []
    for batch in append.batches:
        data = encode_events(batch.events)
        size += len(data)
        events.append((run_id, batch.seq, batch.at, checksum(run_id, batch.seq, batch.at, data), data.decode()))
        if BLOB_MARK in data:
            uses += [(blob, run_id) for blob in references(batch.events)]
    rows: list[tuple[Any, ...]] = []
    if append.row is not None:
        kind = CHANGED if append.expected_next else NEW
        if isinstance(append.batches[0].events[0], InputReplaced):
            kind = NEW_INPUT
        rows.append((kind, run_id, *bindings(append.row)))
    rows += [(CHILD, run_id, *bindings(child)) for child in append.children]
    starts = [prepare(start) for start in append.starts] if append.starts else []
    return Prepared(
        append, append.next_seq, append.batches[-1].at, size, events, rows, list(dict.fromkeys(uses)), starts
    )


def statement(group: Sequence[Prepared], fsync: bool, channel: str, notice: str) -> tuple[str, tuple[Any, ...]]:
    """The statement that writes appends to different journals, with its arguments; it returns the run_ids it wrote."""
    if not notice and all(one.plain for one in group):
        if len(group) == 1 and group[0].single:
            return step_statement(group[0], fsync)
        return STEPS, (*_heads(group)[:5], *_entries(group), not fsync)
    uses = by_column((use for one in group for use in one.uses), 2)
    rows = by_column((row for one in group for row in one.rows), 2 + WIDTH)
    return GROUP, (*_heads(group), *_entries(group), *uses, channel, not fsync, *rows, notice)


def step_statement(one: Prepared, fsync: bool) -> tuple[str, tuple[Any, ...]]:
    """The statement for a single append, with its arguments."""
    [(run_id, seq, at, check, events)] = one.events
    return STEP if fsync else LAZY_STEP, (run_id, seq, one.next_seq, at, one.size, check, events)


def _heads(group: Sequence[Prepared]) -> list[Sequence[Any]]:
    # Sorted, so that two groups with common journals do not deadlock.
    heads = sorted(
        (one.append.run_id, one.append.expected_next, one.next_seq, one.at, one.size, one.append.row is not None)
        for one in group
    )
    return by_column(heads, 6)


def _entries(group: Sequence[Prepared]) -> list[Sequence[Any]]:
    return by_column((entry for one in group for entry in one.events), 5)
