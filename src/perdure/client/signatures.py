"""Signatures of programs that this process lacks, as workers registered them. Refuses input that fits none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.client.why import alive
from perdure.errors import NotDecodable, StoreUnavailable
from perdure.kernel.ids import BUILT_IN
from perdure.kernel.values.signatures import Misfit, Signature, unpacked
from perdure.ports.clock import Clock
from perdure.ports.leases import ORCHESTRATOR, REGISTRATION, Registration, part_prefix, registrations
from perdure.ports.store import Store

if TYPE_CHECKING:
    from perdure.kernel.invocation import WrongCall


@dataclass(frozen=True, slots=True)
class SignaturesConfig:
    """Durations are in seconds."""

    known: float = 5.0
    """For how long the registrations of workers are good enough to accept a call, if they have the signature of the
    program. A call is refused only by what was read after it was made: workers come, with other code."""
    unknown: float = 0.5
    """The same, if they do not have it."""
    wait: float = 2.0
    """How long a start waits for them: after that, it skips the check rather than fail."""


class Signatures:
    """The signatures that live workers have registered, read from time to time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        config: SignaturesConfig = SignaturesConfig(),  # noqa: B008 - frozen
    ) -> None:
        self._store, self._clock, self._config = store, clock, config
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        # By name: what each worker that lives has said, None when it has not.
        self._workers: Mapping[str, Registration | None] = {}
        # By digest: signatures of the programs of workers.
        self._taken: dict[str, Mapping[str, Signature]] = {}

    async def check(self, program: str, input: bytes) -> bytes:
        """The input to store: by parameter name, if the workers publish the names and agree.

        Raises NotDecodable or UsageError for input that fits no worker that has the program, if all of them say.
        """
        if program.startswith(BUILT_IN):
            return input
        began = asyncio.get_running_loop().time()
        await self._read(began - (self._config.known if self._known(program) else self._config.unknown))
        misfits = self._misfits(program, input)
        if misfits and self._read_at < began:
            await self._read(began)
            misfits = self._misfits(program, input)
        if misfits:
            raise self._refusal(program, misfits)
        fitting = [one for one in self._known(program).values() if one.misfit(input) is None]
        named = {one.named(input) for one in fitting} if not input.startswith(b"{") else ()
        return next(iter(named)) if len(named) == 1 else input

    async def of(self, program: str) -> Signature | None:
        """The signature of a program as a worker registered it; None if none did."""
        await self._read(asyncio.get_running_loop().time() - self._config.known)
        return next(iter(self._known(program).values()), None)

    def _known(self, program: str) -> dict[str, Signature]:
        """The signature of a program, by worker; empty unless all workers that may have it publish one."""
        found: dict[str, Signature] = {}
        for name, said in self._workers.items():
            if said is None:
                return {}
            if said.programs is not None and program not in said.programs:
                continue
            signature = self._taken.get(said.signatures, {}).get(program)
            if signature is None:
                return {}
            found[name] = signature
        return found

    def _misfits(self, program: str, input: bytes) -> dict[str, Misfit]:
        """Why the input does not fit, by worker; empty when it fits one of them."""
        found: dict[str, Misfit] = {}
        for name, signature in self._known(program).items():
            misfit = signature.misfit(input)
            if misfit is None:
                return {}
            found[name] = misfit
        return found

    def _refusal(self, program: str, misfits: Mapping[str, Misfit]) -> NotDecodable | WrongCall:
        from perdure.kernel.invocation import WrongCall  # imports the rules, which commands that only read do not need

        workers = sorted(misfits)
        misfit, signature = misfits[workers[0]], self._known(program)[workers[0]]
        more = f" and {len(workers) - 1} more" if len(workers) > 1 else ""
        says = f"worker {workers[0]}{more} has {program}{signature}"
        if not misfit.argument:
            return WrongCall(f"{program}() cannot be called like this: {misfit.reason}; {says}")
        return NotDecodable(f"the argument {misfit.argument} of {program}", misfit.type, f"{misfit.reason}; {says}")

    async def _read(self, since: float) -> None:
        """Read the registrations, unless they were read after this time."""
        async with self._reading:
            if self._read_at >= since:
                return
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                async with asyncio.timeout(self._config.wait):
                    self._workers = await self._registrations()
                    for name, said in self._workers.items():
                        if said is not None and said.signatures and said.signatures not in self._taken:
                            await self._load(name, said.signatures)
            except (StoreUnavailable, TimeoutError):
                self._workers = {}
            used = {said.signatures for said in self._workers.values() if said is not None}
            self._taken = {digest: taken for digest, taken in self._taken.items() if digest in used}
            self._read_at = began

    async def _registrations(self) -> dict[str, Registration | None]:
        leases, now = self._store.leases, self._clock.now()
        live = alive(await leases.live(ORCHESTRATOR, now))
        said = registrations(await leases.live(REGISTRATION, now)) if live else {}
        return {name: said.get(name) for name in live}

    async def _load(self, worker: str, digest: str) -> None:
        prefix = part_prefix(worker, digest)
        found = await self._store.leases.live(prefix, self._clock.now())
        parts = {lease.key.removeprefix(prefix): lease.owner for lease in found}
        taken = unpacked(digest, [parts[str(number)] for number in range(len(parts)) if str(number) in parts])
        if taken is not None:
            self._taken[digest] = taken
