"""Commands on a store behind a server: `--store http://host` says what the store itself says, and does the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import Engine
from perdure.cli.exits import Exit
from perdure.server import Access, Tokens
from tests.cli.conftest import Cli, Ended
from tests.server.programs import PROGRAMS, fails, long_text, order, quick, rounds, streams, waits
from tests.server.served import served


async def prepared(engine: Engine) -> dict[str, str]:
    """Runs of all kinds, and who may do what with them."""
    for id, invocation in {
        "quick/1 é": quick(1),
        "failed": fails(),
        "long": long_text(30_000),
        "s": streams(3),
    }.items():
        _ = await engine.run(invocation, id=id, tags={"of": "test"})
    _ = await engine.run(rounds(n=0), id="rounds")
    _ = await engine.run(order(7), id="asks", until="rest")
    _ = await engine.start(waits(), id="waits", queue="q", key="k")
    _ = await engine.schedule("nightly", quick(1), cron="0 3 * * *", tags={"a": "b"})
    _ = await engine.locks.acquire("stock/7", "me", ttl=3600)
    token = await engine._credentials.issue("token", "ann", may=["read", "run", "approve", "admin", "debug"])
    reader = await engine._credentials.issue("token", "bob", may=["read"])
    return {"token": token.text, "reader": reader.text}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The address of a server, the URL of its store, and tokens."""
    url = f"sqlite:///{tmp_path_factory.mktemp('remote')}/runs.db"
    engines: list[Engine] = []

    def make() -> Engine:
        engines.append(Engine(url, PROGRAMS))
        return engines[-1]

    async def who(request: Any) -> Access | None:
        return await Tokens(engines[-1])(request)

    with served(make, prepared, access=who) as (address, tokens):
        yield f"{address}/", url, tokens


@pytest.fixture
def remote(cli: Cli, server: tuple[str, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command line, with a token that may do everything."""
    monkeypatch.setenv("PERDURE_TOKEN", server[2]["token"])
    return cli


def both(cli: Cli, server: tuple[str, str, dict[str, str]], *words: str) -> tuple[Ended, Ended]:
    """A command on the server, and the same on the store."""
    return cli(*words, "--store", server[0]), cli(*words, "--store", server[1])


# What changes from one moment to the next.
MOMENTS = re.compile(r"\d+(\.\d+)? (ms|s|min|h|d)( ago)?|\d{4}-\d\d-\d\d[ T][\d:.]+(\+00:00|Z)?|in \d+ \w+")


def plain(text: str) -> str:
    return re.sub(" +", " ", MOMENTS.sub("*", text))


READS = [
    ("runs", "ls", "--roots"),
    ("runs", "ls", "--status", "failed"),
    ("runs", "ls", "--tag", "of=test", "--program", "quick"),
    ("runs", "ls", "--search", "input.amount=7"),
    ("runs", "ls", "--id-prefix", "quick/"),
    ("runs", "ls", "--limit", "2"),
    ("runs", "steps", "quick/1 é"),
    ("runs", "steps", "failed"),
    ("runs", "journal", "quick/1 é"),
    ("runs", "journal", "s"),
    ("runs", "journal", "asks", "--start", "2"),
    ("runs", "watch", "quick/1 é"),
    ("runs", "watch", "failed"),
    ("runs", "diff", "quick/1 é", "s"),
    ("runs", "inspect", "asks", "--module", "programs.py"),
    ("stream", "s", "tokens"),
    ("stream", "s"),
    ("queues", "ls"),
    ("orchestrators", "ls"),
    ("locks", "ls"),
    ("schedules", "ls"),
    ("schedules", "next", "nightly", "--count", "3"),
]


@pytest.mark.parametrize("words", READS, ids=" ".join)
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_a_command_that_reads_says_what_the_store_says(
    remote: Cli, server: tuple[str, str, dict[str, str]], words: tuple[str, ...], form: tuple[str, ...]
) -> None:
    source = Path(__file__).parents[1] / "server" / "programs.py"
    (remote.folder / "programs.py").write_text(source.read_text())
    if "--json" in form and words[0] == "schedules" and words[1] == "next":
        return  # two moments
    there, here = both(remote, server, *words, *form)
    assert (there.code, plain(there.err)) == (here.code, plain(here.err))
    if not form:
        assert plain(there.out) == plain(here.out)
        return
    for mine, theirs in zip(documents(there), documents(here), strict=True):
        assert without_values(mine) == without_values(theirs)


def documents(ended: Ended) -> list[Any]:
    try:
        return [ended.json]
    except json.JSONDecodeError:
        return ended.lines


def without_values(found: Any) -> Any:
    """Lists over HTTP come without values and tracebacks; distances and leases change."""
    if isinstance(found, list):
        return [without_values(one) for one in found]
    if isinstance(found, dict):
        left_out = {"oldest", "expires_at", "until", "took"} | ({"input", "output"} if "next_seq" in found else set())
        left_out |= {"traceback", "args", "data"} if "message" in found else set()
        return {name: without_values(one) for name, one in found.items() if name not in left_out}
    return plain(found) if isinstance(found, str) else found


def test_a_run_is_shown_with_its_large_and_exact_values(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    there, here = both(remote, server, "runs", "show", "long", "--json")
    assert there.json["output"] == here.json["output"] == "x" * 30_000
    there, here = both(remote, server, "runs", "show", "asks", "--json")
    assert there.json["waits"] == here.json["waits"]
    assert there.json["waits"][0]["request"]["exact"] == 9007199254740993
    assert there.json["state"] == here.json["state"] == {"phase": "asked"}
    there, here = both(remote, server, "approvals", "ls", "--json")
    assert there.json == here.json


def test_runs_are_told_something(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    at, url, _ = server

    def tell(*words: str) -> Ended:
        return remote(*words, "--store", at)

    begun = tell("runs", "fork", "waits", "--at", "go:0", "--new-id", "told", "--json")
    assert (begun.code, begun.json["id"]) == (0, "told")
    assert tell("pause", "told", "--reason", "look").code == 0
    assert tell("resume", "told").code == 0
    sent = [tell("signal", "told", "go", "--input", "9007199254740993", "--signal-id", "one") for _ in range(2)]
    assert sent[0].code == 0
    assert tell("runs", "watch", "told").code == 0
    assert remote("runs", "show", "told", "--json", "--store", url).json["output"] == 9007199254740993
    assert tell("cancel", "told").code == Exit.FAILED
    assert tell("runs", "travel", "quick/1 é", "charge:0", "--input", '{"amount": 5}', "--new-id", "other").code == 0
    assert tell("runs", "watch", "other").code == 0
    assert tell("runs", "retry", "failed").code == 0
    assert tell("runs", "watch", "failed").code == Exit.FAILED
    assert tell("runs", "retry", "rounds", "--max-rounds", "0").code != 0
    assert tell("runs", "retry", "rounds", "--max-rounds", "4").code == 0
    assert tell("runs", "watch", "rounds").code == 0
    pauses = [line["by"] for line in remote("runs", "journal", "told", "--json", "--store", url).lines if "by" in line]
    events = remote("runs", "journal", "told", "--json", "--store", url).out
    assert '"ann"' in events, pauses


def test_questions_are_answered_by_the_owner_of_the_token(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    at, url, _ = server
    _ = remote("runs", "fork", "asks", "--new-id", "asks again", "--store", at)
    refused = remote("approve", "asks again", "ship", "--by", "eve", "--store", at)
    assert (refused.code, "owner of the token" in refused.err) == (2, True)
    assert remote("approve", "asks again", "nothing", "--store", at).code == 2
    assert remote("approve", "asks again", "ship", "--input", '{"ok": true}', "--store", at).code == 0
    assert remote("runs", "watch", "asks again", "--store", at).code == 0
    events = remote("runs", "journal", "asks again", "--json", "--store", url).out
    assert "answer:ann" in events


def test_many_runs_are_told_something(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    at, _, _ = server
    for number in range(3):
        _ = remote("runs", "fork", "waits", "--at", "go:0", "--new-id", f"many-{number}", "--store", at)
    found = remote("runs", "cancel", "--id-prefix", "many-", "--json", "--store", at)
    assert found.code == 0, found.err
    assert all(remote("runs", "watch", f"many-{n}", "--store", at).code == Exit.STOPPED for n in range(3))


def test_schedules_and_locks_are_changed(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    at, _, _ = server
    made = remote("schedules", "add", "hour/ly", "quick", "--every", "1h", "--input", '{"amount": 3}', "--store", at)
    assert made.code == 0, made.err
    assert remote("schedules", "pause", "hour/ly", "--store", at).code == 0
    shown = {one["id"]: one for one in remote("schedules", "ls", "--json", "--store", at).json["schedules"]}
    assert (shown["hour/ly"]["paused"], shown["hour/ly"]["input"]) == (True, {"amount": 3})
    assert remote("schedules", "trigger", "hour/ly", "--store", at).out.startswith("hour/ly@")
    assert remote("schedules", "delete", "hour/ly", "--store", at).code == 0
    assert remote("schedules", "next", "hour/ly", "--store", at).code == Exit.NO_SUCH_RUN
    assert remote("locks", "release", "stock/7", "--force", "--store", at).code == 0
    assert remote("locks", "ls", "--json", "--store", at).json == {"locks": []}


def test_a_run_is_exported_and_imported(remote: Cli, server: tuple[str, str, dict[str, str]]) -> None:
    at, _, _ = server
    file = str(remote.folder / "run.capsule")
    assert remote("export", "long", "-o", file, "--store", at).code == 0
    assert remote("import", file, "--store", f"sqlite:///{remote.folder}/desk.db").code == 0
    assert remote("import", file, "--store", at).code == 0  # it is there already


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("runs", "show", "nothing"), Exit.NO_SUCH_RUN, "there is no run with id 'nothing'"),
        (("prune", "--older-than", "1d"), Exit.STORE, "this is the address of a server"),
        (("migrate",), Exit.STORE, "this is the address of a server"),
        (("signal", "waits", "a/b"), 2, "a/b"),
        (("runs", "retry", "s"), 2, "completed"),
        (("runs", "fork", "s", "--at", "nothing:0"), 2, "nothing:0"),
    ],
)
def test_what_cannot_be_done_is_said(
    remote: Cli, server: tuple[str, str, dict[str, str]], words: tuple[str, ...], code: int, said: str
) -> None:
    ended = remote(*words, "--store", server[0])
    assert (ended.code, said in ended.err) == (code, True), ended.err
    assert "Traceback" not in ended.err


def test_permissions_and_tokens_are_said(
    remote: Cli, server: tuple[str, str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_TOKEN", server[2]["reader"])
    assert remote("runs", "ls", "--store", server[0]).code == 0
    refused = remote("cancel", "waits", "--store", server[0])
    assert (refused.code, "bob may not do this" in refused.err) == (2, True)
    monkeypatch.setenv("PERDURE_TOKEN", "wrong")
    unknown = remote("runs", "ls", "--store", server[0])
    assert (unknown.code, "PERDURE_TOKEN" in unknown.err) == (2, True)


ITSELF = [
    ("doctor",),
    ("token", "ls"),
    ("token", "new", "--name", "ann", "--may", "read"),
    ("token", "revoke", "abc"),
    ("serve", "--port", "0"),
    ("backup", "copy.db"),
    ("rebuild", "--dry-run"),
    ("prune", "--older-than", "3d"),
    ("migrate", "--status"),
    ("compact", "s"),
    ("sweep", "programs.py"),
    ("worker", "programs.py"),
]


@pytest.mark.parametrize("words", ITSELF, ids=" ".join)
def test_a_command_that_needs_the_store_itself_says_so(
    remote: Cli, server: tuple[str, str, dict[str, str]], words: tuple[str, ...]
) -> None:
    source = Path(__file__).parents[1] / "server" / "programs.py"
    (remote.folder / "programs.py").write_text(source.read_text())
    ended = remote(*words, "--store", server[0])
    assert ended.code == Exit.STORE
    assert "this one needs the store itself" in ended.err


def test_a_server_that_is_not_there_or_something_else_is_said(remote: Cli) -> None:
    gone = remote("runs", "ls", "--store", "http://127.0.0.1:9/flows")
    assert (gone.code, "http://127.0.0.1:9/flows" in gone.err) == (Exit.STORE, True)
    wrong = remote("runs", "ls", "--store", "http://")
    assert wrong.code == 2
