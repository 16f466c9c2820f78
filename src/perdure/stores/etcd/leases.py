"""Leases in etcd. They say when to try to advance a run; the journal decides who may write.

Under the prefix there are three kinds of keys. `held/KEY` is a lease in force: its owner, epoch and expiry as JSON,
tied to a lease of etcd's own, so that it vanishes when its holder dies, and watchers are notified. `epochs/KEY` stays,
so that the next holder's epoch is higher; epochs that were unused for a day are swept into `floor`, the highest of
them.

An etcd that was wiped, or restored from a backup, has lost epochs that it gave. So an epoch is also never lower than
the clock's milliseconds when it is given: later epochs are higher, unless a clock goes back.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from perdure.errors import NotOwner, StoreUnavailable
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.stores.etcd.address import Address, read_address
from perdure.stores.etcd.config import EtcdConfig
from perdure.stores.etcd.gateway import NOT_FOUND, Gateway, Refused

# etcd takes at most 128 operations in a transaction.
MOST_OPS = 100
PAGE = 1000
# etcd counts whole seconds, up to this many.
LONGEST = 9_000_000_000


class _Held(msgspec.Struct, frozen=True):
    """The value under `held/`."""

    owner: str
    epoch: int
    expires: float


class _Epoch(msgspec.Struct, frozen=True):
    """The value under `epochs/`, and of `floor`."""

    epoch: int
    at: float


class _Entry(msgspec.Struct, frozen=True):
    """A key and its value in etcd. A key that does not exist has revision 0."""

    key: str
    value: bytes = b""
    revision: int = 0
    lease: int = 0

    def held(self) -> _Held | None:
        """The lease in it. A value that cannot be decoded counts as no lease."""
        return _decoded(self.value, _Held) if self.revision else None

    def epoch(self) -> int:
        """The epoch in it."""
        found = _decoded(self.value, _Epoch) if self.revision else None
        return found.epoch if found is not None else 0


class EtcdLeases:
    """Leases under one prefix of one cluster. Connects at the first call; `close` closes the connections."""

    def __init__(self, address: str | Address, config: EtcdConfig = EtcdConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self.address = read_address(address) if isinstance(address, str) else address
        self.url = self.address.url
        self._gateway = Gateway(self.address, config.quiet)
        self._swept = -math.inf
        # The highest epoch that this process has seen, in case etcd loses it.
        self._highest = 0

    async def acquire(self, key: str, owner: str, ttl: float, now: float) -> Acquired | HeldBy:
        """Take a lease that is free, expired, or already yours."""
        if abs(now - self._swept) >= self._config.sweep:
            self._swept = now
            await self._sweep(now)
        while True:
            entry, past, floor = await self._read([self._held(key), self._epochs(key), self._floor])
            held = entry.held()
            if held is not None and held.owner != owner and held.expires > now:
                return HeldBy(held.owner, held.expires)
            mine = held is not None and held.owner == owner
            known = max(past.epoch(), floor.epoch(), held.epoch if held is not None else 0)
            epoch = held.epoch if held is not None and mine else max(known + 1, int(now * 1000), self._highest + 1)
            lease = await self._lease(ttl, entry.lease if mine else 0)
            value = _Held(owner, epoch, now + ttl)
            puts = [_put(entry.key, value, lease)]
            if epoch != past.epoch():
                puts.append(_put(past.key, _Epoch(epoch, now)))
            # The floor matters only to a key that has no epoch of its own.
            unchanged = [entry, past] if past.revision else [entry, past, floor]
            if await self._commit([_branch(unchanged, puts)]) == [True]:
                self._highest = max(self._highest, epoch)
                return Acquired(owner, epoch, value.expires)

    async def renew_all(self, renewals: Sequence[Renewal], now: float) -> Sequence[str]:
        """Renew each lease that its owner still holds."""
        lost: list[str] = []
        leases: dict[float, int] = {}
        for part in _parts(renewals):
            lost += await self._renew(part, now, leases)
        return lost

    async def _renew(self, renewals: Sequence[Renewal], now: float, leases: dict[float, int]) -> list[str]:
        """Renew these; `leases` are leases of etcd that were just kept alive, by their time to live."""
        lost: list[str] = []
        while renewals:
            entries = await self._read([self._held(renewal.key) for renewal in renewals])
            mine = []
            for renewal, entry in zip(renewals, entries, strict=True):
                held = entry.held()
                if held is None or held.owner != renewal.owner:
                    lost.append(renewal.key)
                else:
                    mine.append((renewal, entry, held))
            for renewal, entry, _ in mine:
                if renewal.ttl not in leases:
                    leases[renewal.ttl] = await self._lease(renewal.ttl, entry.lease)
            branches = [
                _branch(
                    [entry], [_put(entry.key, _Held(held.owner, held.epoch, now + renewal.ttl), leases[renewal.ttl])]
                )
                for renewal, entry, held in mine
            ]
            done = await self._commit(branches)
            renewals = [renewal for (renewal, _, _), ok in zip(mine, done, strict=True) if not ok]
            if renewals:
                leases.clear()  # a key has changed, or a lease of etcd expired before it was used
        return lost

    async def release(self, key: str, owner: str) -> None:
        """Release a lease; raises NotOwner when another owner holds it, or none."""
        unsure = False
        while True:
            [entry] = await self._read([self._held(key)])
            held = entry.held()
            if held is None or held.owner != owner or not owner:
                if unsure:
                    return  # the reply of the first try was lost: it released the lease
                raise NotOwner(key, owner, held.owner or None if held is not None else None)
            done, repeated = await self._transact([_branch([entry], [_delete(entry.key)])])
            if done == [True]:
                return
            unsure = unsure or repeated

    async def release_all(self, owner: str) -> int:
        """Release every lease of `owner`."""
        mine = [entry async for entry in self._scan(self._held("")) if _is_of(entry, owner)]
        given = 0
        for start in range(0, len(mine), MOST_OPS):
            part = mine[start : start + MOST_OPS]
            done, repeated = await self._transact([_branch([entry], [_delete(entry.key)]) for entry in part])
            given += len(part) if repeated else sum(done)
        return given

    async def get(self, key: str, now: float) -> Lease | None:
        """The lease in force, or None."""
        [entry] = await self._read([self._held(key)])
        return self._in_force(entry, now)

    async def live(self, prefix: str, now: float) -> Sequence[Lease]:
        """The leases in force whose key begins with `prefix`."""
        found = [self._in_force(entry, now) async for entry in self._scan(self._held(prefix))]
        return [lease for lease in found if lease is not None]

    async def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` whose lease has ended, as etcd reports them."""
        events: asyncio.Queue[str | StoreUnavailable] = asyncio.Queue()
        # One task reads and closes the stream, whichever task iterates and wherever the iteration is cancelled.
        listening = asyncio.create_task(self._listen(prefix, events))
        try:
            while True:
                ended = await events.get()
                if isinstance(ended, StoreUnavailable):
                    raise ended
                yield ended
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _listen(self, prefix: str, events: asyncio.Queue[str | StoreUnavailable]) -> None:
        body = {"create_request": {**_span(self._held(prefix)), "filters": ["NOPUT"]}}
        try:
            while True:
                async with self._gateway.stream("watch", body) as results:
                    async for result in results:
                        if result.get("canceled"):
                            reason = result.get("cancel_reason", "unknown")
                            raise StoreUnavailable(self.url, f"the watch ended: {reason}")
                        for event in result.get("events", ()):
                            if event.get("type") == "DELETE":
                                events.put_nowait(self._name(_unb64(event["kv"]["key"])))
        except StoreUnavailable as error:
            events.put_nowait(error)

    async def close(self) -> None:
        """Close the connections. Leases stay until they expire or are released."""
        await self._gateway.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- keys -----------------------------------------------------------------------------------------------------

    def _held(self, key: str) -> str:
        return f"{self.address.prefix}/held/{key}"

    def _epochs(self, key: str) -> str:
        return f"{self.address.prefix}/epochs/{key}"

    @property
    def _floor(self) -> str:
        return f"{self.address.prefix}/floor"

    def _name(self, path: str) -> str:
        return path.removeprefix(self._held(""))

    def _in_force(self, entry: _Entry, now: float) -> Lease | None:
        held = entry.held()
        if held is None or held.expires <= now:
            return None
        self._highest = max(self._highest, held.epoch)
        return Lease(self._name(entry.key), held.owner, held.epoch, held.expires)

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _read(self, keys: Sequence[str]) -> list[_Entry]:
        """Read these keys, at one moment."""
        ranges = [{"requestRange": {"key": _b64(key)}} for key in keys]
        reply = await self._call("kv/txn", {"success": ranges})
        answers = reply["responses"]
        return [_entry(key, answer["response_range"]) for key, answer in zip(keys, answers, strict=True)]

    async def _scan(self, prefix: str) -> AsyncIterator[_Entry]:
        """The keys that begin with `prefix`, a page at a time."""
        body: dict[str, Any] = {**_span(prefix), "limit": PAGE}
        while True:
            reply = await self._call("kv/range", body)
            for kv in reply.get("kvs", ()):
                yield _entry_of(kv)
            if not reply.get("more"):
                return
            body["key"] = b64encode(b64decode(reply["kvs"][-1]["key"]) + b"\0").decode()

    async def _lease(self, ttl: float, current: int = 0) -> int:
        """A lease of etcd for `ttl` seconds from now: the current one, kept alive, or a new one."""
        seconds = min(max(1, math.ceil(ttl)), LONGEST)
        if current:
            alive = (await self._call("lease/keepalive", {"ID": str(current)})).get("result", {})
            if int(alive.get("TTL", 0)) >= seconds:
                return current
        return int((await self._call("lease/grant", {"TTL": seconds}))["ID"])

    async def _commit(self, branches: Sequence[dict[str, Any]]) -> list[bool]:
        done, _ = await self._transact(branches)
        return done

    async def _transact(self, branches: Sequence[dict[str, Any]]) -> tuple[list[bool], bool]:
        """Apply each change whose keys are as they were read, in one commit.

        Returns which were applied, and whether it was sent twice. None is applied when a lease of etcd that they name
        has expired meanwhile.
        """
        if not branches:
            return [], False
        try:
            reply = await self._gateway.call("kv/txn", {"success": [{"requestTxn": branch} for branch in branches]})
        except Refused as error:
            if error.code != NOT_FOUND:
                raise StoreUnavailable(self.url, error.message) from error
            return [False] * len(branches), False
        answers = reply.body["responses"]
        return [bool(answer["response_txn"].get("succeeded")) for answer in answers], reply.repeated

    async def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return (await self._gateway.call(path, body)).body
        except Refused as error:
            raise StoreUnavailable(self.url, error.message) from error

    async def _sweep(self, now: float) -> None:
        """Sweep epochs that were unused for long; the highest of them stays as the floor."""
        old = []
        async for entry in self._scan(self._epochs("")):
            found = _decoded(entry.value, _Epoch)
            if found is None or found.at <= now - self._config.kept_epoch:
                old.append(entry)
        for start in range(0, len(old), MOST_OPS // 2):
            part = old[start : start + MOST_OPS // 2]
            [floor] = await self._read([self._floor])
            highest = max([floor.epoch(), *(entry.epoch() for entry in part)])
            changes = [_put(self._floor, _Epoch(highest, now)), *(_delete(entry.key) for entry in part)]
            # If another process has changed one of them, the next sweep removes them.
            await self._commit([_branch([floor, *part], changes)])


def _parts(renewals: Sequence[Renewal]) -> Iterator[list[Renewal]]:
    """Parts that fit a transaction, none with a key twice."""
    part: dict[str, Renewal] = {}
    for renewal in renewals:
        if renewal.key in part or len(part) == MOST_OPS:
            yield list(part.values())
            part = {}
        part[renewal.key] = renewal
    if part:
        yield list(part.values())


def _is_of(entry: _Entry, owner: str) -> bool:
    held = entry.held()
    return held is not None and held.owner == owner


def _branch(unchanged: Iterable[_Entry], changes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A branch of a transaction: changes, if these keys are as they were read."""
    compared = [{"key": _b64(entry.key), "target": "MOD", "modRevision": str(entry.revision)} for entry in unchanged]
    return {"compare": compared, "success": list(changes)}


def _put(key: str, value: _Held | _Epoch, lease: int = 0) -> dict[str, Any]:
    encoded = b64encode(msgspec.json.encode(value)).decode()
    return {"requestPut": {"key": _b64(key), "value": encoded, "lease": str(lease)}}


def _delete(key: str) -> dict[str, Any]:
    return {"requestDeleteRange": {"key": _b64(key)}}


def _entry(key: str, found: dict[str, Any]) -> _Entry:
    kvs = found.get("kvs")
    return _entry_of(kvs[0]) if kvs else _Entry(key)


def _entry_of(kv: dict[str, Any]) -> _Entry:
    value = b64decode(kv.get("value", ""))
    return _Entry(_unb64(kv["key"]), value, int(kv["mod_revision"]), int(kv.get("lease", 0)))


def _decoded(value: bytes, type: Any) -> Any:
    try:
        return msgspec.json.decode(value, type=type)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _span(prefix: str) -> dict[str, str]:
    """All keys that begin with `prefix`."""
    start = prefix.encode("utf-8", "surrogatepass")
    # No byte of UTF-8 is 255, so the last byte can always be incremented.
    return {"key": b64encode(start).decode(), "range_end": b64encode(start[:-1] + bytes([start[-1] + 1])).decode()}


def _b64(key: str) -> str:
    return b64encode(key.encode("utf-8", "surrogatepass")).decode()


def _unb64(key: str) -> str:
    return b64decode(key).decode("utf-8", "surrogatepass")
