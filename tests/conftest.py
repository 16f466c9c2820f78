"""What every test may ask for, and how properties are searched."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Before any test imports a part of it: failures of the conformance suite tell the values they compared.
pytest.register_assert_rewrite("perdure.testing.conformance")
pytest_plugins = ["tests.processes", "tests.services.plugin"]

# Bounded by examples, never by time: a busy machine changes nothing. The same examples each time: a change of the code,
# not chance, makes the suite fail.
settings.register_profile(
    "suite",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# New examples each time: `make soak` searches with it.
settings.register_profile("soak", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile("suite")


# Tests that mostly wait: for processes, servers, leases and networks.
WAITING = (
    "tests/crash/",
    "tests/docs/",
    "tests/services/",
    "tests/stores/",
    "tests/cli/test_demo.py",
    "tests/cli/test_dev.py",
    "tests/engine/test_processes.py",
    "tests/orchestrator/test_recovery_on_postgres.py",
    "tests/test_blocking.py",
    "tests/test_processes.py",
    "tests/test_run_function.py",
)
# The longest begin first: one that begins last would keep all waiting.
LONGEST = (
    "tests/crash/test_locks.py",
    "tests/crash/test_zombies.py",
    "tests/crash/test_idle.py",
    "tests/crash/test_quarantine.py",
    "tests/crash/test_failover.py",
    "tests/crash/test_etcd_processes.py",
    "tests/docs/test_examples.py::test_what_a_document_shows_is_what_happens[docs/operating.md]",
    "tests/docs/test_examples.py::test_what_a_document_shows_is_what_happens[docs/running.md]",
    "tests/docs/test_examples.py::test_what_a_document_shows_is_what_happens[docs/cli.md]",
    "tests/docs/test_examples.py::test_what_a_document_shows_is_what_happens[docs/from-one-machine-to-many.md]",
    "tests/engine/test_soak.py",
    "tests/simulation/test_promises.py",
    "tests/typing/test_user_code.py",
)
# What shares a fixture of its module stays in order.
TOGETHER = ("tests/crash/test_damage.py",)
# What shares a browser begins in one process, and is over before another could take a part of it.
BROWSER = "tests/ui/"
# A process of xdist is given a block of neighbours. The end of each is without tests that wait, for an even end of all.
SHARE = 0.9


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where processes share the tests, those that wait are spread over the whole run: others use the time meanwhile."""
    blocks = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if blocks > 1:
        waiting = [item for item in items if waits(item.nodeid)]
        waiting.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
        browser = [item for item in items if item.nodeid.startswith(BROWSER)]
        others = [item for item in items if not waits(item.nodeid) and item not in browser]
        items[:] = [*browser, *(item for n in range(blocks) for item in block(n, blocks, waiting, others))]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """No collection of garbage goes through what is collected of tests, and lives as long as the process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        # Each of thousands of tests leaves little behind: a tenth of the suite's time would go into looking for it.
        gc.set_threshold(5_000, 20, 20)


def waits(nodeid: str) -> bool:
    """Whether a test mostly waits."""
    return nodeid.startswith(WAITING + LONGEST) and not nodeid.startswith(TOGETHER)


def block(n: int, blocks: int, waiting: list[pytest.Item], others: list[pytest.Item]) -> list[pytest.Item]:
    """What the n-th process begins with: its part of both kinds, evenly mixed."""
    mine = waiting[n::blocks]
    rest = others[len(others) * n // blocks : len(others) * (n + 1) // blocks]
    placed = [(SHARE * i / len(mine), item) for i, item in enumerate(mine)]
    placed += [(i / len(rest), item) for i, item in enumerate(rest)]
    return [item for _, item in sorted(placed, key=lambda one: one[0])]
