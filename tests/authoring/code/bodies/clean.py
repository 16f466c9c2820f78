"""Nothing here is wrong."""

import asyncio
import os.path
import time

from perdure import now, random, sleep, step, step_inline, uuid4, workflow

LIMITS = (1, 2)
names: list[str] = []


@step
def measured() -> float:
    names.append("a")
    print(open(__file__).name)
    return time.time()


@workflow
async def tidy(path: str) -> list[str]:
    names = [os.path.join(path, "a")]
    names.append(str(now()))
    names.append(f"{random()} {uuid4()} {await measured()} {LIMITS[0]}")
    await asyncio.gather(sleep(1), asyncio.sleep(1))
    names.append(str(await step_inline("clock", lambda: time.time())))

    @step
    def inside() -> float:
        return time.time()

    await inside()
    return names


def not_called() -> float:
    return time.time()
