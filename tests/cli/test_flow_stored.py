"""`perdure flow deploy`, `ls`, `show`, `diff` and `migrate`."""

from __future__ import annotations

import asyncio
import json

from perdure import Engine
from perdure.flow import load_flow
from tests.cli.conftest import Cli, Ended
from tests.flow.test_schedules import BODY, TWO
from tests.flow.writing import HEAD


def test_deploy_stores_all_flows_or_none(cli: Cli) -> None:
    (cli.folder / "flows").mkdir()
    cli.write("flows/a.yaml", HEAD + BODY + TWO)
    cli.write("flows/b.json", json.dumps({"perdure": 1, "name": "b", "steps": [{"id": "a", "use": "value"}]}))
    wrong = cli.write("wrong.yaml", HEAD + "steps: []\n")
    refused = cli("flow", "deploy", "flows", str(wrong), "--store", cli.url)
    assert (refused.code, "wrong.yaml:3:8 error F002" in refused.err) == (2, True)
    assert not (cli.folder / "perdure.db").exists()
    ended = cli("flow", "deploy", "flows", "--store", cli.url)
    assert ended.code == 0
    assert ended.out.splitlines()[0].startswith("test@")
    assert "schedule test.early fires next" in ended.out
    assert "schedule test.often is paused" in ended.out
    again = cli("flow", "deploy", "flows", "--store", cli.url, "--json").json["flows"]
    assert [(one["name"], len(one["schedules"]), one["deleted"]) for one in again] == [("test", 2, []), ("b", 0, [])]
    cli.write("flows/a.yaml", HEAD + BODY)
    assert "schedule test.often deleted" in cli("flow", "deploy", "flows", "--store", cli.url).out
    cli.write("flows/c.yaml", HEAD + BODY)
    assert "are flows of the same name, test" in cli("flow", "deploy", "flows", "--store", cli.url).err
    assert "is not a flow: its name ends with" in cli("flow", "deploy", "flows.py").err


GREET = """
perdure: 1
name: greet
description: says hello
inputs: {name: string}
steps:
  - {id: hello, use: value, with: "hello ${{ input.name }}"}
  - {id: ask, use: approval, after: [hello]}
  - {id: end, use: value, with: "${{ steps.hello }} ${{ steps.ask }}"}
  - {id: page, use: "flow:./page.yaml", after: [ask]}
"""
PAGE = "perdure: 1\nname: page\nsteps: [{id: a, use: value, with: 1}]\n"


async def test_versions_of_a_flow_are_shown_compared_and_moved_between(cli: Cli) -> None:
    def run(*words: str) -> Ended:
        return cli("flow", *words, "--store", cli.url)

    cli.write("page.yaml", PAGE)
    old = load_flow(cli.write("greet.yaml", GREET), python=())
    async with Engine(cli.url, [old]) as engine:
        for id in ("r", "s"):
            await engine.run(old(name="Ann"), id=id)
        await engine.run(old.override({"end": {"with": "x ${{ steps.ask }}"}})(name="Bob"), id="other")
    cli.write("page.yaml", PAGE.replace("with: 1", "with: 2"))
    cli.write(
        "new.yaml", GREET.replace("says hello", "greets").replace('"${{ steps.hello }} $', '"${{ steps.hello }}, $')
    )
    cli.write("misfit.yaml", GREET.replace("hello ${{", "hi ${{"))

    def look() -> None:
        assert run("ls", "--json").json["flows"][0]["version"] == old.version
        assert run("show", "r").out.startswith("perdure: 1\nname: greet\ninputs:")
        assert "description" not in run("show", f"greet@{old.version}").out
        shown = run("show", "other")
        assert "with: x ${{ steps.ask }}" in shown.out
        assert "with overrides of end" in shown.err
        assert run("show", "other", "--json").json["overrides"] == [{"end": {"with": "x ${{ steps.ask }}"}}]
        assert (run("show", "grete").code, run("show", "none.yaml").code) == (2, 2)
        assert (run("diff", "r", "greet").code, run("diff", "r", "greet").out) == (0, "")
        different = run("diff", "r", "new.yaml")
        assert different.code == 1
        assert different.out.splitlines() == [
            'steps.end.with changed: "${{ steps.hello }} ${{ steps.ask }}" → "${{ steps.hello }}, ${{ steps.ask }}"',
            "flow:./page.yaml steps.a.with changed: 1 → 2",
        ]
        (first, second) = run("diff", "r", "new.yaml", "--json").json["differences"]
        assert (first["flow"], first["path"], second["before"], second["after"]) == ("", "steps.end.with", 1, 2)

    def move() -> None:
        checked = run("check", "misfit.yaml", "new.yaml", "--json")
        assert checked.code == 1
        assert sorted((one["id"], bool(one["reason"])) for one in checked.json["runs"]) == [
            ("other", False),
            ("other", True),
            ("r", False),
            ("r", True),
            ("s", False),
            ("s", True),
        ]
        assert run("check", "new.yaml").code == 0
        said = run("check", "misfit.yaml").out
        assert "does not fit: The inputs of the step hello have changed." in said
        refused = run("migrate", "r", "--to", "misfit.yaml")
        assert (refused.code, 'value: was "hello Ann", now "hi Ann"' in refused.err) == (2, True)
        assert run("migrate", "s", "--to", "misfit.yaml", "--before", "hello:0", "--dry-run").out == "hello:0\n"
        moved = run("migrate", "r", "--to", "new.yaml", "--json").json
        assert (moved["id"], moved["again"]) == ("r", [])
        assert "continues with version" in run("migrate", "s", "--to", "misfit.yaml", "--before", "hello:0").err
        assert run("diff", "r", "new.yaml").code == 0
        assert run("migrate", "none", "--to", "new.yaml").code == 3

    await asyncio.to_thread(look)
    await asyncio.to_thread(move)
    async with Engine(cli.url) as engine:
        for id in "rs":
            while not (await engine.get(id)).waits:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            await engine.approve(id, "ask", "!")
        assert await engine.handle("r").result() == {"end": "hello Ann, !", "page": {"a": 2}}
        assert await engine.handle("s").result() == {"end": "hi Ann !", "page": {"a": 2}}
