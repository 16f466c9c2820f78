"""Flows run as programs: what steps refer to are the edges, and everything is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import AnswerRejected, Engine, NotDecodable, RunStatus, call, connect, step
from perdure.flow import Flow
from tests.flow.writing import flow_of, problems_of, run

EVERYTHING = """
inputs:
  date: {type: string, format: date}
  shops: {type: array, items: {type: string}, default: [a, b]}
  note: {type: string, required: false}
variables:
  greeting: hello
steps:
  - id: orders
    use: value
    with: {items: [{t: 1}, {t: 2}, {t: 3}], hi: "${{ vars.greeting }} ${{ input.date }}", raw: "$${{ x }}"}
  - id: totals
    map: {over: "${{ steps.orders.items }}", as: order, limit: 2}
    use: value
    with: {t: "${{ order.t * 10 }}", at: "${{ index }}", same: "${{ item == order }}"}
  - id: big
    when: ${{ steps.totals | map(attribute='t') | sum > 1000 }}
    use: value
    with: {approved: true}
  - {id: nap, use: sleep, with: {for: 1ms}, after: [totals]}
  - {id: note, use: value, with: "${{ input.note | default('none') }}"}
  - id: book
    needs: [totals]
    after: [big, nap]
    use: value
    with: {total: "${{ steps.totals | map(attribute='t') | sum }}", run: "${{ run.id }}"}
  - id: behind
    use: value
    with: ${{ steps.big }}
  - id: needing
    needs: [big]
    use: value
    with: 1
  - id: date
    use: value
    with: ${{ input.date }}
"""


async def test_values_pass_from_step_to_step(tmp_path: Path) -> None:
    flow = flow_of(
        tmp_path,
        EVERYTHING
        + """
output:
  book: ${{ steps.book }}
  totals: ${{ steps.totals }}
  orders: ${{ steps.orders }}
  big: ${{ steps.big.approved | default(false) }}
  note: ${{ steps.note }}
  gone: ${{ steps.big.approved }}
  date: ${{ steps.date }}
  shops: ${{ input.shops | join('+') }}
  all: ${{ input }}
""",
    )
    ran = await run(flow, date="2026-11-16")
    assert ran.output == {
        "book": {"total": 60, "run": "r"},
        "totals": [{"t": 10 * n + 10, "at": n, "same": True} for n in range(3)],
        "orders": {"items": [{"t": 1}, {"t": 2}, {"t": 3}], "hi": "hello 2026-11-16", "raw": "${{ x }}"},
        "big": False,
        "note": "none",
        "date": "2026-11-16",
        "shops": "a+b",
        "all": {"date": "2026-11-16", "shops": ["a", "b"]},
    }
    assert ran.skipped() == {"big:0": "when", "behind:0": "big:0", "needing:0": "big:0"}


async def test_a_flow_without_an_output_gives_what_no_step_takes(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, "steps: [{id: a, use: value, with: 1}, {id: b, use: value, with: '${{ steps.a + 1 }}'}]")
    assert (await run(flow)).output == {"b": 2}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("{$step: a, path: '$.list[1].x'}", 2),
        ("{$step: a, path: n}", 1),
        ("{$step: none, path: 'a.b'}", None),
        ("{$input: '$'}", {"x": {"y": [5]}}),
        ("{$input: '$.x.y[0]'}", 5),
        ("{$variable: v}", 7),
        ("{$variable: o.nothing, default: {$literal: {$step: a}}}", {"$step": "a"}),
        ("{$coalesce: [{$step: skipped}, {$step: none}, {$step: a, path: n}]}", 1),
        ("{$if: {$step: skipped}, then: 1, else: {$step: a, path: n}}", 1),
        ("{$if: '${{ steps.a.n == 1 }}', then: yes it is}", "yes it is"),
        ("[{$step: a, path: n}, '${{ steps.a.n }}']", [1, 1]),
    ],
)
async def test_the_forms_of_stepflow_are_read_as_they_are(tmp_path: Path, output: str, expected: Any) -> None:
    flow = flow_of(
        tmp_path,
        f"""
inputs: {{x: object}}
variables: {{v: 7, o: {{default: {{}}}}}}
steps:
  - {{id: a, use: value, with: {{n: 1, list: [{{x: 1}}, {{x: 2}}]}}}}
  - {{id: none, use: value, with: null}}
  - {{id: skipped, use: value, with: 1, when: "${{{{ false }}}}"}}
output: {output}
""",
    )
    assert (await run(flow, x={"y": [5]})).output == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${{ steps.a.totl }}", "5:14: ${{ steps.a.totl }} has no value: steps.a has no 'totl'; did you mean 'total'?"),
        ("${{ steps.a.total.x }}", "steps.a is no object, and has no 'x'"),
        ("${{ steps.a.list[7] + 1 }}", "steps.a is a list of 1, and has no 7"),
        ("x ${{ steps.a }}", "an expression in a text gives an object"),
        ("${{ 1 / (steps.a.total - 3) }}", "unable to calculate"),
        ("${{ input.n }}", "the input 'n' is not given; write | default(...)"),
    ],
)
async def test_an_expression_without_a_value_fails_its_step_and_says_where(
    tmp_path: Path, text: str, reason: str
) -> None:
    flow = flow_of(
        tmp_path,
        f"""
inputs: {{n: {{type: integer, required: false}}}}
steps:
  - {{id: a, use: value, with: {{total: 3, list: [1]}}}}
  - {{id: b, use: value,
     with: "{text}"}}
""",
    )
    ran = await run(flow)
    assert ran.result.status is RunStatus.FAILED
    assert "ExpressionFailed" in repr(ran.result.error)
    assert reason in str(ran.result.error) or reason.partition(": ")[2] in str(ran.result.error)


async def test_what_follows_a_failure_is_said_in_the_flow(tmp_path: Path) -> None:
    async def broken(n: int) -> int:
        raise ValueError(f"no {n}")

    text = """
inputs: {n: integer}
on_failure: continue
steps:
  - {id: a, use: broken, with: {n: 1}, on_error: {value: {instead: "${{ input.n }}"}}}
  - {id: b, use: broken, with: {n: 2}, on_error: skip, retry: {attempts: 2, initial: 0}}
  - {id: c, use: value, with: "${{ steps.b | default('c') }}"}
  - {id: d, use: broken, with: {n: 4}}
  - {id: e, use: value, with: "${{ steps.d }}"}
  - {id: f, use: value, with: "${{ steps.a.instead }}", after: [d]}
"""
    flow = flow_of(tmp_path, text, components={"broken": broken})
    ran = await run(flow, n=5)
    assert ran.result.status is RunStatus.FAILED
    assert "no 4" in str(ran.result.error)
    assert {step.path: step.status for step in ran.steps} == {
        "a:0": "failed",
        "b:0": "failed",
        "c:0": "succeeded",
        "d:0": "failed",
        "e:0": "blocked",
        "f:0": "succeeded",
    }
    assert ran["f:0"].output == 5
    assert ran["c:0"].output == "c"


async def test_maps_give_each_item_its_arguments_and_tolerate_failures(tmp_path: Path) -> None:
    def half(n: int, by: int = 2) -> float:
        if n == 3:
            raise ValueError(n)
        return n / by

    text = """
steps:
  - {id: a, map: {over: [1, 2, 3, 4], tolerate: 50%}, use: half, with: {n: "${{ item }}", by: 4}}
  - {id: b, map: {over: [1, 3], on_error: skip}, use: half, with: {n: "${{ item }}"}}
  - {id: c, map: {over: "${{ steps.a[0] }}"}, use: half, with: {n: "${{ item }}"}, on_error: {value: none}}
output: ["${{ steps.a }}", "${{ steps.b }}", "${{ steps.c }}"]
"""
    ran = await run(flow_of(tmp_path, text, components={"half": half}))
    assert ran.output == [[0.25, 0.5, None, 1.0], [0.5], "none"]
    assert problems_of(tmp_path, "steps: [{id: a, map: {over: [1]}, use: value, with: 3}]") == [
        "3:29 error F002 a map takes ${{ item }} somewhere in `with`"
    ]


async def test_flows_and_programs_run_in_flows_as_children(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(
        """
perdure: 1
name: inner
inputs: {n: integer, by: {type: integer, default: 10}}
steps:
  - {id: made, use: value, with: "${{ input.n * input.by }}"}
  - {id: never, use: value, with: 1, when: "${{ false }}"}
output: {made: "${{ steps.made }}", never: "${{ steps.never }}"}
"""
    )
    text = """
steps:
  - {id: one, use: "flow:./inner.yaml", with: {n: 3}}
  - {id: many, map: {over: [1, 2]}, use: "flow:./inner.yaml", with: {n: "${{ item }}", by: 2}}
  - {id: wrong, use: "flow:./inner.yaml", with: {n: "${{ 'x' }}"}, on_error: {value: refused}}
output: {one: "${{ steps.one }}", many: "${{ steps.many }}", wrong: "${{ steps.wrong }}"}
"""
    ran = await run(flow_of(tmp_path, text))
    assert ran.output == {"one": {"made": 30}, "many": [{"made": 2}, {"made": 4}], "wrong": "refused"}
    assert "one:0/made:0" in ran.paths()
    assert problems_of(tmp_path, "steps: [{id: a, use: 'flow:./inner.yaml', with: {m: 3}}]") == [
        "3:49 error F022 flow:./inner.yaml needs 'n'",
        "3:50 error F022 flow:./inner.yaml takes no argument 'm'; there are by, n",
    ]
    assert problems_of(tmp_path, "steps: [{id: a, use: 'flow:./inner.yaml', with: {n: x, by: 2.5}}]") == [
        '3:53 error F022 the argument n of flow:./inner.yaml: "x" is not of type "integer"',
        '3:60 error F022 the argument by of flow:./inner.yaml: 2.5 is not of type "integer"',
    ]
    (tmp_path / "inner.yaml").write_text("perdure: 1\nname: inner\nsteps: [{id: a, use: 'flow:./flow.yaml'}]")
    assert "this flow contains itself" in problems_of(tmp_path, "steps: [{id: a, use: 'flow:./inner.yaml'}]")[0]


async def test_signals_and_approvals_are_waited_for_and_checked(tmp_path: Path) -> None:
    text = """
schemas:
  Decision: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
steps:
  - {id: paid, use: signal, with: {name: payment}}
  - id: decision
    use: approval
    with: {request: {amount: "${{ steps.paid.amount }}"}, schema: {$ref: "#/schemas/Decision"}, approvers: [ann]}
    timeout: 3d
  - {id: late, use: signal, with: {name: never}, timeout: 1ms, on_timeout: {value: nothing came}}
  - {id: failed, use: signal, with: {name: never}, timeout: 1ms, on_error: skip}
output: {ok: "${{ steps.decision.ok }}", late: "${{ steps.late }}"}
"""
    flow = flow_of(tmp_path, text)
    async with Engine("memory://", [flow]) as engine:
        run = await engine.start(flow(), id="r")
        await run.signal("payment", {"amount": 3})
        result = await run.outcome(until="rest")
        assert result.status is RunStatus.WAITING
        (question,) = await engine.approvals()
        assert question.request == {"amount": 3}
        with pytest.raises(AnswerRejected, match="ok"):
            await engine.approve("r", question.name, {"no": 1}, by="ann")
        await engine.approve("r", question.name, {"ok": True}, by="ann")
        assert await run.result() == {"ok": True, "late": "nothing came"}


async def test_inputs_are_checked_before_a_run_is_started(tmp_path: Path) -> None:
    flow = flow_of(tmp_path, EVERYTHING)
    with pytest.raises(TypeError, match="lacks 'date'"):
        _ = flow()
    with pytest.raises(TypeError, match="did you mean 'shops'"):
        _ = flow(date="2026-11-16", shop=["a"])
    async with Engine("memory://", [flow]) as engine:
        with pytest.raises(NotDecodable, match="shops"):
            _ = await engine.start(flow(date="2026-11-16", shops=[1]))
    assert flow.signature == "(date: string, shops: array = ..., note: string = ...)"


async def test_variables_of_the_environment_are_read_once_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
variables: {api: {env: FLOW_API, default: none}, must: {env: FLOW_MUST}}
steps: [{id: a, use: value, with: "${{ vars.api }}/x"}]
"""
    monkeypatch.setenv("FLOW_API", "https://a")
    monkeypatch.setenv("FLOW_MUST", "m")
    ran = await run(flow_of(tmp_path, text))
    assert ran.output == {"a": "https://a/x"}
    assert ran["vars:0"].output == {"api": "https://a", "must": "m"}
    monkeypatch.delenv("FLOW_MUST")
    ran = await run(flow_of(tmp_path, text))
    assert "set the environment variable FLOW_MUST" in str(ran.result.error)


async def test_secrets_are_names_in_the_journal_and_texts_in_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    async def send(url: Any, headers: dict[str, str], fail: bool = False) -> Any:
        seen.append((url, headers))
        if fail:
            raise ValueError(f"401 with {headers['Authorization']}")
        return {"echo": headers["Authorization"], "input": url}

    text = """
inputs: {x: object}
variables: {token: {secret: FLOW_TOKEN}}
steps:
  - {id: a, use: send, with: {url: "${{ input.x }}", headers: {Authorization: "Bearer ${{ secrets.FLOW_TOKEN }}"}}}
  - {id: b, use: send, with: {url: u, headers: {Authorization: "${{ vars.token }}"}, fail: true}, on_error: skip}
"""
    monkeypatch.setenv("FLOW_TOKEN", "s3cret-token")
    flow = flow_of(tmp_path, text, components={"send": send})
    async with Engine("memory://", [flow]) as engine:
        result = await engine.run(flow(x={"$secret": "FLOW_TOKEN"}), id="r")
        assert result.output is not None
        assert result.output["a"]["echo"] == "Bearer ***"
        journal = repr([entry async for entry in engine.follow("r")])
    assert ("Bearer s3cret-token") in [headers["Authorization"] for _, headers in seen]
    assert "s3cret-token" in [headers["Authorization"] for _, headers in seen]
    # What an input holds is data, whatever it looks like.
    assert {"$secret": "FLOW_TOKEN"} in [url for url, _ in seen]
    assert "s3cret-token" not in journal
    assert "401 with ***" in journal


async def test_functions_of_allowed_modules_are_used_with_the_options_of_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "flowshop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "totals.py").write_text(
        "from os import getcwd\nfrom perdure import Retry, step, workflow\ncalls = []\n"
        "@step(retry=Retry(attempts=2, initial=0))\n"
        "async def compute(order: int, *, by: int = 2) -> int:\n"
        "    calls.append(order)\n    if len(calls) == 1:\n        raise OSError('again')\n    return order * by\n"
        "def plain(n: int) -> int:\n    return n + 1\n"
        "@workflow\nasync def child(n: int) -> int:\n    return n + 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    text = """
steps:
  - {id: a, use: "python:flowshop.totals.compute", with: {order: 3}}
  - {id: b, use: "python:flowshop.totals.plain", with: {n: "${{ steps.a }}"}}
  - {id: c, use: "python:flowshop.totals.child", with: {n: "${{ steps.b }}"}}
output: ${{ steps.c }}
"""
    ran = await run(flow_of(tmp_path, text, python=["flowshop"]))
    assert ran.output == 9
    assert ran["a:0"].attempt == 2
    for name, word in (
        ("flowshop.totals.getcwd", "is defined in posix"),
        ("flowshop.totals.comput", "did you mean 'compute'?"),
        ("flowshopping.x", "not allowed"),
        ("flowshop.none.x", "cannot be imported"),
    ):
        found = problems_of(tmp_path, f'steps: [{{id: a, use: "python:{name}"}}]', python=["flowshop"])
        assert word in found[0]


async def test_a_run_goes_on_after_a_restart_and_does_nothing_twice(tmp_path: Path) -> None:
    calls: list[str] = []

    @step
    async def note(text: str) -> str:
        calls.append(text)
        return text

    def made() -> Flow:
        text = """
steps:
  - {id: first, use: note, with: {text: one}}
  - {id: list, map: {over: [a, b]}, use: note, with: {text: "${{ item ~ steps.first }}"}}
  - {id: wait, use: signal, after: [list], with: {name: go}}
  - {id: last, use: note, with: {text: "${{ steps.wait ~ steps.list | join }}"}}
output: ${{ steps.last }}
"""
        return flow_of(tmp_path, text, components={"note": note})

    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow := made()]) as engine:
        run = await engine.start(flow(), id="r")
        await run.outcome(until="rest")
    async with Engine(url, [made()]) as engine:
        await engine.signal("r", "go", "now ")
        assert await engine.handle("r").result() == "now aonebone"
    assert sorted(calls) == ["aone", "bone", "now aonebone", "one"]


async def test_what_works_on_runs_works_on_flows(tmp_path: Path) -> None:
    broken = [True]

    def load(n: int) -> int:
        if broken[0]:
            raise OSError("down")
        return n

    text = """
inputs: {n: integer}
steps:
  - {id: first, use: value, with: "${{ input.n + 1 }}"}
  - {id: second, use: load, with: {n: "${{ steps.first }}"}}
  - {id: other, use: value, with: "${{ input.n }}", when: "${{ input.n > 5 }}"}
  - {id: instead, use: value, with: "${{ steps.other | default(3) }}"}
  - {id: behind, use: value, with: "${{ steps.instead ~ steps.other }}"}
output: {second: "${{ steps.second }}"}
"""
    flow = flow_of(tmp_path, text, components={"load": load})
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [flow]) as engine:
        assert (await engine.run(flow(n=1), id="r")).status is RunStatus.FAILED
        broken[0] = False
        retried = await engine.retry("r")
        assert await retried.result() == {"second": 2}
        fork = await engine.fork("r", at="second:0", values={"first:0": 7})
        assert await fork.result() == {"second": 7}
        assert "first" in await engine.diagram("r")
    # A process that has only the store knows what was skipped, and why.
    async with connect(url) as client:
        steps = {step.path: step.skipped_by for step in await client.steps("r")}
        ran = dict.fromkeys(["first:0", "second:0", "instead:0"])
        assert steps == {**ran, "other:0": "when", "behind:0": "other:0"}


async def test_two_versions_of_a_flow_run_side_by_side(tmp_path: Path) -> None:
    for folder in ("old", "new"):
        (tmp_path / folder).mkdir()
    text = """
steps: [{id: wait, use: signal, with: {name: go}}, {id: a, use: value, after: [wait], with: %d}]
output: ${{ steps.a }}
"""
    old, new = flow_of(tmp_path / "old", text % 1), flow_of(tmp_path / "new", text % 2)
    url = f"sqlite:///{tmp_path}/flows.db"
    async with Engine(url, [old]) as engine:
        run = await engine.start(old(), id="r")
        await run.outcome(until="rest")
    async with Engine(url, [old, new]) as engine:
        later = await engine.start(new(), id="s")
        for id in ("r", "s"):
            await engine.signal(id, "go")
        assert await engine.handle("r").result() == 1
        assert await later.result() == 2


async def test_large_maps_give_lists(tmp_path: Path) -> None:
    text = """
steps:
  - {id: a, map: {over: "${{ input.rows }}"}, use: value, with: "${{ item }}"}
output: ${{ steps.a | length }}
"""
    flow = flow_of(tmp_path, "inputs: {rows: array}" + text)
    assert (await run(flow, rows=list(range(1200)))).output == 1200


async def test_steps_may_be_called_as_other_things_are(tmp_path: Path) -> None:
    text = """
inputs: {x: integer}
variables: {v: 2}
steps:
  - {id: input, use: value, with: "${{ input.x }}"}
  - {id: run, use: value, with: "${{ run.id }}"}
  - {id: constants, use: value, with: "${{ vars.v }}"}
  - {id: item, map: {over: [5]}, use: value, with: "${{ item }}"}
  - {id: x, use: value, with: "${{ input }}"}
output: ["${{ steps.input }}", "${{ steps.run }}", "${{ steps.constants }}", "${{ steps.item }}", "${{ steps.x }}"]
"""
    flow = flow_of(tmp_path, text)
    assert (await run(flow, x=1)).output == [1, "r", 2, [5], {"x": 1}]
    assert '["vars"]' in flow.diagram()


async def test_inputs_may_be_called_as_parameters_are(tmp_path: Path) -> None:
    text = "inputs: {self: integer, name: integer, id: integer}\nsteps: [{id: a, use: value, with: '${{ input }}'}]"
    flow = flow_of(tmp_path, text)
    given = {"self": 1, "name": 2, "id": 3}
    async with Engine("memory://", [flow]) as engine:
        assert (await engine.run(flow(**given))).output == {"a": given}
        assert (await engine.run(call("test", **given))).output == {"a": given}


async def test_another_value_runs_again_what_depends_on_it(tmp_path: Path) -> None:
    calls: list[str] = []

    def work(name: str, n: int) -> int:
        calls.append(name)
        return n

    text = """
inputs: {n: integer, m: integer}
steps:
  - {id: a, use: work, with: {name: a, n: "${{ input.n }}"}}
  - {id: b, use: work, with: {name: b, n: "${{ input.m }}"}}
  - {id: c, use: work, with: {name: c, n: "${{ steps.a + steps.b }}"}}
output: ${{ steps.c }}
"""
    flow = flow_of(tmp_path, text, components={"work": work})
    async with Engine("memory://", [flow]) as engine:
        await engine.run(flow(n=1, m=2), id="r")
        for values, expected, again in (({"n": 5}, 7, ["a", "c"]), ({"a": 9}, 11, ["c"])):
            calls.clear()
            handle = await engine.update_state("r", values)
            assert await handle.result() == expected
            assert calls == again


@pytest.mark.parametrize(
    "taken",
    [
        "${{ steps.no | tojson }}",
        "${{ steps.no | join(',') }}",
        "${{ steps.no.rows | first }}",
        "x ${{ steps.no | urlencode }}",
        "${{ [steps.no, 1] }}",
        "${{ steps.yes ~ (steps.no | hash) }}",
    ],
)
async def test_whatever_is_made_of_a_skipped_step_is_skipped_too(tmp_path: Path, taken: str) -> None:
    flow = flow_of(
        tmp_path,
        f"""
        steps:
          - {{id: yes, use: value, with: a}}
          - {{id: no, use: value, with: [1], when: "${{{{ steps.yes == 'b' }}}}"}}
          - {{id: behind, use: value, with: "{taken}"}}
          - {{id: instead, use: value, with: "${{{{ steps.no | default([]) | tojson }}}}"}}
        output: {{instead: "${{{{ steps.instead }}}}", behind: "${{{{ steps.behind | default('none') }}}}"}}
        """,
    )
    ran = await run(flow)
    assert ran.result.output == {"instead": "[]", "behind": "none"}
    assert ran.skipped() == {"no:0": "when", "behind:0": "no:0"}


async def test_a_part_that_is_not_there_fails_its_step_whatever_is_made_of_it(tmp_path: Path) -> None:
    flow = flow_of(
        tmp_path,
        """
        steps:
          - {id: a, use: value, with: {rows: 1}}
          - {id: b, use: value, with: "${{ steps.a.row | tojson }}"}
        """,
    )
    ran = await run(flow)
    assert ran.result.status is RunStatus.FAILED
    assert "did you mean 'rows'" in str(ran.result.error)


def test_a_diagram_has_the_names_that_expressions_have(tmp_path: Path) -> None:
    flow = flow_of(
        tmp_path,
        """
        steps: [{id: a, use: value, with: 1}]
        finally: [{id: b, use: value, with: "${{ run.status }} ${{ run.id }}"}]
        """,
    )
    assert '["run.status"]' in flow.diagram()
    assert '".' not in flow.diagram()
