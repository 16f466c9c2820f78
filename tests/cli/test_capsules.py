"""`perdure export`, `import` and `compact`."""

from __future__ import annotations

from perdure.kernel.history.capsule import decode_capsule
from tests.cli.conftest import Cli

ORDER = '{"order": {"id": "o-1", "total": 7.0}}'


def test_a_run_goes_from_one_store_into_another_in_a_file(cli: Cli) -> None:
    assert cli("run", "flows.py:checkout", "--input", ORDER, "--id", "o-1").code == 0
    ended = cli("export", "o-1", "-o", "o-1.capsule", "--code", "flows.py", "--json")
    assert ended.code == 0
    assert ended.json["bytes"] == (cli.folder / "o-1.capsule").stat().st_size
    assert decode_capsule((cli.folder / "o-1.capsule").read_bytes()).source
    elsewhere = f"sqlite:///{cli.folder}/elsewhere.db"
    assert "completed" in cli("import", "o-1.capsule", "--store", elsewhere).err
    assert cli("runs", "show", "o-1", "--store", elsewhere, "--json").json["output"]["payment"] == "payment-o-1"
    assert cli("import", "o-1.capsule", "--store", elsewhere, "--json").json["status"] == "completed"
    assert cli("doctor", "--store", elsewhere).code == 0
    assert not (cli.folder / "o-1.capsule.part").exists()


def test_values_are_taken_out_by_path(cli: Cli) -> None:
    cli("run", "flows.py:checkout", "--input", ORDER, "--id", "o-1")
    ended = cli("export", "o-1", "-o", "x.capsule", "--redact", "$.order.total", "--redact", "charge:0.$")
    assert ended.code == 0
    capsule = decode_capsule((cli.folder / "x.capsule").read_bytes())
    assert capsule.redacted == ("$.order.total", "charge:0.$")


def test_a_path_that_is_nowhere_writes_no_file(cli: Cli) -> None:
    cli("run", "flows.py:checkout", "--input", ORDER, "--id", "o-1")
    ended = cli("export", "o-1", "-o", "x.capsule", "--redact", "$.order.kard")
    assert (ended.code, (cli.folder / "x.capsule").exists()) == (2, False)
    assert "nowhere" in ended.err


def test_what_cannot_be_exported_or_imported_is_said_with_its_reason(cli: Cli) -> None:
    cli("run", "flows.py:checkout", "--input", ORDER, "--id", "o-1")
    assert cli("export", "nobody", "-o", "x.capsule").code == 3
    ended = cli("export", "o-1", "-o", "no/such/folder/x.capsule")
    assert (ended.code, "cannot write" in ended.err) == (2, True)
    assert "cannot read" in cli("import", "missing.capsule").err
    cli("export", "o-1", "-o", "x.capsule")
    data = bytearray((cli.folder / "x.capsule").read_bytes())
    data[-1] ^= 1
    (cli.folder / "x.capsule").write_bytes(bytes(data))
    ended = cli("import", "x.capsule")
    assert (ended.code, "damaged or changed" in ended.err) == (2, True)


CHATTY = """
from perdure import sleep, step, step_context, workflow


@step
async def talk() -> int:
    step_context().emit("hello")
    return 1


@workflow
async def chatty() -> int:
    return await talk()


@workflow
async def nap() -> None:
    await sleep(3600)
"""


def test_a_compacted_journal_passes_the_doctor(cli: Cli) -> None:
    cli.write("chatty.py", CHATTY)
    assert cli("run", "chatty.py:chatty", "--id", "c").code == 0
    assert "would become" in cli("compact", "c", "--dry-run").err
    report = cli("compact", "c", "--json").json
    assert report["events_after"] < report["events_before"]
    assert "became" in cli("compact", "c").err
    assert cli("doctor").code == 0
    assert cli("runs", "show", "c", "--json").json["output"] == 1
    assert cli("compact", "nobody").code == 3
