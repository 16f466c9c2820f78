"""One change at one point: what must hold before the deploy, after it, and after it is taken back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.changes.fixes import fix
from tests.changes.harness import Case, Ended, Point, Recording, bites, edited
from tests.changes.ledger import NO_STEP
from tests.changes.model import Change, Family

# Not the kind that was expected, where the run stopped right at the change: the documentation says that two changes may
# look the same there.
LOOKS_THE_SAME = "k looks the same"
ALIKE = {"inserted", "removed", "renamed", "reordered"}


@dataclass(frozen=True)
class Finding:
    """Something that did not hold. `grade` is what it does harm to, the worst first in the alphabet."""

    grade: str
    text: str


def tried(
    folder: Path,
    family: Family,
    change: Change,
    recording: Recording,
    point: Point,
    fresh: Callable[[], Ended],
) -> Iterator[Finding]:
    """Check the change, deploy it, and take it back."""
    scenario = family.scenarios[change.scenario]
    source, lines = edited(family, change)
    case = Case(folder, family, scenario, recording, point)
    unsafe = bites(change, point)

    fit, why = case.check(source, "new")
    if case.ledger.read_text() != point.ledger:
        yield Finding("a effects", "upgrade-check performed effects")
        case.ledger.write_text(point.ledger)
    if unsafe is (fit == "safe"):
        yield Finding("b verdict", f"upgrade-check says {fit}: {first_line(why)}")

    ended = case.go(source, "new")
    if not unsafe and point.continued:
        # What the first incarnation did, it did with the old code.
        if ended.status not in ("completed", "failed"):
            yield Finding(
                "d false alarm", f"it is {ended.status}: {first_line(ended.view.reason if ended.view else '')}"
            )
        return
    if not unsafe:
        yield from went_on(ended, recording.reference if change.keeps and change.keeps in point.marks else fresh())
        return
    if done := news(point, recording, ended.ledger):
        yield Finding("a effects", f"new code took effect ({ended.status}): {done}")
        return
    if ended.status == "waiting" and refused(change, point, ended):
        yield from went_on(case.go(family.source, "old"), recording.reference, "e not healed")
        return
    if ended.status != "parked":
        error = ended.view.error if ended.view else None
        yield Finding("c not parked", f"it is {ended.status}, {ended.trouble or error}")
        return
    yield from explained(change, ended, lines, point)
    if fit != "safe" and first_line(why) != first_line(ended.view.reason if ended.view else ""):
        yield Finding(
            "f words",
            f"upgrade-check says {first_line(why)!r}, the run {first_line(ended.view.reason if ended.view else '')!r}",
        )

    if found := fix(source, ended.view.reason if ended.view else ""):
        diff, mended = found
        after = case.fork("fix").go(mended, "mended")
        if after.status != recording.reference.status:
            yield Finding("l fix", f"{diff} does not let it go on: {after.status}, {after.trouble}")

    healed = case.go(family.source, "old")
    yield from went_on(healed, recording.reference, "e not healed")


def refused(change: Change, point: Point, ended: Ended) -> bool:
    """Whether the wait is open, and what the old code would have taken was refused: its sender knows."""
    is_open = change.bites in point.marks and f"{change.bites}!" not in point.marks
    return is_open and "undecodable" in change.kinds and "Rejected" in ended.trouble


def went_on(ended: Ended, expected: Ended, grade: str = "d false alarm") -> Iterator[Finding]:
    """The run ended as it should, with the effects it should have."""
    if ended.status != expected.status:
        reason = first_line(ended.view.reason) if ended.view else ""
        error = ended.view.error if ended.view else None
        yield Finding(grade, f"it is {ended.status} and not {expected.status}: {ended.trouble} {reason} {error or ''}")
    elif ended.effects != expected.effects:
        more = [line for line in ended.effects if line not in expected.effects]
        less = [line for line in expected.effects if line not in ended.effects]
        yield Finding("a effects", f"it went on with other effects: too many {more}, missing {less}")


def explained(change: Change, ended: Ended, lines: frozenset[int], point: Point) -> Iterator[Finding]:
    """The explanation has the right kind and the right line, and can be read."""
    view = ended.view
    assert view is not None
    found = view.divergence
    kind = found.change if found is not None else view.parked
    if kind not in change.kinds and view.parked not in change.kinds:
        stopped = f"{change.bites}!" not in point.marks and {kind, *change.kinds} <= ALIKE
        grade = LOOKS_THE_SAME if stopped else "g kind"
        yield Finding(grade, f"{kind} in place of {' or '.join(change.kinds)}: {first_line(view.reason)}")
    if "raised" in change.kinds and not re.search(r"\w+Error|NotDurable", first_line(view.reason)):
        yield Finding("g kind", f"it does not say which error the code raises: {first_line(view.reason)}")
    if lines:
        current = found.current.source if found is not None and found.current is not None else ""
        named = {int(number) for number in re.findall(r"\.py:(\d+)", current or view.reason)}
        ended_instead = found is not None and not current and found.recorded is not None
        if not named & lines and not ended_instead:
            expected = sorted(lines)
            yield Finding("h line", f"{current or first_line(view.reason)} in place of {expected} ({kind})")
    if "Traceback" in view.reason or "perdure/" in view.reason or len(view.reason) < 20:
        yield Finding("i readable", view.reason)


def news(point: Point, recording: Recording, ledger: str) -> list[str]:
    """Effects of the run that were not there before; remote steps and detached children are runs of their own."""
    found = []
    for line in ledger[len(point.ledger) :].splitlines():
        key, _, text = line.partition("\t")
        own = key.startswith((f"{point.run_id}/", NO_STEP))
        if own or text not in recording.reference.effects:
            found.append(f"{key} {text}")
    return found


def first_line(text: str) -> str:
    """The sentence that says what it is."""
    return text.strip().partition("\n")[0]
