"""The command line, called in this process: quick, and with nothing left behind."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import main

FLOWS = """
from dataclasses import dataclass

from perdure import bail, sleep, step, workflow


@dataclass
class Order:
    id: str
    total: float


@step
def charge(order: Order) -> str:
    if order.total < 0:
        raise ValueError(f"{order.total} is negative")
    return "payment-" + order.id


@workflow
async def checkout(order: Order, note: str = "") -> dict[str, str]:
    return {"payment": await charge(order), "note": note}


@workflow
async def early(number: int) -> int:
    if number < 0:
        bail("nothing to do", 7)
    return number


@workflow
async def nap(hours: float) -> None:
    await sleep(hours * 3600)
"""


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Cli:
    """Calls `perdure` in a directory of its own, where `flows.py` is."""

    folder: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Ended:
        before = set(sys.modules)
        self.capsys.readouterr()
        try:
            code = main(words)
        finally:
            for name in set(sys.modules) - before:
                if getattr(sys.modules[name], "__file__", "") and str(self.folder) in str(sys.modules[name].__file__):
                    del sys.modules[name]
        out, err = self.capsys.readouterr()
        assert "Traceback" not in out + err
        return Ended(code, out, err)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/perdure.db"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("PERDURE_STORE", raising=False)
    cli = Cli(tmp_path, capsys)
    cli.write("flows.py", FLOWS)
    return cli
