"""The event loops that perdure makes itself: for `perdure.run`, workers and `perdure.blocking`. Runs none.

uvloop's where it is installed: a step that waits costs about a seventh less there. An engine that an application opens
uses the loop of that application.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """A new event loop."""
    try:
        made: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
    except ImportError:
        return asyncio.new_event_loop()
    return made


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on such a loop."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)
