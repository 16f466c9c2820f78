"""Remember for the next process which journals fit which code: a blob, found by a hash of the code.

It has a moment up to which all journals fit, and digests of those that fit and have changed since. It may be lost or
out of date at any time: then the runs are replayed again.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import sysconfig
from collections.abc import Collection, Iterable
from contextlib import suppress
from hashlib import blake2b

from perdure.errors import Corrupt, NotOwner
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.policies.versions import Programs
from perdure.kernel.values.static import file_of
from perdure.ports.clock import Clock
from perdure.ports.leases import HeldBy
from perdure.ports.store import Store

# Leases under this prefix name the blobs, and end by themselves once code was not used for so many seconds.
FITS = "fit:"
TTL = 30 * 86400.0
# Fewer runs are replayed sooner than they are looked up.
FEWEST = 100
SIZE = 8
_MOMENT = struct.Struct(">d")
# How many files are read before everything else on the event loop has its turn.
AT_ONCE = 10


def digest(run_id: str, head: int) -> bytes:
    """A journal up to an event."""
    return blake2b(f"{run_id}:{head}".encode(), digest_size=SIZE).digest()


async def code_hash(programs: Programs) -> str:
    """A hash of the programs, and of all modules that are loaded; empty if the source of a program is not known.

    Modules of the project by what they hold, for types and helpers count as well; installed ones by their date.
    """
    found = blake2b(sys.version.encode(), digest_size=16)
    for program in sorted(programs.every(), key=lambda one: (one.name, one.version)):
        if program.name.startswith(BUILT_IN):
            continue
        source = program.source().digest()
        if not source:
            return ""
        found.update(f"{program.name}\0{program.version}\0{program.accepts}\0{program.defined}\0{source}\0".encode())
    for number, path in enumerate(_files()):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            found.update(_content(path))
        except OSError:
            return ""
    return found.hexdigest()


def _content(path: str) -> bytes:
    if _is_installed(path):
        at = os.stat(path)
        return f"{path}\0{at.st_size}\0{at.st_mtime_ns}\0".encode()
    with open(path, "rb") as file:
        return file.read()


def _files() -> Iterable[str]:
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    places = {file_of(module) for module in list(sys.modules.values())}
    paths = sorted(path for path in places if path and os.path.isabs(path))
    return [path for path in paths if _is_installed(path) or not path.startswith(standard)]


def _is_installed(path: str) -> bool:
    return f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path


class FitCache:
    """The journals that fit, by code, in a store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def load(self, code: str) -> tuple[float | None, set[bytes]]:
        """The moment up to which all journals fit this code, if there is one, and the digests of others that do."""
        lease = await self._store.leases.get(FITS + code, self._clock.now())
        if lease is None:
            return None, set()
        try:
            data = await self._store.blobs.get(lease.owner) or b""
        except Corrupt:
            return None, set()
        if len(data) % SIZE or not data:
            return None, set()
        (moment,) = _MOMENT.unpack_from(data)
        return moment or None, {data[at : at + SIZE] for at in range(_MOMENT.size, len(data), SIZE)}

    async def save(self, code: str, moment: float | None, digests: Collection[bytes]) -> None:
        """Replace what is known of this code."""
        blob = await self._store.blobs.put(_MOMENT.pack(moment or 0.0) + b"".join(sorted(digests)))
        leases, key = self._store.leases, FITS + code
        while isinstance(held := await leases.acquire(key, blob, TTL, self._clock.now()), HeldBy):
            with suppress(NotOwner):
                await leases.release(key, held.owner)
