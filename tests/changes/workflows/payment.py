"""A transfer between accounts, each under its lock, with the fees of the bank."""

from perdure import lock, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def balance(account: str) -> int:
    effect("balance", account)
    return 500


@step
async def withdraw(account: str, cents: int, token: int) -> int:
    effect("withdraw", account, cents, token > 0)
    return 500 - cents


@step
async def deposit(account: str, cents: int) -> int:
    effect("deposit", account, cents)
    return 500 + cents


@step
async def fee(account: str, cents: int) -> int:
    effect("fee", account, cents)
    return cents


@step
async def receipt(payer: str, payee: str, cents: int) -> str:
    effect("receipt", payer, payee, cents)
    return f"{payer} paid {payee} {cents}"


@workflow
async def transfer(payer: str, payee: str, cents: int, urgent: bool = False) -> str:
    async with lock(f"account:{payer}", ttl=60) as held:
        if await balance(payer) < cents:
            return "refused"
        await withdraw(payer, cents, held.token)
        await wait_signal("confirmed")
        async with lock(f"account:{payee}"):
            await deposit(payee, cents)
        if not urgent:
            await fee(payer, 1)
    async with lock("ledger"):
        text = await receipt(payer, payee, cents)
    return text.strip()
