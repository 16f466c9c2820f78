"""Explain in one line why a run makes no progress. Reads nothing: everything is passed in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

from perdure.client.views import RunSummary
from perdure.errors import Corrupt
from perdure.kernel.chunks import CHUNK
from perdure.kernel.events import RunStatus, moment
from perdure.kernel.ids import BATCH, REMOTE, op_name
from perdure.kernel.inbound import may_answer
from perdure.kernel.policies.lock_keys import PREFIX
from perdure.kernel.projection import RunRow
from perdure.kernel.state import OpenOp, RunState
from perdure.ports.leases import Lease, Registration, orchestrator_name, some_of, versions_at

# How long something may be due before it is late: orchestrators poll and claim faster than this.
LATE_SECONDS = 5.0
# The calls of perdure that wait: a task of one of them has its name.
_CALLS = {"wait_signal", "approval", "sleep", "sleep_until"}
# An orchestrator sends two or three heartbeats per lease; if less of the lease is left, one is missing or late.
SILENT = 0.45


@dataclass(frozen=True, slots=True)
class Why:
    """Why a run makes no progress, or how it ended.

    `kind` classifies the reason, for programs: `signal`, `approval`, `timer`, `retry`, `remote`, `lock`,
    `child`, `queue`, `delay`, `owner`, `program`, `paused`, `parked`, `failed`, `cancelled`, `bailed`, `unread`.
    """

    kind: str
    text: str
    until: datetime | None = None
    """When the reason goes away by itself: a timer, the next attempt, a deadline, the lease of a dead owner."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class World:
    """The surroundings of a run: live orchestrators and their programs, holders of locks, queued runs."""

    now: float
    orchestrators: Mapping[str, Lease]
    registered: Mapping[str, Registration]
    holders: Mapping[str, str] = field(default_factory=dict)
    """The holder of each lock, by key, as shown to people."""
    queued: Mapping[str, Sequence[RunRow]] = field(default_factory=dict)
    cut: frozenset[str] = frozenset()
    """Queues of which not all runs were read: older ones may come before those that were."""
    under_way: Mapping[str, int] = field(default_factory=dict)
    zone: tzinfo | None = None
    """The zone of times in texts, which have their date and their offset then; None: the local one, for a terminal."""

    def silent(self, name: str) -> float | None:
        """The seconds left of the lease of an orchestrator that missed a heartbeat; None if it has not."""
        lease, known = self.orchestrators.get(name), self.registered.get(name)
        if lease is None or known is None:
            return None
        left = lease.expires - self.now
        return left if left < known.lease * SILENT else None

    def without(self, program: str, version: str, queue: str) -> str:
        """Why no orchestrator can claim a run of this program and version; empty if one may."""
        needed = program.removesuffix(BATCH)
        what = f"the step `{needed.removeprefix(REMOTE)}`" if needed.startswith(REMOTE) else f"`{needed}`"
        if not self.orchestrators:
            return f"no worker has {what}: none is alive"
        for name in self.orchestrators:
            known = self.registered.get(name)
            if known is None or known.may_take(program, version, queue):
                return ""
        if versions := self.versions(program, queue):
            return f"no worker has version {version} of `{needed}` ({versions})"
        anywhere = any(needed in (known.programs or ()) for known in self.registered.values())
        which = f" of queue `{queue}`" if queue and anywhere else ""
        return f"no worker has {what}{which} (alive: {some_of(sorted(self.orchestrators))})"

    def versions(self, program: str, queue: str) -> str:
        """The versions of a program that the live orchestrators have, in words; empty if none has it."""
        return versions_at({name: self.registered.get(name) for name in self.orchestrators}, program, queue)


def alive(leases: Iterable[Lease]) -> dict[str, Lease]:
    """The live orchestrators, by name."""
    return {orchestrator_name(lease.key): lease for lease in leases}


def why_ended(run: RunSummary) -> Why | None:
    """The reason of a run that ended without completing."""
    if run.status is RunStatus.FAILED and run.error is not None:
        return Why("failed", _line(str(run.error)))
    if run.status in (RunStatus.CANCELLED, RunStatus.BAILED) and run.reason:
        return Why(run.status.value, _line(run.reason))
    return None


def unread(run: RunSummary, problem: Exception | None) -> Why:
    """For a run whose journal is damaged, or too large to be read for a list."""
    if problem is not None:
        damage = problem.reason if isinstance(problem, Corrupt) else str(problem)
        return Why("unread", f"its journal cannot be read: {_line(damage)}")
    return Why("unread", f"its journal of {run.size / 1024**2:.0f} MB was not read; `perdure runs show` says")


def explain(run: RunSummary, state: RunState, path: str, world: World) -> Why | None:
    """Why an open run makes no progress; None if it does. `path` is the op path of a child in its root."""
    if run.status is RunStatus.PARKED:
        kind = state.parked.kind if state.parked is not None else ""
        said = ": ".join(part for part in (kind, _line(run.reason)) if part)
        versions = world.versions(run.program, run.queue or "") if kind == "no_version" else ""
        return Why("parked", f"{said} ({versions})" if versions else said)
    if run.status is RunStatus.PAUSED:
        return Why("paused", "until it is resumed" + (f": {_line(run.reason)}" if run.reason else ""))
    if state.epoch == 0:
        return _not_begun(run, state, world)
    if state.owner is not None and state.advancing:
        if state.owner not in world.orchestrators:
            missing = _missing(state, run, world)
            return Why("owner", f"owner {state.owner} gone, " + (missing or "a worker takes it over"))
        left = world.silent(state.owner)
        if left is not None:
            until = moment(world.now + left)
            return Why("owner", f"owner {state.owner} gone, {_span(left)} left", until)
    locks = [_lock(key.key, world) for op, key in state.lock_waits.items() if _within(op, path)]
    # Locks that it held, and that another run has acquired since it was stopped: it continues when it has them again.
    ours = f"run {state.started.id}" if state.started is not None else ""
    locks += [
        _lock(key.key, world)
        for op, key in state.locks.items()
        if _within(op, path) and world.holders.get(PREFIX + key.key, ours) != ours
    ]
    waits = [_wait(op, open_op, path, world) for op, open_op in state.ops.items() if _waits(op, open_op, path)]
    if run.status is RunStatus.RUNNING:
        if state.owner is None and not path:
            return _unclaimed(run, state, world)
        # A run that holds a lock counts as running, also while it only waits.
        at_work = state.held or any(one.running and _within(op, path) for op, one in state.ops.items())
        return _first(locks if at_work else locks + waits)
    due = state.wake_at
    if due is not None and due < world.now - LATE_SECONDS:
        late = f"due {_span(world.now - due)} ago"
        missing = _missing(state, run, world)
        return Why("program", f"{late}, {missing}") if missing else Why("owner", f"{late}, no worker has taken it")
    first = _first(locks + waits)
    # Told before it is due, unless all workers are away: of one that is alive it is known what it has.
    missing = _missing(state, run, world)
    if missing and world.orchestrators:
        return Why("program", missing if first is None else f"{first.text}; {missing}", first.until if first else None)
    return first


def _not_begun(run: RunSummary, state: RunState, world: World) -> Why | None:
    assert state.started is not None
    begins, queue = state.started.not_before, run.queue or ""
    if begins is not None and begins > world.now:
        return Why("delay", f"delayed {_at(begins, world)}", moment(begins))
    missing = _missing(state, run, world)
    if missing:
        return Why("program", missing)
    if not queue:
        return _unclaimed(run, state, world)
    ahead = sum(_before(row, run, state) for row in world.queued.get(queue, ()))
    if ahead or queue in world.cut:
        how_many = "others" if not ahead else f"at least {ahead}" if queue in world.cut else ahead
        return Why("queue", f"queued behind {how_many} in `{queue}`")
    busy = world.under_way.get(queue, 0)
    return Why("queue", f"next in queue `{queue}`" + (f" ({busy} running)" if busy else ""))


def _before(row: RunRow, run: RunSummary, state: RunState) -> bool:
    """Whether a queued run comes first; between keys, which take turns, an estimate by time."""
    if row.run_id == run.run_id or row.priority < run.priority:
        return False
    if row.priority > run.priority:
        return True
    mine = state.started.not_before if state.started is not None else None
    theirs = row.created_at if row.not_before is None else row.not_before
    # To the microsecond, as the run has it: those that were started together have one time, and their ids decide.
    return (moment(theirs), row.run_id) < (run.created_at if mine is None else moment(mine), run.run_id)


def _missing(state: RunState, run: RunSummary, world: World) -> str:
    """Why no orchestrator can claim a run, by the program of its root; empty if one may."""
    started = state.started
    return world.without(started.program, started.version, run.queue or "") if started is not None else ""


def _unclaimed(run: RunSummary, state: RunState, world: World) -> Why:
    missing = _missing(state, run, world)
    if missing:
        return Why("program", missing)
    waited = world.now - run.updated_at.timestamp()
    return Why("owner", f"no worker has taken it for {_span(waited)}")


def executed_elsewhere(state: RunState, path: str) -> str | None:
    """The first remote step, or chunk of items, that a run or the child at a path waits for."""
    return next((op for op, one in state.ops.items() if one.kind == "remote" and _waits(op, one, path)), None)


def with_reason(why: Why, of_executor: Why) -> Why:
    """Why a run waits for another one that executes its step, with why that one makes no progress."""
    return Why(why.kind, f"{why.text}: {of_executor.text}", of_executor.until or why.until)


def _waits(op: str, open_op: OpenOp, path: str) -> bool:
    return not open_op.running and open_op.kind not in ("child", "lock") and _within(op, path)


def _within(op: str, path: str) -> bool:
    return not path or op.startswith(f"{path}/")


def _wait(op: str, open_op: OpenOp, path: str, world: World) -> Why:
    kind, now = open_op.kind, world.now
    until = None if open_op.due is None else moment(open_op.due)
    if kind == "step":
        return Why("retry", _retry(open_op, now), until)
    name = open_op.opened.name if open_op.opened is not None else open_op.name.rpartition("/")[2]
    inside = op[len(path) + 1 :] if path else op
    scope = _scope(inside)
    where = f" in {scope}" if scope else ""
    limit = "" if open_op.due is None else f", at most {_at(open_op.due, world)}"
    if kind == "timer":
        return Why("timer", f"{_at(open_op.due, world) if open_op.due is not None else 'for ever'}{where}", until)
    if kind == "remote" and open_op.name == CHUNK:
        return Why("remote", f"for the items of {inside}", until)
    if kind == "remote":
        return Why("remote", f"for step {inside} in queue `{open_op.name}`", until)
    if kind == "approval" and open_op.opened is not None:
        people = may_answer(open_op.opened, now)
        whom = f" from {' or '.join(people)}" if people else ""
        return Why("approval", f"for approval `{name}`{whom}{where}{limit}", until)
    return Why(kind, f"for {kind} `{name}`{where}{limit}", until)


def _scope(op: str) -> str:
    """The child, or the branch of a body, that waits; empty for the body itself."""
    scope = op.rpartition("/")[0]
    # `gather(wait_signal(...))` makes a task of the call, which tells no more than the wait itself.
    return scope.rpartition("/")[0] if op_name(scope) in _CALLS else scope


def _retry(open_op: OpenOp, now: float) -> str:
    left = _span(max(0.0, (open_op.due or now) - now))
    after = f" after {open_op.error.type.rpartition('.')[2]}" if open_op.error is not None else ""
    if open_op.failed is not None:
        return f"fallback in {left}{after}"
    of = f" of {open_op.allowed}" if open_op.allowed else ""
    return f"retry {open_op.failures + 1}{of} in {left}{after}"


def _lock(key: str, world: World) -> Why:
    holder = world.holders.get(PREFIX + key)
    return Why("lock", f"lock `{key}` held by {holder}" if holder else f"lock `{key}`, which is free: it is next")


def _first(reasons: Sequence[Why]) -> Why | None:
    """The first reason, with the number of the others."""
    if len(reasons) < 2:
        return reasons[0] if reasons else None
    return Why(reasons[0].kind, f"{reasons[0].text} (and {len(reasons) - 1} more)", reasons[0].until)


def _line(text: str) -> str:
    return text.partition("\n")[0]


def _at(at: float, world: World) -> str:
    """A time in the local zone: `until 03:00:00`, with the date unless it is today; in full if a zone is asked for."""
    if world.zone is not None:
        return f"until {moment(at).astimezone(world.zone).isoformat(timespec='seconds').replace('+00:00', 'Z')}"
    local, today = moment(at).astimezone(), moment(world.now).astimezone()
    return f"until {local:%H:%M:%S}" if local.date() == today.date() else f"until {local:%Y-%m-%d %H:%M}"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
