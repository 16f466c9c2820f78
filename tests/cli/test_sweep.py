"""`perdure sweep`: what is due is done, within the limits that the module declares."""

from __future__ import annotations

import asyncio

from perdure import Engine, RunStatus, call, connect
from tests.cli.conftest import Cli


def test_a_sweep_keeps_to_the_limits_of_the_queues_that_the_module_declares(cli: Cli) -> None:
    source = cli.write("mail.py", (cli.folder / "flows.py").read_text())
    source.write_text(source.read_text() + '\nfrom perdure import Queue\n\nemails = Queue("emails", concurrency=1)\n')

    async def put() -> None:
        async with Engine(cli.url, []):
            pass
        async with connect(cli.url) as client:
            for number in range(3):
                _ = await client.start(call("nap", 1), id=f"n{number}", queue="emails")

    async def look() -> list[RunStatus]:
        async with connect(cli.url) as client:
            return sorted(run.status for run in await client.list())

    asyncio.run(put())
    ended = cli("sweep", "mail.py", "--store", cli.url, "--json")
    assert (ended.code, ended.json) == (0, {"timers": 0, "schedules": 0, "runs": 1, "more": False})
    assert asyncio.run(look()) == [RunStatus.QUEUED, RunStatus.QUEUED, RunStatus.WAITING]


def test_a_sweep_needs_a_module_with_workflows(cli: Cli) -> None:
    cli.write("empty.py", "x = 1\n")
    ended = cli("sweep", "empty.py")
    assert ended.code == 2
    assert "has no workflows" in ended.err


STORED = """
perdure: 1
name: stored
inputs: {n: integer}
steps:
  - {id: doubled, use: "python:doubling.double", with: {n: "${{ input.n }}"}}
"""


async def test_a_folder_without_files_serves_the_flows_in_the_store(cli: Cli) -> None:
    cli.write("doubling.py", "def double(n: int) -> int:\n    return 2 * n\n")
    cli.write("perdure.yaml", "flows: {python: [doubling]}\n")
    cli.write("stored.yaml", STORED).rename(cli.folder / "elsewhere.yaml")
    (cli.folder / "flows").mkdir()
    assert (await asyncio.to_thread(cli, "flow", "deploy", "elsewhere.yaml", "--store", cli.url)).code == 0
    (cli.folder / "elsewhere.yaml").unlink()
    async with connect(cli.url) as client:
        _ = await client.start(call("stored", n=21), id="r")
        swept = await asyncio.to_thread(cli, "sweep", "flows", "--store", cli.url, "--json")
        assert swept.json["runs"] == 1
        view = await client.get("r")
        assert view is not None
        assert view.output == {"doubled": 42}
