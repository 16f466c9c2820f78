"""Schedules for code that does not await."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from perdure.blocking.loop import Loop
from perdure.client.client import Client
from perdure.client.schedules import ScheduleHandle as AsyncScheduleHandle
from perdure.client.schedules import ScheduleView
from perdure.kernel.invocation import Invocation
from perdure.kernel.policies.durability import Durability
from perdure.kernel.policies.rules import RulesLike
from perdure.kernel.schedules.schedule import CatchUp, Overlap


class Scheduling:
    """Makes schedules, and lists them."""

    _client: Client
    _loop: Loop

    def schedule(
        self,
        id: str,
        invocation: Invocation[Any] | None = None,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        overlap: Overlap = "skip",
        catch_up: str | CatchUp = "one",
        jitter: float | timedelta | None = None,
        pause: bool = False,
        queue: str | None = None,
        key: str | None = None,
        priority: int = 0,
        tags: dict[str, str] | None = None,
        deadline: float | timedelta | None = None,
        max_concurrency: int | None = None,
        durability: str | Durability | None = None,
        rules: RulesLike = (),
    ) -> ScheduleHandle:
        """Start a run at every tick, durably. A schedule that exists under this id becomes what is asked for now."""
        made = self._client.schedule(
            id,
            invocation,
            every=every,
            cron=cron,
            timezone=timezone,
            overlap=overlap,
            catch_up=catch_up,
            jitter=jitter,
            pause=pause,
            queue=queue,
            key=key,
            priority=priority,
            tags=tags,
            deadline=deadline,
            max_concurrency=max_concurrency,
            durability=durability,
            rules=rules,
        )
        return ScheduleHandle(self._loop.wait(made), self._loop)

    def schedules(self) -> Sequence[ScheduleView]:
        """All schedules, by their ids."""
        return self._loop.wait(self._client.schedules())


class ScheduleHandle:
    """One schedule: pause it, trigger it, look ahead."""

    def __init__(self, handle: AsyncScheduleHandle, loop: Loop) -> None:
        self._handle, self._loop = handle, loop
        self.id = handle.id

    def view(self) -> ScheduleView:
        """The schedule as it stands."""
        return self._loop.wait(self._handle.view())

    def pause(self, reason: str | None = None) -> None:
        """Fire nothing until further notice."""
        self._loop.wait(self._handle.pause(reason))

    def resume(self) -> None:
        """Fire again, from the next tick on."""
        self._loop.wait(self._handle.resume())

    def trigger(self) -> str:
        """Start a run now, if the overlap policy allows. Returns the run's id."""
        return self._loop.wait(self._handle.trigger())

    def next(self, count: int = 10) -> Sequence[datetime]:
        """When the schedule fires next."""
        return self._loop.wait(self._handle.next(count))

    def backfill(self, start: datetime, end: datetime) -> Sequence[str]:
        """Fire the ticks from `start` on and before `end` as if they were due now."""
        return self._loop.wait(self._handle.backfill(start, end))

    def delete(self) -> None:
        """End the schedule."""
        self._loop.wait(self._handle.delete())

    def __repr__(self) -> str:
        return repr(self._handle)
