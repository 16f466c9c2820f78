"""An account that is opened once and fed with bookings: values that live long, in types that change."""

from dataclasses import dataclass, field
from enum import Enum

from perdure import inputs, set_state, step, versioned, wait_signal, workflow
from tests.changes.ledger import effect


class Tier(Enum):
    BASIC = "basic"
    GOLD = "gold"


@dataclass
class Address:
    street: str
    town: str = ""


@versioned("1")
@dataclass
class Customer:
    name: str
    address: Address
    tier: Tier = Tier.BASIC
    tags: list[str] = field(default_factory=list)


@dataclass
class Booking:
    cents: int
    text: str = ""


@dataclass
class Statement:
    total: int
    count: int
    note: str = ""


@step
async def verify(customer: Customer) -> Address:
    effect("verify", customer.name, customer.address.street)
    return Address(customer.address.street.upper(), "Ulm")


@step
async def open_account(name: str, address: Address, tier: Tier) -> int:
    effect("open", name, address.street, address.town, tier.value)
    return 7


@step
async def book(account: int, cents: int) -> Statement:
    effect("book", account, cents)
    return Statement(cents, 1)


@step
async def close(account: int, total: int) -> None:
    effect("close", account, total)


@workflow
async def account(customer: Customer, rounds: int = 2) -> int:
    address = await verify(customer)
    number = await open_account(customer.name, address, customer.tier)
    set_state("account", number)
    total = 0
    fed = inputs(Booking)
    async for booking in fed:
        statement = await book(number, booking.cents)
        total += statement.total
        set_state("statement", statement)
        if fed.count == rounds:
            break
    last = await wait_signal("close", type=Booking)
    await close(number, total + last.cents)
    return total
