"""Spans of processes that are killed: every parent is there in the end, and each fact is one span."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from perdure import Client
from perdure.kernel.events import RunClaimed, RunStarted, StepStarted
from perdure.stores.open import open_store
from tests.amounts import some
from tests.crash.harness import Children

RUNS = 8


@pytest.mark.parametrize(("seed", "kills"), some([(1, 25), *((seed, 25) for seed in range(2, 8))], 1))
def test_after_kills_and_takeovers_every_parent_is_there_and_no_fact_is_two(
    children: Children, tmp_path: Path, seed: int, kills: int
) -> None:
    """Every eighth process has another name: it takes over from the one that was killed before it."""
    chance = random.Random(seed)
    db, spans = f"sqlite:///{tmp_path}/t.db", tmp_path / "spans.jsonl"
    runs = RUNS
    for number in range(kills):
        name = f"other-{number}" if number % 8 == 7 else "w"
        child = children.start("tests.crash.tracing:execute", tmp_path, db=db, spans=str(spans), name=name, runs=runs)
        time.sleep(chance.uniform(0.03, 0.25))
        if not child.alive:
            runs += RUNS  # it was done: there is more to do
        child.kill()
    done = children.start("tests.crash.tracing:execute", tmp_path, db=db, spans=str(spans), name="w", runs=runs)
    assert len(done.result()["results"]) == runs
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    check(found, asyncio.run(journals(db, runs)), kills)


async def journals(db: str, runs: int) -> dict[str, list[Any]]:
    async with Client(open_store(db)) as client:
        return {f"r{number}": [one.event for one in await client.journal(f"r{number}")] for number in range(runs)}


def is_last(span: dict[str, Any], spans: list[dict[str, Any]], journals: dict[str, list[Any]]) -> bool:
    """Whether a span is of the last thing that a run did."""
    [run] = {one["perdure.run.id"] for one in spans if one["id"][0] == span["id"][0] and "perdure.run.id" in one}
    final = [event for event in journals[run] if isinstance(event, StepStarted)][-1]
    return span["name"] == "inner" or (span.get("perdure.op.path"), span.get("perdure.step.attempt")) == (
        final.op,
        final.attempt,
    )


def check(spans: list[dict[str, Any]], journals: dict[str, list[Any]], kills: int) -> None:
    known = {tuple(span["id"]) for span in spans}
    # A start span is of the caller, who may have been killed before it was exported.
    callers = {
        (int(event.trace.split("-")[1], 16), int(event.trace.split("-")[2], 16))
        for events in journals.values()
        for event in events
        if isinstance(event, RunStarted) and event.trace
    }
    lost = [span for span in spans if span["parent"] and tuple(span["parent"]) not in known | callers]
    # What a killed caller did around its start is not a run's.
    lost = [span for span in lost if span["name"] != "start errand"]
    # A run that ended has no next owner: a kill within milliseconds of its end may cost its last spans.
    last = [span for span in lost if is_last(span, spans, journals)]
    assert len(lost) == len(last), [span for span in lost if span not in last][:3]
    assert len({span["id"][0] for span in last}) <= kills
    facts: defaultdict[tuple[Any, ...], set[tuple[int, int]]] = defaultdict(set)
    for span in spans:
        if run := span.get("perdure.run.id"):
            epoch = span.get("perdure.orchestrator.epoch") if "perdure.op.path" in span else None
            fact = run, span["kind"], span.get("perdure.op.path"), span.get("perdure.step.attempt"), epoch
            if span["kind"] != "CONSUMER":
                facts[fact].add(tuple(span["id"]))
    assert not {fact: found for fact, found in facts.items() if len(found) > 1}
    made = {(run, op, attempt) for run, _, op, attempt, _ in facts}
    for run, events in journals.items():
        assert sum(isinstance(event, RunClaimed) for event in events) >= 1
        assert (run, None, None) in made, f"{run} has no summary"
        for event in events:
            if isinstance(event, StepStarted):
                assert (run, event.op, event.attempt) in made, f"{run}: {event} has no span"
