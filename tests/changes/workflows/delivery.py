"""A delivery: the signature and the deadline race, and a second try follows the first."""

import asyncio
from datetime import timedelta

from perdure import SignalTimeout, random, sleep, step, wait_signal, workflow
from tests.changes.ledger import effect


@step
async def dispatch(parcel: str, attempt: int) -> str:
    effect("dispatch", parcel, attempt)
    return f"van {attempt}"


@step
async def track(parcel: str, van: str) -> None:
    effect("track", parcel, van)


@step
async def signed(parcel: str, name: str) -> None:
    effect("signed", parcel, name)


@step
async def returned(parcel: str) -> None:
    effect("returned", parcel)


@step
async def rate(parcel: str, stars: int) -> None:
    effect("rate", parcel, stars)


@workflow
async def delivery(parcel: str, patience: int = 3) -> str:
    lucky = random()
    van = await dispatch(parcel, 1)
    signature = asyncio.ensure_future(wait_signal("signature", type=str))
    deadline = asyncio.ensure_future(sleep(timedelta(days=patience)))
    done, pending = await asyncio.wait({signature, deadline}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if signature in done:
        await signed(parcel, signature.result())
    else:
        await track(parcel, van)
        await dispatch(parcel, 2)
        await returned(parcel)
    try:
        stars = await wait_signal("stars", timeout=timedelta(days=1), type=int)
    except SignalTimeout:
        stars = 0
    async with asyncio.timeout(3600):
        await rate(parcel, stars + (lucky > 2))
    return f"{parcel}: {stars}"
