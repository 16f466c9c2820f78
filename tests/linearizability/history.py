"""What clients did to a store, and what they were told: the calls, their answers, and when each began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

# --- journals -------------------------------------------------------------------------------------------------------


class Append(msgspec.Struct, frozen=True, tag=True):
    """Put events (named, each name once in a history) at this number."""

    expected_next: int
    events: tuple[str, ...]


class Read(msgspec.Struct, frozen=True, tag=True):
    """Read a whole journal."""


class Written(msgspec.Struct, frozen=True, tag=True):
    """All of it is in the journal."""


class Conflicted(msgspec.Struct, frozen=True, tag=True):
    """Nothing was written: the journal's next number is this one."""

    next_seq: int


class Events(msgspec.Struct, frozen=True, tag=True):
    """What the journal holds, from its beginning."""

    events: tuple[str, ...]


# --- leases ---------------------------------------------------------------------------------------------------------


class Acquire(msgspec.Struct, frozen=True, tag=True):
    """Take a lease."""

    owner: str
    ttl: float
    now: float


class Renew(msgspec.Struct, frozen=True, tag=True):
    """Hold on to it."""

    owner: str
    ttl: float
    now: float


class Release(msgspec.Struct, frozen=True, tag=True):
    """Give it back. The store is not told `now`; it only says whether the lease had run out."""

    owner: str
    now: float


class Look(msgspec.Struct, frozen=True, tag=True):
    """Who holds it?"""

    now: float


class Granted(msgspec.Struct, frozen=True, tag=True):
    """It is the caller's."""

    epoch: int
    expires: float


class Refused(msgspec.Struct, frozen=True, tag=True):
    """It is somebody else's."""

    owner: str
    expires: float


class Done(msgspec.Struct, frozen=True, tag=True):
    """Renewed, or given back."""


class NotYours(msgspec.Struct, frozen=True, tag=True):
    """Neither, as the caller does not hold it."""


class Held(msgspec.Struct, frozen=True, tag=True):
    """The lease in force."""

    owner: str
    epoch: int
    expires: float


class Free(msgspec.Struct, frozen=True, tag=True):
    """There is none in force."""


# --- histories ------------------------------------------------------------------------------------------------------


class Nothing(msgspec.Struct, frozen=True, tag=True):
    """The call failed, and the store promised that it had no effect."""


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """No answer came, for whatever reason. It may have had its effect, may have it later, or never."""


JournalCall = Append | Read
LeaseCall = Acquire | Renew | Release | Look
Call = JournalCall | LeaseCall
Answer = Written | Conflicted | Events | Granted | Refused | Done | NotYours | Held | Free | Nothing | Unknown


class Operation(msgspec.Struct, frozen=True):
    """One call to a journal or a lease, from when it was made until its answer was there.

    Times are of one clock for all clients. Whatever happened in between, it happened at one moment in between; with
    Unknown, at any moment since, or never.
    """

    client: str
    key: str
    call: Call
    answer: Answer
    began: int
    ended: int
    # How many commands the store sent for it.
    sent: int = 1

    @property
    def object(self) -> tuple[Literal["journal", "lease"], str]:
        """What it was done to. Journals and leases of a name are different things, each checked alone."""
        return ("journal" if isinstance(self.call, JournalCall) else "lease", self.key)


History = Sequence[Operation]


def at_least_once(history: History) -> list[Operation]:
    """The history of a store that sends a call to a lease again when the connection breaks.

    Leases may be asked for twice: who may try is no promise, and the journal decides. So a call for which more was sent
    than for others of its kind may have its effect once more, at any later time; and giving back, which finds nothing
    to give back the second time, tells nothing. Calls to journals have their effect once.
    """
    usual: dict[tuple[type, type], int] = {}
    for operation in history:
        kind = (type(operation.call), type(operation.answer))
        usual[kind] = min(operation.sent, usual.get(kind, operation.sent))
    explained = []
    for operation in history:
        again = operation.sent > usual[type(operation.call), type(operation.answer)]
        if isinstance(operation.call, Acquire | Renew | Release) and again:
            explained.append(msgspec.structs.replace(operation, answer=Unknown()))
            if isinstance(operation.call, Release):
                continue
        explained.append(operation)
    return explained
