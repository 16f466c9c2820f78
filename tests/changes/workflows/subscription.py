"""A subscription: billed each month, reminded before the end of the year, continued with a shorter journal."""

# ruff: noqa: RET503

from datetime import timedelta

from perdure import continue_as, random, sleep, step, uuid4, workflow
from tests.changes.ledger import effect

MONTH = timedelta(days=30)


@step
async def bill(customer: str, cents: int, month: int) -> str:
    effect("bill", customer, cents, month)
    return f"invoice {month}"


@step
async def send(customer: str, invoice: str) -> None:
    effect("send", customer, invoice)


@step
async def survey(customer: str, lucky: bool) -> None:
    effect("survey", customer, lucky)


@step
async def remind(customer: str) -> None:
    effect("remind", customer)


@step
async def close(customer: str, months: int) -> None:
    effect("close", customer, months)


@workflow
async def subscribe(customer: str, cents: int = 900, month: int = 1, last: int = 4) -> str:
    for _ in range(2):
        invoice = await bill(customer, cents, month)
        await sleep(timedelta(hours=1))
        await send(customer, invoice)
        if month == last:
            await close(customer, month)
            return f"{customer} left after {month}"
        await sleep(MONTH)
        month += 1
    ticket = uuid4()
    await survey(customer, random() < 2 and ticket.version == 4)
    await remind(customer)
    continue_as(customer, cents, month, last=last)
