"""Options that every command has, and the settings behind them. Where the command line reads the environment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from perdure.cli.exits import Problem
from perdure.kernel.policies.durations import UNITS, parse_duration

if TYPE_CHECKING:
    from perdure.kernel.policies.queues import Queue
    from perdure.ports.store import Store
    from perdure.settings.load import Settings

# As in perdure.assembly, which questions to a store need not load.
DEFAULT_STORE = "sqlite:///perdure.db"

StoreUrl = Annotated[
    str,
    Parameter(name="--store", env_var="PERDURE_STORE", help="The URL of the store; by default from the settings."),
]
AsJson = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Write JSON, for programs."),
]
LogLevel = Literal["debug", "info", "warning", "error"]
RunId = Annotated[str, Parameter(help="The id of the run, or its run_id.")]
Inputs = Annotated[str | None, Parameter(help="Run a batch: once for each line of this file, a JSON row; - is stdin.")]
Limit = Annotated[int | None, Parameter(help="For a batch: how many rows run at a time.")]
Tolerate = Annotated[str | None, Parameter(help="For a batch: how many rows may fail, such as 20 or 1%.")]
Out = Annotated[str | None, Parameter(help="For a batch: the file for the results, one line per row.")]

# The file of settings that the command in hand was given, if it was.
_given: ContextVar[str | None] = ContextVar("config", default=None)


@dataclass(frozen=True)
class BatchOptions:
    """What only a batch is given."""

    inputs: str | None = None
    limit: int | None = None
    tolerate: str | None = None
    out: str | None = None


@contextmanager
def given(config: str | None) -> Iterator[None]:
    """A command was given this file of settings."""
    token = _given.set(config)
    try:
        yield
    finally:
        _given.reset(token)


def settings() -> Settings:
    """What --config, or a file in the current directory, and the environment say."""
    from perdure.settings.load import load_settings

    return load_settings(_given.get())


def engine_options(store: str, queues: Sequence[Queue] = ()) -> dict[str, Any]:
    """What the settings say about an engine on this store; about leases only if it is the store they speak of.

    `queues` are those of a module; what the settings say of one of them holds instead.
    """
    options = settings().options()
    if options.pop("store", DEFAULT_STORE) != store:
        options.pop("leases", None)
    limits = {queue.name: queue for queue in (*queues, *options.get("queues", ()))}
    return options | {"queues": tuple(limits.values())}


def seconds(text: str, option: str) -> float:
    """A duration, as options give it, in seconds: a number with a unit, or of seconds."""
    length = parse_duration(text, bare=True)
    if length is None:
        units = ", ".join(UNITS)
        raise Problem(f"{option} {text!r} is not a duration; write seconds, or a number with one of {units}, as in 90m")
    if length < 0:
        raise Problem(f"{option} {text!r} must not be negative")
    return length


def age(text: str, option: str) -> float:
    """As `seconds`, for what is deleted: 30 may have been meant as days, so a number alone is refused."""
    length = seconds(text, option)
    if parse_duration(text, bare=False) is None:
        raise Problem(f"{option} {text!r} would be seconds, and what is removed is gone; write {text}s, or {text}d")
    return length


def point(text: str, option: str) -> datetime:
    """A time, as options give it: how long ago, or a date and time, which is local unless it names its zone."""
    try:
        if parse_duration(text, bare=False) is not None:
            return datetime.now(UTC) - timedelta(seconds=seconds(text, option))
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError):
        hint = "write 2h, 7d or 45m (ago), or a date and time such as 2026-11-16T03:00+01:00"
        raise Problem(f"{option} {text!r} is not a time; {hint}") from None


def tags_of(given: list[str]) -> dict[str, str]:
    """Tags, as options give them: key=value."""
    tags = {}
    for tag in given:
        key, equals, value = tag.partition("=")
        if not equals or not key:
            raise Problem(f"--tag {tag!r} is not key=value, as in --tag customer=acme")
        tags[key] = value
    return tags


def is_remote(store: str) -> bool:
    """Whether a store is named by the address of a server."""
    return store.startswith(("http://", "https://"))


def opened(store: str) -> Store:
    """The store of a URL, with leases that are kept beside it if the settings say so. Not connected yet.

    The address of a server is a store too, for commands that read and that tell runs something.
    """
    if is_remote(store):
        from perdure.cli.remote.store import HttpStore

        return HttpStore(store)
    return opened_itself(store)


def opened_itself(store: str) -> Store:
    """As `opened`, for commands that need the store itself: the address of a server raises InvalidStoreUrl."""
    from perdure.stores.open import open_store, with_leases

    return with_leases(open_store(store), engine_options(store).get("leases"))
