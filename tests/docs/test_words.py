"""The glossary holds the words of the project, and the source and the documentation keep to them.

The "not" columns of docs/glossary.md are searched for in names, comments, docstrings, messages and documents, except
for words that also have a proper use here (`ORDINARY`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown import ROOT, table

GLOSSARY = ROOT / "docs" / "glossary.md"

WORDS = """
    program; graph, node; gate; turn; loop, round; map, item;
    batch, row; flow, component; definition; job, workspace; secret; override, profile;
    run; root run; child run; incarnation; sweep; op; op path;
    step; stream, chunk; stretch; emit; event;
    external event; command; journal; replay; store; blob; offload; setting; orchestrator; session; registration;
    heartbeat; lease, epoch; lease deadline; claim; fence; orphan; takeover; residency; evict; warm cache; catch up;
    poll; notify; change feed; gateway; deduplicate; quarantine; compensation; rule; fallback; schedule, tick;
    lock, token; queue, key; admit; drain; resource; remote step; signal; input; approval; interrupt, rest; capsule;
    snapshot; fork; retry; back off; lineage; prune; collect; rebuild; migration; park; resolve; version; patch
"""

# Words of the "not" columns that are right in another sense: asyncio tasks, SQL rollbacks, Python's own names, ...
ORDINARY = {
    *("instance", "execution", "generation", "tick", "task", "activity", "message", "log", "option", "server", "node"),
    *("lock", "rollback", "override", "trigger", "semaphore", "channel", "pop", "dependency", "service", "event"),
    *("suspend", "dump", "archive", "checkpoint", "branch", "restart", "garbage collection", "cron job", "ticket"),
    *("show", "look", "tell", "attachment", "repository", "pipeline", "reindex"),
}
# The forms of a word that an ending does not make.
FORMS = {
    "let go": "let(?:s|ting)?[ _-]go",
    "leave memory": "(?:leav(?:e|es|ing)|left) (?:the )?memory",
    "sign of life": "signs?[ _-]of[ _-]life",
    "lies apart": "l(?:ies?|ay|ying)[ _-]apart",
    "stir": "stir(?:ring|s)?",
    "rehearse": "rehears(?:e|es|ed|ing|al|als)",
    "lingering": "linger(?:s|ed|ing)?",
    # "so that one of them", "that one statement": not a pronoun.
    "that one": r"(?<!so )that one(?=[,.;:)]|$| (?:is|has|holds|sees|may|must|will|can|does)\b)",
    "crowd": "crowds?(?! out)",
    "wish": "wish(?:es|ed|ing)?",
}


def forbidden() -> dict[str, str]:
    """What may not be written, as patterns, with what to write in its place."""
    text = GLOSSARY.read_text(encoding="utf-8")
    listed = [(unlike, word) for word, _, unlike in table(text, "word")]
    return {
        FORMS.get(unlike) or re.escape(unlike).replace(r"\ ", "[ _-]") + "(?:s|ed|ing)?": word
        for unlikes, word in [*listed, *table(text, "not")]
        for unlike in unlikes.split(", ")
        if unlike and unlike not in ORDINARY
    }


FORBIDDEN = forbidden()
SEARCH = re.compile(f"(?<![A-Za-z])(?:{'|'.join(f'({form})' for form in FORBIDDEN)})(?![A-Za-z])", re.IGNORECASE)


def written() -> Iterator[Path]:
    """Every file of the source and the documentation, except for the glossary, which names the words.

    Not the migrations: once one was released its text stays, since databases hold its checksum.
    """
    for pattern in ("src/**/*.py", "src/**/*.lua", "docs/**/*.md", "README.md"):
        yield from sorted(file for file in ROOT.glob(pattern) if file != GLOSSARY)


def misused(file: Path) -> list[str]:
    """The words of a file that the glossary does not allow: where they stand, and what to write."""
    instead = list(FORBIDDEN.values())
    return [
        f"{file.relative_to(ROOT).as_posix()}:{number}: {match[0]!r}; write {instead[(match.lastindex or 1) - 1]}"
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        for match in SEARCH.finditer(line)
    ]


def test_the_glossary_holds_the_words_of_the_project() -> None:
    rows = table(GLOSSARY.read_text(encoding="utf-8"), "word")
    assert {word for word, _, _ in rows} == {" ".join(word.split()) for word in WORDS.split(";")}
    assert all(meaning for _, meaning, _ in rows)


def test_the_source_and_the_documents_keep_to_the_glossary() -> None:
    found = [line for file in written() for line in misused(file)]
    assert not found, "words that the glossary does not allow:\n" + "\n".join(found)
