"""Keys of flows together: jobs, maps, approvals, locks, flows in flows, repeats, errors, ends, choices and overrides.

Each flow is run in virtual time, and then killed at every append: its end is the same, and nothing ran once more than
it had to.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure import step_context
from perdure.flow import Flow
from perdure.testing import crash_everywhere
from perdure.testing.simulation import Message, Sender
from perdure.testing.simulation.faults import Side
from tests.flow.writing import flow_of, problems_of

# What the functions below were called with, in any order.
effects: set[str] = set()


async def work(n: Any) -> Any:
    effects.add(f"{step_context().id.partition('/')[2]} {n}")
    return n


async def broken(n: Any = 0) -> Any:
    raise ValueError(f"broken {n}")


async def unless(n: int, bad: int) -> int:
    if n == bad:
        raise ValueError(f"bad {n}")
    return n


async def later(n: Any, times: int = 2) -> Any:
    if step_context().attempt < times:
        raise OSError("not yet")
    return n


async def rows(n: int) -> dict[str, Any]:
    return {"status": "no_data" if n == 0 else "ok", "rows": n}


async def page(number: int, of: int = 3) -> dict[str, Any]:
    effects.add(f"{step_context().id.partition('/')[2]} page {number}")
    return {"number": number, "done": number >= of}


async def secretly(token: str, n: int = 0) -> int:
    return len(token) + n


COMPONENTS = {one.__name__: one for one in (work, broken, unless, later, rows, page, secretly)}
INNER = """
perdure: 1
name: inner
inputs: {n: {}, ask: {type: boolean, default: false}}
steps:
  - {id: nap, use: sleep, with: {for: 5s}}
  - {id: made, use: work, with: {n: "${{ input.n }}"}, after: [nap]}
  - id: asked
    use: approval
    when: "${{ input.ask }}"
    with: {request: "${{ steps.made }}"}
    timeout: 20s
    on_timeout: {value: {ok: false}}
output: {n: "${{ steps.made }}", ok: "${{ steps.asked.ok | default('never asked') }}"}
"""
FAILING = """
perdure: 1
name: failing
inputs: {n: {}}
steps: [{id: a, use: work, with: {n: "${{ input.n }}"}}, {id: b, use: broken, with: {n: "${{ steps.a }}"}}]
finally: [{id: tidy, use: work, with: {n: "tidy ${{ run.status }}"}}]
"""


class Case(msgspec.Struct):
    """A flow, and what is expected of it."""

    text: str
    output: Any = None
    status: str = "completed"
    error: str = ""
    input: dict[str, Any] = {}
    # What is answered to which wait.
    answers: dict[str, Any] = {}


CASES: dict[str, Case] = {
    "a map of flows in a job": Case(
        """
jobs:
  - {id: a, steps: [{id: list, use: work, with: {n: [1, 2]}}]}
  - id: b
    needs: [a]
    steps:
      - {id: each, map: {over: "${{ jobs.a.list }}"}, use: "flow:./inner.yaml", with: {n: "${{ item }}"}}
      - {id: last, use: work, with: {n: "${{ steps.each[1].n + jobs.a.list[0] }}"}}
output: {each: "${{ jobs.b.each }}", last: "${{ jobs.b.last }}"}
""",
        {"each": [{"n": 1, "ok": "never asked"}, {"n": 2, "ok": "never asked"}], "last": 3},
    ),
    "a map of flows that ask, one of which is answered": Case(
        """
steps:
  - {id: each, map: {over: [1, 2]}, use: "flow:./inner.yaml", with: {n: "${{ item }}", ask: true}}
output: ${{ steps.each }}
""",
        [{"n": 1, "ok": True}, {"n": 2, "ok": False}],
        answers={"each:0[0]/asked": {"ok": True}},
    ),
    "a map whose limit is one, with positions": Case(
        """
steps:
  - {id: each, map: {over: [a, b, c], as: x, limit: 1}, use: work, with: {n: ["${{ x }}", "${{ index }}"]}}
output: ${{ steps.each }}
""",
        [["a", 0], ["b", 1], ["c", 2]],
    ),
    "a map of nothing": Case(
        """
steps:
  - {id: each, map: {over: "${{ [] }}"}, use: broken, with: {n: "${{ item }}"}}
  - {id: n, use: work, with: {n: "${{ steps.each | length }}"}}
output: {each: "${{ steps.each }}", n: "${{ steps.n }}"}
""",
        {"each": [], "n": 0},
    ),
    "a map that tolerates one failure of two": Case(
        """
steps:
  - {id: each, map: {over: [1, 2, 3], tolerate: 1}, use: unless, with: {n: "${{ item }}", bad: 2}}
output: ${{ steps.each }}
""",
        [1, None, 3],
    ),
    "a map that tolerates none fails, and its stand-in is taken": Case(
        """
steps:
  - {id: each, map: {over: [1, 2]}, use: unless, with: {n: "${{ item }}", bad: 2}, on_error: {value: [0]}}
output: ${{ steps.each | sum }}
""",
        0,
    ),
    "a map that leaves out what failed": Case(
        """
steps:
  - {id: each, map: {over: [1, 2, 3], on_error: skip}, use: unless, with: {n: "${{ item }}", bad: 2}}
output: ${{ steps.each }}
""",
        [1, 3],
    ),
    "a map of what is no list": Case(
        "steps: [{id: each, map: {over: '${{ input.x }}'}, use: work, with: {n: '${{ item }}'}}]\ninputs: {x: {}}",
        status="failed",
        error="map.over gives no list",
        input={"x": "abc"},
    ),
    "a map over the results of another, with a lock": Case(
        """
steps:
  - {id: one, map: {over: [1, 2]}, use: work, with: {n: "${{ item }}"}}
  - {id: two, map: {over: "${{ steps.one }}", limit: 1}, use: work, with: {n: "${{ item * 10 }}"}, lock: k}
output: ${{ steps.two }}
""",
        [10, 20],
    ),
    "a map that is not run": Case(
        """
inputs: {go: boolean}
steps:
  - {id: each, when: "${{ input.go }}", map: {over: [1]}, use: broken, with: {n: "${{ item }}"}}
  - {id: after, use: work, with: {n: 1}, after: [each]}
  - {id: needing, use: work, with: {n: "${{ steps.each }}"}}
output:
  each: ${{ steps.each | default('none') }}
  after: ${{ steps.after }}
  n: ${{ steps.needing | default(0) }}
""",
        {"each": "none", "after": 1, "n": 0},
        input={"go": False},
    ),
    "secrets in items of a map": Case(
        """
variables: {t: {secret: COMBINED_SECRET}}
steps:
  - id: each
    map: {over: [1, 2]}
    use: secretly
    with: {token: "Bearer ${{ secrets.COMBINED_SECRET }}", n: "${{ item }}"}
output: ${{ steps.each }}
""",
        [18, 19],
    ),
    "an approval between locked steps": Case(
        """
steps:
  - {id: a, use: work, with: {n: 1}, lock: {key: "k-${{ run.id }}", ttl: 10m, wait: 1h}}
  - {id: ask, use: approval, with: {request: {n: "${{ steps.a }}"}}, timeout: 3d}
  - {id: b, use: work, with: {n: "${{ steps.ask.n }}"}, lock: {key: "k-${{ run.id }}", ttl: 10m}}
output: ${{ steps.b }}
""",
        7,
        answers={"ask": {"n": 7}},
    ),
    "an approval that times out fails the run": Case(
        """
steps:
  - {id: ask, use: approval, with: {request: 1}, timeout: 20s}
  - {id: b, use: work, with: {n: "${{ steps.ask }}"}}
""",
        status="failed",
        error="ask",
    ),
    "an approval that times out, with a value": Case(
        """
steps:
  - {id: ask, use: approval, with: {request: 1}, timeout: 20s, on_timeout: {value: {ok: false}}}
  - {id: yes, use: work, when: "${{ steps.ask.ok }}", with: {n: 1}}
  - {id: no, use: work, when: "${{ not steps.ask.ok }}", with: {n: 2}}
output: {yes: "${{ steps.yes | default(0) }}", no: "${{ steps.no | default(0) }}"}
""",
        {"yes": 0, "no": 2},
    ),
    "an approval that times out is skipped": Case(
        """
steps:
  - {id: ask, use: approval, with: {request: 1}, timeout: 20s, on_error: skip}
  - {id: b, use: work, with: {n: "${{ steps.ask | default('no answer') }}"}}
output: ${{ steps.b }}
""",
        "no answer",
    ),
    "an approval in a flow in a job": Case(
        """
jobs:
  - {id: a, steps: [{id: sub, use: "flow:./inner.yaml", with: {n: 1, ask: true}}], lock: one}
  - {id: b, when: "${{ jobs.a.sub.ok }}", steps: [{id: c, use: work, with: {n: "${{ jobs.a.sub.n }}"}}]}
output: ${{ jobs.b.c | default('not') }}
""",
        1,
        answers={"a:0/sub:0/asked": {"ok": True}},
    ),
    "a step that is repeated": Case(
        """
steps:
  - id: pages
    use: page
    with: {number: "${{ (last.number | default(0)) + 1 }}"}
    repeat: {until: "${{ last.done }}", max: 5}
output: ${{ steps.pages.number }}
""",
        3,
    ),
    "a step that is repeated too often": Case(
        """
steps:
  - id: pages
    use: page
    with: {number: "${{ last.number | default(0) + 1 }}", of: 9}
    repeat: {until: "${{ last.done }}", max: 2}
output: ${{ steps.pages.number }}
""",
        status="failed",
        error="pages",
    ),
    "a flow that is repeated, in a job with a lock": Case(
        """
jobs:
  - id: a
    lock: "a-${{ run.id }}"
    steps:
      - id: again
        use: "flow:./inner.yaml"
        with: {n: "${{ last.n | default(0) + 1 }}"}
        repeat: {until: "${{ last.n >= 2 }}"}
output: ${{ jobs.a.again.n }}
""",
        2,
    ),
    "a repeated step that fails in its second round": Case(
        """
steps:
  - id: r
    use: unless
    with: {n: "${{ last | default(0) + 1 }}", bad: 2}
    repeat: {until: "${{ last < 0 or last > 5 }}"}
    on_error: {value: -1}
output: ${{ steps.r }}
""",
        -1,
    ),
    "a failure with a value of another step": Case(
        """
steps:
  - {id: a, use: work, with: {n: {deep: [1, 2]}}}
  - {id: b, use: broken, with: {n: 1}, on_error: {value: {from: "${{ steps.a.deep[1] }}"}}}
  - {id: c, use: work, with: {n: "${{ steps.b.from + 1 }}"}, needs: [b]}
output: ${{ steps.c }}
""",
        3,
    ),
    "another component in place of a flow that fails": Case(
        """
steps:
  - {id: a, use: "flow:./failing.yaml", with: {n: 1}, on_error: {use: "flow:./inner.yaml", with: {n: 5}}}
output: ${{ steps.a.n }}
""",
        5,
    ),
    "a failure in place of a failure": Case(
        "steps: [{id: a, use: broken, on_error: {use: broken, with: {n: 2}}}]\noutput: ${{ steps.a }}",
        status="failed",
        error="broken 2",
    ),
    "a skipped failure, and what needs it": Case(
        """
steps:
  - {id: a, use: broken, on_error: skip}
  - {id: b, use: work, with: {n: 1}, needs: [a]}
  - {id: c, use: work, with: {n: 2}, after: [a, b]}
  - {id: d, use: work, with: {n: "${{ steps.a | default(steps.c) }}"}}
output: {b: "${{ steps.b | default('skipped') }}", c: "${{ steps.c }}", d: "${{ steps.d }}"}
""",
        {"b": "skipped", "c": 2, "d": 2},
    ),
    "a failure that stops a flow, and its end": Case(
        """
steps:
  - {id: a, use: broken}
  - {id: b, use: work, with: {n: 1}, after: [a]}
finally:
  - {id: one, use: work, with: {n: "${{ run.status }}"}}
  - {id: two, use: broken, on_error: skip}
  - {id: three, use: work, with: {n: "${{ steps.b | default('no b') }}"}}
""",
        status="failed",
        error="broken 0",
    ),
    "a failure that lets the rest go on": Case(
        """
on_failure: continue
steps:
  - {id: a, use: broken}
  - {id: b, use: sleep, with: {for: 60s}}
  - {id: c, use: work, with: {n: 3}, after: [b]}
""",
        status="failed",
        error="broken 0",
    ),
    "jobs of which one has no data": Case(
        """
inputs: {n: integer}
jobs:
  - id: a
    steps:
      - {id: probe, use: rows, with: {n: "${{ input.n }}"}, on_no_data: skip_job}
      - {id: pull, use: work, with: {n: "${{ steps.probe.rows }}"}}
  - {id: b, needs: [a], steps: [{id: c, use: broken}]}
  - {id: d, after: [a, b], steps: [{id: e, use: work, with: {n: "${{ jobs.a.pull | default('none') }}"}}]}
output: {c: "${{ jobs.b.c | default('blocked') }}", e: "${{ jobs.d.e }}"}
""",
        {"c": "blocked", "e": "none"},
        input={"n": 0},
    ),
    "a job that fails in the middle, with an end": Case(
        """
on_failure: continue
jobs:
  - {id: a, steps: [{id: x, use: work, with: {n: 1}}, {id: y, use: broken}, {id: z, use: work, with: {n: 2}}]}
  - {id: b, needs: [a], steps: [{id: c, use: work, with: {n: 3}}]}
  - {id: d, steps: [{id: e, use: work, with: {n: 4}}]}
finally: [{id: told, use: work, with: {n: "${{ run.status }} ${{ jobs.b.c | default('b blocked') }}"}}]
""",
        status="failed",
        error="broken 0",
    ),
    "steps of a job by their data": Case(
        """
jobs:
  - id: a
    in_order: false
    steps:
      - {id: late, use: work, with: {n: "${{ steps.early + 1 }}"}}
      - {id: early, use: later, with: {n: 1}, retry: {attempts: 3, initial: 1s}}
output: ${{ jobs.a.late }}
""",
        2,
    ),
    "jobs that hold one lock": Case(
        """
jobs:
  - {id: a, lock: same, steps: [{id: x, use: sleep, with: {for: 20s}}, {id: y, use: work, with: {n: 1}}]}
  - {id: b, lock: same, steps: [{id: x, use: sleep, with: {for: 20s}}, {id: y, use: work, with: {n: 2}}]}
output: ["${{ jobs.a.y }}", "${{ jobs.b.y }}"]
""",
        [1, 2],
    ),
    "a lock that is not free in time": Case(
        """
jobs:
  - {id: a, lock: same, steps: [{id: x, use: sleep, with: {for: 60s}}]}
  - {id: b, lock: {key: same, wait: 10s}, steps: [{id: y, use: work, with: {n: 2}}]}
on_failure: continue
""",
        status="failed",
        error="same",
    ),
    "a workspace that jobs share": Case(
        """
workspace: {root: work, cleanup: always}
jobs:
  - {id: a, steps: [{id: x, use: value, with: "${{ run.workspace }}"}]}
  - {id: b, needs: [a], steps: [{id: y, use: value, with: "${{ jobs.a.x == run.workspace }}"}]}
output: ${{ jobs.b.y }}
""",
        True,
    ),
    "a lazy flow with a choice": Case(
        """
execution: lazy
inputs: {go: boolean}
steps:
  - {id: a, use: work, with: {n: 1}}
  - {id: never, use: broken}
  - {id: b, use: broken, with: {n: 2}}
  - {id: log, use: work, with: {n: logged}, must_run: true}
output: {$if: {$input: go}, then: {$step: a}, else: {$step: b}}
""",
        1,
        input={"go": True},
    ),
    "a lazy flow that takes the first value": Case(
        """
execution: lazy
steps:
  - {id: a, use: value, with: null}
  - {id: b, use: work, with: {n: 2}}
  - {id: c, use: broken}
output: {first: {$coalesce: [{$step: a}, {$step: b}, {$step: c}]}, given: {$literal: {$step: c}}}
""",
        {"first": 2, "given": {"$step": "c"}},
    ),
    "a retry that succeeds in a locked step of a map": Case(
        """
steps:
  - {id: m, map: {over: [1, 2]}, use: later, with: {n: "${{ item }}"}, retry: {attempts: 3, initial: 5s}, lock: r}
output: ${{ steps.m }}
""",
        [1, 2],
    ),
    "a signal that waits for a schema, beside a sleep": Case(
        """
steps:
  - id: s
    use: signal
    with: {name: paid, schema: {type: object, required: [n]}}
    timeout: 20s
    on_timeout: {value: {n: 0}}
  - {id: nap, use: sleep, with: {for: 30s}}
  - {id: b, use: work, with: {n: "${{ steps.s.n }}"}, needs: [nap]}
output: ${{ steps.b }}
""",
        0,
    ),
    "a flow that a step has made, mapped": Case(
        """
steps:
  - id: plan
    use: value
    with:
      perdure: 1
      name: planned
      inputs: {n: integer}
      steps: [{id: v, use: work, with: {n: "$${{ input.n * 2 }}"}}]
      output: "$${{ steps.v }}"
  - {id: each, map: {over: [1, 2]}, use: flow, with: {definition: "${{ steps.plan }}", input: {n: "${{ item }}"}}}
output: ${{ steps.each }}
""",
        [2, 4],
    ),
    "a flow that a step has made wrongly": Case(
        """
steps:
  - id: made
    use: flow
    with: {definition: {perdure: 1, name: x, steps: [{id: a, use: nothing}]}}
    on_error: {value: wrong}
output: ${{ steps.made }}
""",
        "wrong",
    ),
    "an end that asks": Case(
        """
steps: [{id: a, use: broken, on_error: skip}, {id: b, use: work, with: {n: 1}}]
finally:
  - {id: ask, use: approval, with: {request: "${{ run.status }}"}, timeout: 20s, on_timeout: {value: late}}
  - {id: said, use: work, with: {n: "${{ steps.ask }}"}}
""",
        {"b": 1},
        answers={"finally:0/ask": "fine"},
    ),
    "variables and schemas and text": Case(
        """
inputs: {who: {type: string, default: you}, at: {$ref: "#/schemas/At"}}
schemas: {At: {type: object, properties: {h: {type: integer}}, required: [h]}}
variables: {hi: {default: "hello", env: COMBINED_HI}, n: 3}
steps:
  - {id: a, use: work, with: {n: "${{ vars.hi }}, ${{ input.who }} at ${{ input.at.h }} ${{ vars.n }} $${{ x }}"}}
output: {a: "${{ steps.a }}", all: "${{ input }}"}
""",
        {"a": "hello, you at 3 3 ${{ x }}", "all": {"who": "you", "at": {"h": 3}}},
        input={"at": {"h": 3}},
    ),
    "an object in a text fails its step, and a stand-in for it": Case(
        """
steps:
  - {id: a, use: value, with: {x: 1}}
  - {id: b, use: work, with: {n: "is ${{ steps.a }}"}, on_error: {value: no}}
output: ${{ steps.b }}
""",
        "no",
    ),
    "a value that is missing, in a step that may fail": Case(
        """
steps:
  - {id: a, use: value, with: {x: 1}}
  - {id: b, use: work, with: {n: "${{ steps.a.y }}"}, on_error: skip}
  - {id: c, use: work, with: {n: "${{ steps.a.y | default(7) }}"}}
output: {b: "${{ steps.b | default(0) }}", c: "${{ steps.c }}"}
""",
        {"b": 0, "c": 7},
    ),
    "a condition that is no bool": Case(
        "steps: [{id: a, use: work, when: '${{ 1 }}', with: {n: 1}}]", status="failed", error="when"
    ),
    "a diamond with an `after` across jobs": Case(
        """
jobs:
  - {id: a, steps: [{id: x, use: work, with: {n: 1}}]}
  - {id: b, needs: [a], steps: [{id: x, use: sleep, with: {for: 10s}}, {id: y, use: work, with: {n: 2}}]}
  - {id: c, needs: [a], steps: [{id: y, use: later, with: {n: 3}, retry: 2}]}
  - {id: d, after: [b], needs: [c], steps: [{id: z, use: work, with: {n: "${{ jobs.b.y + jobs.c.y + jobs.a.x }}"}}]}
output: ${{ jobs.d.z }}
""",
        6,
    ),
}


def made(folder: Path, case: Case) -> Flow:
    for name, text in (("inner", INNER), ("failing", FAILING)):
        (folder / f"{name}.yaml").write_text(text)
    return flow_of(folder, case.text, components=COMPONENTS)


def answers(case: Case) -> list[Sender]:
    return [Sender([Message("approve", f"{name}:0", payload)]) for name, payload in case.answers.items()]


def survives(folder: Path, case: Case, sides: Sequence[Side]) -> None:
    flow = made(folder, case)
    survived = crash_everywhere(
        flow(**case.input),
        programs=[flow],
        before=effects.clear,
        effects=lambda: sorted(effects),
        senders=answers(case),
        sides=sides,
        limit=1_000_000.0,
    )
    result = survived.result
    assert (str(result.status), None if case.error else result.output) == (case.status, case.output), result
    assert case.error in str(result.error)


@pytest.mark.parametrize("name", CASES)
def test_keys_mean_together_what_they_mean_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("COMBINED_SECRET", "0123456789")
    # One of three is killed, each time at the same one.
    survives(tmp_path, CASES[name], ["during"] if list(CASES).index(name) % 3 == 0 else [])


@pytest.mark.soak
@pytest.mark.parametrize("name", CASES)
def test_all_of_them_survive_a_crash_on_either_side_of_every_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COMBINED_SECRET", "0123456789")
    survives(tmp_path, CASES[name], ["before", "during", "after"])


# --- what does not go together ----------------------------------------------------------------------------------------

STEP = "steps: [{id: a, use: work, with: {n: 1}, %s}]"
MAPPED = "steps: [{id: a, use: work, with: {n: '${{ item }}'}, %s}]"
WRONG = [
    (MAPPED % "map: {over: [1]}, when: '${{ item > 0 }}'", "F011", "there is no 'item' to refer to here"),
    (MAPPED % "map: {over: [1]}, lock: 'k-${{ item }}'", "F011", "there is no 'item' to refer to here"),
    (MAPPED % "map: {over: [1]}, on_error: {value: '${{ item }}'}", "F011", "there is no 'item' to refer to here"),
    (MAPPED % "map: {over: 3}", "F002", "over is a list, or an expression that gives one; this is a number"),
    (MAPPED % "map: {over: {a: 1}}", "F002", "over is a list, or an expression that gives one; this is an object"),
    (MAPPED % "map: {over: [1], as: steps}", "F002", "'steps' has a meaning in expressions"),
    (MAPPED % "map: {over: [1], as: index}", "F002", "'index' has a meaning in expressions"),
    (MAPPED % "map: {over: [1]}, repeat: {until: '${{ last }}'}", "F002", "mapped or repeated, and not both"),
    (MAPPED % "map: {over: '${{ steps.a }}'}", "F016", "wait for each other"),
    (STEP % "repeat: {until: true}", "F010", "until is an expression with `last`"),
    (STEP % "repeat: {until: 3}", "F010", "until is an expression with `last`"),
    (STEP % "repeat: {until: '${{ true }}'}", "F010", "until is an expression with `last`"),
    (STEP % "repeat: {until: '${{ steps.a }}'}", "F012", "its result in the last round is `last`"),
    (STEP % "when: 3", "F010", "when is an expression"),
    (STEP % "when: null", "F010", "when is an expression"),
    (STEP % "lock: ''", "F002", "is empty"),
    (STEP % 'lock: "a\\0b"', "F002", "holds a control character"),
    (STEP % "lock: {key: 3}", "F002", "is not a string"),
    (STEP % "on_no_data: skip_job", "F002", "is for the steps of a job"),
    (STEP % "on_timeout: {value: 1}", "F002", "on_timeout is for signal and approval"),
    ("steps: [{id: a, use: sleep, with: {for: soon}}]", "F022", "'soon' is no length of time"),
    ("steps: [{id: a, use: sleep, with: {for: -1}}]", "F022", "-1 is no length of time"),
    ('steps: [{id: a, use: signal, with: {name: "a\\0b"}}]', "F002", "the name of a signal"),
    ("steps: [{id: a, use: signal, with: {name: a/b}}]", "F002", "the name of a signal"),
    ("steps: [{id: a, use: approval, with: {approvers: ['']}}]", "F002", "approvers is a list of names"),
    ("steps: [{id: a, use: approval, retry: 3}]", "F002", "is not tried again"),
    ("steps: [{id: a, use: 'flow:./inner.yaml', with: {n: 1, ask: 3}}]", "F022", 'is not of type "boolean"'),
    ("steps: [{id: a, use: 'flow:./inner.yaml', with: {n: 1}, queue: q}]", "F002", "queue is for functions"),
    ("jobs: [{id: finally, steps: [{id: x, use: value}]}]\nworkspace: {root: w}", "F003", "what runs in the end"),
    ("jobs: [{id: a, lock: '${{ jobs.a.x }}', steps: [{id: x, use: value}]}]", "F016", "wait for each other"),
    ("jobs: [{id: a, steps: [{id: x, use: value, with: '${{ steps.y }}'}, {id: y, use: value}]}]", "F016", "x → y → x"),
    ("jobs: [{id: a, steps: [{id: x, use: value, with: '${{ jobs.a.x }}'}]}]", "F012", "'a' is this job"),
]


@pytest.mark.parametrize(("text", "code", "why"), WRONG)
def test_what_does_not_go_together_is_told_with_its_place(tmp_path: Path, text: str, code: str, why: str) -> None:
    (tmp_path / "inner.yaml").write_text(INNER)
    found = problems_of(tmp_path, text, components=COMPONENTS)
    assert [line.split(" ")[2] for line in found] == [code]
    assert why in found[0]
