"""Keys of steps beside those that every flow has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import Engine, step
from perdure.kernel.events import StepStarted
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


# --- repeat ---------------------------------------------------------------------------------------------------------

PAGES = """
inputs: {pages: {type: integer, default: 3}}
steps:
  - {id: first, use: value, with: 1}
  - id: fetch
    use: page
    with:
      number: ${{ last.next | default(steps.first) }}
      of: ${{ input.pages }}
      found: ${{ last.found | default([]) }}
    repeat: {until: "${{ last.next == none }}", max: 5}
  - {id: told, use: value, with: "${{ steps.fetch.found | length }} rows", after: [fetch]}
"""


def page(number: int, of: int, found: list[int]) -> dict[str, Any]:
    return {"found": [*found, number], "next": number + 1 if number < of else None}


async def test_a_step_is_repeated_until_its_result_says_so(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, PAGES, components={"page": page})
    ran = await run(flow)
    assert ran.output == {"told": "3 rows"}
    assert ran.paths() == ["fetch:0", "fetch:1", "fetch:2", "first:0", "told:0"]
    ran = await run(flow, pages=9)
    assert "5 rounds" in str(ran.result.error)
    # It is a result of the flow, and a job has it too.
    alone = "steps: [{id: a, use: value, with: '${{ last | default(0) + 1 }}', repeat: {until: '${{ last >= 4 }}'}}]"
    assert (await run(flow_of(tmp_path, alone))).output == {"a": 4}
    job = (
        f"jobs:\n  - id: j\n    {alone}\n  - {{id: k, steps: [{{id: b, use: value, with: '${{{{ jobs.j.a + 1 }}}}'}}]}}"
    )
    assert (await run(flow_of(tmp_path, job))).output == {"k": {"b": 5}}
    ran = await run(flow_of(tmp_path, alone.replace(" | default(0)", "")))
    assert "`last` has no value in the first round" in str(ran.result.error)
    ran = await run(flow_of(tmp_path, alone.replace("last >= 4", "last")))
    assert "it must give true or false" in str(ran.result.error)
    skipped = alone.replace("use: value", "use: value, when: '${{ false }}'")
    assert (await run(flow_of(tmp_path, skipped))).output == {}


def test_what_is_wrong_with_repeat(tmp_path: Path) -> None:
    text = """
    steps:
      - {id: a, use: value, with: "${{ last }}"}
      - {id: b, use: value, with: "${{ steps.b }}", repeat: {until: yes, max: 0}}
      - {id: c, use: value, with: "${{ item }}", map: {over: [1]}, repeat: {until: "${{ lost }}"}}
      - {id: d, use: value, repeat: {max: 2}}
    """
    assert problems_of(tmp_path, text) == [
        "4:36 error F011 there is no 'last' to refer to here; there are env, input, jobs, resources, run, secrets, "
        "steps, vars",
        "5:36 error F012 'b' is this step: its result in the last round is `last`",
        "5:65 warning F009 yes is text here; write true, false, null or a number, or quote it",
        "5:65 error F010 until is an expression with `last`, the result of the last round, as in ${{ last.done }}",
        "5:75 error F002 this is a whole number from 1 on; this is a number",
        "6:10 error F002 a step is mapped or repeated, and not both; map a flow that repeats a step",
        "6:85 error F011 there is no 'lost' to refer to here; did you mean 'last'?",
        "7:33 error F006 repeat needs the key 'until'",
    ]


# --- queues ---------------------------------------------------------------------------------------------------------


@step
async def embed(text: str, size: int = 2) -> list[str]:
    return [text] * size


def loud(text: str) -> str:
    return text.upper()


async def test_a_step_runs_where_its_queue_is_served(tmp_path: Path) -> None:
    text = """
    steps:
      - {id: made, use: "queue:gpu/embed", with: {text: a}, retry: 2, timeout: 1m}
      - {id: more, use: "queue:gpu/embed", map: {over: [b, c]}, with: {text: "${{ item }}", size: 1}}
      - {id: said, use: loud, with: {text: "${{ steps.made[0] }}"}, queue: gpu}
    """
    flow = flow_of(tmp_path, text, components={"loud": loud})
    async with Engine("memory://", [flow], steps=[embed, step(loud)]) as engine:
        result = await engine.run(flow(), id="r")
        assert result.output == {"more": [["b"], ["c"]], "said": "A"}
        assert [one.event.queue for one in await engine.journal("r") if isinstance(one.event, StepStarted)] == [
            "gpu"
        ] * 4
    wrong = """
    steps:
      - {id: a, use: value, queue: gpu}
      - {id: b, use: sleep, with: {for: 1}, queue: gpu}
      - {id: c, use: "queue:gpu", with: {text: a}}
      - {id: e, use: loud, with: {text: a}, queue: "a/b"}
      - {id: f, use: "queu:gpu/embed", queue: 1}
    """
    assert problems_of(tmp_path, wrong, components={"loud": loud}) == [
        "4:32 error F002 queue is for functions, which its workers have; value is none",
        "5:48 error F002 queue is for functions, which its workers have; sleep is none",
        "6:18 error F020 queue:gpu is no step of a queue; write queue:name/step",
        "7:48 error F002 the name of a queue 'a/b' holds one of '/', ':', '[', ']'; give a text of 1 to 200 characters "
        "without '/', ':', '[' and ']'",
        "8:18 error F020 there is no kind of component 'queu:'; did you mean 'queue'?",
        "8:43 error F002 this is to be text, and is a number; write it in quotes",
    ]


# --- what runs instead ----------------------------------------------------------------------------------------------

BOOK = """
inputs: {ok: {type: boolean, default: false}, local: {type: boolean, default: true}}
steps:
  - {id: name, use: value, with: desk}
  - id: book
    use: remote
    with: {ok: "${{ input.ok }}"}
    retry: {attempts: 2, initial: 0}
    on_error: {use: remote, with: {ok: "${{ input.local }}", name: "${{ steps.name }}"}}
  - {id: told, use: value, with: "booked at ${{ steps.book }}"}
  - {id: later, use: value, with: 1, after: [book], needs: [book]}
output: {told: "${{ steps.told }}", later: "${{ steps.later }}"}
"""


async def test_another_component_runs_instead_of_a_step_that_fails(tmp_path: Path) -> None:
    calls: list[str] = []

    def remote(ok: bool, name: str = "remote") -> str:
        calls.append(name)
        if not ok:
            raise ConnectionError(f"{name} is away")
        return name

    flow = flow_of(tmp_path, BOOK, components={"remote": remote})
    assert (await run(flow, ok=True)).output == {"told": "booked at remote", "later": 1}
    assert calls == ["remote"]
    calls.clear()
    ran = await run(flow)
    assert ran.output == {"told": "booked at desk", "later": 1}
    assert calls == ["remote", "remote", "desk"]
    assert ran.paths("failed") == ["book:0"]
    assert "book.on_error:0" in ran.paths()
    ran = await run(flow, local=False)
    assert "desk is away" in str(ran.result.error)
    assert {"told:0", "later:0"} <= set(ran.paths("blocked"))
    # In a loop, it is decided anew in each round.
    loop = """
    steps:
      - id: a
        use: remote
        with: {ok: "${{ last is defined }}", name: "${{ last | default('first') }}"}
        repeat: {until: "${{ last == 'other' }}", max: 3}
        on_error: {use: value, with: second}
    """
    ran = await run(flow_of(tmp_path, loop.replace("other", "second"), components={"remote": remote}))
    assert ran.output == {"a": "second"}
    job = """
    jobs:
      - id: j
        steps:
          - {id: a, use: remote, with: {ok: false}, on_error: {use: value, with: 1}}
          - {id: b, use: value, with: 2}
    output: {a: "${{ jobs.j.a }}", b: "${{ jobs.j.b }}"}
    """
    assert (await run(flow_of(tmp_path, job, components={"remote": remote}))).output == {"a": 1, "b": 2}


def test_what_is_wrong_with_on_error(tmp_path: Path) -> None:
    text = """
    steps:
      - {id: a, use: value, on_error: {use: valu, value: 1}}
      - {id: b, use: value, on_error: {use: sleep}}
      - {id: c, use: value, on_error: {use: value, with: "${{ steps.d }}"}}
      - {id: d, use: value, with: "${{ steps.c }}"}
      - {id: e, use: value, on_error: none}
      - {id: f, use: value, on_error: {use: 1}}
    """
    assert problems_of(tmp_path, text) == [
        "4:47 error F005 on_error with `use` has no key 'value'; there are use, with",
        "5:41 error F022 sleep needs 'for'",
        "6:10 error F016 these steps wait for each other: c → d → c",
        "8:35 error F002 this is one of fail, skip, {value: ...} or {use: ..., with: ...}; there are fail, skip",
        "9:41 error F002 use names a component, as in `use: http`; this is a number",
    ]
