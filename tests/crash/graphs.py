"""The graph that the crash tests run: one of everything a graph has. Its nodes leave a line in the effect log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure import Retry, rule, step_context
from perdure.graph import END, Graph, Items, interrupt, node, route
from tests.crash.programs import effect


@node
async def first(n: int) -> int:
    effect()
    return n + 1


async def _branch(first: int, seconds: float) -> int:
    effect()
    await asyncio.sleep(seconds)
    return first * 10


BRANCHES = [f"branch{i}" for i in range(4)]
branches = [node(_branch, name=name, inputs={"seconds": f"{name}_seconds"}) for name in BRANCHES]


def _merge(parts: list[int]) -> int:
    effect()
    return sum(parts)


@node(retry=Retry(attempts=3, initial=0.02, jitter=False, on=(ConnectionError,)))
async def stubborn(merged: int) -> int:
    effect()
    if step_context().attempt <= 2:
        raise ConnectionError("away")
    return merged


@node
async def agent(stubborn: int, tool: int = 0) -> int:
    effect()
    return tool + 1


@node
async def tool(agent: int) -> int:
    effect()
    return agent * 2


@route(targets=[tool, END])
def needs_a_tool(agent: int) -> object:
    return tool if agent < 10 else END


@node
async def embed(query: int) -> int:
    effect()
    return query + 5


@node
async def retrieve(embed: int) -> list[int]:
    effect()
    return list(range(embed % 10 + 13))


rag = Graph([embed, retrieve], name="rag", output=retrieve)


async def fetch(page: int) -> int:
    effect()
    return page * page


@interrupt(answer=int)
def approve(fetch: list[int]) -> str:
    return f"{len(fetch)} pages?"


@node
async def dispensable(approve: int) -> int:
    effect()
    raise ValueError("as it should")


@node
async def last(fetch: list[int], approve: int, agent: int, dispensable: int = -1) -> list[int]:
    effect()
    return [sum(fetch), approve, agent, dispensable]


journey = Graph(
    [
        first,
        *branches,
        node(_merge, name="merged", inputs={"parts": BRANCHES}),
        stubborn,
        agent,
        tool,
        needs_a_tool,
        rag.rename_inputs(query="agent").as_node(name="pages"),
        node(fetch, inputs={"page": "pages"}).map_over("page", limit=1),
        approve,
        dispensable,
        last,
    ],
    name="journey",
    loops=["agent"],
    output=last,
    rules=[rule("dispensable", on_failure="skip")],
).bind(**{f"{name}_seconds": 0.01 * i for i, name in enumerate(BRANCHES)})


# --- a map in chunks ------------------------------------------------------------------------------------------------

ITEMS = 20


@node
async def numbers(n: int) -> AsyncIterator[int]:
    effect()
    for number in range(n):
        yield number


async def squared(number: int) -> int:
    effect()
    return number * number


@node
async def summed(squared: Items[int]) -> int:
    effect()
    return sum([one async for one in squared])


long_map = Graph(
    [numbers, node(squared, inputs={"number": "numbers"}).map_over("number", chunk=3, limit=4), summed],
    name="long_map",
    output=summed,
)
