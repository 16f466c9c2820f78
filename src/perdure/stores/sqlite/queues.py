"""Queues in SQLite: whether there is room, counted in the transaction that begins a run."""

from __future__ import annotations

import apsw

from perdure.kernel.policies.queues import Queue
from perdure.kernel.projection import RunRow
from perdure.ports.journal import Full

# Counting stops at the limit: beyond it the number does not matter. The index is named, since the planner would rather
# go through everything that ever began.
_RUNNING = """
    select count(*) from (select 1 from perdure_runs indexed by perdure_runs_under_way
                          where queue = ? and began_at is not null and finished_at is null limit ?)
"""
_RUNNING_OF_KEY = """
    select count(*) from (select 1 from perdure_runs indexed by perdure_runs_under_way
                          where queue = ? and queue_key = ? and began_at is not null and finished_at is null limit ?)
"""
# Starts on either side of a moment: a clock may have been set back, and no window holds more than is allowed.
_NTH_START = """
    select began_at from perdure_runs where queue = ? and began_at is not null and began_at > ? and began_at < ?
    order by began_at desc limit 1 offset ?
"""


def refusal(db: apsw.Connection, queue: Queue, row: RunRow) -> Full | None:
    """Why a run may not begin now, by what the transaction sees; None when it may."""
    if queue.concurrency is not None:
        if db.execute(_RUNNING, (row.queue, queue.concurrency)).get >= queue.concurrency:
            return Full()
    if queue.per_key is not None:
        if db.execute(_RUNNING_OF_KEY, (row.queue, row.queue_key, queue.per_key)).get >= queue.per_key:
            return Full()
    if queue.rate is not None and row.began_at is not None:
        per = queue.rate.seconds
        window = (row.queue, row.began_at - per, row.began_at + per, queue.rate.count - 1)
        nth = db.execute(_NTH_START, window).get
        if nth is not None:
            return Full(nth + per)
    return None
