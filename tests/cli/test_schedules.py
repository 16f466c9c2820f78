"""`perdure schedules`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def shop(cli: Cli) -> Cli:
    """A store that exists."""
    assert cli("run", "flows.py:early", "--input", "1").code == 0
    return cli


def test_the_options_of_its_runs_are_given_with_a_schedule(shop: Cli) -> None:
    options = ("--queue", "q", "--tag", "team=billing", "--deadline", "15m", "--max-concurrency", "3")
    made = shop("schedules", "add", "s", "early", "--every", "1h", "--input", "[5]", *options, "--json").json
    assert (made["queue"], made["tags"], made["max_concurrency"]) == ("q", {"team": "billing"}, 3)
    assert made["deadline"] == "PT900S"
    wrong = shop("schedules", "add", "s", "early", "--every", "1h", "--deadline", "soon")
    assert (wrong.code, "--deadline 'soon' is not a duration" in wrong.err) == (2, True)


def test_a_schedule_is_made_listed_told_and_deleted(shop: Cli) -> None:
    assert "no schedules yet" in shop("schedules", "ls").err
    made = shop("schedules", "add", "daily", "flows.py:early", "--input", "[5]", "--cron", "30 2 * * *", "--json")
    assert made.code == 0
    assert (made.json["program"], made.json["cron"], made.json["input"]) == ("early", "30 2 * * *", {"number": 5})
    listed = shop("schedules", "ls").out
    assert listed.splitlines()[0].split() == ["ID", "STATUS", "PROGRAM", "FIRES", "TICKS", "NEXT"]
    assert "daily  active  early    30 2 * * *  0 fired" in listed
    assert "paused" in shop("schedules", "pause", "daily", "--reason", "too early").err
    assert shop("schedules", "ls", "--json").json["schedules"][0]["paused"] is True
    assert "resumed" in shop("schedules", "resume", "daily").err
    assert shop("schedules", "ls", "--json").json["schedules"][0]["paused"] is False
    times = shop("schedules", "next", "daily", "--json").json["next"]
    assert len(times) == 10
    assert all(time.endswith("T02:30:00Z") for time in times)
    assert len(shop("schedules", "next", "daily", "--count", "3").out.splitlines()) == 3
    run = shop("schedules", "trigger", "daily").out.strip()
    assert run.startswith("daily@")
    filled = shop("schedules", "backfill", "daily", "2020-01-01", "2020-01-03", "--json").json["runs"]
    assert filled == ["daily@2020-01-01T02:30:00Z", "daily@2020-01-02T02:30:00Z"]
    assert shop("schedules", "backfill", "daily", "2020-01-01", "2020-01-02").out == "daily@2020-01-01T02:30:00Z\n"
    assert "no tick" in shop("schedules", "backfill", "daily", "2020-01-01", "2020-01-01T01:00Z").err
    assert shop("schedules", "delete", "daily", "--json").json == {"schedule": "daily", "answer": "deleted"}
    assert shop("schedules", "ls", "--json").json == {"schedules": []}
    assert [run["program"] for run in shop("runs", "ls", "--json").json["runs"]] == ["early"]


def test_a_program_can_be_given_by_its_name_alone(shop: Cli) -> None:
    made = shop("schedules", "add", "often", "reports", "--every", "15m", "--jitter", "30", "--input", '{"day": 1}')
    assert made.code == 0
    assert "schedule 'often' of reports fires next" in made.err
    [view] = shop("schedules", "ls", "--json").json["schedules"]
    assert (view["program"], view["every"], view["jitter"], view["input"]) == ("reports", "PT900S", "PT30S", {"day": 1})
    assert datetime.fromisoformat(view["next_tick"]) > datetime.now(UTC)
    assert shop("schedules", "add", "quiet", "reports", "--every", "1d", "--pause").err.endswith("is paused\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--every", "soon"], "not a duration"),
        (["--every", "3 fortnights"], "not a duration"),
        (["--every", "-5"], "must not be negative"),
        (["--every", "0"], "more than zero"),
        (["--cron", "0 0 30 2 *"], "never fires"),
        (["--cron", "0 0 * * *", "--timezone", "Mars/Base"], "not a time zone"),
        (["--every", "60", "--overlap", "skipp"], "did you mean 'skip'"),
        (["--every", "60", "--catch-up", "most"], "none of 'skip', 'one', 'all'"),
        ([], "either --every 15m or --cron"),
    ],
)
def test_what_is_wrong_is_said_with_the_fix_and_nothing_is_made(shop: Cli, words: list[str], says: str) -> None:
    ended = shop("schedules", "add", "s", "reports", *words)
    assert ended.code == 2
    assert says in ended.err
    assert shop("schedules", "ls", "--json").json == {"schedules": []}


def test_a_schedule_that_does_not_exist_has_an_exit_code_of_its_own(shop: Cli) -> None:
    for command in (["pause"], ["resume"], ["trigger"], ["next"], ["delete"]):
        ended = shop("schedules", *command, "nothing")
        assert ended.code == 3
        assert "no schedule 'nothing'" in ended.err
    assert shop("schedules", "backfill", "nothing", "2020-01-01", "2020-01-02").code == 3
    assert shop("schedules", "backfill", "nothing", "yesterday", "2020-01-02").code == 2


def test_a_schedule_is_made_with_a_queue_for_its_runs(cli: Cli) -> None:
    cli("run", "flows.py:early", "--input", "1")
    added = cli("schedules", "add", "s", "early", "--every", "1h", "--queue", "q", "--priority", "3", "--json")
    assert (added.json["queue"], added.json["key"], added.json["priority"]) == ("q", None, 3)
    refused = cli("schedules", "add", "s", "early", "--every", "1h", "--priority", "3")
    assert "priority=3 means nothing without a queue" in refused.err
