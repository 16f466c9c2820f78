"""The context of an attempt, for its step: what it can read, and what it can emit before it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from perdure.engine.locks import Locker
from perdure.engine.resources import Resources
from perdure.errors import PerdureError, UsageError
from perdure.kernel.context import RunContext
from perdure.kernel.context import run_context as context_of_run
from perdure.kernel.events import moment
from perdure.kernel.plan import Call
from perdure.kernel.state import Emitted, RunState

if TYPE_CHECKING:
    from perdure.engine.runtime import Services
    from perdure.engine.steps import Attempt
    from perdure.engine.streams import Channel, Report


class AttemptOwner(Protocol):
    """The run in memory that an attempt belongs to: its driver. Another driver may take the attempt over."""

    @property
    def id(self) -> str: ...

    @property
    def services(self) -> Services: ...

    @property
    def state(self) -> RunState: ...

    @property
    def size(self) -> int: ...

    def expects(self, call: Call) -> bool: ...

    def accepts_reports(self, call: Call) -> bool: ...

    def report(self, events: Sequence[Report], size: int) -> int: ...

    def attempt_ended(self, attempt: Attempt, value: Any, error: BaseException | None) -> None: ...

    def record_handoff(self, call: Call) -> None: ...

    def channel(self, context: StepContext, call: Call) -> Channel: ...

    def patches_of(self, op: str) -> Mapping[str, bool]: ...

    def broke(self, error: Exception) -> None: ...


class StepContext:
    """One attempt of a step, seen from inside: `id` is its idempotency key, `run_id` its run, `attempt` its number.

    All of it may be used from any thread.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_cancelled",
        "_channel",
        "_patches",
        "_resources",
        "_run",
        "attempt",
        "capped",
        "emitted",
        "ends",
        "id",
        "last_heartbeat",
        "locker",
        "logged",
        "owner",
        "run_id",
    )

    def __init__(
        self,
        id: str,
        run_id: str,
        attempt: int,
        deadline: float | None,
        owner: AttemptOwner | None = None,
        call: Call | None = None,
        run: RunContext | None = None,
        resources: Resources | None = None,
        patches: Mapping[str, bool] | None = None,
    ) -> None:
        self.id = id
        """The idempotency key: the same for every attempt, on every machine."""
        self.run_id = run_id
        self.attempt = attempt
        # When this attempt is timed out; until it is launched, the deadline of its run.
        self.ends = deadline
        # Whether the run's deadline comes before the attempt's own timeout.
        self.capped = False
        # On the loop's clock.
        self.last_heartbeat = 0.0
        # How many bytes its log records took in its stream.
        self.logged = 0
        # The driver that the attempt belongs to; None in another process.
        self.owner = owner
        self._call, self._run, self._resources = call, run, resources
        self._patches = patches
        self._channel: Channel | None = None
        self._cancelled = False
        # Takes locks for the step; None in another process.
        self.locker: Locker | None = None
        # The chunks of earlier attempts when this one was launched.
        self.emitted: Emitted | None = None

    @property
    def logs(self) -> int:
        """The lowest level of log records that become chunks; 0: none do."""
        return 0 if self._call is None else self._call.command.spec.logs

    @property
    def deadline(self) -> datetime | None:
        """When this attempt is timed out, or None."""
        return None if self.ends is None else moment(self.ends)

    @property
    def cancelled(self) -> bool:
        """Whether the outcome of this attempt no longer counts: a step in a thread should check, and stop."""
        return self._cancelled

    @property
    def run(self) -> RunContext:
        """The run that this step is part of, as `run_context()` gives it; of a remote step the one that asked."""
        if self._run is None:
            assert self.owner is not None
            assert self._call is not None
            state = self.owner.state
            self._run = context_of_run(state, state.child_of(self._call.command.op))
        return self._run

    @property
    def patches(self) -> Mapping[str, bool]:
        """The answers of `patched()` in the body that called this step, by id."""
        if self._patches is not None:
            return self._patches
        assert self.owner is not None
        assert self._call is not None
        return self.owner.patches_of(self._call.command.op)

    @property
    def resources(self) -> Resources:
        """The resources of the engine that runs this step, by name. Never stored."""
        if self._resources is not None:
            return self._resources
        assert self.owner is not None
        return self.owner.services.resources

    # --- streams and progress -------------------------------------------------------------------------------------

    def emit(self, chunk: Any) -> None:
        """Emit a chunk: readers of `engine.stream()` get it once it is durable.

        In a later attempt, what an earlier one emitted stays valid when `.chunks` has been read, and is declared void
        otherwise. In a thread this waits while the store is behind.
        """
        self.channel("emit()").emit(chunk)

    @property
    def chunks(self) -> list[Any]:
        """The valid chunks of earlier attempts. An attempt that reads them continues from there."""
        return self.channel(".chunks").chunks()

    def restart(self) -> None:
        """Declare earlier chunks void; readers see a restart, and the stream starts over."""
        self.channel("restart()").restart()

    def heartbeat(self, progress: Any = None) -> None:
        """Report that this attempt is alive, with its progress: any JSON value, shown in `engine.steps()`."""
        channel = self.channel("heartbeat()")
        channel.beat()
        if progress is not None:
            channel.progress(progress)

    @property
    def progress(self) -> Any:
        """The last progress that this attempt or an earlier one reported; None at first."""
        last = self.channel(".progress").last_progress
        return None if last is None else msgspec.json.decode(last)

    def channel(self, what: str = "a generator") -> Channel:
        """The channel for chunks and progress of this attempt."""
        channel = self._channel
        if channel is None:
            if self.owner is None or self._call is None:
                raise UsageError(
                    f"{what} of a step works in the engine's own process, and this step runs in another one "
                    "(cpu=True, or an executor of processes); return the value, or make it a step without cpu=True"
                )
            channel = self._channel = self.owner.channel(self, self._call)
        return channel

    def cancel(self) -> None:
        """Cancel the attempt: its outcome no longer counts."""
        self._cancelled = True
        if self._channel is not None:
            self._channel.cancel()


current: ContextVar[StepContext] = ContextVar("perdure_step")


def step_context() -> StepContext:
    """The attempt that this code is part of; raises outside a step."""
    try:
        return current.get()
    except LookupError:
        raise PerdureError("step_context() works only inside a step that a workflow called") from None
