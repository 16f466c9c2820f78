"""Others tell a run something while it takes locks and makes large values, in every mode of durability.

What an engine hears of by looking, and not by a conflict, must keep nothing from the run that came in the meantime: a
lock that was taken, a value that was stored, a chunk, a timer.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure import Queue, every
from perdure.kernel.events import RunFinished
from perdure.kernel.policies.durability import Durability
from perdure.testing.simulation import Faults, Simulation
from tests.simulation.grammar import LIMITS, Tree, interpret, tellers, trees
from tests.simulation.test_promises import LONG, SOAK, check, search, seeds

MODES: list[str | Durability] = ["sync", "relaxed", "async", "exit", "manual", every(1), every(3)]
modes: st.SearchStrategy[str | Durability] = st.sampled_from(MODES)


@search(5, SOAK * 2)
@given(trees, trees, seeds, modes)
def test_a_run_that_is_told_things_loses_none_of_its_own(
    tree: Tree, other: Tree, seed: int, mode: str | Durability
) -> None:
    for engines, crashes, refusals in ((1, 0.0, 0.0), (1, 0.0, 0.1), (2, 0.08, 0.05)):
        faults = Faults(
            delays=(0.0, 0.0, 0.002, 0.1, 0.3), interference=0.3, lost_replies=0.05, refusals=refusals, crashes=crashes
        )
        check(
            Simulation(f"{seed} {engines} {refusals}", faults=faults).run(
                interpret(tree),
                interpret(other),
                senders=tellers(seed),
                engines=engines,
                limit=LONG,
                limits=LIMITS,
                watch=0.05,
                durability=mode,
            )
        )


@search(5)
@given(trees, trees, seeds, modes, st.sampled_from([0.05, 0.5, 3.0, 20.0]))
def test_no_run_completes_after_its_deadline(
    tree: Tree, other: Tree, seed: int, mode: str | Durability, deadline: float
) -> None:
    for engines, crashes, start in ((1, 0.0, {}), (1, 0.05, {"delay": 2.0}), (2, 0.08, {"queue": "one"})):
        faults = Faults(delays=(0.0, 0.0, 0.002, 0.1, 0.3), interference=0.3, lost_replies=0.05, crashes=crashes)
        report = Simulation(f"{seed} {engines} {crashes}", faults=faults).run(
            interpret(tree),
            interpret(other),
            senders=tellers(seed),
            engines=engines,
            limit=LONG,
            limits=LIMITS,
            watch=0.05,
            durability=mode,
            queues=[Queue("one", concurrency=1)],
            start={**start, "deadline": deadline},
        )
        check(report)
        for batches in report.journals.values():
            [ended] = [(b.at, e) for b in batches for e in b.events if isinstance(e, RunFinished)]
            assert ended[0] <= batches[0].at + deadline or "DeadlineExceeded" in str(ended[1].error)
