"""A ward: rounds of visits with signals that may not come, escalated by nested helpers and classes."""

from dataclasses import dataclass
from datetime import timedelta

from perdure import SignalTimeout, sleep, step, wait_signal, workflow
from tests.changes.ledger import effect


@dataclass(frozen=True)
class Patient:
    name: str
    bed: int

    async def visit(self, round: int) -> "Report":
        return await examine(self.name, self.bed, round)


@dataclass
class Report:
    pulse: int
    note: str = ""


@step
async def examine(name: str, bed: int, round: int) -> Report:
    effect("examine", name, bed, round)
    return Report(70 + round)


@step
async def alarm(name: str, level: int) -> None:
    effect("alarm", name, level)


@step
async def medicate(name: str, drug: str) -> None:
    effect("medicate", name, drug)


@step
async def dismiss(name: str, pulses: list[int]) -> str:
    effect("dismiss", name, pulses)
    return f"{name} goes home"


class Escalation:
    """Who is called when no answer comes."""

    def __init__(self, name: str) -> None:
        self.name, self.level = name, 0

    async def raise_it(self) -> None:
        self.level += 1
        await alarm(self.name, self.level)


async def answered(patient: Patient, escalation: Escalation) -> str:
    try:
        return await wait_signal("drug", timeout=timedelta(hours=1), type=str)
    except SignalTimeout:
        await escalation.raise_it()
        return "tea"


@workflow
async def ward(patient: Patient, rounds: int = 2) -> str:
    escalation = Escalation(patient.name)
    pulses = []
    for round in range(rounds):
        report = await patient.visit(round)
        pulses.append(report.pulse)
        drug = await answered(patient, escalation)
        await medicate(patient.name, drug)
        await sleep(timedelta(hours=8))
    await wait_signal("bed")
    return await dismiss(patient.name, pulses)
