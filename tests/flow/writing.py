"""Write flows, load them and run them in memory."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from perdure import Engine
from perdure.flow import Flow, FlowInvalid, load_flow
from tests.graph.running import Ran

HEAD = "perdure: 1\nname: test\n"


def flow_of(folder: Path, text: str, file: str = "flow.yaml", **options: Any) -> Flow:
    """The flow of a text; `perdure` and `name` are put before it, unless it has them."""
    text = dedent(text).lstrip("\n")
    path = folder / file
    path.write_text(text if text.startswith(("perdure:", "{")) else HEAD + text, encoding="utf-8")
    return load_flow(path, **{"python": (), **options})


def problems_of(folder: Path, text: str, file: str = "flow.yaml", **options: Any) -> list[str]:
    """What is wrong with a text, without the file."""
    with pytest.raises(FlowInvalid) as caught:
        flow_of(folder, text, file, **options)
    return [str(problem).removeprefix(f"{folder / file}:") for problem in caught.value.problems]


async def run(flow: Flow, **inputs: Any) -> Ran:
    """Run a flow until it ends or rests."""
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow(**inputs), id="r")
        return Ran(result, await engine.steps("r"))
