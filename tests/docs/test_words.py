"""The glossary holds the words of the project, each with what it is not called."""

from __future__ import annotations

from tests.docs.markdown import ROOT, table

# One word per concept, in the code, the documentation and the command line.
WORDS = {
    "program": "pipeline, job type",
    "run": "instance, execution",
    "root run": "",
    "child run": "subworkflow",
    "incarnation": "generation",
    "sweep": "tick",
    "op": "task, activity",
    "op path": "",
    "step": "activity",
    "stream, chunk": "",
    "event": "message",
    "command": "",
    "journal": "log, history table",
    "store": "repository, DAO",
    "blob": "attachment",
    "setting": "option, preference",
    "orchestrator": "server, node",
    "session": "generation",
    "registration": "",
    "quarantine": "dead letter",
    "lease, epoch": "lock",
    "compensation": "rollback",
    "rule": "policy list, override",
    "fallback": "",
    "schedule, tick": "cron job, trigger",
    "lock, token": "mutex, semaphore",
    "queue, key": "topic, channel",
    "admit": "dequeue, pop",
    "resource": "dependency, service",
    "remote step": "",
    "signal": "event, message",
    "input": "event, message",
    "approval": "task, ticket",
    "interrupt, rest": "suspend",
    "capsule": "dump, archive",
    "snapshot": "checkpoint",
    "fork": "branch, clone",
    "retry": "restart",
    "lineage": "",
    "prune": "purge, garbage collection",
    "collect": "",
    "rebuild": "reindex",
    "migration": "",
    "park": "",
    "resolve": "",
    "version": "",
    "patch": "feature flag",
}


def test_the_glossary_holds_the_words_of_the_project_and_what_they_are_not() -> None:
    rows = table((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "word")
    assert {word: unlike for word, _, unlike in rows} == WORDS


def test_every_word_of_the_glossary_has_a_meaning() -> None:
    rows = table((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), "word")
    assert all(meaning for _, meaning, _ in rows)
