"""The same in processes of their own, which can be killed."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from tests.changes.corpus import FAMILIES
from tests.changes.harness import Clock, Ended, Session, module

# Whatever a run sleeps for is over when it is taken up again.
LATER = 400 * 86400.0


def until_killed(place: str, family: str, scenario: str, after: int) -> None:
    """Run the old code; the effect of this number is the last thing that the process does."""
    os.environ["KILL_AFTER"] = str(after)
    [found] = [known for known in FAMILIES if known.name == family]
    _session(Path(place), family, scenario, "old", found.source, begin=True)


def deploy(place: str, family: str, scenario: str, name: str, source: str) -> dict[str, Any]:
    """Go on with this code, and tell how it ended."""
    ahead = LATER if family == "subscription" else 0.0
    ended = _session(Path(place), family, scenario, name, source, ahead=ahead)
    found = ended.view.divergence if ended.view else None
    kind = found.change if found is not None else ended.view and ended.view.parked
    return {"status": ended.status, "kind": kind and str(kind), "trouble": ended.trouble}


def _session(
    folder: Path, family: str, scenario: str, name: str, source: str, begin: bool = False, ahead: float = 0.0
) -> Ended:
    [found] = [known for known in FAMILIES if known.name == family]
    with module(folder / name, family, source) as target:
        session = Session(
            folder / "store.db", folder / "ledger", target, found.scenarios[scenario], Clock(time.time() + ahead)
        )
        session.positional = True
        return asyncio.run(session.go(begin=begin))
