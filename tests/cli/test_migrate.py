"""`perdure migrate`: what it says and does."""

from __future__ import annotations

import apsw

from perdure.stores.sqlite.migrating import MIGRATIONS
from tests.cli.conftest import Cli

NAMES = [one.name for one in MIGRATIONS]


def test_a_store_is_brought_up_to_date_once(cli: Cli) -> None:
    ended = cli("migrate", "--store", cli.url)
    assert (ended.code, ended.out.splitlines()) == (0, [f"{name} applied" for name in NAMES])
    again = cli("migrate", "--store", cli.url)
    assert (again.code, again.out) == (0, "")
    assert "up to date" in again.err
    assert cli("migrate", "--store", cli.url, "--json").json == {"dry_run": False, "applied": []}


def test_the_status_tells_what_is_pending(cli: Cli) -> None:
    pending = cli("migrate", "--status", "--store", cli.url, "--json")
    assert pending.code == 1
    assert [one["name"] for one in pending.json["pending"]] == NAMES
    assert cli("migrate", "--store", cli.url).code == 0
    ended = cli("migrate", "--status", "--store", cli.url)
    assert ended.code == 0
    assert [line.split()[1] for line in ended.out.splitlines()[1:]] == NAMES
    document = cli("migrate", "--status", "--store", cli.url, "--json").json
    assert document["pending"] == []
    assert [one["checksum"] for one in document["applied"]] == [one.checksum for one in MIGRATIONS]


def test_the_sql_can_be_applied_by_hand(cli: Cli) -> None:
    script = cli("migrate", "--sql", "--store", cli.url).out
    db = apsw.Connection(cli.url.removeprefix("sqlite:///"))
    db.execute(script)
    db.close()
    assert cli("migrate", "--status", "--store", cli.url).code == 0
    again = cli("migrate", "--sql", "--store", cli.url)
    assert again.out == ""
    assert "nothing to apply" in again.err


def test_a_dry_run_says_what_would_happen(cli: Cli) -> None:
    ended = cli("migrate", "--dry-run", "--store", cli.url)
    assert (ended.code, ended.out.splitlines()) == (0, [f"{name} would be applied" for name in NAMES])
    assert cli("migrate", "--status", "--store", cli.url).code == 1


def test_a_store_without_a_schema_says_so(cli: Cli) -> None:
    ended = cli("migrate", "--store", "memory://")
    assert ended.code == 0
    assert "memory stores have no schema: there is nothing to migrate" in ended.err
    assert cli("migrate", "--json", "--store", "memory://").json == {"applied": [], "pending": []}


def test_one_question_at_a_time(cli: Cli) -> None:
    ended = cli("migrate", "--status", "--sql", "--store", cli.url)
    assert ended.code == 2
    assert "give one of them" in ended.err


def test_a_store_that_cannot_be_used_is_told_as_ever(cli: Cli) -> None:
    cli.write("notes.db", "no database at all")
    ended = cli("migrate", "--store", "sqlite:///notes.db")
    assert ended.code == 4
    assert "it is not an SQLite database" in ended.err
