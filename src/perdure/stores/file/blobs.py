"""Blobs as files, named by the hash of their content. A file's mtime is when its blob was last put."""

from __future__ import annotations

import os
from collections.abc import Iterator

from perdure.errors import StoreUnavailable
from perdure.kernel.values.limits import blob_id
from perdure.ports.blobs import verified
from perdure.stores.file.folder import Folder, sync_directory

BLOBS, KEPT = "blobs", "kept"


class FileBlobs:
    """Immutable bytes in one directory."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    async def put(self, data: bytes) -> str:
        """Store the bytes durably and return their id."""
        id = blob_id(data)
        # Hold the write lock, as the collector does: it uses the file's mtime to spare blobs that an append is about to
        # reference.
        with self._folder.writing():
            self._put(self.path(id), data)
        return id

    def _put(self, path: str, data: bytes) -> None:
        try:
            if os.path.getsize(path) == len(data):
                os.utime(path)
                return
        except FileNotFoundError:
            self._make(os.path.dirname(path))
        self._folder.replace(path, data)

    def _make(self, folder: str) -> None:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            sync_directory(os.path.dirname(folder))
            sync_directory(self._folder.path)

    async def get(self, blob_id_: str) -> bytes | None:
        """The bytes, or None. Raises Corrupt when they are not what was put."""
        if not blob_id_.isalnum():
            return None  # it is no hash, and must not become a path
        return verified(blob_id_, self._read(self.path(blob_id_)))

    def _read(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreUnavailable(self._folder.url, str(error)) from error

    def all(self) -> Iterator[tuple[str, float, int]]:
        """Each blob, when it was last put, and how long it is."""
        for place in _entries(self._folder.name(BLOBS)):
            if place.is_dir():
                for entry in _entries(place.path):
                    if len(entry.name) == 64:
                        found = entry.stat()
                        yield entry.name, found.st_mtime, found.st_size

    def remove(self, id: str) -> None:
        """Remove a blob. The caller holds the write lock."""
        os.unlink(self.path(id))

    def keep(self, id: str) -> None:
        """Mark a blob as never to be collected. The caller holds the write lock."""
        self._make(self._folder.name(KEPT))
        self._folder.replace(self._folder.name(KEPT, id), b"")

    def kept(self) -> set[str]:
        """The blobs that are never collected."""
        return {entry.name for entry in _entries(self._folder.name(KEPT))}

    def path(self, id: str) -> str:
        """The path of a blob."""
        return self._folder.name(BLOBS, id[:2], id)


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
