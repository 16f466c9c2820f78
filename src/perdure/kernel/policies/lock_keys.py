"""Locks as a journal knows them: their names, and what a run holds. Never takes one."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from perdure.errors import InvalidLock
from perdure.kernel.ids import flaw_of
from perdure.kernel.policies.durations import ENDLESS, duration

# A lock is a lease whose key begins with this.
PREFIX = "lock:"
MAX_KEY = 255


class HeldLock(msgspec.Struct, frozen=True):
    """A lock that a run holds or waits for. The token is 0 until it holds it."""

    key: str
    ttl: float
    token: int = 0


def lease_key(key: str) -> str:
    """The key of the lease behind a lock."""
    return PREFIX + key


def unlocked(op: str) -> str:
    """The op that asked for the lock which this one gives back: `lock:0` of `lock:0/unlock`."""
    return op.rpartition("/")[0]


def check_key(key: str) -> str:
    """Return the key of a lock, or raise InvalidLock. Spaces, slashes and emoji are fine."""
    flaw = flaw_of(key, MAX_KEY)
    if flaw is not None:
        raise InvalidLock(str(key), flaw)
    return key


def check_ttl(ttl: float | timedelta, key: str) -> float:
    """The seconds that a lock outlives its holder, or raise InvalidLock."""
    number = duration(ttl)
    if number is None:
        raise InvalidLock(key, f"has ttl={ttl!r}, which is no number of seconds and no timedelta", cure=TTL_CURE)
    if not 0 < number < ENDLESS:
        raise InvalidLock(key, f"has ttl={ttl!r}, which is not positive or is endless", cure=TTL_CURE)
    return number


TTL_CURE = "give the seconds that others wait at most when its holder has died, as in ttl=30"
