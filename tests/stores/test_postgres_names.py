"""URLs and names of tables: nothing that a URL says becomes SQL, and no message shows a password."""

from __future__ import annotations

import re
from importlib import resources
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidStoreUrl
from perdure.stores.open import open_store
from perdure.stores.postgres.address import parse
from perdure.stores.postgres.names import LONGEST, MAX_BYTES, Names, check_prefix, check_schema, quoted
from perdure.stores.url import masked
from tests.stores.postgres import opened, sql

BASE = "postgresql://me:secret@127.0.0.1:1/db"
AWKWARD = st.text(st.sampled_from("\"'; -\\()$ä\0\n.%aZ_9"), max_size=30)


@given(st.one_of(st.text(max_size=80), AWKWARD, st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)))
def test_a_name_is_refused_or_is_one_identifier_and_nothing_else(name: str) -> None:
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) is not None
    assert (check_prefix(name) is None) is (plain and len(name) <= MAX_BYTES - LONGEST)
    assert (check_schema(name) is None) is (plain and len(name) <= MAX_BYTES)
    if check_prefix(name) is None:
        filled = Names(name).fill("perdure_runs join perdure_heads on perdure_runs.status = 'x'")
        assert filled == f'"{name}runs" join "{name}heads" on "{name}runs".status = \'x\''


@given(AWKWARD)
def test_a_quoted_name_ends_where_it_says(name: str) -> None:
    inner = quoted(name)[1:-1]
    assert inner.replace('""', "").count('"') == 0
    assert inner.replace('""', '"') == name


@given(AWKWARD.filter(lambda name: check_prefix(name) is not None))
def test_a_url_with_a_name_that_is_none_is_refused_before_anything_is_sent(name: str) -> None:
    for option in ("schema", "table_prefix"):
        if option == "schema" and check_schema(name) is None:
            continue
        with pytest.raises(InvalidStoreUrl) as caught:
            open_store(f"{BASE}?{option}={quote(name, safe='')}")
        assert option in str(caught.value)
        assert "secret" not in str(caught.value)


def test_every_name_of_the_migrations_fits_behind_the_longest_prefix() -> None:
    folder = resources.files("perdure.stores.postgres") / "migrations"
    text = "".join(file.read_text() for file in folder.iterdir() if file.name.endswith(".sql"))
    assert max(len(name) for name in re.findall(r"\bperdure_([a-z_]+)\b", text)) == LONGEST


@given(st.text(st.characters(codec="ascii", min_codepoint=33), min_size=4, max_size=12))
def test_a_password_is_not_shown_however_it_is_written(password: str) -> None:
    hidden = f"Q{password}Q"
    for url in (f"postgresql://me:{hidden}@host:5432/db", f"postgresql://host/db?password={quote(hidden, safe='')}"):
        shown = masked(url)
        assert hidden not in shown
        assert quote(hidden, safe="") not in shown
        assert "host" in shown


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("pool=0", "pool='0'"),
        ("pool=many", "pool='many'"),
        ("schema", "options such as"),
        ("table_prefix=" + "p" * 60, "at most"),
        ("table_prefix=x%22;drop+table+users;--", "letters, digits and underscores"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: str, says: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=re.escape(says)) as caught:
        open_store(f"{BASE}?{options}")
    assert "secret" not in str(caught.value)


def test_options_of_ours_are_not_sent_to_the_server() -> None:
    address = parse(f"{BASE}?schema=flows&table_prefix=p_&pool=7&application_name=me")
    assert (address.schema, address.names.prefix, address.pool) == ("flows", "p_", 7)
    assert address.dsn == f"{BASE}?application_name=me"


async def test_stores_of_different_prefixes_and_schemas_share_a_database_and_nothing_else(postgres_url: str) -> None:
    await sql(postgres_url, 'create schema "Flows"')
    urls = [postgres_url, f"{postgres_url}?table_prefix=Select_", f"{postgres_url}?schema=Flows"]
    for number, url in enumerate(urls):
        async with opened(url) as store:
            assert list(await store.leases.live("", 0.0)) == []
            await store.leases.acquire(f"k{number}", "me", 10.0, 100.0)
            assert await store.blobs.get(await store.blobs.put(b"x")) == b"x"
    tables = await sql(postgres_url, "select schemaname, tablename from pg_tables where tablename like '%runs'")
    assert sorted(map(tuple, tables)) == [
        ("Flows", "perdure_runs"),
        ("public", "Select_runs"),
        ("public", "perdure_runs"),
    ]
