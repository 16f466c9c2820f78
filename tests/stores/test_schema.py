"""Migrations as numbered files: what a database needs, whom it shuts out, and what must not have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import SchemaMismatch
from perdure.stores.sqlshared.schema import Applied, Migration, load_migrations, migration, pending

FIRST = migration("0001_first.sql", "create table a (b);")
SECOND = migration("0002_second.sql", "-- works with: 1\nalter table a add column c;")
THIRD = migration("0003_third.sql", "drop table a;")
KNOWN = [FIRST, SECOND, THIRD]


def applied(*migrations: Migration) -> list[Applied]:
    return [Applied(one.number, one.name, one.checksum, one.works_with) for one in migrations]


def test_a_file_says_its_number_name_and_whom_it_works_with() -> None:
    assert (SECOND.number, SECOND.name, SECOND.works_with) == (2, "0002_second", 1)
    assert THIRD.works_with == 3, "a migration that does not say so shuts older code out"
    assert FIRST.checksum != SECOND.checksum


def test_files_are_read_in_order(tmp_path: Path) -> None:
    for one in (THIRD, FIRST, SECOND):
        (tmp_path / f"{one.name}.sql").write_text(one.sql)
    (tmp_path / "notes.txt").write_text("no migration")
    assert load_migrations(tmp_path) == KNOWN


def test_a_number_that_is_missing_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "0002_second.sql").write_text(SECOND.sql)
    with pytest.raises(AssertionError, match="0002"):
        load_migrations(tmp_path)


@pytest.mark.parametrize("had", range(4))
def test_a_database_needs_what_it_does_not_have(had: int) -> None:
    assert pending("db", applied(*KNOWN[:had]), KNOWN) == KNOWN[had:]


def test_a_newer_database_that_works_with_this_code_needs_nothing() -> None:
    assert pending("db", applied(FIRST, SECOND), [FIRST]) == []


def test_a_newer_database_that_shuts_this_code_out_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=r"schema 3.*works with schema 2.*upgrade perdure"):
        pending("db", applied(*KNOWN), [FIRST, SECOND])
    with pytest.raises(SchemaMismatch):
        pending("db", applied(*KNOWN), [FIRST])


def test_a_migration_that_was_changed_afterwards_is_refused() -> None:
    other = migration("0002_second.sql", SECOND.sql + " -- and more")
    with pytest.raises(
        SchemaMismatch, match="migration 0002_second is not the one that this version of perdure has under that number"
    ):
        pending("db", applied(FIRST, other), KNOWN)


def test_a_list_of_migrations_with_gaps_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="gaps"):
        pending("db", applied(FIRST, THIRD), KNOWN)
