"""What every driver of an engine shares."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from perdure.engine.large_values import Payloads
from perdure.engine.resources import Resources
from perdure.engine.steps import StepRunner
from perdure.engine.writer import Writer
from perdure.kernel.streams import IMMEDIATE
from perdure.kernel.values.codec import Codec
from perdure.ports.clock import Clock
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.engine.driver import Driver


class Services:
    """What every driver of an engine shares."""

    __slots__ = (
        "clock",
        "closing",
        "codec",
        "loop",
        "on_abandoned",
        "on_broken",
        "on_commit",
        "payloads",
        "resources",
        "runner",
        "stream",
        "thread",
        "writer",
    )

    def __init__(
        self,
        codec: Codec,
        clock: Clock,
        writer: Writer,
        runner: StepRunner,
        payloads: Payloads,
        on_commit: Callable[[Driver, Append], None],
        on_broken: Callable[[Driver, Exception], None],
        on_abandoned: Callable[[str], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.codec, self.clock, self.writer, self.runner, self.payloads = codec, clock, writer, runner, payloads
        self.on_commit = on_commit
        # Called with an error of the engine in a callback of a run, whose state in memory is then unusable.
        self.on_broken = on_broken
        # Called with the id of a remote step's run that is no longer waited for.
        self.on_abandoned = on_abandoned
        # The default stream mode.
        self.stream = IMMEDIATE
        # The resources of steps.
        self.resources = Resources()
        self.closing = False
