"""A column of a run is described once: the tables, views and statements of every database follow from that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import apsw
import msgspec
import pytest
from msgspec import Raw

from perdure.kernel.events import RunStatus
from perdure.kernel.projection import COLUMNS, Changes, Kind, RunRow
from perdure.kernel.values.failures import Failure
from perdure.stores.postgres import appends, upkeep
from perdure.stores.postgres import rows as postgres
from perdure.stores.redis.scripts import APPEND, Index
from perdure.stores.sqlite import journal as sqlite
from perdure.stores.sqlite.store import SqliteStore
from perdure.stores.sqlshared import rows as sql
from tests.stores.postgres import opened
from tests.stores.postgres import sql as ask

# As `perdure_v_runs` calls them, where that is something else; and what it does not show.
SHOWN = {"queue_key": ["key"], "wake_at": ["due_at"], "error": ["error_type", "error_message"]}
NOT_SHOWN = {"not_before", "began_at"}
# A row with every field set, and its checksum in databases that exist.
FULL = RunRow(
    *("r2/x:0", "i\\d", 2, "p", "2", RunStatus.FAILED, "w1", 3, 4.25, 1.5, 9.0, {"k": "v"}, Raw(b"[1]"), "bb"),
    *(Raw(b'{"a":1}'), "cc", Failure("E", "m\0"), "why \\ \0", "par", "root", "q", "k", 7, 8.5, 9.5, "r3", 4, "r0"),
)
BARE = RunRow(
    *("r1", "é", 1, "p", "2", RunStatus.QUEUED, None, 0, None, 1.5, None, {}, Raw(b"[1]"), ""),
    *(Raw(b"null"), "", None, ""),
)


def kinds(columns: list[tuple[str, str, bool]], types: dict[str, set[Kind]]) -> list[tuple[str, set[Kind], bool]]:
    return [(name, types[of], nullable) for name, of, nullable in columns]


def fits(found: list[tuple[str, set[Kind], bool]]) -> None:
    *rows, (last, _, _) = found
    assert last == "checksum"
    assert [(name, nullable) for name, _, nullable in rows] == [(one.name, one.nullable) for one in COLUMNS]
    assert [one.name for one, (_, of, _) in zip(COLUMNS, rows, strict=True) if one.kind not in of] == []


def shows(columns: list[str]) -> None:
    wanted = [shown for one in COLUMNS if one.name not in NOT_SHOWN for shown in SHOWN.get(one.name, [one.name])]
    assert set(wanted) <= set(columns)


def test_columns_are_the_fields_of_a_row_in_their_order() -> None:
    hints = get_type_hints(RunRow)
    assert [one.name for one in COLUMNS] == [field.name for field in msgspec.structs.fields(RunRow)] == list(hints)
    assert [one.nullable for one in COLUMNS] == [NoneType in get_args(hint) for hint in hints.values()]


def test_the_table_of_sqlite_has_these_columns(store: SqliteStore, path: Path) -> None:
    db = apsw.Connection(str(path))
    found = list(db.execute("select name, type, not \"notnull\" and not pk from pragma_table_info('perdure_runs')"))
    types = {"TEXT": {Kind.TEXT, Kind.JSON}, "INTEGER": {Kind.INTEGER}, "REAL": {Kind.TIME}}
    fits(kinds([(name, of.upper(), bool(nullable)) for name, of, nullable in found], types))
    shows([name for (name,) in db.execute("select name from pragma_table_info('perdure_v_runs')")])
    db.close()


async def test_the_table_of_postgres_has_these_columns(postgres_url: str) -> None:
    async with opened(postgres_url):
        columns = await ask(
            postgres_url,
            "select table_name, column_name, data_type, is_nullable = 'YES' from information_schema.columns "
            "where table_name in ('perdure_runs', 'perdure_v_runs') order by ordinal_position",
        )
    types = {"text": {Kind.TEXT, Kind.JSON}, "bigint": {Kind.INTEGER}, "double precision": {Kind.TIME}}
    fits(kinds([(name, of, null) for table, name, of, null in columns if table == "perdure_runs"], types))
    shows([name for table, name, _, _ in columns if table == "perdure_v_runs"])


@pytest.mark.parametrize("row", [FULL, BARE])
def test_a_row_survives_the_way_through_sql(row: RunRow) -> None:
    stored = [value.encode() if isinstance(value, str) else value for value in sql.run_bindings(row)]
    assert sql.run_row(stored) == row
    assert len(stored) == sql.WIDTH == len(COLUMNS) + 1


def test_checksums_are_those_that_databases_hold() -> None:
    assert [sql.run_bindings(row)[-1] for row in (FULL, BARE)] == [3949860443, 4223631413]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_no_column_can_change_unnoticed(column: Any) -> None:
    stored: list[Any] = [value.encode() if isinstance(value, str) else value for value in sql.run_bindings(FULL)]
    value = stored[sql.position(column.name)]
    stored[sql.position(column.name)] = value + 1 if isinstance(value, int | float) else b" " + value
    assert not isinstance(sql.run_row_or_damage(stored), RunRow)


def test_statements_write_what_the_description_says_can_change() -> None:
    changing = {one.name for one in COLUMNS if one.changes in (Changes.IN_ROOTS, Changes.IN_ALL)}
    in_child = {one.name for one in COLUMNS if one.changes is Changes.IN_ALL}
    with_input = {one.name for one in COLUMNS if one.changes is Changes.WITH_INPUT}
    assert assigned(sqlite._UPDATE_RUN) == changing | {"checksum"}
    assert assigned(sqlite._REPLACE_INPUT) == with_input | {"checksum"}
    assert assigned(sqlite._PUT_CHILD) == in_child | {"checksum"}
    assert assigned(part(appends.GROUP, "changed as (", "from wanted")) == changing | with_input | {"checksum"}
    assert assigned(part(appends.GROUP, "do update", "), uses as")) == in_child | {"checksum"}
    for statement in (postgres.RUN, appends.GROUP, upkeep._INSERT_ROWS, sqlite.INSERT_RUN, sql.RUN):
        assert [one.name for one in COLUMNS if one.name not in statement] == []
        assert "<" not in statement.replace("<>", "")


def part(statement: str, start: str, end: str) -> str:
    return statement[statement.index(start) :].partition(end)[0]


def assigned(statement: str) -> set[str]:
    changes = statement.partition(" set ")[2].partition(" where ")[0]
    return {change.partition(" = ")[0].strip() for change in changes.split(", ")}


# In a process of its own: the statements are made when their modules are imported.
ONE_MORE = """
from typing import Annotated
import apsw
from perdure.kernel import projection
from perdure.kernel.projection import Changes, RunRow, columns_of

class Wider(RunRow, frozen=True):
    colour: Annotated[str, Changes.IN_ALL] = ""

projection.RunRow, projection.COLUMNS = Wider, columns_of(Wider)

from perdure.stores.postgres import appends, rows, upkeep
from perdure.stores.sqlite import journal
from perdure.stores.sqlshared import rows as sql
from tests.stores.test_columns import FULL, assigned

row = Wider(*(getattr(FULL, name) for name in RunRow.__struct_fields__), "red")
bindings = sql.run_bindings(row)
db = apsw.Connection(":memory:")
db.execute("create table perdure_runs (" + ", ".join(sql.TABLE) + ", primary key (run_id))")
db.execute(journal.INSERT_RUN, bindings)
[stored] = db.execute(sql.RUN)
assert sql.run_row(stored) == row
db.execute("update perdure_runs set colour = 'blue'")
assert not isinstance(sql.run_row_or_damage(next(iter(db.execute(sql.RUN)))), Wider)
for changes in (journal._UPDATE_RUN, journal._PUT_CHILD):
    assert "colour" in assigned(changes)
for statement in (rows.RUN, rows.RUN_AND_HEAD, upkeep._INSERT_ROWS):
    assert "colour" in statement
assert appends.GROUP.count("colour") == 9, appends.GROUP.count("colour")
assert f"${18 + len(sql.TABLE)}::text <> ''" in appends.GROUP
"""


def test_a_column_more_is_one_line() -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", ONE_MORE], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_scripts_of_redis_know_the_places_of_an_index() -> None:
    first = APPEND.text.decode().partition("\n")[0]
    names, places = first.removeprefix("local ").split(" = ")
    assert names.lower().split(", ") == [field.name for field in msgspec.structs.fields(Index)]
    assert places.split(", ") == [str(place + 1) for place in range(len(msgspec.structs.fields(Index)))]
