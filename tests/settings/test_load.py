"""Settings: where they come from, what goes over what, and what is refused, with its line and what was meant."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import (
    Engine,
    InvalidSettings,
    Limits,
    Queue,
    Rate,
    Recovery,
    UsageError,
    blocking,
    load_settings,
    workflow,
)
from perdure.config import Retention
from perdure.settings.files import Source, read_file
from perdure.settings.keys import KEYS, Kind, read_section
from perdure.settings.load import Settings, variable_names

STEPFLOW = """\
storageConfig:
  type: sqlite
  databaseUrl: "sqlite:flows.db?mode=rwc"
  autoMigrate: true
  maxConnections: 10
leaseManager:
  type: etcd
  endpoints:
    - "http://etcd-1:2379"
    - "http://etcd-2:2379"
recovery:
  enabled: true
  checkIntervalSecs: 15
  maxStartupRecovery: 50
  maxClaimsPerCheck: 5
"""
OURS = """\
store: postgresql://flows@db/flows
leases: etcd://etcd-1:2379/flows
name: worker-1
module: shop.flows
durability: relaxed
max_concurrency: 50
serves: [emails, reports]
recovery:
  enabled: false
  check_interval: 5m
  max_startup: 7
  max_claims: 3
  lease: 12.5
  grace: 2
  quarantine: 4
  snapshot: 0
limits:
  blob: 1000
  payload: 2000
  history: 3000
retention:
  older_than: 30d
  statuses: [completed, failed]
  every: 1h
  archive: old
queues:
  emails:
    concurrency: 5
    per_key: 1
    rate: {count: 10, per: 1m}
  reports:
"""
TOML = """\
[project]
name = "shop"

[tool.perdure]
store = "postgresql://flows@db/flows"
leases = "etcd://etcd-1:2379/flows"
name = "worker-1"
module = "shop.flows"
durability = "relaxed"
max_concurrency = 50
serves = ["emails", "reports"]

[tool.perdure.recovery]
enabled = false
check_interval = "5m"
max_startup = 7
max_claims = 3
lease = 12.5
grace = 2
quarantine = 4
snapshot = 0

[tool.perdure.limits]
blob = 1000
payload = 2000
history = 3000

[tool.perdure.retention]
older_than = "30d"
statuses = ["completed", "failed"]
every = "1h"
archive = "old"

[tool.perdure.queues]
emails = { concurrency = 5, per_key = 1, rate = { count = 10, per = "1m" } }
reports = {}
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with nothing in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(text: str, environment: dict[str, str] | None = None, file: str = "perdure.yaml") -> Settings:
    Path(file).write_text(text, encoding="utf-8")
    return load_settings(environment=environment or {})


def refused(text: str, environment: dict[str, str] | None = None, file: str = "perdure.yaml") -> str:
    with pytest.raises(InvalidSettings) as caught:
        loaded(text, environment, file)
    assert isinstance(caught.value, UsageError)
    return str(caught.value)


# --- what files say ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "file"), [(OURS, "perdure.yaml"), (OURS, "perdure.yml"), (TOML, "pyproject.toml")])
def test_every_setting_is_read_from_yaml_and_from_toml(text: str, file: str) -> None:
    assert loaded(text, file=file) == Settings(
        store="postgresql://flows@db/flows",
        leases="etcd://etcd-1:2379/flows",
        name="worker-1",
        module="shop.flows",
        durability="relaxed",
        max_concurrency=50,
        serves=("emails", "reports"),
        recovery=Recovery(False, 300.0, 7, 3, 12.5, 2.0, 4, 0),
        limits=Limits(1000, 2000, 3000),
        retention=Retention(30 * 86400.0, ("completed", "failed"), 3600.0, "old"),
        queues=(Queue("emails", 5, 1, Rate(10, 60.0)), Queue("reports")),
        source=file,
    )


def test_the_names_of_stepflows_files_are_read() -> None:
    found = loaded(STEPFLOW)
    assert found.store == "sqlite:///flows.db?pool=10"
    assert found.leases == "etcd://etcd-1:2379,etcd-2:2379"
    assert found.recovery == Recovery(True, 15.0, 50, 5)


@pytest.mark.parametrize(
    ("kind", "url", "store"),
    [
        ("sqlite", "sqlite:/var/lib/flows.db?mode=rwc", "sqlite:////var/lib/flows.db?pool=4"),
        ("sqlite", "sqlite:///flows.db", "sqlite:///flows.db?pool=4"),
        ("postgres", "postgres://db/flows?schema=x", "postgres://db/flows?schema=x&pool=4"),
        ("redis", "rediss://cache:6379/1", "rediss://cache:6379/1?pool=4"),
    ],
)
def test_a_store_of_stepflows_files_is_one_of_ours(kind: str, url: str | None, store: str) -> None:
    lines = ["storageConfig:", f"  type: {kind}", "  maxConnections: 4"]
    assert loaded("\n".join(lines + ([f"  databaseUrl: '{url}'"] if url else []))).store == store


def test_stores_of_stepflows_files_that_have_no_options() -> None:
    assert loaded("storageConfig: {type: inMemory}").store == "memory://"
    assert loaded("storageConfig: {type: sqlite, databaseUrl: 'sqlite::memory:'}").store == "memory://"
    assert loaded("storageConfig: {type: file, databaseUrl: 'file:///flows'}").store == "file:///flows"


@pytest.mark.parametrize(
    ("kind", "url", "migrate", "store"),
    [
        ("sqlite", "sqlite:flows.db?mode=rwc", "true", "sqlite:///flows.db"),
        ("sqlite", "sqlite:flows.db?mode=rw", "false", "sqlite:///flows.db?mode=rw&migrate=false"),
        ("postgres", "postgres://db/flows", "true", "postgres://db/flows?migrate=true"),
        ("postgres", "postgres://db/flows?pool=2", "false", "postgres://db/flows?pool=2&migrate=false"),
    ],
)
def test_auto_migrate_is_an_option_of_the_store(kind: str, url: str, migrate: str, store: str) -> None:
    assert loaded(f"storageConfig: {{type: {kind}, databaseUrl: '{url}', autoMigrate: {migrate}}}").store == store


def test_leases_of_stepflows_files_are_ours() -> None:
    assert loaded("leaseManager: {type: none}").leases == "none"
    assert loaded("leaseManager: {type: store}").leases is None
    text = (
        "leaseManager:\n  type: etcd\n  endpoints: [https://a:1, https://b]\n  prefix: x y\n  user: u@\n"
        "  password: p/w\n  ca: /etc/ca.pem\n  cert: c.pem\n  key: k.pem\n"
    )
    assert loaded(text).leases == "etcds://u%40:p%2Fw@a:1,b/x%20y?ca=/etc/ca.pem&cert=c.pem&key=k.pem"


def test_an_empty_file_sets_nothing() -> None:
    assert loaded("").options() == {}
    assert loaded("# nothing\nrecovery:\n").options() == {"recovery": Recovery()}


def test_a_file_is_looked_for_and_may_be_named(place: Path) -> None:
    assert load_settings(environment={}) == Settings()
    (place / "pyproject.toml").write_text("[tool.other]\nx = 1\n# perdure\n")
    assert load_settings(environment={}) == Settings()
    (place / "other.toml").write_text("[tool.perdure]\nname = 'other'\n")
    assert load_settings(place / "other.toml", environment={}).name == "other"
    assert load_settings(environment={"PERDURE_CONFIG": "other.toml"}).name == "other"
    (place / "perdure.yaml").write_text("name: here")
    assert load_settings(environment={}).name == "here"
    assert load_settings("other.toml", environment={}).name == "other"
    (place / "pyproject.toml").write_text("[tool.perdure]\n")
    with pytest.raises(InvalidSettings, match=r"there are settings in \[tool.perdure\] in pyproject.toml too"):
        load_settings(environment={})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("none.yaml", None, "there is no such file (the current directory is"),
        ("x.json", b"{}", "settings are in a file that ends with .yaml, .yml or .toml"),
        ("x.toml", b"a = 1", "it has no table [tool.perdure]"),
        ("x.yaml", b"name: " + b"x" * 300_000, "it is larger than 262,144 bytes"),
        ("x.yaml", b"a: 1\nname: \xff\n", "x.yaml, line 2: it is not UTF-8"),
        ("folder.yaml", "folder", "it cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_meant_says_why(place: Path, name: str, content: Any, said: str) -> None:
    if content == "folder":
        (place / name).mkdir()
    elif content is not None:
        (place / name).write_bytes(content)
    with pytest.raises(InvalidSettings) as caught:
        load_settings(name, environment={})
    assert said in str(caught.value)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor: x", "perdure.yaml, line 1: there is no setting 'stor'; did you mean 'store'?"),
        (
            "name: a\nrecovery:\n  # why\n  check_intervall: 3",
            "line 4: recovery has no setting 'check_intervall'; did you",
        ),
        (
            "recovery:\n  checkIntervalSec: 3",
            "line 2: recovery has no setting 'checkIntervalSec'; did you mean 'checkI",
        ),
        ("name: a\nstore: sqlit:///x.db", "line 2: store: 'sqlit' is not a known backend; did you mean 'sqlite'?"),
        ("store: x.db", "line 1: store is a URL, such as 'sqlite:///flows.db'"),
        ("store: none", "line 1: store is a URL"),
        ("leases: sqlite:///x.db", "line 1: leases: 'sqlite' is not a known backend; there are etcd, etcds, none"),
        ("leases: some", "line 1: leases is a URL, such as 'etcd://host:2379', or none"),
        ("zzz: 1", "line 1: there is no setting 'zzz'; there are store, leases, name,"),
        (
            "queues:\n  a:\n    concurrenzy: 1",
            "line 3: queues.a has no setting 'concurrenzy'; did you mean 'concurrency'?",
        ),
        (
            "queues:\n  a:\n    rate:\n      cout: 1",
            "line 4: queues.a.rate has no setting 'cout'; did you mean 'count'?",
        ),
        ("max_concurrency: many", "line 1: max_concurrency is a whole number, such as 10; this is text"),
        ("max_concurrency: true", "this is true or false"),
        ("max_concurrency: 1.5", "max_concurrency is a whole number, such as 10; this is a number"),
        ("max_concurrency:\n", "this is empty"),
        ("max_concurrency: 0", "line 1: max_concurrency must be at least 1"),
        ("name: 7", "line 1: name is text, such as 'name'; this is a number"),
        ("name: [a]", "this is a list"),
        ("serves: {a: 1}", "line 1: serves is a list of names, such as [a, b]; this is a mapping"),
        ("serves: [a, 1]", "serves is a list of names"),
        ("recovery: 30", "line 1: recovery holds settings by their names, and this is a number"),
        ("queues: [a]", "line 1: queues holds settings by their names, and this is a list"),
        ("- a", "line 1: the file holds settings by their names, and this is a list"),
        ("recovery:\n  enabled: 1", "line 2: recovery.enabled is true or false, such as true; this is a number"),
        ("recovery:\n  lease: 3 parsecs", "line 2: recovery.lease is a number of seconds, or a length of time"),
        ("recovery:\n  lease: '3'", "line 2: recovery.lease is a number of seconds"),
        ("recovery:\n  lease: .nan", "line 2: recovery.lease is a number of seconds"),
        ("recovery:\n  grace: 1\n  lease: -3", "line 3: Recovery(lease=-3.0) must be a number of seconds, more than 0"),
        ("recovery:\n  max_claims: 0", "line 2: Recovery(max_claims=0) must be a whole number, at least 1"),
        ("limits:\n  blob: 5\n  payload: 0", "line 3: Limits(payload=0): give a number of bytes, at least 1"),
        ("retention:\n  every: 1h", "line 1: retention needs older_than"),
        ("retention:\n  older_than: 1d\n  statuses: [running]", "line 3: Retention(statuses=('running',))"),
        ("queues:\n  a:\n    concurrency: 0", "line 3: Queue('a', concurrency=0) must be an integer"),
        ("queues:\n  a:\n    rate: {per: 1s}", "line 3: queues.a.rate needs a count"),
        ("durability: strong", "line 1: "),
        ("reuse: sometimes", "line 1: "),
        ("stream: sometimes", "line 1: "),
        (
            "recovery:\n  check_interval: 1\n  checkIntervalSecs: 2",
            "line 3: recovery.check_interval is given twice, under both of its names",
        ),
        ("store: memory://\nstorageConfig: {type: inMemory}", "line 2: store is given in perdure.yaml, line 1 already"),
        ("leases: none\nleaseManager: {type: none}", "line 2: leases is given in perdure.yaml, line 1 already"),
        ("storageConfig:\n  type: sqlit", "line 2: 'sqlit' is not a type of store; did you mean 'sqlite'?"),
        ("storageConfig: {}", "line 1: it needs a type"),
        ("storageConfig:\n  type: sqlite", "line 1: a sqlite store needs its databaseUrl"),
        (
            "storageConfig:\n  type: redis\n  databaseUrl: sqlite:///x.db",
            "line 3: storageConfig.type is redis, and this",
        ),
        ("storageConfig:\n  type: inMemory\n  autoMigrate: false", "line 3: autoMigrate has no effect on a inMemory"),
        ("storageConfig:\n  type: inMemory\n  databaseUrl: x", "line 3: a store in memory has no databaseUrl"),
        (
            "storageConfig:\n  type: redis\n  databaseUrl: redis://a\n  autoMigrate: true",
            "line 4: autoMigrate has no effect on a redis store; leave it out",
        ),
        (
            "storageConfig:\n  type: file\n  databaseUrl: file:///a\n  maxConnections: 3",
            "line 4: maxConnections has no effect on a file store; leave it out",
        ),
        (
            "storageConfig:\n  type: postgres\n  databaseUrl: postgres://a?pool=2\n  maxConnections: 3",
            "line 4: databaseUrl has pool= too; keep one of the two",
        ),
        (
            "storageConfig:\n  type: sqlite\n  databaseUrl: sqlite:a.db\n  maxConnections: 0",
            "line 4: maxConnections must be from 1 to 999",
        ),
        (
            "leaseManager:\n  type: none\n  prefix: a",
            "line 3: prefix has no effect on leases of the type none; leave it out",
        ),
        (
            "leaseManager:\n  type: etcd\n  endpoints: [http://a]\n  password: x",
            "line 4: a password needs a user; give user too",
        ),
        (
            "leaseManager:\n  type: zookeeper",
            "line 2: 'zookeeper' is not a type of leases; there are none, etcd, store",
        ),
        ("leaseManager:\n  type: etcd", "line 1: endpoints are the members of etcd"),
        ("leaseManager:\n  type: etcd\n  endpoints: [etcd-1]", "line 3: endpoints are the members of etcd"),
        ("leaseManager:\n  type: etcd\n  endpoints: [http://a, https://b]", "all http or https"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(text: str, said: str) -> None:
    message = refused(text)
    assert message.startswith("perdure.yaml, line ")
    assert said in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nname: b", "line 2: 'name' is given twice; it was in perdure.yaml, line 1"),
        ("name: &x a\nmodule: *x", "line 1: anchors and aliases (& and *) are not read"),
        ("name: !!python/object:os.system a", "line 1: tags such as tag:yaml.org,2002:python/object:os.system are not"),
        ("name: !secret a", "line 1: tags such as !secret are not read"),
        ("name: a\n\trecovery: b", "line 2: this is not YAML: "),
        ("name: 'a", "this is not YAML"),
        ("name: a\n---\nname: b", "line 2: this is not YAML: but found another document"),
        ("? [a]\n: b", "line 1: a key is a plain name"),
        ("name: " + "[" * 30 + "]" * 30, "line 1: it is nested more than 20 deep"),
        ("name: 2024-13-45", "line 1: '2024-13-45' cannot be read"),
        ("name: a\x07b", "this is not YAML"),
    ],
)
def test_yaml_is_plain_data_alone(text: str, said: str) -> None:
    assert said in refused(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.perdure]\nname = 'a'\nstor = 'x'", ", line 3: there is no setting 'stor'; did you mean 'store'?"),
        ("[tool.perdure.recovery]\n\nlease = 'x'", ", line 3: recovery.lease is a number of seconds"),
        ("[tool.perdure]\nrecovery.grace = 1\nrecovery.lease = 'x'", ", line 3: recovery.lease is a number of"),
        ("[project]\nname = 1\n[tool.perdure]\n'name' = 1", ", line 4: name is text"),
        ("[tool.perdure]\nqueues = { a = { concurrenzy = 1 } }", ", line 2: queues.a has no setting 'concurrenzy'"),
        ("[tool]\nperdure = 5", ", line 2: the file holds settings by their names, and this is a number"),
        ("[tool.perdure]\nname = 2024-01-01", ", line 2: name is text, such as 'name'; this is date"),
        ("[tool.perdure]\nserves = [\n 'a',\n 1]", ", line 2: serves is a list of names"),
        ("[tool.perdure]\nname = 'a'\nname = 'b'", ": this is not TOML: Cannot overwrite a value"),
        ("[tool.perdure]\nname = " + "[" * 100_000, ": this is not TOML: "),
    ],
)
def test_toml_is_refused_with_its_line_too(text: str, said: str) -> None:
    assert f"pyproject.toml{said}" in refused(text, file="pyproject.toml")


def test_yaml_without_its_library_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert "perdure.yaml: YAML needs a library: pip install 'perdure[yaml]'" in refused("name: a")


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(KEYS)) | st.text(max_size=8), plain, max_size=3))
def test_whatever_a_file_says_is_read_or_refused(tree: dict[str, Any]) -> None:
    refusal = None
    try:
        assert set(read_section(KEYS, tree, Source("x"))) <= set(KEYS)
    except InvalidSettings as error:
        refusal = error
    assert refusal is None or refusal.where == "x, line 1"


@given(st.text(st.sampled_from("ab:-?[]{}&*!|>'\"#%@` \n\t0"), max_size=40))
def test_whatever_text_is_yaml_or_refused(text: str) -> None:
    refusal = None
    Path("x.yaml").write_text(text)
    try:
        read_file("x.yaml")
    except InvalidSettings as error:
        refusal = error
    assert refusal is None or refusal.where.startswith("x.yaml")


# --- the environment --------------------------------------------------------------------------------------------------


def test_variables_go_over_the_file() -> None:
    environment = {
        "PERDURE_STORE": "memory://",
        "PERDURE_LEASES": "none",
        "PERDURE_MAX_CONCURRENCY": "7",
        "PERDURE_SERVES": "a, b",
        "PERDURE_RECOVERY__CHECK_INTERVAL": "2.5",
        "PERDURE_RECOVERY__ENABLED": "no",
        "PERDURE_RECOVERY__LEASE": "1m",
        "PERDURE_LIMITS__BLOB": "99",
        "HOME": "/root",
        "PERDURE_SOMETHING_ELSE": "of another program",
    }
    found = loaded(STEPFLOW + "max_concurrency: 3\n", environment)
    assert (found.store, found.leases, found.max_concurrency, found.serves) == ("memory://", "none", 7, ("a", "b"))
    assert found.recovery == Recovery(False, 2.5, 50, 5, 60.0)
    assert found.limits == Limits(blob=99)
    alone = load_settings("perdure.yaml", environment=environment)
    assert alone == found


def test_variables_alone_are_settings_too() -> None:
    found = load_settings(environment={"PERDURE_NAME": "me", "PERDURE_RECOVERY__LEASE": "9"})
    assert found.options() == {"name": "me", "recovery": Recovery(lease=9.0)}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PERDURE_MAX_CONCURRENCY", "many", "PERDURE_MAX_CONCURRENCY: max_concurrency is a whole number"),
        ("PERDURE_RECOVERY__ENABLED", "perhaps", "PERDURE_RECOVERY__ENABLED: recovery.enabled is true or false"),
        (
            "PERDURE_RECOVERY__LEASE",
            "-1",
            "PERDURE_RECOVERY__LEASE: Recovery(lease=-1.0) must be a number of seconds, more than 0",
        ),
        ("PERDURE_RECOVERY__LEAS", "1", "no setting of that name; did you mean 'PERDURE_RECOVERY__LEASE'?"),
        ("PERDURE_STROE", "x", "PERDURE_STROE: there is no setting of that name; did you mean 'PERDURE_STORE'?"),
        ("PERDURE_STORE", "", "PERDURE_STORE: store is text"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load_settings(environment={name: value})
    assert said in str(caught.value)


def test_a_variable_over_a_file_that_is_wrong_does_not_hide_that() -> None:
    assert "recovery holds settings" in refused("recovery: 5", {"PERDURE_RECOVERY__LEASE": "1"})
    assert "the file holds settings" in refused("- 5", {"PERDURE_STORE": "memory://"})


# --- what there is ----------------------------------------------------------------------------------------------------


def test_every_field_of_what_can_be_set_is_a_setting() -> None:
    for section, made in (("recovery", Recovery), ("limits", Limits), ("retention", Retention)):
        assert list(KEYS[section]) == [field.name for field in fields(made)]
    assert ["name", *KEYS["queues"]["NAME"]] == [field.name for field in fields(Queue)]
    ours = [name for name in KEYS if name not in ("storageConfig", "leaseManager")]
    assert sorted([*ours, "source"]) == sorted(Settings.__slots__)


def test_every_setting_has_a_variable() -> None:
    names = variable_names()
    assert names["PERDURE_RECOVERY__MAX_CLAIMS"] == ("recovery", "max_claims")
    assert {path[0] for path in names.values() if len(path) == 1} == {
        name for name, key in KEYS.items() if isinstance(key, Kind)
    }


def test_passwords_are_not_shown() -> None:
    found = loaded("store: postgresql://u:s3cret@db/x\nleases: etcd://u:s3cret@h")
    assert "s3cret" not in repr(found)
    message = refused("storageConfig:\n  type: redis\n  databaseUrl: sqlite://u:s3cret@x")
    assert "s3cret" not in message


@workflow
async def nothing() -> str:
    return "done"


async def test_an_engine_is_made_from_a_file(place: Path) -> None:
    (place / "perdure.yaml").write_text("store: sqlite:///flows.db\nname: me\nmodule: ignored.here\nleases: none")
    async with Engine.from_config(programs=[nothing]) as engine:
        assert (engine.name, engine.store.url) == ("me", "sqlite:///flows.db")
        assert await (await engine.start(nothing())).result() == "done"
    other = Engine.from_config("perdure.yaml", [nothing], name="you", store="memory://")
    assert (other.name, other.store.url) == ("you", "memory://")


def test_a_blocking_engine_is_made_from_a_file(place: Path) -> None:
    (place / "perdure.yaml").write_text("store: sqlite:///flows.db\nname: me")
    with blocking.Engine.from_config(programs=[nothing]) as engine:
        assert engine.name == "me"
        assert engine.start(nothing()).result() == "done"
