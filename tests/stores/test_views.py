"""The views say in SQL what `list`, `get` and `steps` say in Python, on every store that has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import asyncpg  # type: ignore[import-untyped]
import pytest

from perdure import (
    Engine,
    Limits,
    Program,
    Queue,
    Recovery,
    Retry,
    RunStatus,
    approval,
    bail,
    lock,
    rule,
    set_state,
    sleep,
    step,
    step_context,
    wait_signal,
    workflow,
)
from perdure.client.views import RunView
from perdure.kernel.state import fold
from tests.docs.markdown import ROOT, table
from tests.engine.harness import PATIENCE

Rows = list[dict[str, Any]]
Ask = Callable[..., Awaitable[Rows]]

TRIES: list[str] = []


@step(retry=Retry(attempts=3, initial=0.0))
def flaky(times: int) -> str:
    if step_context().attempt <= times:
        raise ConnectionError(f"away \0 Zoë {step_context().attempt}")
    return "there"


@step(retry=Retry(attempts=5, initial=5000.0))
def slow_to_recover() -> None:
    raise ConnectionError("later")


@step
def enlarge(letter: str) -> str:
    step_context().heartbeat(progress={"done": 1})
    return letter * 5000


@step
def optional() -> Any:
    raise ValueError("not today")


@workflow
async def part(letter: str) -> int:
    return len(await enlarge(letter))


@workflow
async def busy() -> list[Any]:
    first = await flaky(1)
    skipped: Any = await optional()
    inner = await part("x")
    set_state("where", "here")
    await sleep(0)
    return [first, skipped, inner, "\0 Zoë"]


@workflow
async def broken() -> None:
    await flaky(99)


@workflow
async def retrying() -> None:
    await slow_to_recover()


@workflow
async def asking() -> Any:
    return await approval("ship", request={"total": 3}, timeout=1e6, approvers=("zoe",))


@workflow
async def asking_child() -> Any:
    return await asking()


@workflow
async def listening(name: str) -> Any:
    return await wait_signal(name, timeout=2e6)


@workflow
async def first_of_two() -> str:
    done, pending = await asyncio.wait(
        {asyncio.ensure_future(listening("a")), asyncio.ensure_future(listening("b"))},
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in pending:
        task.cancel()
    await sleep(1e6)
    return str(done.pop().result())


@workflow
async def sleeper() -> None:
    await sleep(1e6)


@workflow
async def early() -> None:
    bail("enough", {"why": "so"})


@workflow
async def locking() -> None:
    async with lock("door"):
        await sleep(1e6)


PROGRAMS: list[Program] = [
    busy,
    part,
    broken,
    retrying,
    asking,
    asking_child,
    listening,
    first_of_two,
    sleeper,
    early,
    locking,
]


RULES = [rule("optional", on_failure="skip")]


def of_sqlite(path: Path) -> Ask:
    async def ask(sql: str, *values: object) -> Rows:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            cursor = db.execute(sql.replace("$1", "?1"), values)
            rows = cursor.fetchall()
            names = [column[0] for column in db.execute(sql.replace("$1", "?1"), values).description] if rows else []
            return [dict(zip(names, row, strict=True)) for row in rows]
        finally:
            db.close()

    return ask


def of_postgres(url: str) -> Ask:
    async def ask(sql: str, *values: object) -> Rows:
        connection = await asyncpg.connect(url)
        try:
            return [dict(row) for row in await connection.fetch(sql, *values)]
        finally:
            await connection.close()

    return ask


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Ask]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db", of_sqlite(tmp_path / "runs.db")
    url = request.getfixturevalue("postgres_url")
    return url, of_postgres(url)


@pytest.fixture
async def engine(place: tuple[str, Ask]) -> AsyncIterator[Engine]:
    limits, recovery = Limits(blob=1000), Recovery(grace=0)
    async with Watched(
        place[0], PROGRAMS, limits=limits, recovery=recovery, rules=RULES, queues=[Queue("q")]
    ) as engine:
        yield engine


@pytest.fixture
def ask(place: tuple[str, Ask]) -> Ask:
    return place[1]


def moment(value: str | datetime | None) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def near(shown: str | datetime | None, at: datetime | None) -> bool:
    """Whether two moments are the same, to the millisecond that SQLite tells."""
    found = moment(shown)
    if found is None or at is None:
        return found is at is None
    assert found.tzinfo is not None
    return abs((found - at).total_seconds()) < 0.002


def plain(value: Any) -> Any:
    return None if value is None else json.loads(value)


class Watched(Engine):
    """An engine that tells when it has written something."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.written = asyncio.Event()

        async def note(*_: Any) -> None:
            self.written.set()

        super().__init__(*arguments, on_commit=note, **options)


async def until(engine: Engine, id: str, wanted: Callable[[RunView], bool]) -> RunView:
    """A run as soon as it is as wanted."""
    assert isinstance(engine, Watched)
    async with asyncio.timeout(PATIENCE):
        while True:
            engine.written.clear()
            view = await engine.get(id)
            if view is not None and wanted(view):
                return view
            await engine.written.wait()


async def standing(engine: Engine, id: str, status: RunStatus = RunStatus.WAITING) -> RunView:
    """A run as soon as it has come to this."""
    return await until(engine, id, lambda view: view.status is status)


async def check_run(engine: Engine, ask: Ask, id: str) -> dict[str, Any]:
    """The row of a run, after it was compared with what the engine says."""
    view = await engine.get(id)
    assert view is not None
    (row,) = await ask("select * from perdure_v_runs where run_id = $1", view.run_id)
    same = ("id", "run_id", "program", "version", "status", "owner", "epoch", "queue", "key", "priority")
    family = ("parent", "root", "forked_from", "next_seq")
    for name in (*same, *family):
        assert row[name] == getattr(view, name), name
    assert plain(row["tags"]) == view.tags
    assert plain(row["input"]) == (view.input if row["input_blob"] is None else None)
    assert plain(row["output"]) == (view.output if row["output_blob"] is None else None)
    assert row["reason"] == (view.reason or None)
    error = view.error
    assert row["error_type"] == (error.type if error else None)
    assert row["error_message"] == (error.message.replace("\0", shown_nul(ask)) if error else None)
    for name in ("created_at", "updated_at", "finished_at"):
        assert near(row[name], getattr(view, name)), name
    return row


def shown_nul(ask: Ask) -> str:
    """PostgreSQL has no character of number 0."""
    return "\0" if ask.__qualname__.startswith("of_sqlite") else "\ufffd"


async def check_steps(engine: Engine, ask: Ask, id: str) -> Rows:
    """The steps of a run, after they were compared with what the engine says."""
    view, steps = await engine.get(id), await engine.steps(id)
    assert view is not None
    rows = await ask("select * from perdure_v_steps where run_id = $1 order by started_at, path", view.run_id)
    assert {row["path"] for row in rows} == {one.path for one in steps}
    for one in steps:
        (row,) = (row for row in rows if row["path"] == one.path)
        told = (row["name"], row["status"], row["attempt"], row["attempts"], row["input_hash"], row["source"])
        assert told == (one.name, one.status, one.attempt, len(one.attempts), one.input_hash, one.source)
        if row["output_blob"] is None:
            assert plain(row["output"]) == one.output
        error = one.error or (one.attempts[-1].error if one.status == "running" else None)
        assert row["error_type"] == (error.type if error else None)
        assert row["error_message"] == (error.message.replace("\0", shown_nul(ask)) if error else None)
        assert plain(row["progress"]) == one.progress
        assert near(row["started_at"], one.started_at)
        assert near(row["finished_at"], one.finished_at)
        retry_at = one.attempts[-1].retry_at if one.status == "running" else None
        assert near(row["retry_at"], retry_at)
        assert (row["id"], row["program"], row["run_status"]) == (id, view.program, view.status)
    return rows


async def check_waits(engine: Engine, ask: Ask, id: str) -> Rows:
    """All waits of a run, after those that are open were compared with what the engine says."""
    view = await engine.get(id)
    assert view is not None
    rows = await ask("select * from perdure_v_waits where run_id = $1 order by opened_at, path", view.run_id)
    found = {row["path"]: row for row in rows if row["status"] == "open"}
    waits = [wait for wait in view.waits if wait.kind not in ("retry", "child")]
    assert set(found) == {wait.path for wait in waits}
    for wait in waits:
        row = found[wait.path]
        assert (row["kind"], row["name"] or "", row["source"]) == (wait.kind, wait.name, wait.source)
        assert near(row["deadline"], wait.deadline)
        assert plain(row["request"]) == wait.request
        assert tuple(plain(row["approvers"])) == wait.approvers
        assert (row["resolved_at"], row["resolved_by"]) == (None, None)
    timers = await ask("select * from perdure_v_timers where run_id = $1", view.run_id)
    expected = {wait.path: ("sleep" if wait.kind == "timer" else "timeout") for wait in waits if wait.deadline}
    expected |= {wait.path: "retry" for wait in view.waits if wait.kind == "retry"}
    assert {row["path"]: row["kind"] for row in timers if row["kind"] != "start"} == expected
    deadlines = {wait.path: wait.deadline for wait in view.waits}
    for row in timers:
        assert row["kind"] == "start" or near(row["due_at"], deadlines[row["path"]])
    return rows


async def test_a_run_with_retries_children_and_large_values(engine: Engine, ask: Ask) -> None:
    await engine.run(busy(), id="busy", tags={"team": "a"})
    row = await check_run(engine, ask, "busy")
    assert row["status"] == "completed"
    steps = {step["path"]: step for step in await check_steps(engine, ask, "busy")}
    assert [(path, s["status"], s["attempts"]) for path, s in steps.items()] == [
        ("flaky:0", "succeeded", 2),
        ("optional:0", "skipped", 1),
        ("part:0/enlarge:0", "succeeded", 1),
    ]
    large = steps["part:0/enlarge:0"]
    assert large["output"] is None
    assert await engine.blobs.get(large["output_blob"]) == json.dumps("x" * 5000).encode()
    child = await check_run(engine, ask, "busy/part:0")
    assert (child["parent"], child["root"]) == (row["run_id"], row["run_id"])
    (wait,) = await check_waits(engine, ask, "busy")
    assert (wait["kind"], wait["status"], wait["resolved_by"]) == ("timer", "resolved", "timer")
    assert await ask("select * from perdure_v_timers") == []


async def test_a_run_that_failed(engine: Engine, ask: Ask) -> None:
    await engine.run(broken(), id="broken")
    row = await check_run(engine, ask, "broken")
    assert row["error_type"].endswith("ConnectionError")
    (one,) = await check_steps(engine, ask, "broken")
    assert (one["status"], one["attempts"]) == ("failed", 3)


async def test_a_run_that_bailed_out_and_one_that_was_cancelled(engine: Engine, ask: Ask) -> None:
    await engine.run(early(), id="early")
    row = await check_run(engine, ask, "early")
    assert (row["status"], row["reason"], plain(row["output"])) == ("bailed", "enough", {"why": "so"})
    _ = await engine.start(sleeper(), id="sleeper")
    await standing(engine, "sleeper")
    await engine.cancel("sleeper", "no more")
    await standing(engine, "sleeper", RunStatus.CANCELLED)
    row = await check_run(engine, ask, "sleeper")
    assert row["reason"] == "no more"
    (wait,) = await check_waits(engine, ask, "sleeper")
    assert wait["status"] in ("resolved", "dropped")


async def test_a_step_that_waits_for_its_next_attempt(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(retrying(), id="retrying")
    await standing(engine, "retrying")
    (one,) = await check_steps(engine, ask, "retrying")
    assert (one["status"], one["error_message"]) == ("running", "later")
    assert one["retry_at"] is not None
    assert await check_waits(engine, ask, "retrying") == []
    (timer,) = await ask("select * from perdure_v_timers")
    assert (timer["id"], timer["kind"], timer["path"]) == ("retrying", "retry", "slow_to_recover:0")
    assert timer["due_at"] == one["retry_at"]


async def test_a_sleeping_run(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(sleeper(), id="sleeper")
    view = await standing(engine, "sleeper")
    row = await check_run(engine, ask, "sleeper")
    assert near(row["due_at"], view.waits[0].deadline)
    await check_waits(engine, ask, "sleeper")
    (timer,) = await ask("select * from perdure_v_timers")
    assert (timer["kind"], timer["path"], timer["due_at"]) == ("sleep", "sleep:0", row["due_at"])


async def test_an_approval_that_is_open_and_then_answered(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(asking_child(), id="asking")
    await standing(engine, "asking")
    (wait,) = await check_waits(engine, ask, "asking")
    assert (wait["path"], wait["kind"], wait["name"]) == ("asking:0/ship:0", "approval", "ship")
    assert (await check_run(engine, ask, "asking"))["approvals"] == 1
    await engine.approve("asking", "ship", {"yes": True}, by="zoe")
    await standing(engine, "asking", RunStatus.COMPLETED)
    (wait,) = await check_waits(engine, ask, "asking")
    assert (wait["status"], wait["resolved_by"], plain(wait["answer"])) == ("resolved", "answer:zoe", {"yes": True})
    await check_run(engine, ask, "asking")
    assert await ask("select * from perdure_v_timers") == []


async def test_waits_of_a_child_that_was_given_up(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(first_of_two(), id="two")
    view = await standing(engine, "two")
    assert len(view.waits) == 4
    await check_waits(engine, ask, "two")
    await engine.signal("two/listening:0", "a", 1)
    await until(engine, "two", lambda view: "sleep:0" in {wait.path for wait in view.waits})
    waits = {wait["path"]: wait for wait in await check_waits(engine, ask, "two")}
    assert [w["status"] for path, w in waits.items() if path == "sleep:0"] == ["open"]
    assert {w["status"] for path, w in waits.items() if path != "sleep:0"} <= {"resolved", "dropped"}


async def test_queued_paused_and_locked_runs(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(sleeper(), id="queued", queue="q", key="k", priority=7, delay=5000)
    _ = await engine.start(sleeper(), id="delayed", delay=6000)
    _ = await engine.start(locking(), id="locking")
    _ = await engine.start(sleeper(), id="paused")
    await until(engine, "locking", lambda view: bool(view.waits))
    await standing(engine, "paused")
    await engine.pause("paused", "for now")
    for id in ("queued", "delayed", "locking", "paused"):
        await check_run(engine, ask, id)
        await check_waits(engine, ask, id)
    starts = await ask("select id, due_at from perdure_v_timers where kind = 'start' order by due_at")
    assert [row["id"] for row in starts] == ["queued", "delayed"]
    view = await engine.get("queued")
    assert view is not None
    due = moment(starts[0]["due_at"])
    assert due is not None
    assert round((due - view.created_at).total_seconds()) == 5000


async def test_a_deadline_is_no_start(engine: Engine, ask: Ask) -> None:
    _ = await engine.start(sleeper(), id="queued", queue="q", delay=5000, deadline=500)
    _ = await engine.start(sleeper(), id="late", delay=6000, deadline=500)
    _ = await engine.start(sleeper(), id="delayed", delay=7000, deadline=9000)
    starts = await ask("select id, due_at from perdure_v_timers where kind = 'start' order by due_at")
    assert [row["id"] for row in starts] == ["queued", "late", "delayed"]
    view = await engine.get("late")
    assert view is not None
    due = moment(starts[1]["due_at"])
    assert due is not None
    assert round((due - view.created_at).total_seconds()) == 6000


async def test_forks_and_compacted_runs(engine: Engine, ask: Ask) -> None:
    await engine.run(busy(), id="busy")
    fork = await engine.fork("busy", at="part:0", new_id="fork")
    await fork.result()
    assert (await check_run(engine, ask, "fork"))["forked_from"] is not None
    await check_steps(engine, ask, "fork")
    await engine.compact("busy")
    view = await engine.get("busy")
    assert view is not None
    rows = await ask("select path, status, attempts from perdure_v_steps where run_id = $1 order by path", view.run_id)
    assert [tuple(row.values()) for row in rows] == [
        (s.path, s.status, len(s.attempts)) for s in sorted(await engine.steps("busy"), key=lambda s: s.path)
    ]


async def test_events_are_those_of_the_journal(engine: Engine, ask: Ask) -> None:
    await engine.run(busy(), id="busy")
    entries = await engine.journal("busy")
    rows = await ask("select * from perdure_v_events where run_id = $1 order by seq", entries[0].run_id)
    assert [(row["seq"], row["type"]) for row in rows] == [(e.seq, type(e.event).__name__) for e in entries]
    for row, entry in zip(rows, entries, strict=True):
        assert near(row["at"], entry.at)
        assert row["path"] == getattr(entry.event, "op", None)
        assert plain(row["event"])["type"] == row["type"]
    assert fold(entries[0].run_id, await engine.store.journal.read(entries[0].run_id)).finished is not None


async def test_one_damaged_run_does_not_hide_the_others(tmp_path: Path) -> None:
    url, ask = f"sqlite:///{tmp_path}/runs.db", of_sqlite(tmp_path / "runs.db")
    async with Engine(url, PROGRAMS) as engine:
        for id in ("a", "b"):
            await engine.run(broken(), id=id)
    db = apsw.Connection(str(tmp_path / "runs.db"))
    (first,) = await ask("select run_id from perdure_v_runs where id = $1", "a")
    db.execute("update perdure_journal set events = substr(events, 2) where run_id = ?", tuple(first.values()))
    db.close()
    assert [row["id"] for row in await ask("select distinct id from perdure_v_steps")] == ["b"]
    assert len(await ask("select * from perdure_v_runs")) == 2


async def test_a_question_about_one_run_reads_no_other_journal(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", PROGRAMS):
        pass
    ask = of_sqlite(tmp_path / "runs.db")
    for query in (
        "explain query plan select * from perdure_v_steps where run_id = $1",
        "explain query plan select * from perdure_v_waits where run_id = $1",
        "explain query plan select * from perdure_v_events where run_id = $1",
    ):
        plan = await ask(query, "r1")
        details = [row["detail"] for row in plan if " j" in row["detail"] or " r" in row["detail"]]
        assert details
        assert all(detail.startswith("SEARCH") for detail in details), plan


async def test_every_column_is_in_the_guide_and_no_other(place: tuple[str, Ask]) -> None:
    async with Watched(place[0], PROGRAMS) as engine:
        await engine.run(busy(), id="busy")
        _ = await engine.start(sleeper(), id="sleeper")
        await standing(engine, "sleeper")
        guide = (ROOT / "docs" / "sql-views.md").read_text(encoding="utf-8")
        for query in (
            "select * from perdure_v_runs",
            "select * from perdure_v_steps",
            "select * from perdure_v_waits",
            "select * from perdure_v_timers",
            "select * from perdure_v_events",
        ):
            (row, *_), view = await place[1](query), query.rpartition(" ")[2]
            section = guide.partition(f"## `{view}`")[2].partition("\n## ")[0]
            documented: Sequence[str] = [cells[0] for cells in table(section, "column")]
            assert [name.strip("`") for names in documented for name in names.split(", ")] == list(row), view
