"""A network that loses replies, cuts and goes silent: each append is written once, and its outcome is known."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from redis.asyncio import Connection

from perdure import Engine, wait_signal, workflow
from perdure.errors import NotOwner, StoreUnavailable
from perdure.kernel.events import Batch, RunReleased
from perdure.kernel.policies.queues import Queue
from perdure.ports.journal import Append, Appended, Conflict, Full
from perdure.ports.leases import Acquired, Renewal
from perdure.stores.redis.config import RedisConfig
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance.history import History, listed, numbered, step, write, write_all
from perdure.testing.conformance.queues import claim, queued
from tests.patience import PATIENCE
from tests.services.plugin import Servers
from tests.services.proxy import Proxy
from tests.services.servers import Redis


@pytest.fixture
def server(servers: Servers) -> Iterator[Redis]:
    with servers.redis() as server:
        yield server


@pytest.fixture
def proxy(server: Redis) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy, server: Redis) -> AsyncIterator[RedisStore]:
    """A store behind the proxy, with all scripts loaded that the tests use, so that one request is one script."""
    store = RedisStore(f"{proxy.url(server.url)}?timeout=5")
    await store.open(migrate=True)
    await store._notifications.listening.wait()
    run = History("warm")
    await write_all(store, run.begin())
    await store.journal.rewrite("warm", 1, [Batch(0, 1.0, [run.started])])
    await store.leases.acquire("warm", "w", 1.0, 1.0)
    await store.leases.release("warm", "w")
    yield store
    await store.close()


@pytest.fixture
async def direct(store: RedisStore, server: Redis) -> AsyncIterator[RedisStore]:
    """The same without the proxy."""
    direct = RedisStore(server.url)
    await direct.open(migrate=False)
    yield direct
    await direct.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0)


async def test_a_connection_that_ends_while_it_is_written_to_is_one_that_ended(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sent = History("r1"), 0
    await write_all(store, run.begin_as("a"))
    send = Connection.send_command

    async def trip(connection: Connection, *command: object, **options: object) -> None:
        nonlocal sent
        sent += 1
        if sent == 1:
            assert connection._writer is not None
            connection._writer.close()
            raise AttributeError("'NoneType' object has no attribute '_add_writer'")  # as asyncio says
        await send(connection, *command, **options)

    monkeypatch.setattr(Connection, "send_command", trip)
    assert await write(store, run.then(*step(0))) == [Appended()]
    assert sent > 1


async def test_an_append_whose_reply_is_lost_is_found_and_not_written_twice(
    store: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    run = History("r1")
    appends = [run.begin_as("a")]
    await write_all(store, *appends)
    for number in range(5):
        appends.append(run.then(*step(number)))
        proxy.lose_replies()
        assert await write(store, appends[-1]) == [Appended()]
    assert await numbered(direct.journal, "r1") == listed(*appends)


async def test_a_group_whose_reply_is_lost_has_the_outcomes_it_had(
    store: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    one = Queue("emails", concurrency=1)
    first, refused = await queued(store, "q1"), await queued(store, "q2")
    good = History("good")
    begin = good.begin_as("a")
    await write_all(store, begin)
    group = [good.then(*step(0)), Append("good", 9, [Batch(9, 9.0, step(1))]), claim(first, one), claim(refused, one)]
    group.append(History("q1", id="again").begin())
    proxy.lose_replies()
    assert await write(store, *group) == [Appended(), Conflict(4), Appended(), Full(), Conflict(2)]
    assert len(await numbered(direct.journal, "good")) == 4


async def test_an_append_that_never_arrived_is_written_after_all(
    store: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    run = History("r1")
    begin = run.begin_as("a")
    await write_all(store, begin)
    proxy.reset_after(100)  # in the middle of the request, and of every other
    more, accepted = run.then(*step(0)), proxy.accepted
    writing = asyncio.ensure_future(write(store, more))
    await eventually(lambda: proxy.accepted > accepted + 1)
    assert not writing.done()
    proxy.heal()
    assert await writing == [Appended()]
    assert await numbered(direct.journal, "r1") == listed(begin, more)


async def test_an_append_that_arrives_late_writes_nothing(store: RedisStore, direct: RedisStore, proxy: Proxy) -> None:
    """What was settled as not written stays so, though the request is still on its way and then arrives."""
    from perdure.stores.redis.journal import _prepare
    from perdure.stores.redis.scripts import APPEND, SETTLE
    from perdure.stores.redis.server import Texts

    run = History("r1")
    begin = run.begin_as("a")
    await write_all(store, begin)
    more, texts = run.then(*step(0)), Texts()
    one = _prepare(more, texts)
    answers = await store._server.once(SETTLE, ("token", [(one[0], one[1], one[5][0])]), *texts.all)
    assert answers[1:] == [0]
    assert await store._server.once(APPEND, ("token", [one]), *texts.all) == [-1]
    assert await numbered(direct.journal, "r1") == listed(begin)


async def test_an_append_waits_until_its_outcome_is_known(
    store: RedisStore, direct: RedisStore, proxy: Proxy, server: Redis
) -> None:
    """While nobody can be asked, nobody is told that nothing was written."""
    run = History("r1")
    begin = run.begin_as("a")
    await write_all(store, begin)
    more = run.then(*step(0))
    proxy.blackhole("down")
    writing = asyncio.ensure_future(write(store, more))
    # The request arrives, and its answer does not.
    async with asyncio.timeout(PATIENCE):
        while (await direct.journal.heads(["r1"]))["r1"] == 2:
            await asyncio.sleep(0)
    proxy.refuse()
    proxy.cut()
    await asyncio.sleep(0)
    assert not writing.done()
    proxy.heal()
    assert await writing == [Appended()]
    assert await numbered(direct.journal, "r1") == listed(begin, more)


async def test_a_store_that_is_closed_meanwhile_waits_no_longer(store: RedisStore, proxy: Proxy, server: Redis) -> None:
    run = History("r1")
    await write_all(store, run.begin_as("a"))
    server.pause()
    writing = asyncio.ensure_future(write(store, run.then(*step(0))))
    await asyncio.sleep(0)
    await store.close()
    server.resume()
    with pytest.raises(StoreUnavailable):
        await writing


async def test_a_rewrite_whose_reply_is_lost_is_found(store: RedisStore, direct: RedisStore, proxy: Proxy) -> None:
    run = History("r1")
    await write_all(store, run.begin(*step(0), *step(1)))
    batches = [Batch(0, run.at, [run.started]), Batch(1, run.at + 1, step(1))]
    proxy.lose_replies()
    assert await store.journal.rewrite("r1", 5, batches) == Appended()
    assert await direct.journal.read("r1") == batches


async def test_leases_bear_lost_replies(store: RedisStore, direct: RedisStore, proxy: Proxy) -> None:
    proxy.lose_replies()
    acquired = await store.leases.acquire("k", "a", 30.0, 100.0)
    assert isinstance(acquired, Acquired)
    proxy.lose_replies()
    assert list(await store.leases.renew_all([Renewal("k", "a", 60.0)], 100.0)) == []
    lease = await direct.leases.get("k", 100.0)
    assert lease is not None
    assert (lease.epoch, lease.expires) == (acquired.epoch, 160.0)
    proxy.lose_replies()
    await store.leases.release("k", "a")
    assert await direct.leases.get("k", 100.0) is None
    with pytest.raises(NotOwner):
        await store.leases.release("k", "a")


async def test_reads_are_asked_again(store: RedisStore, proxy: Proxy) -> None:
    await write_all(store, History("r1").begin_as("a"))
    for read in (
        lambda: store.journal.read("r1"),
        lambda: store.runs.find("r1"),
        lambda: store.timers.ahead(["checkout"], []),
        lambda: store.blobs.put(b"x"),
    ):
        proxy.lose_replies()
        assert await read()


async def test_what_others_write_is_heard_again_after_a_cut(
    store: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    proxy.cut()
    await eventually(lambda: not store._notifications.listening.is_set())
    before = store.version()
    await write_all(direct, History("r1").begin())
    # By what was missed, read when the connection is back; and then by messages as before.
    await eventually(lambda: store.version() != before)
    await eventually(lambda: store._notifications.listening.is_set())
    before = store.version()
    await write_all(direct, History("r2").begin())
    await eventually(lambda: store.version() != before)


async def test_watching_leases_ends_with_an_error_when_the_connection_does(store: RedisStore, proxy: Proxy) -> None:
    ended = store.leases.watch("k")
    waiting = asyncio.ensure_future(anext(ended))
    await asyncio.sleep(0)
    proxy.cut()
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_a_connection_that_is_made_while_the_store_closes_is_closed(
    server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(server.url)
    await store.open(migrate=True)
    await store._notifications.listening.wait()  # which connects as well
    connect, made = store._server.connect, list[Connection]()

    async def connect_late() -> Connection:
        made.append(await connect())
        await store.close()
        return made[0]

    store._server._idle, kept = [], store._server._idle
    monkeypatch.setattr(store._server, "connect", connect_late)
    with pytest.raises(StoreUnavailable, match="it is closed"):
        await store._server.query("NO SUCH COMMAND")
    assert [one.is_connected for one in made] == [False]
    for one in kept:
        await one.disconnect(nowait=True)


@pytest.mark.parametrize("seed", range(4))
async def test_of_writers_on_a_bad_network_every_event_is_there_once_and_in_order(
    store: RedisStore, direct: RedisStore, proxy: Proxy, seed: int
) -> None:
    """Two writers race for one journal while replies are lost, requests are torn and connections are cut."""
    chance = random.Random(seed)
    await write_all(direct, History("r1").begin())

    def disturb() -> None:
        match chance.randint(0, 5):
            case 0:
                proxy.lose_replies()
            case 1:
                proxy.cut()
            case 2:
                proxy.reset_after(chance.randint(1, 2000), chance.choice(["up", "down"]))
            case _:
                proxy.heal()

    async def insist(on: RedisStore, name: str) -> None:
        next_seq: int | None = 1
        for number in range(40):
            event = RunReleased(f"{name}{number}")
            while True:
                disturb()
                assert next_seq is not None
                try:
                    [outcome] = await write(on, Append("r1", next_seq, [Batch(next_seq, 9.0, [event])]))
                except StoreUnavailable:
                    proxy.heal()
                    continue
                if isinstance(outcome, Appended):
                    next_seq += 1
                    break
                assert isinstance(outcome, Conflict)
                next_seq = outcome.next_seq

    async def heal() -> None:
        while True:
            await asyncio.sleep(0)
            if chance.random() < 0.01:
                proxy.heal()

    healing = asyncio.ensure_future(heal())
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(insist(store, "a"), insist(direct, "b"))
    healing.cancel()
    found = await numbered(direct.journal, "r1")
    names = [event.owner for _, event in found if isinstance(event, RunReleased)]
    for name in "ab":
        assert [one for one in names if one[0] == name] == [f"{name}{number}" for number in range(40)]


def hasty(server: Redis, proxy: Proxy) -> RedisStore:
    """A store behind the proxy that soon asks whether a silent connection is dead."""
    return RedisStore(f"{proxy.url(server.url)}?timeout=600", RedisConfig(silent=0.1))


@pytest.fixture
async def patient(proxy: Proxy, server: Redis) -> AsyncIterator[RedisStore]:
    """A store that gives no answer up by time: only the question whether a connection is dead ends the wait."""
    store = hasty(server, proxy)
    await store.open(migrate=True)
    await store._notifications.listening.wait()
    yield store
    await store.close()


async def test_work_goes_on_when_every_old_connection_is_dead(
    patient: RedisStore, direct: RedisStore, proxy: Proxy
) -> None:
    run = History("r1")
    async with asyncio.timeout(PATIENCE):
        await write_all(patient, run.begin())
        await asyncio.gather(*(patient.journal.heads(["r1"]) for _ in range(4)))
        for number in range(3):
            proxy.abandon()
            heads = await asyncio.gather(*(patient.journal.heads(["r1"]) for _ in range(4)))
            assert heads == [{"r1": 1 + 2 * number}] * 4
            proxy.abandon()
            assert await write(patient, run.then(*step(number))) == [Appended()]
            proxy.abandon()
            assert isinstance(await patient.leases.acquire("k", "me", 10.0, 100.0), Acquired)
            proxy.abandon()
            assert await patient.leases.renew_all([Renewal("k", "me", 10.0)], 100.0) == []
            proxy.abandon()
            assert await patient.leases.release_all("me") == 1
        # It listens again, too.
        await patient._notifications.listening.wait()
        before = patient.version()
        await write_all(direct, History("r2").begin())
        await eventually(lambda: patient.version() != before)


async def test_an_engine_whose_connections_are_dead_starts_answers_and_hands_over(server: Redis, proxy: Proxy) -> None:
    @workflow
    async def waiting() -> str:
        return str(await wait_signal("go"))

    async with asyncio.timeout(PATIENCE):
        async with Engine(hasty(server, proxy), [waiting], name="a", durability="relaxed") as engine:
            _ = await engine.start(waiting(), id="before")
            proxy.abandon()
            assert await engine.get("before") is not None
            proxy.abandon()
            _ = await engine.start(waiting(), id="after")
            proxy.abandon()
        async with Engine(server.url, [waiting], name="b", durability="relaxed") as other:
            assert [lease.key for lease in await other.store.leases.live("orchestrator:", 0.0)] == ["orchestrator:b"]
            for id in ("before", "after"):
                await other.signal(id, "go", "on")
                assert (await other.run(waiting(), id=id)).output == "on"


async def test_a_command_that_takes_long_keeps_its_connection(patient: RedisStore, server: Redis) -> None:
    asked: list[str] = []
    patient.trace(asked.append)
    [kept] = patient._server._idle
    # The server is busy with something else, and answers to nothing at all.
    stopping = RedisStore(server.url)
    await stopping.open(migrate=False)
    await stopping._server.send("CLIENT", "PAUSE", "1000", "ALL")
    assert await patient.journal.heads(["r1"]) == {}
    assert asked.count("CONNECT") >= 1, "it was asked whether the connection is dead"
    assert kept in patient._server._idle
    patient.trace(None)
    await stopping.close()
