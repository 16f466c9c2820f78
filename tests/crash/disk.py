"""A disk whose power can be cut: an SQLite VFS that knows which bytes have reached the platter.

The files themselves hold what the operating system would show: every write, at once. Beside them the disk keeps what a
sync has made durable, and the writes since. A cut keeps the former and an arbitrary part of the latter: a prefix, or
any selection of sectors, the last one torn. Shared memory is lost, or left stale. Nothing is ever really synced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512
Write = tuple[int, bytes]
Truncate = int


class Disk(apsw.VFS):
    """Counts operations that change something, and calls `on_cut` at the chosen one, before it takes effect."""

    def __init__(self, name: str, cut_at: int = 0, on_cut: Callable[[], None] = lambda: None) -> None:
        super().__init__(name, "")
        self.name, self.cut_at, self._on_cut = name, cut_at, on_cut
        self.operations = 0
        self.dead = False
        self._files: dict[str, _Content] = {}
        # Files deleted without a sync of their directory: a cut may bring them back.
        self._ghosts: dict[str, bytes] = {}
        self._left: tuple[dict[str, _Content], dict[str, bytes]] | None = None

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.step()
        content = self._files.pop(filename, None)
        if content is not None and content.entered:
            self._ghosts[filename] = bytes(content.durable)
        if syncdir:
            self._ghosts.clear()
        super().xDelete(filename, syncdir)

    def content(self, path: str) -> _Content:
        """What is known of a file."""
        found = self._files.get(path)
        if found is None:
            existing = Path(path)
            known = existing.exists() and existing.stat().st_size > 0 and path not in self._ghosts
            found = self._files[path] = _Content(existing.read_bytes() if known else b"", known)
        return found

    def synced(self, path: str) -> None:
        """A file is on the platter, and if it was new, its directory too."""
        content = self.content(path)
        content.sync()
        if not content.entered:
            content.entered = True
            self._ghosts.clear()

    def step(self) -> None:
        """Something is about to change. Here the power may go."""
        self.operations += 1
        if self.operations == self.cut_at:
            self.cut()

    def cut(self) -> None:
        """Cut the power: what happens from here on never reaches the platter."""
        if not self.dead:
            self.dead = True
            self._left = ({path: content.copy() for path, content in self._files.items()}, dict(self._ghosts))
            self._on_cut()

    def survivors(self, chance: random.Random) -> dict[str, bytes]:
        """What the files hold after the cut, by path."""
        assert self._left is not None
        files, ghosts = self._left
        result = {}
        for path, content in files.items():
            if not content.entered and chance.random() < 0.5:
                continue  # its directory entry did not make it
            result[path] = content.after_cut(chance)
        for path, data in ghosts.items():
            if (path not in files or not files[path].entered) and chance.random() < 0.5:
                result[path] = data
        return result


class _Content:
    """One file: what is durable, and what was done to it since."""

    def __init__(self, durable: bytes, entered: bool) -> None:
        self.durable = bytearray(durable)
        self.pending: list[Write | Truncate] = []
        # Whether its name is in the directory for good.
        self.entered = entered

    def copy(self) -> _Content:
        other = _Content(bytes(self.durable), self.entered)
        other.pending = list(self.pending)
        return other

    def sync(self) -> None:
        for operation in self.pending:
            _apply(self.durable, operation)
        self.pending.clear()

    def after_cut(self, chance: random.Random) -> bytes:
        image = bytearray(self.durable)
        how = chance.choice(("nothing", "prefix", "sectors", "sectors", "all"))
        if how == "nothing":
            return bytes(image)
        operations = [part for operation in self.pending for part in _sectors(operation)]
        if how == "prefix":
            operations = operations[: chance.randint(0, len(operations))]
        elif how == "sectors":
            share = chance.choice((0.1, 0.5, 0.9))
            operations = [operation for operation in operations if chance.random() < share]
        if operations and how != "all" and not isinstance(operations[-1], int):
            offset, data = operations[-1]
            operations[-1] = (offset, data[: chance.randint(0, len(data))])  # torn
        # What lies between the old end and a write that made it was never written: zeros, or whatever was there.
        filler = chance.choice((None, chance.randbytes(SECTOR)))
        for operation in operations:
            _apply(image, operation, filler)
        return bytes(image)


def _sectors(operation: Write | Truncate) -> list[Write | Truncate]:
    if isinstance(operation, int):
        return [operation]
    offset, data = operation
    parts: list[Write | Truncate] = []
    while data:
        size = SECTOR - offset % SECTOR
        parts.append((offset, data[:size]))
        offset, data = offset + size, data[size:]
    return parts


def _apply(image: bytearray, operation: Write | Truncate, filler: bytes | None = None) -> None:
    if isinstance(operation, int):
        del image[operation:]
        image.extend(bytes(operation - len(image)))
        return
    offset, data = operation
    gap = offset - len(image)
    if gap > 0:
        image.extend(bytes(gap) if filler is None else (filler * (gap // SECTOR + 1))[:gap])
    image[offset : offset + len(data)] = data


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        if self._path:
            disk.content(self._path)
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.step()
        super().xWrite(data, offset)
        self._disk.content(self._path).pending.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._disk.step()
        super().xTruncate(newsize)
        self._disk.content(self._path).pending.append(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.step()
        self._disk.synced(self._path)


def put_back(folder: Path, files: dict[str, bytes]) -> None:
    """Make `folder` hold what survived, and nothing else of the database."""
    folder.mkdir(exist_ok=True)
    for path, data in files.items():
        (folder / Path(path).name).write_bytes(data)
