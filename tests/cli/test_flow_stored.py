"""`perdure flow deploy`."""

from __future__ import annotations

import json

from tests.cli.conftest import Cli
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
    assert "is no flow: its name ends with" in cli("flow", "deploy", "flows.py").err
