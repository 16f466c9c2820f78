"""A worker serves changed files of flows as new versions, and keeps what it had where a file is wrong."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from perdure import Engine, call
from perdure.cli.flow_watch import FlowFiles
from perdure.cli.targets import load
from tests.cli.conftest import Cli

FLOW = "perdure: 1\nname: {name}\nsteps: [{{id: a, use: {use}, with: {text}}}]\n"


async def test_a_changed_file_is_a_new_version_for_what_starts_from_now_on(cli: Cli) -> None:
    (cli.folder / "flows").mkdir()

    def write(name: str, use: str, text: str) -> None:
        # Of another size each time: the clock of the files may be coarse.
        cli.write(f"flows/{name}.yaml", FLOW.format(name=name, use=use, text=text))

    write("one", "value", "first")
    write("two", '"flow:./one.yaml"', "{}")
    target = load("flows")
    files = FlowFiles("flows", target.programs.values())
    async with Engine("memory://", target.programs.values()) as engine:
        waits = Path("flows/one.yaml")
        assert files.changed() == []
        write("one", "approval", "{request: question}")
        changed = files.changed()
        assert sorted(flow.name for flow in changed) == ["one", "two"], "a flow in which it is has changed, too"
        for flow in changed:
            await engine.serve_flow(flow)
        asked = await engine.run(call("one"), id="asked")
        assert asked.interrupts
        write("one", "value", "the third")
        write("three", "value", "new")
        for flow in files.changed():
            await engine.serve_flow(flow)
        assert (await engine.run(call("one"))).output == {"a": "the third"}
        assert (await engine.run(call("two"))).output == {"a": {"a": "the third"}}
        assert (await engine.run(call("three"))).output == {"a": "new"}
        # A run in progress keeps its version, and what was served before comes back.
        await engine.approve("asked", "a", "yes")
        assert await engine.handle("asked").result() == {"a": "yes"}
        write("one", "value", "first")
        for flow in files.changed():
            await engine.serve_flow(flow)
        assert (await engine.run(call("one"))).output == {"a": "first"}
        assert (await engine.get_flow("one")).version == target.programs["one.yaml"].version
        assert waits.exists()


def test_a_file_that_is_wrong_or_gone_leaves_its_flow_as_it_was(cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    path = cli.write("one.yaml", FLOW.format(name="one", use="value", text="first"))
    files = FlowFiles("one.yaml", load("one.yaml").programs.values())
    path.write_text("perdure: 1\nname: one\nsteps: [{id: a, use: valu}]\n")
    with caplog.at_level(logging.ERROR, "perdure"):
        assert files.changed() == []
    assert "one.yaml:3:22 error F020" in caplog.text
    path.unlink()
    assert files.changed() == []
    path.write_text(FLOW.format(name="one", use="value", text="another one"))
    assert [flow.name for flow in files.changed()] == ["one"]
    assert files.changed() == []
