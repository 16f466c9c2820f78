"""State that a run publishes."""

from __future__ import annotations

from perdure import set_state, wait_signal, workflow
from tests.engine.harness import PATIENCE, replay
from tests.engine.wait_parts import World


async def test_published_state_is_seen_while_the_run_goes_on_and_after(url: str) -> None:
    @workflow
    async def reporting() -> None:
        set_state("phase", "packing")
        set_state("done", {"boxes": 3})
        await wait_signal("go")
        set_state("phase", "sent")

    world = World(url, [reporting])
    async with world.engine as engine:
        run = await engine.start(reporting(), id="it")
        await world.opened("go:0")
        view = await engine.get("it")
        assert view is not None
        assert view.state == {"phase": "packing", "done": {"boxes": 3}}
        await engine.signal("it", "go")
        await run.result(PATIENCE)
        view = await engine.get("it")
        assert view is not None
        assert view.state["phase"] == "sent"
        await replay(reporting, run.run_id, engine.store)
