"""PostgreSQL, Redis and etcd as processes of our own: on free loopback ports, in a temporary directory, told by pid.

They end with the process they were started for (see `keeper`), even when it is killed.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import platform
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.patience import PATIENCE
from tests.processes import is_alive
from tests.services.binaries import binaries
from tests.services.keeper import children

KEEPER = Path(__file__).with_name("keeper.py")
POLL = 0.005
# Below the ports of outgoing connections: while a server is down, nobody gets its port by chance, and a client that
# keeps knocking does not get connected to itself.
PORTS = range(15_000, 32_000)
ROOMY = 2 * 1024**3
PASSWORD = "perdure"  # of a server that only this machine reaches, for as long as the tests run


class ServerFailed(Exception):
    """A server did not start or did not end; with the end of its log."""


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"no free port among {PORTS}")


def roomy() -> Path:
    """Where directories of tests are made: in memory, where there is room.

    There, servers and stores wait for their disk as they should, and the tests do not wait for one.
    """
    memory = Path("/dev/shm")
    room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOMY
    return memory if room else Path(tempfile.gettempdir())


def temporary_directory() -> Path:
    """A new directory, to be made."""
    return roomy() / f"perdure-test-{uuid.uuid4().hex[:12]}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone among processes."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class User:
    """Whom a server runs as."""

    uid: int
    gid: int

    @classmethod
    def other_than_root(cls) -> User | None:
        """Somebody without rights, for a program that refuses to run as root; None when we are not root."""
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(entry.pw_uid, entry.pw_gid)
        return cls(65534, 65534)


class Server(ABC):
    """One server. `start` returns when it answers; `stop` and `kill` return when it is gone.

    Belongs to the process `watch`, and ends with it. Keeps its port and its data from start to start.
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, directory: Path, *, port: int | None = None, watch: int | None = None) -> None:
        self.directory, self.watch = directory, watch or os.getpid()
        self.port = port or free_port()
        self._movable = port is None
        self._pid: int | None = None
        self._keeper: int | None = None
        self.user: User | None = None
        # What goes with it when the process it belongs to is gone: what it holds, unless more is told.
        self.remove: Path | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """What a store is opened with."""

    @property
    def pid(self) -> int:
        """The process to send signals to."""
        assert self._pid is not None, f"{self.kind} has not been started"
        return self._pid

    @property
    def log(self) -> str:
        """What it wrote."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def lock(self) -> Path:
        """The file that is locked while it runs, by the one who ends it."""
        return self.directory.with_suffix(".running")

    @property
    def alive(self) -> bool:
        """Whether it runs, standing still or not."""
        if self._pid is None:
            return False
        try:
            with self.lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            pass
        return False

    def start(self) -> Self:
        """Start it with the data it has, or with none."""
        assert not self.alive, f"{self.kind} runs already"
        # PostgreSQL runs as somebody else, and has to come through.
        for directory in (self.directory.parent, self.directory):
            directory.mkdir(exist_ok=True)
            directory.chmod(0o711)
        for attempt in itertools.count():
            self._prepare()
            self._launch()
            try:
                self._wait(self._answers, "did not answer")
                self._movable = False
                return self
            except ServerFailed:
                self.kill()
                # Somebody was quicker to take the port.
                if attempt == 4 or not self._movable or "in use" not in self.log:
                    raise
                self._move()
        raise AssertionError

    def stop(self) -> None:
        """End it in an orderly way."""
        self._signal(self.stop_signal)
        self._wait(lambda: not self.alive, "did not stop", running=False)

    def kill(self) -> None:
        """End it as `kill -9` and the loss of its machine's power do, with all its processes."""
        family = self._family()
        for pid in reversed(family):
            self._signal(signal.SIGKILL, pid)
        self._wait(lambda: not self.alive and not any(map(is_alive, family)), "did not die", running=False)

    def kill_first(self) -> None:
        """`kill -9` of its first process alone. The others notice, and end by themselves."""
        family = self.processes()
        self._signal(signal.SIGKILL)
        self._wait(lambda: not self.alive and not any(map(is_alive, family)), "did not die", running=False)

    def restart(self) -> None:
        """Stop it, and start it with the same port and data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Let all its processes stand still: connections stay open, and nothing answers."""
        for pid in self._family():
            self._signal(signal.SIGSTOP, pid)

    def resume(self) -> None:
        """Let it go on after a pause."""
        for pid in self._family():
            self._signal(signal.SIGCONT, pid)

    def processes(self) -> list[int]:
        """Its processes, the first one first; none when it has ended."""
        return [self.pid, *children(self.pid)] if self.alive else []

    def wipe(self) -> None:
        """Take its data away, while it is stopped."""
        assert not self.alive
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def end(self) -> None:
        """Stop it somehow, and leave nothing behind."""
        if self.alive:
            assert self._keeper is not None
            self._signal(signal.SIGTERM, self._keeper)
            self._wait(lambda: not self.alive, "did not end", running=False)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.lock.unlink(missing_ok=True)

    def describe(self) -> dict[str, Any]:
        """What another process needs to know of it; for `attach`."""
        return {"directory": str(self.directory), "port": self.port, "pid": self._pid, "keeper": self._keeper}

    @classmethod
    def attach(cls, description: Mapping[str, Any]) -> Self:
        """A server that another process started."""
        self = cls(Path(description["directory"]), port=description["port"])
        self._pid, self._keeper = description["pid"], description["keeper"]
        return self

    def __enter__(self) -> Self:
        return self if self.alive else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    # --- what differs ---

    def _prepare(self) -> None:
        """Make the data it starts with, if there is none."""
        (self.directory / "data").mkdir(exist_ok=True)

    @abstractmethod
    def _command(self) -> list[str]:
        """The command that runs it in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it takes requests."""

    def _move(self) -> None:
        """Take another port."""
        self.port = free_port()

    def _family(self) -> list[int]:
        """Its processes, none of which can make another one from here on."""
        # The first one makes them, PostgreSQL one per connection, each in a session of its own.
        self._signal(signal.SIGSTOP)
        return self.processes()

    # --- what does not ---

    def _launch(self) -> None:
        orders = {
            "command": self._command(),
            "cwd": str(self.directory),
            "env": _environment(),
            "user": self.user and self.user.uid,
            "group": self.user and self.user.gid,
            "watch": self.watch,
            "stop": int(self.stop_signal),
            "lock": str(self.lock),
            "log": str(self.directory / "log"),
            "remove": [str(self.directory if self.remove is None else self.remove), str(self.lock)],
        }
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(KEEPER)], input=json.dumps(orders), capture_output=True, text=True
        )
        if done.returncode or not done.stdout:
            raise ServerFailed(f"{self.kind} could not be started\n{done.stderr}\n{self.log[-2000:]}")
        told = json.loads(done.stdout)
        self._pid, self._keeper = told["pid"], told["keeper"]

    def _signal(self, number: signal.Signals, pid: int | None = None) -> None:
        if self.alive:
            try:
                os.kill(pid or self.pid, number)
            except ProcessLookupError:
                pass

    def _wait(self, condition: Callable[[], bool], otherwise: str, *, running: bool = True) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            ended = running and not self.alive
            if ended or time.monotonic() > until:
                reason = "ended" if ended else f"{otherwise} within {PATIENCE:.0f} s"
                raise ServerFailed(f"{self.kind} on port {self.port} {reason}\n{self.log[-2000:]}")
            time.sleep(POLL)


class Postgres(Server):
    """PostgreSQL. `settings` are lines of its configuration, as in `fsync="off"`.

    As durable as it ships (`fsync` and `synchronous_commit` are on), so that a store may promise `sync` on it.
    """

    kind = "postgres"
    stop_signal = signal.SIGINT  # "fast": does not wait for its clients to leave
    superuser: ClassVar[str] = "perdure"

    def __init__(
        self, directory: Path, *, port: int | None = None, watch: int | None = None, settings: Mapping[str, str] = {}
    ) -> None:
        super().__init__(directory, port=port, watch=watch)
        self.settings = dict(settings)
        self.user = User.other_than_root()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://{self.superuser}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        data = self.directory / "data"
        if data.exists():
            return
        template = _template(self.directory.parent, self.user)
        shutil.copytree(template, data, symlinks=True)
        if self.user is not None:
            _give(data, self.user)

    def _command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "256MB",
            "dynamic_shared_memory_type": "mmap",  # the usual kind needs more of /dev/shm than containers have
            "jit": "off",
            "timezone": "UTC",
            **self.settings,
        }
        lines = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(_postgres_binaries(self.directory.parent, self.user) / "postgres"), "-D", "data", *lines]

    def _answers(self) -> bool:
        return self._state() == "ready"

    def _state(self) -> str:
        # As pg_ctl finds out: the first line is the process, the eighth its state.
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return ""
        return lines[7].strip() if len(lines) > 7 and lines[0] == str(self._pid) else ""

    def stop(self) -> None:
        super().stop()
        self._wait(lambda: not children(self.pid), "left processes behind", running=False)


class Standby(Postgres):
    """A PostgreSQL that follows another one, and can take its place. Make it while the other is stopped."""

    def __init__(self, directory: Path, primary: Postgres) -> None:
        password = f"user={primary.superuser} password={PASSWORD}"
        follow = {"primary_conninfo": f"host=127.0.0.1 port={primary.port} {password}"}
        super().__init__(directory, settings=follow)
        self._primary = primary

    def _prepare(self) -> None:
        data = self.directory / "data"
        if data.exists():
            return
        assert not self._primary.alive
        shutil.copytree(self._primary.directory / "data", data, symlinks=True)
        (data / "standby.signal").touch()
        if self.user is not None:
            _give(data, self.user)

    def _answers(self) -> bool:
        return self._state() in ("standby", "ready")

    def promote(self) -> None:
        """Let it take the other's place."""
        (self.directory / "data" / "promote").touch()
        self._signal(signal.SIGUSR1)
        self._wait(lambda: self._state() == "ready", "did not take over")


class Redis(Server):
    """Redis, with a file that is flushed before each answer. `settings` are as in `appendfsync="everysec"`."""

    kind = "redis"
    databases: ClassVar[int] = 10_000

    def __init__(
        self, directory: Path, *, port: int | None = None, watch: int | None = None, settings: Mapping[str, str] = {}
    ) -> None:
        super().__init__(directory, port=port, watch=watch)
        self.settings = dict(settings)

    @property
    def url(self) -> str:
        return self.url_of(0)

    def url_of(self, database: int) -> str:
        """The URL of one of its databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"

    def _command(self) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory / "data"),
            "databases": str(self.databases),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            **self.settings,
        }
        lines = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [str(binaries("redis") / "redis-server"), *lines]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
                connection.sendall(b"PING\r\n")
                # -NOAUTH is an answer too; -LOADING is not yet one.
                return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class Etcd(Server):
    """etcd, a cluster of one."""

    kind = "etcd"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        watch: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, port=port, watch=watch)
        self._peers, self._health = free_port(), free_port()
        self.settings = dict(settings or {})

    @property
    def url(self) -> str:
        return f"etcd://127.0.0.1:{self.port}"

    def url_of(self, prefix: str) -> str:
        """The URL of a part of its keys."""
        return f"{self.url}/{prefix}"

    def _command(self) -> list[str]:
        scheme = "https" if "cert-file" in self.settings else "http"
        clients, peers = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{self._peers}"
        options = {
            "name": "test",
            "data-dir": str(self.directory / "data"),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"test={peers}",
            # There is nobody to elect. A short term also allows short leases: etcd grants none below one and a half.
            "heartbeat-interval": "20",
            "election-timeout": "200",
            # How it is can be asked without a certificate there.
            "listen-metrics-urls": f"http://127.0.0.1:{self._health}",
            "logger": "zap",
            "log-level": "warn",
        } | self.settings
        return [str(binaries("etcd") / "etcd"), *(f"--{name}={value}" for name, value in options.items())]

    def _move(self) -> None:
        super()._move()
        self._peers, self._health = free_port(), free_port()

    def _prepare(self) -> None:
        super()._prepare()
        (self.directory / "data").chmod(0o700)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health}/health", timeout=PATIENCE) as response:
                return bool(json.load(response)["health"] == "true")
        except (OSError, urllib.error.URLError, ValueError):
            return False


KINDS: dict[str, type[Server]] = {"postgres": Postgres, "redis": Redis, "etcd": Etcd}


def _environment() -> dict[str, str]:
    # Not what the developer's shell says of other servers, as PGDATA and ETCD_NAME do.
    kept = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in kept if name in os.environ} | {"LC_ALL": "C"}
    if platform.machine() in ("aarch64", "arm64"):
        environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
    return environment


def _template(shared: Path, user: User | None) -> Path:
    """A PostgreSQL cluster that was never started, made once for all that lie in `shared`: it takes seconds."""
    template = shared / "template"
    with locked(shared / "template.lock"):
        if template.exists():
            return template
        made = shared / "template.new"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        password = shared / "template.password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        if user is not None:
            _give(made, user)
        program = _postgres_binaries(shared, user) / "initdb"
        # Not SCRAM, which derives keys for longer than most tests take, once per connection on either side.
        options = ["--auth=md5", f"--pwfile={password}", "--no-sync", "--encoding=UTF8", "--locale=C"]
        done = subprocess.run(
            [str(program), "-D", str(made), "-U", Postgres.superuser, *options],
            cwd=shared,
            env=_environment(),
            capture_output=True,
            text=True,
            **_as(user),
        )
        if done.returncode:
            raise ServerFailed(f"initdb failed\n{done.stdout}\n{done.stderr}")
        made.rename(template)
        return template


def _postgres_binaries(shared: Path, user: User | None) -> Path:
    """PostgreSQL's programs where `user` may run them: the bundle may lie in a directory that is root's alone."""
    found = binaries("postgres")
    if user is None:
        return found
    copied = shared / "postgres-programs"
    # The programs of the bundle find their libraries by where both lie: module/pginstall/bin, and module.libs.
    install, module = found.parent, found.parent.parent
    there = copied / module.name / install.name / found.name
    if there.exists():
        return there
    try:
        subprocess.run([str(found / "postgres"), "--version"], capture_output=True, check=True, cwd="/", **_as(user))
        return found
    except (PermissionError, subprocess.CalledProcessError):
        made = shared / f"postgres-programs.{os.getpid()}"
        shutil.copytree(install, made / module.name / install.name, symlinks=True)
        libraries = module.with_name(f"{module.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, made / libraries.name, symlinks=True)
        try:
            made.rename(copied)
        except OSError:
            shutil.rmtree(made)  # somebody else was quicker
        return there


def _as(user: User | None) -> dict[str, Any]:
    return {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}


def _give(path: Path, user: User) -> None:
    for one in (path, *path.rglob("*")):
        os.chown(one, user.uid, user.gid, follow_symlinks=False)
