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
TOGETHER = 0.1


@pytest.mark.parametrize(("seed", "kills"), some([(1, 25), *((seed, 25) for seed in range(2, 8))], 1))
def test_after_kills_and_takeovers_every_parent_is_there_and_no_fact_is_two(
    children: Children, tmp_path: Path, seed: int, kills: int
) -> None:
    """Every eighth process has another name: it takes over from the one that was killed before it."""
    chance = random.Random(seed)
    db, spans = f"sqlite:///{tmp_path}/t.db", tmp_path / "spans.jsonl"
    runs, killed = RUNS, []
    for number in range(kills):
        name = f"other-{number}" if number % 8 == 7 else "w"
        child = children.start("tests.crash.tracing:execute", tmp_path, db=db, spans=str(spans), name=name, runs=runs)
        time.sleep(chance.uniform(0.03, 0.25))
        if not child.alive:
            runs += RUNS  # it was done: there is more to do
        child.kill()
        killed.append(time.time())
    done = children.start("tests.crash.tracing:execute", tmp_path, db=db, spans=str(spans), name="w", runs=runs)
    assert len(done.result()["results"]) == runs
    found = [json.loads(line) for line in spans.read_text().splitlines()]
    check(found, asyncio.run(journals(db, runs)), killed)


async def journals(db: str, runs: int) -> dict[str, list[Any]]:
    async with Client(open_store(db)) as client:
        return {f"r{number}": list(await client.journal(f"r{number}")) for number in range(runs)}


def cut_short(spans: list[dict[str, Any]], ends: dict[str, float], killed: list[float]) -> set[str]:
    """The runs that ended so shortly before a kill that it cost their last spans: they have no next owner."""
    whole = {span["perdure.run.id"] for span in spans if "perdure.run.stretches" in span}  # its summary
    for run in ends.keys() - whole:
        [kill] = [at for at in killed if at > ends[run]][:1]
        # Runs that end together share a commit, and their summaries may have any order.
        later = [other for other in whole & ends.keys() if ends[run] + TOGETHER < ends[other] < kill]
        assert not later, f"{run} has no summary, and {later} have, which ended after it in the same process"
    return ends.keys() - whole


def check(spans: list[dict[str, Any]], journals: dict[str, list[Any]], killed: list[float]) -> None:
    known = {tuple(span["id"]) for span in spans}
    events = {run: [entry.event for entry in entries] for run, entries in journals.items()}
    short = cut_short(spans, {run: entries[-1].at.timestamp() for run, entries in journals.items()}, killed)
    # A start span is of the caller, who may have been killed before it was exported.
    callers = {
        (int(event.trace.split("-")[1], 16), int(event.trace.split("-")[2], 16))
        for of_run in events.values()
        for event in of_run
        if isinstance(event, RunStarted) and event.trace
    }
    owners = {run: [event.epoch for event in of_run if isinstance(event, RunClaimed)] for run, of_run in events.items()}
    run_of = {span["id"][0]: span["perdure.run.id"] for span in spans if "perdure.run.id" in span}
    for span in spans:
        # What a killed caller did around its start is not a run's.
        if span["parent"] and tuple(span["parent"]) not in known | callers and span["name"] != "start errand":
            run = run_of.get(span["id"][0])
            # Of a run that ended soon after it began, the kill may have cost all spans of ours.
            assert run in short if run else short - set(run_of.values()), f"{span} has no parent"
            assert span["name"] == "inner" or (run and span["perdure.orchestrator.epoch"] == owners[run][-1]), span
    facts: defaultdict[tuple[Any, ...], set[tuple[int, int]]] = defaultdict(set)
    for span in spans:
        if run := span.get("perdure.run.id"):
            epoch = span.get("perdure.orchestrator.epoch") if "perdure.op.path" in span else None
            fact = run, span["kind"], span.get("perdure.op.path"), span.get("perdure.step.attempt"), epoch
            if span["kind"] != "CONSUMER":
                facts[fact].add(tuple(span["id"]))
    assert not {fact: found for fact, found in facts.items() if len(found) > 1}
    made = {(run, op, attempt) for run, _, op, attempt, _ in facts}
    for run, of_run in events.items():
        assert owners[run]
        last = max(n for n, event in enumerate(of_run) if isinstance(event, RunClaimed))
        for event in of_run[:last] if run in short else of_run:
            if isinstance(event, StepStarted):
                assert (run, event.op, event.attempt) in made, f"{run}: {event} has no span"
