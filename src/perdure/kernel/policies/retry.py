"""How many attempts a step gets, and when the next is due. Never sleeps, never draws a random number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from perdure.kernel.ids import WrongValue

Backoff = Literal["exponential", "linear", "none"]


@dataclass(frozen=True, slots=True)
class Retry:
    """A step's retry policy: up to `attempts` attempts, only for exceptions in `on`.

    The wait after a failure grows with each one, by `factor` or (`backoff="linear"`) by `initial`, up to `max`.
    """

    attempts: int = 3
    initial: float = 1.0
    factor: float = 2.0
    max: float = 60.0
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


ONCE = Retry(attempts=1)


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
