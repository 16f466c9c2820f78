"""Keys and time to live of locks, and the locks that a run holds. Never acquires one."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from perdure.errors import InvalidLock
from perdure.kernel.ids import flaw_of, plain
from perdure.kernel.policies.durations import ENDLESS, duration

# A lock is a lease whose key begins with this.
PREFIX = "lock:"
MAX_KEY = 255


class HeldLock(msgspec.Struct, frozen=True):
    """A lock that a run holds or waits for. The token is 0 while it waits."""

    key: str
    ttl: float
    token: int = 0


def lease_key(key: str) -> str:
    """The key of the lease behind a lock."""
    return PREFIX + key


def unlocked(op: str) -> str:
    """The op that acquired the lock which this op releases: `lock:0` of `lock:0/unlock`."""
    return op.rpartition("/")[0]


def check_key(key: str) -> str:
    """Return the key of a lock, or raise InvalidLock. Spaces, slashes and emoji are fine."""
    flaw = flaw_of(key, MAX_KEY)
    if flaw is not None:
        raise InvalidLock(str(key), flaw)
    return plain(key)


def check_ttl(ttl: float | timedelta, key: str) -> float:
    """The ttl in seconds, or raise InvalidLock."""
    number = duration(ttl)
    if number is None:
        raise InvalidLock(key, f"has ttl={ttl!r}, which is neither a number of seconds nor a timedelta", cure=TTL_CURE)
    if not 0 < number < ENDLESS:
        raise InvalidLock(key, f"has ttl={ttl!r}, which is not positive or is endless", cure=TTL_CURE)
    return number


TTL_CURE = "give the seconds after which the lock of a dead holder expires, as in ttl=30"
