"""The scripts that run inside the server, one for each atomic operation. Their text is constant."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import msgspec

_PARTS = {
    "append": ("index",),
    "rewrite": ("index",),
    "remove": ("index",),
    "reproject": ("index",),
    "keep_blob": ("index",),
    "due": ("timers",),
    "ahead": ("timers",),
    "waiting": ("timers",),
    "acquire": ("leases",),
    "renew": ("leases",),
    "release": ("leases",),
    "release_all": ("leases",),
    "live": ("leases",),
}


class Index(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a stored row: the fields of the indexes. Scripts know each field by its position."""

    status: str
    program: str
    owner: str | None
    # Times are texts: every digit counts, and a script's own way to write numbers drops some.
    wake: str | None
    finished: str | None
    queue: str
    key: str
    priority: str
    ready: str | None
    began: str | None
    approvals: int
    root: str
    id: str
    incarnation: int
    created: str | None
    # Rows that older code wrote have none.
    version: str | None = None


_FIELDS = [field.name.upper() for field in msgspec.structs.fields(Index)]
_PLACES = f"local {', '.join(_FIELDS)} = {', '.join(str(place) for place in range(1, len(_FIELDS) + 1))}\n"


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the hash by which the server knows it."""

    name: str
    text: bytes
    sha: bytes


def _load(name: str) -> Script:
    folder = resources.files(__package__) / "lua"
    parts = ("common", *_PARTS.get(name, ()), name)
    text = b"\n".join([_PLACES.encode(), *((folder / f"{part}.lua").read_bytes() for part in parts)])
    # The protocol names scripts by this hash; nothing is protected by it.
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


APPEND = _load("append")
SETTLE = _load("settle")
REWRITE = _load("rewrite")
READ = _load("read")
HEADS = _load("heads")
FIND = _load("find")
PAGE = _load("page")
FINISHED = _load("finished")
OWNED = _load("owned")
DUE = _load("due")
AHEAD = _load("ahead")
LATE = _load("late")
WAITING = _load("waiting")
ROOM = _load("room")
LINES = _load("lines")
STATS = _load("stats")
TALLY = _load("tally")
ACQUIRE = _load("acquire")
RENEW = _load("renew")
RELEASE = _load("release")
RELEASE_ALL = _load("release_all")
LIVE = _load("live")
PUT_BLOB = _load("put_blob")
KEEP_BLOB = _load("keep_blob")
REMOVE = _load("remove")
REPROJECT = _load("reproject")
COLLECT = _load("collect")
OPEN = _load("open")
