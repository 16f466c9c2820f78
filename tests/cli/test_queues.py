"""`perdure queues ls`, and running in a queue from the command line."""

from __future__ import annotations

import asyncio

from perdure import Engine, call, connect
from tests.cli.conftest import Cli


def queue_some(cli: Cli) -> None:
    async def put() -> None:
        async with Engine(cli.url, []):
            pass
        async with connect(cli.url) as client:
            for number in range(3):
                _ = await client.start(call("nap", 1), id=f"n{number}", queue="emails", key="k", priority=number)

    asyncio.run(put())


def test_queues_are_listed_with_what_waits(cli: Cli) -> None:
    queue_some(cli)
    ended = cli("queues", "ls", "--store", cli.url)
    assert ended.code == 0
    heading, row = ended.out.splitlines()
    assert heading.split() == ["QUEUE", "QUEUED", "RUNNING", "LONGEST", "WAIT"]
    assert row.split()[:3] == ["emails", "3", "0"]
    (queue,) = cli("queues", "ls", "--store", cli.url, "--json").json["queues"]
    assert (queue["name"], queue["queued"], queue["running"]) == ("emails", 3, 0)
    assert queue["oldest"] >= 0


def test_a_run_in_a_queue_shows_its_place(cli: Cli) -> None:
    queue_some(cli)
    view = cli("runs", "show", "n2", "--store", cli.url, "--json").json
    assert (view["status"], view["queue"], view["key"], view["priority"]) == ("queued", "emails", "k", 2)


def test_a_workflow_runs_in_a_queue_that_its_module_declares(cli: Cli) -> None:
    source = cli.write("mail.py", (cli.folder / "flows.py").read_text())
    source.write_text(source.read_text() + '\nfrom perdure import Queue\n\nemails = Queue("emails", concurrency=1)\n')
    ended = cli("run", "mail.py:early", "--input", "3", "--queue", "emails", "--key", "k", "--priority", "2")
    assert (ended.code, ended.out) == (0, "3\n")


def test_a_key_without_a_queue_is_refused(cli: Cli) -> None:
    ended = cli("run", "flows.py:early", "--input", "3", "--key", "k")
    assert ended.code == 2
    assert "without a queue" in ended.err


def test_a_worker_needs_a_module_with_workflows(cli: Cli) -> None:
    cli.write("empty.py", "x = 1\n")
    ended = cli("worker", "empty.py")
    assert ended.code == 2
    assert "has no workflows" in ended.err
    assert cli("worker", "nowhere.py").code == 2
    assert "name of a queue" in cli("worker", "flows.py", "--queues", "a,").err
