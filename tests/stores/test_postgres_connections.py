"""Connections end: by the network, by the server, in the middle of a commit. Nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest

from perdure import Engine, step, wait_signal, workflow
from perdure.errors import StoreUnavailable
from perdure.kernel.events import RunClaimed, StepSucceeded
from perdure.kernel.policies.queues import Queue
from perdure.ports.journal import Appended, Conflict
from perdure.ports.leases import Acquired, Renewal
from perdure.stores.postgres import connection
from perdure.stores.postgres.config import PostgresConfig
from perdure.stores.postgres.store import PostgresStore
from perdure.testing.conformance.history import History, listed, numbered, write, write_all
from perdure.testing.conformance.history import step as steps
from tests.patience import PATIENCE
from tests.services.plugin import Servers
from tests.services.proxy import Proxy
from tests.services.servers import Postgres
from tests.stores.postgres import opened, sql

END_ALL = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where pid <> pg_backend_pid() and datname = current_database()
"""


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(postgres_url).port or 0) as proxy:
        yield proxy


@pytest.fixture
def config() -> PostgresConfig:
    return PostgresConfig()


# The store gives no answer up by time: only the question whether the connection is dead ends the wait.
HASTY_CONFIG = PostgresConfig(answer=600.0, patience=600.0, lease_patience=599.0, silent=0.1)
HASTY = pytest.mark.parametrize("config", [HASTY_CONFIG], ids=["hasty"])


@pytest.fixture
async def store(postgres_url: str, proxy: Proxy, config: PostgresConfig) -> AsyncIterator[PostgresStore]:
    async with opened(proxy.url(postgres_url), config=config) as store:
        yield store


async def test_reads_go_on_over_a_new_connection(store: PostgresStore, postgres_url: str) -> None:
    begin = History("r1").begin()
    await write_all(store, begin)
    for _ in range(3):
        await sql(postgres_url, END_ALL)
        assert await numbered(store.journal, "r1") == listed(begin)


async def test_appends_go_on_over_a_new_connection(store: PostgresStore, postgres_url: str) -> None:
    run = History("r1")
    written = [run.begin()]
    await write_all(store, written[0])
    for number in range(3):
        await sql(postgres_url, END_ALL)
        written.append(run.then(*steps(number)))
        await write_all(store, written[-1])
    assert await numbered(store.journal, "r1") == listed(*written)


async def test_an_append_whose_reply_is_lost_was_written_and_is_known_to_be(
    store: PostgresStore, proxy: Proxy, postgres_url: str
) -> None:
    run = History("r1")
    written = [run.begin()]
    await write_all(store, written[0])
    for number in range(5):
        # One that is a step alone, and one that changes the row.
        append = run.then(*steps(number), RunClaimed("me", number + 1))
        written.append(msgspec.structs.replace(append, row=None) if number % 2 else append)
        proxy.lose_replies()
        assert await write(store, written[-1]) == [Appended()]
    async with opened(postgres_url) as other:
        assert await numbered(other.journal, "r1") == listed(*written)


@pytest.mark.parametrize("at", ["prepare", "fetch"])
async def test_a_connection_that_ends_between_two_messages_of_a_statement_is_made_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    run = History("r1")
    await write_all(store, run.begin(), run.then(*steps(0)))
    writer = store._database._writer
    assert writer is not None
    raw, kept, ended = writer._raw, writer._kept, []

    async def ends(*args: Any, **kwargs: Any) -> Any:
        ended.append(at)
        raw.terminate()
        return raw._protocol.bind_execute  # which is what the driver does

    if at == "prepare":
        monkeypatch.setattr(writer, "_kept", {})
        monkeypatch.setattr(writer, "_raw", Ending(raw, prepare=ends))
    else:
        monkeypatch.setattr(writer, "_kept", {sql: Ending(one, fetch=ends) for sql, one in kept.items()})
    assert await write(store, run.then(*steps(1))) == [Appended()]
    assert ended == [at]


class Ending:
    """An object of the driver, some of whose functions are others."""

    def __init__(self, wrapped: Any, **others: Any) -> None:
        self._wrapped = wrapped
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


async def test_an_append_that_is_ahead_is_not_told_the_number_that_it_has(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and before the journal is asked why, somebody else brings it to just that number."""
    run = History("r1")
    await write_all(store, run.begin())
    theirs, ours = run.then(*steps(0)), run.then(*steps(1))
    heads = store.journal._heads
    asked: list[list[str]] = []

    async def late(connection: Any, run_ids: list[str]) -> dict[str, int]:
        if not asked:
            async with opened(postgres_url) as other:
                await write_all(other, theirs)
        asked.append(run_ids)
        return await heads(connection, run_ids)

    monkeypatch.setattr(store.journal, "_heads", late)
    assert await write(store, ours) == [Appended()]
    assert asked == [["r1"]]
    assert await store.journal.heads(["r1"]) == {"r1": ours.next_seq}


async def test_the_creation_of_a_run_whose_reply_is_lost_is_ours(store: PostgresStore, proxy: Proxy) -> None:
    await write_all(store, History("connected").begin())
    for number in range(3):
        proxy.lose_replies()
        assert await write(store, History(f"r{number}").begin_as("me")) == [Appended()]
        assert await write(store, History(f"r{number}").begin_as("other")) == [Conflict(2)]


async def test_of_a_group_whose_reply_is_lost_each_gets_its_own_outcome(store: PostgresStore, proxy: Proxy) -> None:
    runs = [History(f"r{number}") for number in range(4)]
    await write_all(store, *(run.begin_as("me") for run in runs))
    stale = History("r1")
    stale.begin()
    group = [runs[0].then(*steps(0)), stale.then(*steps(9)), runs[2].then(*steps(0)), History("new").begin()]
    proxy.lose_replies()
    assert await write(store, *group) == [Appended(), Conflict(2), Appended(), Appended()]
    assert len(await numbered(store.journal, "r1")) == 2


async def test_a_claim_whose_reply_is_lost_takes_one_place_in_its_queue(store: PostgresStore, proxy: Proxy) -> None:
    one = Queue("emails", concurrency=1)
    runs = [History(f"r{number}", queue="emails") for number in range(2)]
    await write_all(store, *(run.begin() for run in runs))
    claims = [msgspec.structs.replace(run.then(RunClaimed("me", 1)), admit=one) for run in runs]
    # Whichever of the messages it is that gets no answer: begin, lock, count, write or commit.
    proxy.lose_replies()
    assert await write(store, claims[0]) == [Appended()]
    assert len(await numbered(store.journal, "r0")) == 2
    [outcome] = await write(store, claims[1])
    assert not isinstance(outcome, Appended)


async def test_a_commit_whose_reply_is_lost_is_found_out(
    store: PostgresStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = History("parent"), History("child")
    await write_all(store, parent.begin_as("me"))
    script = connection.Connection.script

    async def commit(self: connection.Connection, text: str, *more: Any) -> None:
        if text == "commit" and not lost:
            lost.append(text)
            proxy.lose_replies()
        await script(self, text, *more)

    lost: list[str] = []
    monkeypatch.setattr(connection.Connection, "script", commit)
    append = msgspec.structs.replace(parent.then(*steps(0)), starts=[child.begin()])
    assert await write(store, append) == [Appended()]
    assert lost == ["commit"]
    assert len(await numbered(store.journal, "parent")) == 4
    assert len(await numbered(store.journal, "child")) == 1


async def test_an_append_that_was_not_sent_is_refused_at_once(store: PostgresStore, proxy: Proxy) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    proxy.refuse()
    proxy.cut()
    # Until the end of the connection is noticed, an append may be on its way.
    while not isinstance(store._database._writer, connection.Connection) or not store._database._writer.closed:
        await asyncio.sleep(0)
    append = run.then(*steps(0))
    with pytest.raises(StoreUnavailable):
        await write(store, append)
    proxy.heal()
    assert await write(store, append) == [Appended()]


async def test_a_server_that_answers_no_more_is_given_up(store: PostgresStore, proxy: Proxy) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    # From here on: a busy machine may take longer than that to open the store.
    impatient = PostgresConfig(answer=0.3, lease_patience=0.3, connect=0.3)
    writer = store._database.writer
    assert writer is not None
    store._database.config = writer.config = impatient
    proxy.blackhole("down")
    append = run.then(*steps(0))
    writing = asyncio.ensure_future(write(store, append))
    while not proxy.held["down"]:
        await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await store.leases.acquire("k", "me", 10.0, 100.0)
    assert not writing.done()
    store._database.config = PostgresConfig()
    proxy.heal()
    async with asyncio.timeout(PATIENCE):
        assert await writing == [Appended()]
    assert len(await numbered(store.journal, "r1")) == 3


async def test_a_step_that_is_never_answered_gives_its_connection_up(store: PostgresStore, proxy: Proxy) -> None:
    run = History("r1")
    await write_all(store, run.begin(), run.then(*steps(0)))
    writer = store._database.writer
    assert writer is not None
    # The look at the statement before is still to come; it finds that this one is younger, and looks again.
    writer.config = PostgresConfig(answer=0.2)
    writer._forget()
    await write_all(store, run.then(*steps(1)))
    proxy.blackhole("down")
    writing = asyncio.ensure_future(write(store, run.then(*steps(2))))
    async with asyncio.timeout(PATIENCE):
        while not writer.closed:
            await asyncio.sleep(0)
        proxy.heal()
        assert await writing == [Appended()]
    assert len(await numbered(store.journal, "r1")) == 7


async def test_a_store_that_was_opened_holds_no_transaction_open(store: PostgresStore, postgres_url: str) -> None:
    await sql(
        postgres_url, "set lock_timeout = '5s'", "begin", "lock table perdure_journal, perdure_runs in exclusive mode"
    )


async def test_appends_that_wait_for_one_that_is_refused_are_written(store: PostgresStore) -> None:
    run, other = History("r1"), History("r2")
    await write_all(store, run.begin(), other.begin())
    taken = run.then(*steps(0))
    await write_all(store, taken)
    # The first is on its way at once and is refused; what comes meanwhile goes together after it.
    tries = [write(store, taken), write(store, run.then(*steps(1))), write(store, other.then(*steps(0)))]
    assert await asyncio.gather(*tries) == [[Conflict(3)], [Appended()], [Appended()]]


async def test_leases_whose_replies_are_lost_are_held_and_given_back_once(store: PostgresStore, proxy: Proxy) -> None:
    proxy.lose_replies()
    first = await store.leases.acquire("k", "me", 10.0, 100.0)
    assert await store.leases.acquire("k", "me", 10.0, 100.0) == first
    proxy.lose_replies()
    await store.leases.release("k", "me")
    assert await store.leases.get("k", 100.0) is None


@step
async def work(number: int) -> int:
    return number


@workflow
async def flow(count: int) -> int:
    total = 0
    for number in range(count):
        total += await work(number)
    return total


async def test_runs_go_on_when_the_server_was_restarted(servers: Servers) -> None:
    with servers.postgres() as server:
        async with Engine(server.url, [flow]) as engine:
            runs = [await engine.start(flow(60), id=f"r{number}") for number in range(5)]
            for restart in (Postgres.restart, _crash, Postgres.restart):
                await asyncio.to_thread(restart, server)
                run = await _insist(engine)
                assert await run.result(PATIENCE) == 3
            assert [await run.result(PATIENCE) for run in runs] == [sum(range(60))] * 5
            for run in runs:
                events = [entry.event for entry in await engine.journal(run.id)]
                assert len([event for event in events if isinstance(event, StepSucceeded)]) == 60


def _crash(server: Postgres) -> None:
    server.kill()
    server.start()


async def _insist(engine: Engine) -> Any:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await engine.start(flow(3))
            except StoreUnavailable:
                await asyncio.sleep(0)


async def test_an_engine_hears_of_work_after_its_connection_has_ended(postgres_url: str, proxy: Proxy) -> None:
    async with Engine(proxy.url(postgres_url), [flow]) as engine:
        proxy.cut()
        async with opened(postgres_url) as other:
            # Somebody else leaves a run for whoever is there.
            started = History("r1", id="it", program=flow.name, input=msgspec.Raw(b"[3]"), not_before=1.0)
            await write_all(other, started.begin())
        row = await asyncio.wait_for(engine.watch.wait_for_end("r1"), PATIENCE)
        assert bytes(row.output) == b"3"


# --- connections that are dead and look alive ------------------------------------------------------------------------


@HASTY
async def test_reading_and_writing_go_on_when_every_old_connection_is_dead(store: PostgresStore, proxy: Proxy) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    await asyncio.gather(*(store.journal.head("r1") for _ in range(4)))
    async with asyncio.timeout(PATIENCE):
        for number in range(3):
            proxy.abandon()
            assert (
                await asyncio.gather(*(store.journal.heads(["r1"]) for _ in range(4))) == [{"r1": 1 + 2 * number}] * 4
            )
            proxy.abandon()
            assert await write(store, run.then(*steps(number))) == [Appended()]
    assert len(await numbered(store.journal, "r1")) == 7


@HASTY
async def test_leases_blobs_and_upkeep_go_on_when_every_old_connection_is_dead(
    store: PostgresStore, proxy: Proxy
) -> None:
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await store.leases.acquire("k", "me", 10.0, 100.0), Acquired)
        proxy.abandon()
        assert await store.leases.renew_all([Renewal("k", "me", 10.0)], 100.0) == []
        proxy.abandon()
        blob = await store.blobs.put(b"large")
        proxy.abandon()
        assert await store.blobs.get(blob) == b"large"
        proxy.abandon()
        assert await store.leases.release_all("me") == 1


@HASTY
async def test_a_statement_that_takes_long_keeps_its_connection(store: PostgresStore, postgres_url: str) -> None:
    run = History("r1")
    await write_all(store, run.begin())
    before = store._database.writer
    assert before is not None
    asked: list[str] = []
    store.trace(asked.append)
    locking = await asyncpg.connect(postgres_url)
    try:
        async with locking.transaction():
            await locking.execute("lock table perdure_heads in exclusive mode")
            writing = asyncio.ensure_future(write(store, run.then(*steps(0))))
            async with asyncio.timeout(PATIENCE):
                while sum("pg_stat_activity" in one for one in asked) < 2:
                    await asyncio.sleep(0.01)
            assert not writing.done()
        assert await writing == [Appended()]
    finally:
        await locking.close()
    assert store._database.writer is before


async def test_an_engine_whose_connections_are_dead_starts_answers_and_hands_over(
    postgres_url: str, proxy: Proxy
) -> None:
    @workflow
    async def waiting() -> str:
        return str(await wait_signal("go"))

    async with asyncio.timeout(PATIENCE):
        engine = Engine(PostgresStore(proxy.url(postgres_url), HASTY_CONFIG), [waiting], name="a")
        async with engine:
            before = await engine.start(waiting(), id="before")
            proxy.abandon()
            assert await engine.get("before") is not None
            proxy.abandon()
            _ = await engine.start(waiting(), id="after")
            proxy.abandon()
            assert (await before.status()).finished is False
            proxy.abandon()
        async with opened(postgres_url) as left:
            assert await left.leases.live("", 0.0) == [], "what it held is given back"
        async with Engine(postgres_url, [waiting], name="b") as other:
            for id in ("before", "after"):
                await other.signal(id, "go", "on")
                assert (await other.run(waiting(), id=id)).output == "on"


async def test_a_connection_attempt_that_is_given_up_at_any_moment_leaves_no_error_behind(store: PostgresStore) -> None:
    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    for turns in range(40):
        attempt = loop.create_task(store._database.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        attempt.cancel()
        [outcome] = await asyncio.gather(attempt, return_exceptions=True)
        if isinstance(outcome, connection.Connection):
            await outcome.close()
        del attempt, outcome
        # What was closed is told so in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
    gc.collect()
    assert [context["message"] for context in reported] == []
