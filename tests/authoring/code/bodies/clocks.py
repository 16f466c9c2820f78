import datetime as dt
import time
from datetime import UTC, datetime
from time import perf_counter as tick

import perdure


@perdure.workflow
async def late() -> None:
    time.time()  # expect: clock
    datetime.now(UTC)  # expect: clock
    dt.datetime.now(dt.UTC)  # expect: clock
    tick()  # expect: clock
    time.sleep(1)  # expect: clock
    time.time()  # noqa: perdure
