"""Turns at a journal with many writers: a writer that keeps losing asks the others to wait.

A turn is a lease, acquired by a writer that has lost its compare-and-swap several times in a row. Callers look for it
when the owner of a run has not written for a while. It is a request, and fences nothing: the compare-and-swap alone
decides which append is written.
"""

from __future__ import annotations

import asyncio

from perdure.errors import NotOwner, StoreUnavailable
from perdure.ports.clock import Clock
from perdure.ports.leases import TURN, Acquired, Leases

# After how many lost appends a writer reserves its turn.
LOSSES = 2
# After so many external events in a row a caller asks whether the owner has asked for its turn.
EXTERNAL_EVENTS = 8
# The length of a turn per lost append: reading a long journal again takes time. The turn is released with the append,
# so this only matters if the writer dies.
SECONDS_PER_LOSS = 5.0
LONGEST = 60.0
# The poll interval of a waiting caller.
FIRST_POLL, LAST_POLL = 0.005, 0.1


class Turns:
    """The turns of one writer."""

    def __init__(self, leases: Leases, clock: Clock, owner: str) -> None:
        self._leases, self._clock, self.owner = leases, clock, owner
        # How many appends in a row each journal has refused; empty unless other processes write to the same ones.
        self.lost: dict[str, int] = {}
        self._held: set[str] = set()

    def lose(self, run_id: str) -> None:
        """Count a lost append."""
        self.lost[run_id] = self.lost.get(run_id, 0) + 1

    async def reserve(self, run_id: str) -> None:
        """Have the other writers wait, if too many appends were lost. Call it before the journal is read again."""
        lost = self.lost.get(run_id, 0)
        if lost < LOSSES:
            return
        seconds = min(lost * SECONDS_PER_LOSS, LONGEST)
        try:
            taken = await self._leases.acquire(TURN + run_id, self.owner, seconds, self._clock.now())
        except StoreUnavailable:
            return  # continue without a turn: the append may still win
        if isinstance(taken, Acquired):
            self._held.add(run_id)

    def reset(self, run_id: str) -> bool:
        """Reset the count: the append was written or is no longer wanted. True if there is a turn to release."""
        self.lost.pop(run_id, None)
        return run_id in self._held

    async def end(self, run_id: str) -> None:
        """Reset the count, and release the turn if there is one."""
        if self.reset(run_id):
            await self.give_back(run_id)

    async def give_back(self, run_id: str) -> None:
        """Let the other writers append again."""
        self._held.discard(run_id)
        try:
            await self._leases.release(TURN + run_id, self.owner)
        except (NotOwner, StoreUnavailable):
            pass  # it has expired, or will


async def wait_for_turn(leases: Leases, clock: Clock, run_id: str, owner: str = "") -> bool:
    """Wait while another writer has its turn; False if none has."""
    loop = asyncio.get_running_loop()
    began, pause, waited = loop.time(), FIRST_POLL, False
    try:
        while (turn := await leases.get(TURN + run_id, clock.now())) is not None and turn.owner != owner:
            if loop.time() - began > LONGEST:
                break  # a turn is never that long: the clocks differ
            waited = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, LAST_POLL)
    except StoreUnavailable:
        pass  # if the journal is unreachable too, the append reports it
    return waited
