"""`perdure runs fork`, `travel`, `retry`, `diff` and `inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

SHOP = """
import asyncio

from perdure import set_state, sleep, step, workflow


@step
async def charge(amount: int, currency: str = "EUR") -> dict[str, int | str]:
    if amount < 0:
        raise ValueError("negative")
    return {"paid": amount, "in": currency}


@step
async def ship(order: str) -> str:
    return "parcel-" + order


@workflow
async def pack(order: str) -> str:
    box = "small"
    return await ship(order) + box


async def both(order: str, payment: object) -> str:
    parts = ["x" * 1000, 1]
    await sleep(0.01)
    return await ship(order)


@workflow
async def fulfil(order: str, amount: int) -> list[object]:
    payment = await charge(amount)
    set_state("phase", "paid")
    return [payment, await asyncio.gather(both(order, payment), pack(order))]
"""


@pytest.fixture
def shop(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A store with a run that completed and one that failed, in the directory of their code."""
    (tmp_path / "forked_shop.py").write_text(SHOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli("run", "forked_shop.py:fulfil", "--id", "a", "--input", '["o1", 12]').code == 0
    assert cli("run", "forked_shop.py:fulfil", "--id", "bad", "--input", '["o1", -1]').code == 1
    return cli


def finish(shop: Cli, *ids: str) -> None:
    """Sweep until they have ended: a sweep does not wait for timers, and they sleep for a moment."""
    while any(json.loads(shop("runs", "show", id, "--json").out)["finished_at"] is None for id in ids):
        assert shop("sweep", "forked_shop.py").code == 0


def test_a_run_is_forked_and_compared_with_its_original(shop: Cli) -> None:
    forked = shop("runs", "fork", "a", "--set", 'charge:0={"paid": 13, "in": "USD"}', "--new-id", "b")
    assert (forked.code, forked.out) == (0, "b\n")
    assert "an engine that has fulfil continues it" in forked.err
    finish(shop, "b")
    shown = json.loads(shop("runs", "show", "b", "--json").out)
    assert shown["output"][0] == {"paid": 13, "in": "USD"}
    assert shown["forked_from"] == json.loads(shop("runs", "show", "a", "--json").out)["run_id"]
    assert f"forked from  {shown['forked_from']}" in shop("runs", "show", "b").out
    told = shop("runs", "diff", "a", "b")
    assert told.code == 0
    assert "first difference  charge:0: value" in told.out
    assert 'succeeded {"paid":12,"in":"EUR"} at forked_shop.py:' in told.out
    document = json.loads(shop("runs", "diff", "a", "b", "--json").out)
    assert (document["first"], document["added"], document["removed"]) == ("charge:0", [], [])
    charge = next(op for op in document["ops"] if op["path"] == "charge:0")
    assert (charge["changes"], charge["a"]["value"]["paid"], charge["b"]["attempts"]) == (["value"], 12, 1)
    assert shop("runs", "diff", "a", "a").err == "perdure: 'a' and 'a' do not differ\n"


def test_a_step_gets_other_arguments_and_the_workflow_too(shop: Cli) -> None:
    answer = shop("runs", "travel", "a", "charge:0", "--input", '{"currency": "CHF"}', "--new-id", "c", "--json")
    assert json.loads(answer.out)["id"] == "c"
    assert shop("runs", "fork", "a", "--input", '{"amount": 1}', "--state", 'phase="x"', "--new-id", "d").code == 0
    assert shop("runs", "fork", "a", "--at", "3", "--new-id", "e").code == 0
    finish(shop, *"cde")
    outputs = [json.loads(shop("runs", "show", id, "--json").out)["output"][0] for id in "cde"]
    assert outputs == [{"paid": 12, "in": "CHF"}, {"paid": 1, "in": "EUR"}, {"paid": 12, "in": "EUR"}]


def test_a_failed_run_is_retried(shop: Cli) -> None:
    assert shop("runs", "retry", "bad").out == "bad\n"
    finish(shop, "bad")
    again = json.loads(shop("runs", "show", "bad", "--json").out)
    assert (again["status"], again["forked_from"] is not None) == ("failed", True)
    told = shop("runs", "diff", "a", "bad").out
    assert "failed ValueError: negative" in told
    assert "removed" in told
    refused = shop("runs", "retry", "a")
    assert refused.code == 2
    assert "only one that failed or was cancelled" in refused.err


def test_the_variables_at_an_op_are_shown_with_the_line(shop: Cli) -> None:
    shown = shop("runs", "inspect", "a", "--at", "both:0/ship:0", "--width", "60")
    assert shown.code == 0, shown.err
    assert "fulfil both:0, waits for both:0/ship:0" in shown.out
    assert "    > return await ship(order)\n    order = 'o1'\n" in shown.out
    assert "payment = {'in': 'EUR', 'paid': 12}" in shown.out
    assert max(map(len, shown.out.splitlines())) < 130  # values are shortened
    child = json.loads(shop("runs", "inspect", "a", "--at", "pack:0/ship:0", "--json").out)
    last = child["tasks"][-1]
    assert (last["program"], last["task"], last["frames"][0]["variables"]["box"]) == ("pack", "pack:0", "'small'")
    by_module = shop("runs", "inspect", "a", "--at", "charge:0", "--module", "forked_shop.py")
    assert "fulfil, waits for charge:0" in by_module.out
    assert "has ended" in shop("runs", "inspect", "a").err


def test_the_file_of_a_workflow_is_found_where_its_ops_are_asked_for_elsewhere(
    shop: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paying = "from perdure import step\n\n@step\nasync def pay() -> int:\n    return 1\n"
    helper = "async def helped() -> int:\n    return await pay()\n"
    code = "from paying import helped\nfrom perdure import workflow\n\n@workflow\nasync def buying() -> int:\n"
    (tmp_path / "paying.py").write_text(paying + helper, encoding="utf-8")
    (tmp_path / "buying.py").write_text(code + "    return await helped()\n", encoding="utf-8")
    assert shop("run", "buying.py", "--id", "c").code == 0
    shown = shop("runs", "inspect", "c", "--at", "pay:0")
    assert shown.code == 0, shown.err
    assert "> return await pay()" in shown.out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    lost = shop("runs", "inspect", "c", "--store", f"sqlite:///{tmp_path}/perdure.db")
    assert lost.code == 2
    assert "it was executed from buying.py, which is not here; say where it is with --module" in lost.err
    (tmp_path / "elsewhere" / "perdure.yaml").write_text(f"module: {tmp_path}/buying.py\n", encoding="utf-8")
    found = shop("runs", "inspect", "c", "--at", "pay:0", "--store", f"sqlite:///{tmp_path}/perdure.db")
    assert "return await pay()" in found.out


def test_what_cannot_be_done_is_explained(shop: Cli) -> None:
    cases: list[tuple[list[str], str, int]] = [
        (["fork", "nobody"], "nobody", 3),
        (["fork", "a", "--at", "nope:0"], "charge:0", 2),
        (["fork", "a", "--set", "charge:0"], "NAME=JSON", 2),
        (["fork", "a", "--set", "charge:0={"], "--set charge:0 is not JSON", 2),
        (["fork", "a", "--input", "[1]"], "JSON object", 2),
        (["travel", "a", "both:0/sleep:0", "--input", '{"n": 1}'], "takes no arguments", 2),
        (["inspect", "a", "--module", "nowhere.py"], "does not exist", 2),
        (["inspect", "a", "--at", "nope:0"], "charge:0", 2),
        (["diff", "a", "nobody"], "nobody", 3),
        (["diff", "a", "a/pack:0"], "is a child", 2),
    ]
    for words, why, code in cases:
        answer = shop("runs", *words)
        assert answer.code == code, answer.err
        assert why in answer.err


def test_code_that_has_changed_is_told_and_not_executed(shop: Cli, tmp_path: Path) -> None:
    changed = SHOP.replace("await charge(amount)", "await charge(amount + 1)")
    (tmp_path / "other_shop.py").write_text(changed, encoding="utf-8")
    answer = shop("runs", "inspect", "a", "--module", "other_shop.py")
    assert answer.code == 2
    assert "charge:0" in answer.err
    assert "is not the code that this run was recorded with" in answer.err
