"""Run workflows in a world of which one seed decides everything: time, order, faults and crashes.

`Simulation.play` gives tests virtual time; `Simulation.run` and `every_crash` check that workflows survive.
"""

from perdure.testing.simulation.faults import STORMY, Crash, Faults, Pause
from perdure.testing.simulation.messages import Message, Reply, Sender
from perdure.testing.simulation.report import Lost, PromiseBroken, Report, StepExecution
from perdure.testing.simulation.simulation import Simulation, every_crash

__all__ = [
    "STORMY",
    "Crash",
    "Faults",
    "Lost",
    "Message",
    "Pause",
    "PromiseBroken",
    "Reply",
    "Report",
    "Sender",
    "Simulation",
    "StepExecution",
    "every_crash",
]
