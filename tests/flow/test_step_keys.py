"""Keys of steps beside those that every flow has."""

from __future__ import annotations

from pathlib import Path

from tests.flow.writing import flow_of, problems_of, run

# --- what runs ------------------------------------------------------------------------------------------------------

LAZY = """
execution: lazy
inputs: {n: {type: integer, default: 1}}
steps:
  - {id: unused, use: value, with: "${{ steps.deep }}"}
  - {id: deep, use: value, with: 1}
  - {id: base, use: value, with: "${{ input.n }}", after: [unused]}
  - {id: gate, use: value, with: 1}
  - {id: kept, use: value, with: "${{ steps.base + 1 }}", needs: [gate]}
  - {id: audit, use: value, with: "${{ steps.low }}", must_run: true}
  - {id: low, use: value, with: 2}
  - {id: told, use: value, with: 3}
output: "${{ steps.kept }}"
finally: [{id: tell, use: value, with: "${{ steps.told }}"}]
"""


async def test_a_lazy_flow_runs_what_its_output_needs(tmp_path: Path) -> None:
    ran = await run(flow_of(tmp_path, LAZY))
    assert ran.output == 2
    names = {path.partition(":")[0] for path in ran.paths()} - {"finally"}
    assert names == {"base", "gate", "kept", "audit", "low", "told"}
    ran = await run(flow_of(tmp_path, LAZY.replace("execution: lazy", "execution: all")))
    assert {"unused:0", "deep:0"} <= set(ran.paths())
    assert problems_of(tmp_path, "execution: lazily\nsteps: [{id: a, use: value, must_run: 1}]") == [
        "3:12 error F002 this is one of all, lazy; did you mean 'lazy'?",
        "4:39 error F002 this is true or false; this is a number",
    ]
    # Without an output, the result is what no other step takes, so all is needed.
    assert (await run(flow_of(tmp_path, "execution: lazy\nsteps: [{id: a, use: value, with: 1}]"))).output == {"a": 1}
    jobs = "execution: lazy\noutput: 1\njobs: [{id: j, steps: [{id: a, use: value}]}]"
    assert problems_of(tmp_path, jobs) == [
        "3:12 error F002 execution: lazy is for a flow with steps; jobs have needs and when"
    ]
