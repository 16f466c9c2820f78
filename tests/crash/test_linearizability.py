"""Whatever goes wrong, what a store answers has an explanation: one order of all that was done to it.

Clients in several processes append, read and lease; processes stand still and are killed, connections break.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure.stores.open import open_store
from tests.crash.harness import Children
from tests.crash.histories import record
from tests.linearizability.checker import check, lost
from tests.linearizability.history import Conflicted, Granted, Operation, Refused, Unknown, Written, at_least_once
from tests.services.proxy import Proxy

# Stores wait at least this long, in nanoseconds, before they send something again.
PAUSE = 40_000_000
FEW, MANY = range(4), range(100, 200)


async def migrated(url: str) -> None:
    store = open_store(url)
    await store.open(migrate=True)
    await store.close()


def sqlite(folder: Path) -> str:
    url = f"sqlite:///{folder / 'runs.db'}"
    asyncio.run(migrated(url))
    return url


def explained(history: list[Operation], journals: dict[str, tuple[str, ...]]) -> None:
    """All of it; and the history is one that could have gone wrong."""
    verdict = check(history)
    assert verdict.linearizable, "\n\n".join(map(str, verdict.violations))
    assert lost(history, journals) == []
    answers = Counter(type(operation.answer) for operation in history)
    assert len(history) >= 500
    assert min(answers[kind] for kind in (Written, Conflicted, Granted, Refused)) > 0, answers


@pytest.mark.parametrize("seed", FEW)
def test_a_history_of_sqlite_under_kills_and_pauses_has_an_explanation(
    seed: int, tmp_path: Path, children: Children
) -> None:
    explained(*record(sqlite(tmp_path), children, tmp_path, seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", MANY)
def test_a_hundred_histories_of_sqlite_have_an_explanation(seed: int, tmp_path: Path, children: Children) -> None:
    explained(*record(sqlite(tmp_path), children, tmp_path, seed))


def through_trouble(url: str, children: Children, folder: Path, seed: int, **options: Any) -> None:
    """Clients reach the server through a network that fails; whoever looks in the end does not."""
    asyncio.run(migrated(url))
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port) as proxy:
        history, journals = record(url, children, folder, seed, proxy=proxy, **options)
    explained(at_least_once(history, PAUSE), journals)


@pytest.mark.parametrize("seed", FEW)
def test_a_history_of_postgres_under_kills_pauses_and_network_faults_has_an_explanation(
    seed: int, postgres_url: str, tmp_path: Path, children: Children
) -> None:
    through_trouble(postgres_url, children, tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", MANY)
def test_a_hundred_histories_of_postgres_have_an_explanation(
    seed: int, postgres_url: str, tmp_path: Path, children: Children
) -> None:
    through_trouble(postgres_url, children, tmp_path, seed)


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize(("spoil", "thing"), [("fence", "journal"), ("lease", "lease")])
def test_a_store_without_its_fence_is_found_out(
    seed: int, spoil: str, thing: str, tmp_path: Path, children: Children
) -> None:
    history, _ = record(sqlite(tmp_path), children, tmp_path, seed, spoil=spoil)
    violations = check(history).violations
    assert {violation.object[0] for violation in violations} == {thing}


def test_kills_leave_calls_of_unknown_outcome(tmp_path: Path, children: Children) -> None:
    """The histories are ones in which answers are missing."""
    unknown = 0
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history, _ = record(sqlite(folder), children, folder, seed, kills=6)
        unknown += sum(isinstance(operation.answer, Unknown) for operation in history)
    assert unknown > 0
