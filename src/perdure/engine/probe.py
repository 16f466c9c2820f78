"""The calls from an engine to its telemetry. A probe changes no run, and is removed if it fails repeatedly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from perdure.kernel.events import Batch
from perdure.kernel.plan import Start
from perdure.kernel.values.raised import contained
from perdure.logs import log
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.engine.driver import Driver
    from perdure.engine.steps import Attempt


class Probe:
    """Called on the event loop. A probe overrides the methods that it needs."""

    @property
    def name(self) -> str:
        """Its name in the log."""
        return type(self).__name__

    def entered(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """A stored run came into memory, with this journal; or its journal was read again."""

    def committed(self, driver: Driver, append: Append) -> None:
        """An append of a run in memory is durable. Steps that it begins have not been called yet."""

    def appended(self, append: Append) -> None:
        """The orchestrator has appended to a run that is not in memory: it was claimed, parked or ended."""

    def caught_up(self, driver: Driver, batches: Sequence[Batch]) -> None:
        """A run in memory has read what other processes had appended."""

    def left(self, run_id: str) -> None:
        """A run was evicted."""

    def replayed(self, events: int, seconds: float) -> None:
        """A journal was replayed."""

    def writes(self, appends: int) -> None:
        """A commit of so many appends begins."""

    def wrote(self, seconds: float, events: int, appends: int) -> None:
        """A commit of so many appends took so long."""

    def not_written(self) -> None:
        """The store refused a commit or could not be reached."""

    def fired(self, late: float) -> None:
        """A timer of a run fired, so many seconds after it was due."""

    def lease_lost(self) -> None:
        """The lease was not renewed in time, and every run was stopped."""


class Tracing(Protocol):
    """The calls from an engine that makes spans. On the event loop; raises nothing."""

    def launched(self, attempt: Attempt, context: Context) -> None:
        """An attempt is about to be called, in this context."""

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """An attempt has ended. For a cancelled attempt, called at once, and again when its task ends."""

    def writing(self, driver: Driver, append: Append) -> None:
        """An append of a run in memory is about to be written; it may be refused, or be given again."""

    def traced(self, driver: Driver, starts: Sequence[Start]) -> Sequence[Start]:
        """Runs that this one is about to start, with the trace that they continue."""


# How often a probe may fail before it is removed.
MOST_FAILURES = 5


class Probes(list[Probe]):
    """The probes of one engine. Empty unless telemetry is on: callers ask `if probes:` first."""

    def __init__(self) -> None:
        super().__init__()
        # By name: how often each probe has failed, and which were removed.
        self.failures: dict[str, int] = {}
        self.removed: dict[str, None] = {}

    def committed(self, driver: Driver, append: Append) -> None:
        """As `tell(Probe.committed, ...)`, for the method that is called with every step."""
        if len(self) == 1:
            probe = self[0]
            try:
                probe.committed(driver, append)
            except BaseException as error:
                self._failed(probe, contained(error))
        else:
            self.tell(Probe.committed, driver, append)

    def tell(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call a `method` of all probes. A probe that raises too often is removed, and that is logged."""
        for probe in [*self]:
            try:
                getattr(probe, method.__name__)(*arguments)
            except BaseException as error:
                self._failed(probe, contained(error))

    def _failed(self, probe: Probe, error: Exception) -> None:
        name = probe.name
        count = self.failures[name] = self.failures.get(name, 0) + 1
        if count == 1:
            log.warning("telemetry: %s failed; runs are not affected", name, exc_info=error)
        if count >= MOST_FAILURES and probe in self:
            self.remove(probe)
            self.removed[name] = None
            log.error(
                "telemetry: %s failed %d times and is off from now on; runs are not affected",
                name,
                count,
                exc_info=error,
            )
