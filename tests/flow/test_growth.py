"""Reading and compiling a flow of three times as many steps is three times the work, whatever its steps refer to.

The work is the bytecode that is executed: it does not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from perdure.authoring.flow.flow import Access, define, load

FEW, MANY = 40, 120


def work(path: Path) -> int:
    """How much bytecode reading a flow executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        load(str(path), Access())
    finally:
        sys.settrace(before)
    return count


def steps(texts: Iterable[str], head: str = "") -> str:
    listed = "".join(f"  - {{id: s{n}, use: value, {text}}}\n" for n, text in enumerate(texts))
    return f"perdure: 1\nname: n\n{head}steps:\n{listed}"


def chain(count: int) -> str:
    return steps(f'with: "${{{{ steps.s{n - 1} }}}}"' if n else "with: 1" for n in range(count))


def needs(count: int) -> str:
    every = ", ".join(f"s{n}" for n in range(count - 1))
    return steps(f"with: 1{f', needs: [{every}]' if n == count - 1 else ''}" for n in range(count))


def referred(count: int) -> str:
    return steps('with: ["${{ steps.s0.a }}", "${{ steps.s0.b > 1 }}"]' if n else "with: 1" for n in range(count))


def environment(count: int) -> str:
    names = "".join(f"  v{n}: {{env: V{n}}}\n" for n in range(count))
    return steps((f'with: "${{{{ vars.v{n} }}}} ${{{{ env.V{n} }}}}"' for n in range(count)), f"variables:\n{names}")


def jobs(count: int) -> str:
    given = ["1", *(f'"${{{{ jobs.j{n}.s }}}}"' for n in range(count - 1))]
    listed = "".join(f"  - {{id: j{n}, steps: [{{id: s, use: value, with: {one}}}]}}\n" for n, one in enumerate(given))
    names = "".join(f"  v{n}: {n}\n" for n in range(count))
    return f"perdure: 1\nname: n\nvariables:\n{names}jobs:\n{listed}"


@pytest.mark.parametrize("shape", [chain, needs, referred, environment, jobs])
def test_the_work_is_linear_in_the_number_of_steps(tmp_path: Path, shape: Callable[[int], str]) -> None:
    path = tmp_path / "flow.yaml"
    path.write_text(shape(2))
    load(str(path), Access())  # until everything is loaded
    done = []
    for count in (FEW, MANY):
        path.write_text(shape(count))
        done.append(work(path))
    assert done[1] < 3.1 * done[0]


def test_ten_thousand_steps_in_a_chain_are_a_flow_and_can_be_stored(tmp_path: Path) -> None:
    """A definition is bounded without its places, which may be more than all the rest."""
    path = tmp_path / "flow.yaml"
    path.write_text(chain(10_000))
    flow = load(str(path), Access())
    assert len(flow.plan.nodes) == 10_000
    again = define(flow.definition, Access())
    assert (again.version, again.plan.nodes[-1].where) == (flow.version, flow.plan.nodes[-1].where)
