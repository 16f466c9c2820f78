"""Streams over the death of their process: a reader that comes back sees no gap and no repeat."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure import Chunk, connect
from perdure.kernel.events import ChunkAppended, StepProgressed
from tests.crash.harness import Child, Children, audit, peek, until
from tests.patience import PATIENCE

CHUNKS = 200


@pytest.fixture
def command(tmp_path: Path) -> dict[str, Any]:
    """The command that is run again and again."""
    return {"db": str(tmp_path / "runs.db"), "effects": str(tmp_path / "effects")}


class Reader:
    """Follows a stream in this process, and leaves and comes back all the time."""

    def __init__(self, db: Path, id: str, step: str | None) -> None:
        self._db, self._id, self._step = db, id, step
        self.seen: list[Chunk] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._follow())
        except BaseException as error:
            self.error = error

    async def _follow(self) -> None:
        leave = random.Random(1)
        async with asyncio.timeout(PATIENCE), connect(f"sqlite:///{self._db}") as client:
            while True:
                stream = client.stream(self._id, self._step, len(self.seen))
                patience = leave.randrange(1, 60)
                async for chunk in stream:
                    self.seen.append(chunk)
                    patience -= 1
                    if not patience:
                        break
                else:
                    return

    def ended(self) -> list[Chunk]:
        """All it has seen, when the stream has ended."""
        self._thread.join(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.seen


def shown(db: Path, id: str) -> int:
    """How many chunks are in the journal."""
    journal = peek(db, id)
    return 0 if journal is None else max((e.end for e in journal.events if isinstance(e, ChunkAppended)), default=0)


def killed_at(child: Child, db: Path, id: str, count: int) -> None:
    until(lambda: shown(db, id) >= count or not child.alive, every=0.01)
    child.kill()


@pytest.mark.parametrize(
    ("program", "step"), [("telling", "tell"), ("telling_in_thread", "tell_in_thread"), ("telling", None)]
)
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_a_stream_that_goes_on_after_kills_is_read_without_a_gap_or_a_repeat(
    children: Children, tmp_path: Path, command: dict[str, Any], program: str, step: str | None, durability: str
) -> None:
    kills = [int(CHUNKS * share) for share in (0.1, 0.3, 0.6)]
    # The kill comes amid the chunks, however late it is, and before those that the next one waits for.
    stops = [count + CHUNKS // 20 for count in kills]
    command |= {"program": program, "arguments": [CHUNKS, 0.001, stops], "durability": durability}
    db = tmp_path / "runs.db"
    reader: Reader | None = None
    for count in kills:
        child = children.start("run", tmp_path, **command)
        if reader is None:
            until(lambda: peek(db, program), every=0.01)
            reader = Reader(db, program, step)
        killed_at(child, db, program, count)
    assert children.start("run", tmp_path, **command).result() == list(range(CHUNKS))
    assert reader is not None
    seen = reader.ended()
    assert [chunk.index for chunk in seen] == list(range(CHUNKS))
    assert [chunk.value for chunk in seen] == list(range(CHUNKS))
    attempts = [chunk.attempt for chunk in seen]
    assert attempts == sorted(attempts)
    assert len(set(attempts)) == 4
    audit(db)


def test_a_stream_that_begins_again_after_kills_says_so_to_its_readers(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    command |= {"program": "telling_again", "arguments": [60, 0.002, [40, 40, 40]]}
    db = tmp_path / "runs.db"
    reader: Reader | None = None
    for _ in range(3):
        before = shown(db, "telling_again")
        child = children.start("run", tmp_path, **command)
        if reader is None:
            until(lambda: peek(db, "telling_again"), every=0.01)
            reader = Reader(db, "telling_again", "tell_again:0")
        killed_at(child, db, "telling_again", before + 20)
    assert children.start("run", tmp_path, **command).result() == list(range(60))
    assert reader is not None
    seen = reader.ended()
    assert [chunk.index for chunk in seen] == list(range(len(seen)))
    marks = [chunk.index for chunk in seen if chunk.restart]
    assert len(marks) == 3
    # From each mark on it counts from 0 again, and only the last count comes to its end.
    for begin, end in zip([-1, *marks], [*marks, len(seen)], strict=True):
        assert [chunk.value for chunk in seen[begin + 1 : end]] == list(range(end - begin - 1))
    assert len(seen) - marks[-1] - 1 == 60
    audit(db)


@pytest.mark.parametrize("after", [False, True], ids=["before-the-commit", "after-the-commit"])
def test_a_kill_at_any_commit_of_a_stream_loses_nothing_that_was_shown(
    children: Children, tmp_path: Path, command: dict[str, Any], after: bool
) -> None:
    for at in range(2, 14):
        folder = tmp_path / str(at)
        folder.mkdir()
        mine = {"program": "telling", "arguments": [20, 0.003]}
        mine |= {"db": str(folder / "runs.db"), "effects": str(folder / "effects")}
        if not children.start("run", folder, **mine, at=at, after=after).killed():
            break  # so many commits it does not have: the slower the machine, the more chunks are in each
        assert children.start("run", folder, **mine).result() == list(range(20))
        events = audit(folder / "runs.db")["telling"].events
        chunks = [json.loads(bytes(c)) for e in events if isinstance(e, ChunkAppended) for c in e.chunks]
        assert chunks == list(range(20))
        assert not any(e.restart for e in events if isinstance(e, ChunkAppended))
    assert at > 3, "it was hardly ever killed"


def test_the_command_line_follows_a_stream_over_the_death_of_its_process(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    command |= {"program": "telling", "arguments": [CHUNKS, 0.001, [CHUNKS // 2]]}
    db = tmp_path / "runs.db"
    child = children.start("run", tmp_path, **command)
    until(lambda: peek(db, "telling"), every=0.01)
    words = ["stream", "telling", "tell", "--start", "5", "--json", "--store", f"sqlite:///{db}"]
    with subprocess.Popen([sys.executable, "-m", "perdure.cli", *words], stdout=subprocess.PIPE, text=True) as reader:
        try:
            killed_at(child, db, "telling", CHUNKS // 3)
            assert children.start("run", tmp_path, **command).result() == list(range(CHUNKS))
            out, _ = reader.communicate(timeout=PATIENCE)
        finally:
            reader.kill()
    assert reader.returncode == 0
    seen = [json.loads(line) for line in out.splitlines()]
    assert [(chunk["index"], chunk["value"]) for chunk in seen] == [(i, i) for i in range(5, CHUNKS)]
    assert {chunk["attempt"] for chunk in seen} == {1, 2}


def test_a_long_step_goes_on_from_its_progress_after_a_kill(
    children: Children, tmp_path: Path, command: dict[str, Any]
) -> None:
    command |= {"program": "counting", "arguments": [150, 0.02, 90]}
    db = tmp_path / "runs.db"

    def progress() -> int:
        journal = peek(db, "counting")
        events = [] if journal is None else journal.events
        return max((int(bytes(e.progress)) for e in events if isinstance(e, StepProgressed)), default=0)

    child = children.start("run", tmp_path, **command)
    until(lambda: progress() > 30, every=0.01)
    child.kill()
    known = progress()
    assert children.start("run", tmp_path, **command).result() == [known, 150]
    assert progress() == 150
