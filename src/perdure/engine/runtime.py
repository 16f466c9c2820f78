"""The services that all drivers of an engine share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perdure.engine.large_values import Payloads
from perdure.engine.probe import Probes
from perdure.engine.resources import Resources
from perdure.engine.steps import StepRunner
from perdure.engine.writer import Writer
from perdure.kernel.streams import IMMEDIATE, StreamMode
from perdure.kernel.values.codec import Codec
from perdure.kernel.values.redaction import Redaction
from perdure.ports.clock import Clock
from perdure.ports.journal import Append

if TYPE_CHECKING:
    from perdure.engine.definitions import DefinedPrograms
    from perdure.engine.driver import Driver
    from perdure.kernel.program import Program


@dataclass(slots=True, eq=False)
class Services:
    """The services that all drivers of an engine share."""

    codec: Codec
    clock: Clock
    writer: Writer
    runner: StepRunner
    payloads: Payloads
    # Called when the first events of a new run are durable, before anything of it begins.
    on_start: Callable[[Driver], None]
    on_commit: Callable[[Driver, Append], None]
    # Called with an error of the engine in a callback of a run, whose state in memory is then unusable.
    on_broken: Callable[[Driver, Exception], None]
    # Called with the id of a remote step's run that is no longer waited for, and the reason.
    on_abandoned: Callable[[str, str], None]
    # Called with a program that has a structure, when a child of it begins.
    on_structure: Callable[[Program], None]
    # Loads the programs of children.
    programs: DefinedPrograms
    # The default stream mode.
    stream: StreamMode = IMMEDIATE
    # The resources of steps.
    resources: Resources = field(default_factory=Resources)
    # Telemetry; empty unless it is on.
    probes: Probes = field(default_factory=Probes)
    # What is taken out of log lines.
    redaction: Redaction = field(default_factory=Redaction)
    closing: bool = False
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    thread: int = field(default_factory=threading.get_ident)
