"""What a wait accepts is what its type decodes: the schema of a wait and the decoder come from one codec."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from perdure import Accepted, AnswerRejected, Engine, SignalRejected, approval, connect, wait_signal, workflow
from tests.engine.harness import AT_ONCE, PATIENCE, Recorded


class Colour(Enum):
    RED = "red"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> Colour:
        return cls.OTHER


@dataclass
class Percent:
    n: int

    def __post_init__(self) -> None:
        if self.n > 100:
            raise ValueError("more than everything")


@workflow
async def money() -> str:
    return f"{await wait_signal('go', type=Decimal)} {await approval('sure', schema=Decimal)}"


@workflow
async def colour() -> str:
    return f"{await wait_signal('go', type=Colour)} {await approval('sure', schema=Colour)}"


@workflow
async def percent() -> str:
    return f"{(await wait_signal('go', type=Percent)).n} {(await approval('sure', schema=Percent)).n}"


@pytest.mark.parametrize("through", ["engine", "client"])
@pytest.mark.parametrize(
    ("flow", "right", "wrong", "result"),
    [
        (money, 1.5, [1], "1.5 1.5"),
        (money, "1.50", True, "1.50 1.50"),
        (colour, "green", 7, "Colour.OTHER Colour.OTHER"),
        (percent, {"n": 5}, {"n": "5"}, "5 5"),
    ],
)
async def test_what_the_type_decodes_is_accepted_and_what_it_does_not_is_refused_at_the_door(
    flow: Any, right: Any, wrong: Any, result: str, through: str, tmp_path: Path
) -> None:
    url, recorded = f"sqlite:///{tmp_path}/runs.db", Recorded()
    async with Engine(url, [flow], recovery=AT_ONCE, on_commit=recorded) as engine, connect(url) as client:
        sender: Any = engine if through == "engine" else client
        run = await engine.start(flow(), id="it")
        with pytest.raises(SignalRejected):
            await sender.signal("it", "go", wrong)
        assert await sender.signal("it", "go", right) == Accepted()
        await recorded.until(lambda event: getattr(event, "name", "") == "sure")
        with pytest.raises(AnswerRejected):
            await sender.approve("it", "sure", wrong)
        assert await sender.approve("it", "sure", right) == Accepted()
        assert await run.result(PATIENCE) == result


async def test_an_engine_refuses_what_only_the_code_of_the_type_can_tell(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/runs.db", [percent], recovery=AT_ONCE) as engine:
        run = await engine.start(percent(), id="it")
        with pytest.raises(SignalRejected, match="more than everything"):
            await engine.signal("it", "go", {"n": 101})
        await engine.signal("it", "go", {"n": 1})
        with pytest.raises(AnswerRejected, match="more than everything"):
            await engine.approve("it", "sure", {"n": 101})
        await engine.approve("it", "sure", {"n": 2})
        assert await run.result(PATIENCE) == "1 2"
