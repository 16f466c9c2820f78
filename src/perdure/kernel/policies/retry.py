"""How many attempts a step gets, and when the next is due. Never sleeps, never draws a random number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal

from perdure.kernel.ids import WrongValue

Backoff = Literal["exponential", "linear", "none"]

# The waits of a policy that names none. The same numbers from a caller are other objects: of two limits that exclude
# each other, the one that the caller left out yields.
_INITIAL: Final = 1.0
_MAX: Final = 60.0


@dataclass(frozen=True, slots=True)
class Retry:
    """A step's retry policy: up to `attempts` attempts, only for exceptions in `on`.

    The wait after a failure grows with each one, by `factor` or (`backoff="linear"`) by `initial`, up to `max`. Without
    `max`, an `initial` above 60 s is the longest wait as well.
    """

    attempts: int = 3
    initial: float = _INITIAL
    factor: float = 2.0
    max: float = _MAX
    jitter: bool = True
    on: tuple[type[BaseException], ...] = (Exception,)
    backoff: Backoff = "exponential"

    def __post_init__(self) -> None:
        numbers = {"initial": self.initial, "factor": self.factor, "max": self.max}
        wrong = {
            name: value
            for name, value in numbers.items()
            if isinstance(value, bool) or not isinstance(value, int | float)
        }
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int):
            raise WrongValue(f"Retry(attempts={self.attempts!r:.80}): it is a whole number of tries")
        for name, value in wrong.items():
            raise WrongValue(f"Retry({name}={value!r:.80}): it is a number{'' if name == 'factor' else ' of seconds'}")
        if self.attempts < 1:
            raise WrongValue(f"Retry(attempts={self.attempts}): a step needs at least one attempt")
        if not (self.initial >= 0 and self.max >= 0 and self.factor >= 1):
            raise WrongValue("Retry: initial and max must not be negative, and factor must be at least 1")
        if self.initial > self.max:
            self._reconcile()
        if self.backoff not in ("exponential", "linear", "none"):
            raise WrongValue(f"Retry(backoff={self.backoff!r}): it is 'exponential', 'linear' or 'none'")
        if isinstance(self.on, type):
            object.__setattr__(self, "on", (self.on,))
        if not isinstance(self.on, Iterable):
            raise WrongValue(f"Retry(on=...) takes exception classes, as in on=(ConnectionError,), not {self.on!r:.80}")
        object.__setattr__(self, "on", tuple(self.on))
        for one in self.on:
            if not isinstance(one, type) or not issubclass(one, BaseException):
                raise WrongValue(f"Retry(on=...) takes exception classes, as in on=(ConnectionError,), not {one!r:.80}")

    def _reconcile(self) -> None:
        """Move the limit that the caller left out to the other one."""
        if self.max is _MAX:
            object.__setattr__(self, "max", self.initial)
        elif self.initial is _INITIAL:
            object.__setattr__(self, "initial", self.max)
        else:
            raise WrongValue(
                f"Retry(initial={self.initial!r:.80}, max={self.max!r:.80}): the first wait is longer than the "
                "longest; raise max, or leave it out"
            )


ONCE = Retry(attempts=1)


def merge(retry: Retry, keys: Mapping[str, Any]) -> Retry:
    """A policy with some values of another, which hold: of `initial` and `max`, the one that is not given yields."""
    initial, most = keys.get("initial", retry.initial), keys.get("max", retry.max)
    if initial > most:
        keys = {**keys, "initial": most} if "max" in keys else {**keys, "max": initial}
    return replace(retry, **keys)


def backoff(retry: Retry, failures: int, key: str) -> float:
    """Seconds to wait after the `failures`-th failure.

    The jitter is a function of the step's idempotency key: it spreads many runs, and replay gives the same value.
    """
    if retry.backoff == "none":
        return 0.0
    try:
        growth = failures if retry.backoff == "linear" else float(retry.factor) ** (failures - 1)
        wait = min(retry.max, retry.initial * growth)
    except OverflowError:  # far beyond any `max`
        wait = retry.max if retry.initial else 0.0
    if not retry.jitter:
        return wait
    return wait * (0.5 + 0.5 * fraction(f"{key}#{failures}"))


def fraction(key: str) -> float:
    """A number in [0, 1) that depends only on `key`."""
    return (int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) >> 11) / (1 << 53)
