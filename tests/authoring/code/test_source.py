"""The source of a workflow, which is stored with its runs."""

from __future__ import annotations

import linecache
import runpy
from pathlib import Path
from typing import Any

from perdure.kernel.divergence.model import Divergence, OpView
from perdure.kernel.divergence.source import NO_SOURCE, Source, decode_source, difference

FLOW = """
import perdure


def price(n):
    return n * TWO


TWO = 2


@perdure.step
async def charge(n):
    secret = "what a step does is not part of it"


async def pay(
    n,
):
    await charge(
        price(n)
    )


@perdure.workflow(
    name="flow",
)
async def flow(n: int) -> str:
    text = f'''
    kept {n}'''
    await pay(n)

    async def inner():
        return text

    return await inner()


def unused():
    pass
"""


def flow_of(folder: Path, text: str) -> Any:
    file = folder / "shop.py"
    file.write_text(text)
    linecache.checkcache(str(file))
    return runpy.run_path(str(file))["flow"]


def test_it_is_the_function_and_those_that_it_reaches_each_with_its_lines(tmp_path: Path) -> None:
    source: Source = flow_of(tmp_path, FLOW).source()
    assert [part.name for part in source.parts] == ["flow", "price", "pay"]
    lines = FLOW.splitlines()
    for part in source.parts:
        text = part.text.splitlines()
        assert text == lines[part.line - 1 : part.line - 1 + len(text)]
    flow, price, pay = source.parts
    assert flow.text.startswith("@perdure.workflow(")
    assert flow.text.endswith("    return await inner()\n")
    assert price.text == "def price(n):\n    return n * TWO\n"
    assert pay.text.endswith("    )\n")


def test_it_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    source: Source = flow_of(tmp_path, FLOW).source()
    assert decode_source(source.encode()) == source
    assert len(source.digest()) == 64
    assert NO_SOURCE.digest() == ""
    assert decode_source(b"from the future") == NO_SOURCE


def test_a_file_that_is_gone_or_broken_since_loses_the_text_and_nothing_else(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, FLOW)
    (tmp_path / "shop.py").unlink()
    linecache.checkcache(str(tmp_path / "shop.py"))
    assert flow.source() == NO_SOURCE
    assert isinstance(flow_of(tmp_path, FLOW).source(), Source)


def test_a_difference_names_the_lines_of_both(tmp_path: Path) -> None:
    old: Source = flow_of(tmp_path, FLOW).source()
    new: Source = flow_of(
        tmp_path, FLOW.replace("import perdure\n", "import perdure\n\n").replace("n * TWO", "n")
    ).source()
    shown = difference(old, new)
    assert "shop.py:5, now " in shown
    assert "shop.py:6 @@ price" in shown
    assert "-    return n * TWO\n+    return n" in shown
    assert "flow" not in shown
    assert difference(old, old) == difference(NO_SOURCE, new) == ""


def test_a_lost_remote_step_gets_its_queue_back(tmp_path: Path) -> None:
    text = "import perdure\n\n\nasync def render(n):\n    return n\n\n\n"
    text += "@perdure.workflow\nasync def flow(n: int) -> int:\n    return await render(n)\n"
    flow = flow_of(tmp_path, text)
    lost = Divergence("type", "render:0", "", OpView("step", "render:0", "render", queue="gpu"), None, "")
    (repair,) = flow.repairs(NO_SOURCE, lost)
    assert '+@step(queue="gpu")\n async def render(n):' in repair.diff
    assert "+from perdure import step" in repair.diff
    assert repair.program.fn.__globals__["render"].spec.queue == "gpu"
