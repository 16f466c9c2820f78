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
from tests.amounts import some
from tests.crash.harness import Children
from tests.crash.histories import record
from tests.linearizability.checker import check, lost
from tests.linearizability.history import Conflicted, Granted, Operation, Refused, Unknown, Written, at_least_once
from tests.services.proxy import Proxy

SEEDS = some([0, *range(100, 200)], 1)


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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_sqlite_under_kills_and_pauses_has_an_explanation(
    seed: int, tmp_path: Path, children: Children
) -> None:
    explained(*record(sqlite(tmp_path), children, tmp_path, seed))


def through_trouble(
    url: str, children: Children, folder: Path, seed: int, **options: Any
) -> tuple[list[Operation], dict[str, tuple[str, ...]]]:
    """Clients reach the server through a network that fails; whoever looks in the end does not."""
    asyncio.run(migrated(url))
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port) as proxy:
        history, journals = record(url, children, folder, seed, proxy=proxy, **options)
    return at_least_once(history), journals


@pytest.mark.parametrize("backend", ["postgres_url", "redis_url"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_of_a_server_under_kills_pauses_and_network_faults_has_an_explanation(
    backend: str, seed: int, tmp_path: Path, children: Children, request: pytest.FixtureRequest
) -> None:
    explained(*through_trouble(request.getfixturevalue(backend), children, tmp_path, seed))


@pytest.mark.parametrize(("spoil", "thing"), [("fence", "journal"), ("lease", "lease")])
def test_a_store_without_its_fence_is_found_out(spoil: str, thing: str, tmp_path: Path, children: Children) -> None:
    history, _ = record(sqlite(tmp_path), children, tmp_path, 0, spoil=spoil)
    violations = check(history).violations
    assert {violation.object[0] for violation in violations} == {thing}


SPOILED = some(
    [
        ("postgres_url", "fence", "journal"),
        ("redis_url", "lease", "lease"),
        ("postgres_url", "lease", "lease"),
        ("redis_url", "fence", "journal"),
    ],
    2,
)


@pytest.mark.parametrize(("backend", "spoil", "thing"), SPOILED)
def test_a_server_without_its_fence_is_found_out_through_all_the_noise(
    backend: str, spoil: str, thing: str, tmp_path: Path, children: Children, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(backend)
    history, _ = through_trouble(url, children, tmp_path, 1, spoil=spoil)
    assert {violation.object[0] for violation in check(history).violations} == {thing}


@pytest.mark.parametrize("backend", ["sqlite", "postgres_url", "redis_url"])
def test_histories_have_calls_of_unknown_outcome(
    backend: str, tmp_path: Path, children: Children, request: pytest.FixtureRequest
) -> None:
    """Who is killed or gives up does not know; histories without such calls would explain themselves."""
    url = sqlite(tmp_path) if backend == "sqlite" else request.getfixturevalue(backend)
    asyncio.run(migrated(url))
    # On a busy machine the clients of one history may have made all their calls before the first kill.
    histories = (record(url, children, tmp_path / str(seed), seed, kills=8)[0] for seed in range(1, 9))
    assert any(isinstance(operation.answer, Unknown) for history in histories for operation in history)
