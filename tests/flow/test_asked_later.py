"""Questions that a flow asks after its process has changed: what depends on their answers goes on there."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Engine, RunStatus
from perdure.flow import Flow
from tests.flow.writing import flow_of
from tests.patience import PATIENCE

ASKED = """
steps:
  - {id: first, use: signal, with: {name: go}}
  - {id: ask, use: approval, after: [first], timeout: 1d, on_timeout: {value: {ok: false}}}
  - {id: hear, use: signal, with: {name: more}, after: [ask]}
  - NEXT
output: ${{ steps.end }}
"""


def flow(folder: Path, next: str) -> Flow:
    return flow_of(folder, ASKED.replace("NEXT", next))


@pytest.mark.parametrize(
    "next",
    [
        "{id: end, use: value, with: 1, needs: [ask, hear]}",
        "{id: end, use: value, with: 1, when: '${{ steps.ask.ok and steps.hear == 2 }}'}",
        "{id: end, use: value, with: {is: '${{ steps.ask }}', of: '${{ steps.hear }}'}}",
        "{id: end, map: {over: ['${{ steps.ask }}', '${{ steps.hear }}']}, use: value, with: '${{ item }}'}",
        "{id: end, use: approval, with: {request: ['${{ steps.ask }}', '${{ steps.hear }}']}}",
        "{id: end, repeat: {until: '${{ last == 2 }}', max: 2}, use: value, with: '${{ steps.hear }}'}",
    ],
)
async def test_what_takes_an_answer_goes_on_in_another_process(tmp_path: Path, next: str) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    asks = flow(tmp_path, next)
    async with Engine(store, [asks]) as engine:
        assert (await engine.run(asks(), id="r", until="rest")).status is RunStatus.WAITING
    async with Engine(store, [asks]) as engine:
        await engine.signal("r", "go")
        await engine.approve("r", "ask", {"ok": True})
        await engine.signal("r", "more", 2)
        if "use: approval" in next:
            await engine.approve("r", "end", 3)
        result = await engine.handle("r").outcome(PATIENCE)
        assert result.status is RunStatus.COMPLETED, result.error
