"""Servers that are not there, do not let us in, are not fit for a store, or go away: clear errors, and nothing lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from perdure.errors import Corrupt, InvalidStoreUrl, SchemaMismatch, StoreUnavailable
from perdure.kernel.events import Batch
from perdure.ports.journal import Append, Appended, Conflict
from perdure.ports.leases import Acquired
from perdure.stores.redis.store import RedisStore
from perdure.testing.conformance.history import History, finished, numbered, step, write, write_all
from tests.patience import PATIENCE
from tests.services.plugin import Servers
from tests.services.servers import free_port


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(url)
    await store.open(migrate=True)
    try:
        yield store
    finally:
        await store.close()


async def refusal(url: str, kind: type[Exception], *, migrate: bool = True) -> str:
    store = RedisStore(url)
    with pytest.raises(kind) as caught:
        await store.open(migrate=migrate)
    await store.close()
    return str(caught.value)


def admin(url: str) -> Any:
    return redis.Redis.from_url(url)


# --- opening --------------------------------------------------------------------------------------------------------


async def test_no_server_is_told_with_its_place_and_what_to_do() -> None:
    said = await refusal(f"redis://:s3cret@127.0.0.1:{free_port()}/0", StoreUnavailable)
    assert "no server responds at 127.0.0.1:" in said
    assert "check that it runs" in said
    assert "s3cret" not in said


def test_a_certificate_that_is_not_trusted_is_told_with_the_cure() -> None:
    error = redis.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    said = str(RedisStore("rediss://host")._server.explain(error))
    assert "the certificate of host:6379 is not trusted" in said
    assert "?ssl_ca_certs=" in said


async def test_a_name_that_is_no_host_is_told() -> None:
    assert "no server responds at nowhere.invalid:6379" in await refusal("redis://nowhere.invalid", StoreUnavailable)


async def test_a_server_that_is_silent_is_given_up_after_the_timeout(servers: Servers) -> None:
    with servers.redis() as server:
        server.pause()
        said = await refusal(f"{server.url}?timeout=0.1", StoreUnavailable)
        server.resume()
    assert "no response within 0.1 s" in said


async def test_passwords_and_rights_that_are_missing_are_told(servers: Servers) -> None:
    with servers.redis({"requirepass": "s3cret"}) as server:
        place = server.url.removeprefix("redis://")
        said = [
            await refusal(f"redis://{place}", InvalidStoreUrl),
            await refusal(f"redis://:wrong-s3cret@{place}", InvalidStoreUrl),
            await refusal(f"redis://nobody:wrong-s3cret@{place}", InvalidStoreUrl),
        ]
        assert "asks for a password; write it into the URL" in said[0]
        assert "refuses the user and password" in said[1]
        assert "refuses the user and password" in said[2]
        with admin(f"redis://:s3cret@{place}") as root:
            root.execute_command("ACL", "SETUSER", "reader", "on", ">s3cret", "~*", "&*", "+@read", "+info", "+evalsha")
            root.execute_command(
                "ACL", "SETUSER", "mine", "on", ">s3cret", "~flows:*", "resetchannels", "&flows:*", "+@all"
            )
        # CONFIG is a dangerous command, and told by few servers: the store does without.
        with admin(f"redis://:s3cret@{place}") as root:
            root.execute_command("ACL", "SETUSER", "mine", "-@dangerous", "+info")
        said.append(await refusal(f"redis://reader:s3cret@{place}", StoreUnavailable))
        assert "the user lacks a right" in said[3]
        said.append(await refusal(f"redis://mine:s3cret@{place}", StoreUnavailable))
        assert "~perdure:*" in said[4]
        async with opened(f"redis://mine:s3cret@{place}?prefix=flows:") as store:
            await write_all(store, History("r1").begin())
            assert store.survives == "kill"
            said.append(store.url)
    assert not [text for text in said if "s3cret" in text]


async def test_a_replica_is_refused_for_writing_and_fit_for_looking(servers: Servers) -> None:
    with servers.redis({"repl-diskless-sync-delay": "0"}) as primary:
        async with opened(primary.url) as store:
            await write_all(store, History("r1").begin())
        with servers.redis() as replica:
            with admin(replica.url) as there:
                there.replicaof("127.0.0.1", primary.port)
                async with asyncio.timeout(PATIENCE):
                    while there.info("replication")["master_link_status"] != "up":
                        await asyncio.sleep(0)
            assert "read-only replica; give the address of its primary" in await refusal(replica.url, StoreUnavailable)
            looking = RedisStore(replica.url)
            await looking.open(migrate=False)
            assert len(await numbered(looking.journal, "r1")) == 1
            with pytest.raises(StoreUnavailable, match="read-only replica"):
                await write(looking, History("r2").begin())
            await looking.close()


async def test_a_server_that_throws_keys_away_is_refused(servers: Servers) -> None:
    with servers.redis({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}) as server:
        said = await refusal(server.url, InvalidStoreUrl)
    assert "maxmemory-policy is allkeys-lru: it would throw away journals" in said
    assert "noeviction" in said


async def test_a_policy_that_could_throw_keys_away_is_warned_of(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    with servers.redis({"maxmemory-policy": "volatile-ttl"}) as server, caplog.at_level(logging.WARNING):
        async with opened(server.url):
            pass
    assert "set it to noeviction" in caplog.text


@pytest.mark.parametrize(
    ("settings", "survives", "said"),
    [
        ({}, "power_loss", None),
        ({"appendfsync": "everysec"}, "kill", "about the last second of acknowledged work may be lost"),
        ({"appendfsync": "no"}, "kill", "some seconds or more of acknowledged work"),
        ({"appendonly": "no"}, "kill", "when the server goes down, everything is lost"),
        ({"appendonly": "no", "save": "60 1"}, "kill", "everything since its last snapshot is lost"),
    ],
)
async def test_what_is_promised_is_said_once_at_open(
    servers: Servers, caplog: pytest.LogCaptureFixture, settings: dict[str, str], survives: str, said: str | None
) -> None:
    saves = settings.pop("save", "")
    with servers.redis(settings) as server, caplog.at_level(logging.WARNING):
        with admin(server.url) as there:
            there.config_set("save", saves)
        async with opened(server.url) as store:
            assert store.survives == survives
        looking = RedisStore(server.url)
        await looking.open(migrate=False)
        await looking.close()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if said is None else 1)
    assert said is None or said in warnings[0]


async def test_a_cluster_needs_a_prefix_with_braces(servers: Servers) -> None:
    with servers.redis({"cluster-enabled": "yes", "appendonly": "no"}) as server:
        url = f"redis://127.0.0.1:{server.port}"
        assert "?prefix={perdure}:" in await refusal(url, InvalidStoreUrl)
        with admin(url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383) if _newer(node) else node.execute_command(
                "CLUSTER", "ADDSLOTS", *range(16384)
            )
            while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                await asyncio.sleep(0)
        async with opened(f"{url}?prefix={{perdure}}:") as store:
            run = History("r{1}")
            await write_all(store, run.begin_as("a"), run.then(*step(0)))
            assert len(await numbered(store.journal, "r{1}")) == 4
            assert isinstance(await store.leases.acquire("k", "a", 9.0, 1.0), Acquired)
            assert await store.blobs.get(await store.blobs.put(b"x")) == b"x"


def _newer(node: Any) -> bool:
    return int(node.info("server")["redis_version"].split(".")[0]) >= 7


async def test_a_prefix_without_a_store_is_told_to_who_only_looks(redis_url: str) -> None:
    assert "there is no store under that prefix" in await refusal(redis_url, InvalidStoreUrl, migrate=False)


async def test_a_store_of_newer_code_is_refused(redis_url: str) -> None:
    async with opened(redis_url):
        pass
    with admin(redis_url) as keys:
        keys.hset("perdure:meta", "format", 2)
    await refusal(redis_url, SchemaMismatch)


async def test_stores_of_two_prefixes_know_nothing_of_each_other(redis_url: str) -> None:
    async with opened(f"{redis_url}?prefix=a:") as one, opened(f"{redis_url}?prefix=b:") as other:
        await write_all(one, History("r1").begin())
        assert await other.journal.read("r1") == []
        await write_all(other, History("r1").begin())
    with admin(redis_url) as keys:
        assert {key.partition(b":")[0] for key in keys.scan_iter()} == {b"a", b"b"}


async def test_a_full_server_refuses_and_takes_again_when_there_is_room(servers: Servers) -> None:
    with servers.redis() as server:
        async with opened(server.url) as store:
            run, over = History("r1"), History("over")
            await write_all(store, run.begin_as("a"), over.begin_as("a", finished()))
            with admin(server.url) as settings:
                settings.config_set("maxmemory", "1mb")
                more = run.then(*step(0))
                with pytest.raises(StoreUnavailable, match="maxmemory"):
                    await write(store, more)
                assert len(await numbered(store.journal, "r1")) == 2
                # Making room is possible all the same.
                assert list(await store.upkeep.remove(["over"])) == ["over"]
                settings.config_set("maxmemory", "0")
            assert await write(store, more) == [Appended()]


async def test_keys_of_somebody_else_are_told_as_damage(redis_url: str) -> None:
    async with opened(redis_url) as store:
        with admin(redis_url) as keys:
            keys.set("perdure:head:r1", "not ours")
        with pytest.raises(Corrupt, match="are not perdure's"):
            await write(store, History("r1").begin())


async def test_an_object_that_two_have_opened_is_closed_by_the_last(redis_url: str) -> None:
    async with opened(redis_url) as store:
        await store.open(migrate=False)
        await store.close()
        await write_all(store, History("r1").begin())
    with pytest.raises(StoreUnavailable, match="it is closed"):
        await store.runs.get("r1")


# --- going away -----------------------------------------------------------------------------------------------------


async def test_a_server_that_was_restarted_knows_everything_but_the_scripts(servers: Servers) -> None:
    with servers.redis() as server:
        async with opened(server.url) as store:
            run = History("r1")
            await write_all(store, run.begin_as("a"))
            for number in range(3):
                server.restart() if number else server.kill()
                if not number:
                    server.start()
                await write_all(store, run.then(*step(number)))
                assert isinstance(await store.leases.acquire("k", "a", 9.0, 1.0), Acquired)
            assert len(await numbered(store.journal, "r1")) == 8


async def test_a_server_that_is_gone_is_told_and_work_goes_on_when_it_is_back(servers: Servers) -> None:
    with servers.redis() as server:
        async with opened(server.url) as store:
            run = History("r1")
            await write_all(store, run.begin_as("a"))
            server.stop()
            with pytest.raises(StoreUnavailable, match="no server responds"):
                await store.runs.get("r1")
            # It is known that nothing is sent to a server that takes no connection.
            with pytest.raises(StoreUnavailable, match="Runs continue when it is back"):
                await write(store, run.then(*step(0)))
            server.start()
            assert len(await numbered(store.journal, "r1")) == 2
            await write_all(store, Append("r1", 2, [Batch(2, 9.0, step(0))]))


async def test_a_primary_that_is_one_no_more_is_left_for_whoever_has_its_name(servers: Servers) -> None:
    """After a failover the name leads elsewhere: old connections are not kept."""
    with servers.redis() as server:
        async with opened(server.url) as store:
            run = History("r1")
            await write_all(store, run.begin_as("a"))
            commands: list[str] = []
            with admin(server.url) as there:
                there.replicaof("127.0.0.1", free_port())
                more = run.then(*step(0))
                with pytest.raises(StoreUnavailable, match="read-only replica"):
                    await write(store, more)
                there.replicaof("NO", "ONE")
            store.trace(commands.append)
            assert await write(store, more) == [Appended()]
            assert commands[0] == "CONNECT"


def test_a_store_can_be_opened_again_in_another_loop(redis_url: str) -> None:
    store = RedisStore(redis_url)

    async def use(run_id: str) -> None:
        await store.open(migrate=True)
        await asyncio.gather(*(write_all(store, History(f"{run_id}-{i}").begin()) for i in range(20)))
        await store._notifications.listening.wait()
        await store.close()

    asyncio.run(use("one"))
    asyncio.run(use("other"))


async def test_a_server_that_lost_everything_looks_empty(servers: Servers) -> None:
    with servers.redis() as server:
        async with opened(server.url) as store:
            run = History("r1")
            await write_all(store, run.begin_as("a"), *(History(f"s{i}").begin() for i in range(5)))
            before = store.version()
            with admin(server.url) as keys:
                keys.flushall()
            assert await store.journal.read("r1") == []
            assert await store.journal.head("r1") is None
            assert await store.runs.get("r1") is None
            assert await write(store, run.then(*step(0))) == [Conflict(0)]
            await store._notifications.poll()
            assert store.version() != before
            await write_all(store, History("new").begin())
        # What is there now is a store, whoever looks.
        looking = RedisStore(server.url)
        await looking.open(migrate=False)
        assert len(await numbered(looking.journal, "new")) == 1
        await looking.close()
