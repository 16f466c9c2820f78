"""Leases in etcd where things go wrong: members that are away, passwords, certificates, lost replies, lost data."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine, InvalidStoreUrl, StoreUnavailable, connect, workflow
from perdure.errors import NotOwner
from perdure.ports.leases import Acquired, HeldBy, Renewal
from perdure.stores.etcd import leases as module
from perdure.stores.etcd.gateway import Gateway, _Silent
from perdure.stores.etcd.leases import EtcdLeases
from tests.patience import PATIENCE
from tests.services.plugin import Servers
from tests.services.servers import Etcd, free_port

TLS = Path(__file__).parent / "tls"
NOW, TTL = 1_700_000_000.0, 30.0


@pytest.fixture
async def leases(etcd_url: str) -> AsyncIterator[EtcdLeases]:
    # A busy machine may take longer than the usual three seconds to answer.
    async with EtcdLeases(f"{etcd_url}?timeout={PATIENCE}") as leases:
        yield leases


@workflow
async def nothing() -> str:
    return "done"


def nobody() -> str:
    """An endpoint where nobody listens."""
    return f"127.0.0.1:{free_port()}"


# --- members ----------------------------------------------------------------------------------------------------------


async def test_a_member_that_is_away_is_passed_over(etcd_url: str) -> None:
    host = etcd_url.removeprefix("etcd://")
    async with EtcdLeases(f"etcd://{nobody()},{nobody()},{host}") as leases:
        assert isinstance(await leases.acquire("k", "a", TTL, NOW), Acquired)
        assert await leases.get("k", NOW) is not None


async def test_when_nobody_answers_each_member_is_named_with_the_reason() -> None:
    one, two = nobody(), nobody()
    async with EtcdLeases(f"etcd://{one},{two}") as leases:
        with pytest.raises(StoreUnavailable) as caught:
            await leases.get("k", NOW)
    assert f"no member of etcd responds: {one} cannot be reached" in str(caught.value)
    assert f"{two} cannot be reached" in str(caught.value)
    assert "start it, or correct host and port" in str(caught.value)


async def test_an_engine_whose_etcd_is_away_says_so_and_leaves_nothing_open(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "runs.db", [nothing], leases=f"etcd://{nobody()}")
    with pytest.raises(StoreUnavailable, match="no member of etcd responds"):
        _ = await engine.open()
    async with Engine(tmp_path / "runs.db", [nothing]) as again:
        assert await (await again.start(nothing())).result() == "done"


async def test_etcd_that_comes_back_is_used_again(servers: Servers) -> None:
    with servers.etcd() as server:
        async with EtcdLeases(server.url) as leases:
            await leases.acquire("k", "a", TTL, NOW)
            server.kill()
            with pytest.raises(StoreUnavailable):
                await leases.renew_all([Renewal("k", "a", TTL)], NOW)
            server.start()
            assert await leases.renew_all([Renewal("k", "a", TTL)], NOW + 10) == []
            held = await leases.get("k", NOW + 10)
            assert held is not None
            assert held.expires == NOW + 10 + TTL


async def test_a_member_that_says_nothing_is_given_up_after_the_timeout(servers: Servers, etcd_url: str) -> None:
    with servers.etcd() as silent:
        silent.pause()
        try:
            host = etcd_url.removeprefix("etcd://")
            async with EtcdLeases(f"{silent.url},{host}?timeout=5") as leases:
                assert isinstance(await leases.acquire("k", "a", TTL, NOW), Acquired)
            async with EtcdLeases(f"{silent.url}?timeout=0.2") as leases:
                with pytest.raises(StoreUnavailable, match=r"did not respond within 0\.2 s"):
                    await leases.get("k", NOW)
        finally:
            silent.resume()


async def test_something_else_at_the_address_is_told_from_etcd() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with EtcdLeases(f"etcd://127.0.0.1:{port}") as leases:
            with pytest.raises(StoreUnavailable, match="responds, but not as etcd does; check host and port"):
                await leases.get("k", NOW)


# --- passwords --------------------------------------------------------------------------------------------------------


def command(server: Etcd, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v3/{path}", json.dumps(body).encode())
    if token:
        request.add_header("Authorization", token)
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        return dict(json.load(response))


def guard(server: Etcd) -> None:
    """Let in only `root` and `flows`, whose keys begin with `flows/`, and `guest`, who may do nothing."""
    for user, password in (("root", "r"), ("flows", "s3cret"), ("guest", "g")):
        command(server, "auth/user/add", {"name": user, "password": password})
    command(server, "auth/role/add", {"name": "root"})
    command(server, "auth/role/add", {"name": "flows"})
    # b64 of "flows/" and of the first key after all that begin with it.
    place = {"permType": "READWRITE", "key": "Zmxvd3Mv", "range_end": "Zmxvd3Mw"}
    command(server, "auth/role/grant", {"name": "flows", "perm": place})
    command(server, "auth/user/grant", {"user": "root", "role": "root"})
    command(server, "auth/user/grant", {"user": "flows", "role": "flows"})
    command(server, "auth/enable", {})


async def test_a_user_with_a_password_is_let_in_and_again_when_the_token_is_gone(servers: Servers) -> None:
    with servers.etcd() as server:
        guard(server)
        host = f"127.0.0.1:{server.port}"
        async with EtcdLeases(f"etcd://flows:s3cret@{host}/flows") as leases:
            assert isinstance(await leases.acquire("k", "a", TTL, NOW), Acquired)
            leases._gateway._token = "gone.1"
            assert await leases.renew_all([Renewal("k", "a", TTL)], NOW) == []
            # Tokens do not outlive the server, and are void when users are changed.
            server.kill()
            server.start()
            assert await leases.renew_all([Renewal("k", "a", TTL)], NOW) == []
            root = command(server, "auth/authenticate", {"name": "root", "password": "r"})["token"]
            command(server, "auth/user/add", {"name": "new", "password": "n"}, root)
            assert await leases.get("k", NOW) is not None
            watching = asyncio.ensure_future(anext(aiter(leases.watch("k"))))
            while not watching.done():
                await leases.acquire("k", "a", TTL, NOW)
                await leases.release("k", "a")
                await asyncio.wait([watching], timeout=0.05)
            assert await watching == "k"


@pytest.mark.parametrize(
    ("access", "place", "said"),
    [
        ("flows:wrong@", "flows", "it does not let 'flows' in (etcdserver: authentication failed"),
        ("nobody:s3cret@", "flows", "correct user and password in etcd://user:password@host:2379"),
        ("", "flows", "it requires authentication"),
        ("flows:s3cret@", "others", "'flows' may not read and write under 'others'"),
        ("guest:g@", "flows", "etcdctl role grant-permission ROLE --prefix=true readwrite flows/"),
    ],
)
async def test_who_is_not_let_in_is_told_why(servers: Servers, access: str, place: str, said: str) -> None:
    with servers.etcd() as server:
        guard(server)
        async with EtcdLeases(f"etcd://{access}127.0.0.1:{server.port}/{place}") as leases:
            with pytest.raises(StoreUnavailable) as caught:
                await leases.acquire("k", "a", TTL, NOW)
    assert said in str(caught.value)
    assert "wrong" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


async def test_a_password_for_an_etcd_that_asks_for_none_is_told_of(etcd_url: str) -> None:
    async with EtcdLeases(etcd_url.replace("etcd://", "etcd://u:p@")) as leases:
        with pytest.raises(StoreUnavailable, match="leave user and password out of the URL"):
            await leases.get("k", NOW)


# --- certificates -----------------------------------------------------------------------------------------------------

PLAIN = {"cert-file": f"{TLS}/server.pem", "key-file": f"{TLS}/server-key.pem"}
MUTUAL = PLAIN | {"client-cert-auth": "true", "trusted-ca-file": f"{TLS}/ca.pem"}
CA, CLIENT = f"ca={TLS}/ca.pem", f"cert={TLS}/client.pem&key={TLS}/client-key.pem"


@pytest.mark.parametrize(("settings", "query"), [(PLAIN, CA), (MUTUAL, f"{CA}&{CLIENT}")])
async def test_tls_is_spoken_with_certificates_of_either_side(
    servers: Servers, settings: dict[str, str], query: str
) -> None:
    with servers.etcd(settings) as server:
        async with EtcdLeases(f"etcds://127.0.0.1:{server.port}?{query}") as leases:
            assert isinstance(await leases.acquire("k", "a", TTL, NOW), Acquired)


@pytest.mark.parametrize(
    ("settings", "address", "said"),
    [
        (PLAIN, "etcd://{}", "speak TLS"),
        (PLAIN, "etcds://{}", "a certificate that cannot be trusted"),
        (PLAIN, "etcds://{}?ca=" + f"{TLS}/other.pem", "name its authority with ?ca=FILE"),
        (MUTUAL, "etcds://{}?" + CA, "?cert=FILE&key=FILE"),
        ({}, "etcds://{}?" + CA, "does not seem to speak TLS"),
    ],
)
async def test_a_tls_that_does_not_fit_is_explained(
    servers: Servers, settings: dict[str, str], address: str, said: str
) -> None:
    with servers.etcd(settings) as server:
        async with EtcdLeases(address.format(f"127.0.0.1:{server.port}")) as leases:
            with pytest.raises(StoreUnavailable) as caught:
                await leases.acquire("k", "a", TTL, NOW)
    assert said in str(caught.value)


# --- replies that are lost --------------------------------------------------------------------------------------------


class Deaf:
    """Loses the reply of the next transaction that changes something, as often as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        self._post = Gateway._post
        deaf = self

        async def post(gateway: Gateway, base: str, path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
            reply = await deaf._post(gateway, base, path, body, token)
            if deaf.times and path == "kv/txn" and "requestTxn" in body["success"][0]:
                deaf.times -= 1
                raise _Silent("broke off", begun=True, again=True)
            return reply

        monkeypatch.setattr(Gateway, "_post", post)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Deaf:
    return Deaf(monkeypatch)


async def test_what_was_done_and_not_answered_is_found_out(leases: EtcdLeases, deaf: Deaf) -> None:
    deaf.times = 1
    first = await leases.acquire("k", "a", TTL, NOW)
    assert isinstance(first, Acquired)
    deaf.times = 1
    assert await leases.renew_all([Renewal("k", "a", TTL)], NOW + 1) == []
    held = await leases.get("k", NOW + 1)
    assert held is not None
    assert (held.epoch, held.expires) == (first.epoch, NOW + 1 + TTL)
    deaf.times = 1
    await leases.release("k", "a")
    assert await leases.get("k", NOW) is None
    await leases.acquire("k", "a", TTL, NOW)
    deaf.times = 1
    assert await leases.release_all("a") == 1
    assert deaf.times == 0
    with pytest.raises(NotOwner):
        await leases.release("k", "a")


# --- epochs, sweeping and endings -------------------------------------------------------------------------------------


async def test_epochs_do_not_go_back_with_an_etcd_that_was_wiped_or_put_back(servers: Servers) -> None:
    with servers.etcd() as server:
        async with EtcdLeases(server.url) as first, EtcdLeases(server.url) as second:
            epochs = [await epoch(first, "a", NOW), await epoch(second, "b", NOW + 1)]
            server.stop()
            shutil.copytree(server.directory / "data", server.directory / "old")
            server.start()
            epochs += [await epoch(first, "a", NOW + 2), await epoch(second, "b", NOW + 3)]
            server.stop()
            server.wipe()
            shutil.copytree(server.directory / "old", server.directory / "data")
            (server.directory / "data").chmod(0o700)
            server.start()
            # One that has seen nothing of all that.
            async with EtcdLeases(server.url) as third:
                epochs.append(await epoch(third, "c", NOW + 4))
            server.stop()
            server.wipe()
            server.start()
            async with EtcdLeases(server.url) as third:
                epochs.append(await epoch(third, "d", NOW + 5))
            # With a clock that is far behind, who has seen the epochs still gives higher ones.
            epochs.append(await epoch(second, "b", NOW + 6))
            await second.release("k", "b")
            epochs.append(await epoch(second, "a", 1000.0))
    assert epochs == sorted(set(epochs))


async def epoch(leases: EtcdLeases, owner: str, now: float) -> int:
    """The epoch of a lease that was free, as it was given back or ran out before."""
    held = await leases.acquire("k", owner, 0.5, now)
    assert isinstance(held, Acquired)
    return held.epoch


async def test_epochs_grow_where_clocks_differ(leases: EtcdLeases, etcd_url: str) -> None:
    """The epoch is in etcd too: a holder whose clock was ahead does not get ahead of those that come later."""
    ahead = await epoch(leases, "a", NOW + 86_400)
    await leases.release("k", "a")
    async with EtcdLeases(f"{etcd_url}?timeout={PATIENCE}") as other:
        assert await epoch(other, "b", NOW) > ahead


async def test_epochs_that_nobody_uses_are_swept_and_the_highest_stays(
    leases: EtcdLeases, etcd_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 7)
    for number in range(120):
        await leases.acquire(f"k{number}", "a", TTL, NOW)
    assert await leases.release_all("a") == 120
    highest = max([entry.epoch() async for entry in leases._scan(leases._epochs(""))])
    await leases.acquire("other", "b", TTL, NOW + 200_000)
    assert [entry.key async for entry in leases._scan(leases._epochs(""))] == [leases._epochs("other")]
    async with EtcdLeases(f"{etcd_url}?timeout={PATIENCE}") as fresh:
        found = await fresh.acquire("k7", "c", TTL, 1000.0)
    assert isinstance(found, Acquired)
    assert found.epoch > highest


async def test_a_holder_that_is_gone_vanishes_by_itself_and_watchers_hear_of_it(servers: Servers) -> None:
    with servers.etcd() as server:
        async with EtcdLeases(server.url) as holder, EtcdLeases(server.url) as watcher:
            heard = asyncio.ensure_future(anext(aiter(watcher.watch("orchestrator:"))))
            await holder.acquire("orchestrator:a", "a", 0.5, NOW)
            async with asyncio.timeout(PATIENCE):
                assert await heard == "orchestrator:a"
            assert await watcher.get("orchestrator:a", NOW) is None


async def test_many_leases_are_renewed_with_few_calls(leases: EtcdLeases) -> None:
    for number in range(150):
        await leases.acquire(f"lock:{number}", f"run-{number}", TTL, NOW)
    renewals = [Renewal(f"lock:{number}", f"run-{number}", TTL) for number in range(150)]
    before = leases._gateway.calls
    assert await leases.renew_all(renewals, NOW + 1) == []
    # Two parts, each read and written, and one lease of etcd that is kept alive for all.
    assert leases._gateway.calls - before == 5
    assert {lease.expires for lease in await leases.live("lock:", NOW + 1)} == {NOW + 1 + TTL}


async def test_a_lease_of_etcd_that_ran_out_is_replaced(leases: EtcdLeases) -> None:
    """A longer time to live than the last one had asks for a new lease behind the key."""
    await leases.acquire("k", "a", 5.0, NOW)
    [before] = await leases._read([leases._held("k")])
    assert await leases.renew_all([Renewal("k", "a", 500.0)], NOW) == []
    [after] = await leases._read([leases._held("k")])
    assert before.lease != after.lease
    assert await leases.acquire("k", "b", TTL, NOW + 400) == HeldBy("a", NOW + 500)


async def test_the_same_key_twice_in_one_renewal_is_no_trouble(leases: EtcdLeases) -> None:
    await leases.acquire("k", "a", TTL, NOW)
    assert await leases.renew_all([Renewal("k", "a", TTL), Renewal("k", "b", TTL)], NOW) == ["k"]


async def test_a_value_that_is_not_ours_is_nobodys_lease(leases: EtcdLeases) -> None:
    await leases._commit([{"success": [{"requestPut": {"key": module._b64(leases._held("k")), "value": "anVuaw=="}}]}])
    assert await leases.get("k", NOW) is None
    assert isinstance(await leases.acquire("k", "a", TTL, NOW), Acquired)


# --- with engines and clients -----------------------------------------------------------------------------------------


async def test_an_engine_shows_that_it_lives_in_etcd(tmp_path: Path, etcd_url: str, leases: EtcdLeases) -> None:
    async with Engine(tmp_path / "runs.db", [nothing], name="me", leases=etcd_url) as engine:
        assert await (await engine.start(nothing())).result() == "done"
        [lease] = await leases.live("orchestrator:", engine.clock.now())
        assert lease.key == "orchestrator:me"
    assert await leases.live("", 0.0) == []


async def test_locks_are_where_the_leases_are_and_come_free_at_once(tmp_path: Path, etcd_url: str) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(db, leases=etcd_url), connect(db, leases=etcd_url) as one, connect(db, leases=etcd_url) as two:
        await one.locks.acquire("account:7", owner="one", ttl=3600)
        assert isinstance(await two.locks.acquire("account:7", owner="two", ttl=3600), HeldBy)

        async def inside() -> str:
            async with two.locks.hold("account:7"):
                return "inside"

        waiting = asyncio.ensure_future(inside())
        while not two.locks.locker._held_elsewhere:
            await asyncio.sleep(0)
        await one.locks.release("account:7", owner="one")
        async with asyncio.timeout(PATIENCE):
            assert await waiting == "inside"


async def test_leases_none_is_for_a_single_orchestrator(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    async with Engine(db, [nothing], name="one", leases="none") as engine:
        assert await (await engine.start(nothing())).result() == "done"
        now = engine.clock.now()
        assert [lease.key for lease in await engine.store.leases.live("orchestrator:", now)] == ["orchestrator:one"]
        async with engine.locks.hold("k"), connect(db) as other:
            # Locks stay in the store, where other processes meet them.
            assert [lock.key for lock in await other.locks.list()] == ["k"]
            assert await other.store.leases.live("orchestrator:", now) == []


@pytest.mark.parametrize(
    ("leases", "said"),
    [
        ("sqlite:///x.db", "for those of the store leave leases='sqlite:///x.db' out"),
        ("etc://host", "leases are kept at 'etcd://host:2379', or nowhere with 'none'"),
        ("", "leases are kept at"),
        ("etcd://", "it names no host"),
    ],
)
def test_leases_that_cannot_be_meant_are_refused(leases: str, said: str) -> None:
    with pytest.raises(InvalidStoreUrl, match="cannot open the leases") as caught:
        _ = Engine("memory://", leases=leases)
    assert said in str(caught.value)


def test_leases_without_their_library_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("perdure.stores.etcd")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(InvalidStoreUrl, match=r"pip install 'perdure\[etcd\]'"):
        _ = Engine("memory://", leases="etcd://host")


def test_etcd_as_a_store_names_the_place_where_it_belongs() -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        _ = Engine("etcd://u:secret@host:2379")
    assert "Engine(store, leases='etcd://u:***@host:2379')" in str(caught.value)
