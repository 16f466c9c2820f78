"""The table of what is true of which events covers every class of event, and so does what is said of their fields."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Raw

from perdure.kernel.events import FROM_OUTSIDE, TRAITS, AnyEvent, Event, StepOutcome, Trait, events_with
from perdure.kernel.state import _FOLD
from perdure.kernel.values import redact

EVENTS: tuple[type[Event], ...] = get_args(AnyEvent)
AUDIENCES = (Trait.FOR_OWNER, Trait.FOR_FOLLOWERS, Trait.FOR_ALL)
# Raw JSON that is not a value of a user: the schema is made from the program's annotations.
NOT_OF_USERS = {"schema"}


def test_every_event_is_in_the_union_and_has_its_traits() -> None:
    assert set(EVENTS) == set(Event.__subclasses__()) == set(TRAITS) == set(_FOLD)


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_has_one_audience(kind: type[Event]) -> None:
    assert sum(audience in TRAITS[kind] for audience in AUDIENCES) == 1


def test_an_event_without_traits_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(TRAITS, EVENTS[-1])
    with pytest.raises(KeyError, match=EVENTS[-1].__name__):
        _ = events_with(Trait.OUTSIDE)


def test_what_others_may_append_is_not_kept_from_the_owner() -> None:
    from_elsewhere = {kind.__name__ for kind in FROM_OUTSIDE & events_with(Trait.FOR_OWNER)}
    assert from_elsewhere == {"WaitResolved"}  # an append from outside notifies every process whatever is in it


def test_an_outcome_is_none_of_the_events_that_go_with_it() -> None:
    assert not events_with(Trait.ATTEMPT) & set(get_args(StepOutcome))


@pytest.mark.parametrize("kind", EVENTS)
def test_every_value_of_a_user_can_be_redacted(kind: type[Event]) -> None:
    known = {*redact.VALUES, redact.CHUNKS, *redact.KEYED, redact.ARGUMENTS}
    hints = get_type_hints(kind)
    assert {name for name, hint in hints.items() if _holds_values(hint)} <= known | NOT_OF_USERS
    blobs = {name for name in hints if name.endswith("blob")} - {redact.VALUES.get(name) for name in hints}
    assert blobs == ({"blob"} if kind.__name__ == "SnapshotTaken" else set())


def _holds_values(hint: Any) -> bool:
    return hint is Raw or any(_holds_values(part) for part in get_args(hint))
