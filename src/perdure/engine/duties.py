"""Background work of one shape: a frozen config, and `run_once(now) -> report`.

`Duties.perform` is the one place where a duty begins, ends or fails. It never decides when: a scheduler does, which for
an engine is `orchestrator/service.py`. The durations by which a duty is done are in its config. A bound that nothing
sets, such as how long a thread may take to end, is a constant beside the code that it bounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from perdure.errors import PerdureError
from perdure.logs import log
from perdure.ports.clock import Clock

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Duty(Protocol[R_co]):
    """Something that is done again and again in the background."""

    @property
    def name(self) -> str: ...

    async def run_once(self, now: float) -> R_co:
        """Do what is due now, and report it."""


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """The report of a duty that is one function: what that returned."""

    result: R


class FunctionDuty(Generic[R]):
    """A duty that is one function."""

    def __init__(self, name: str, function: Callable[[], Awaitable[R]]) -> None:
        self.name, self._function = name, function

    async def run_once(self, now: float) -> Done[R]:
        """Call the function."""
        return Done(await self._function())


class Duties:
    """Performs the duties of `subject`: an orchestrator, or a store that is polled."""

    def __init__(self, subject: str, clock: Clock) -> None:
        self._subject, self._clock = subject, clock
        # By the name of the duty: how it failed the last time, unless it succeeded.
        self._failures: dict[str, str] = {}

    async def perform(self, duty: Duty[R]) -> R | None:
        """Perform a duty once. Returns its report, or None when it failed.

        A failure is logged, but only once while the duty fails in the same way. Never raises: the scheduler continues,
        and performs the duty again.
        """
        try:
            report = await duty.run_once(self._clock.now())
        except PerdureError as error:
            if self._is_new(duty.name, error):
                log.warning("%s: %s failed, and will be retried: %s", self._subject, duty.name, error)
        except Exception as error:
            if self._is_new(duty.name, error):
                log.exception("%s: %s failed with an unexpected error, and will be retried", self._subject, duty.name)
        else:
            self._failures.pop(duty.name, None)
            return report
        return None

    def _is_new(self, name: str, error: Exception) -> bool:
        failure = f"{type(error).__name__}: {error}"
        known, self._failures[name] = self._failures.get(name), failure
        return known != failure


async def cancelled(tasks: Collection[asyncio.Task[None]], again: float = 3.0) -> None:
    """Cancel tasks and wait for their end. Libraries lose a cancellation now and then: `again` seconds later it is sent
    again."""
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=again)
