"""The contract of leases: one holder at a time, expiry by the `now` of the caller, epochs that only grow."""

from __future__ import annotations

import asyncio
import time

import pytest

from perdure.errors import NotOwner
from perdure.ports.leases import Acquired, HeldBy, Lease, Renewal
from perdure.ports.store import Store
from perdure.testing.conformance.history import History, StoreConformance, write_all

NOW, TTL = 1_700_000_000.0, 30.0


class RenewalConformance(StoreConformance):
    """Heartbeats and the store's version."""

    async def test_a_renewal_does_not_change_the_version(self, store: Store, second: Store) -> None:
        """The version stays as it is; and what others write meanwhile still shows."""
        await store.leases.acquire("k", "a", 30.0, 1.0)
        renewal = Renewal("k", "a", 30.0)
        await store.leases.renew_all([renewal], 2.0)
        before = store.version()
        await store.leases.renew_all([renewal], 3.0)
        assert store.version() == before
        await asyncio.gather(store.leases.renew_all([renewal], 4.0), write_all(second, History("r1").begin()))
        await asyncio.gather(write_all(second, History("r2").begin()), store.leases.renew_all([renewal], 5.0))
        async with asyncio.timeout(10):
            while store.version() == before:
                await asyncio.sleep(0.001)


class LeasesConformance(RenewalConformance):
    """The leases of a store."""

    # Whether the backend can tell when a lease ends.
    pushes = True

    async def test_a_free_lease_is_acquired(self, store: Store) -> None:
        """The first caller holds it for `ttl` seconds."""
        acquired = await store.leases.acquire("k", "a", TTL, NOW)
        assert isinstance(acquired, Acquired)
        assert acquired.expires == NOW + TTL
        assert await store.leases.get("k", NOW) == Lease("k", "a", acquired.epoch, NOW + TTL)

    async def test_a_lease_is_acquired_again_by_its_owner(self, store: Store) -> None:
        """The holder may ask again: the lease is prolonged, and its epoch stays."""
        first = await store.leases.acquire("k", "a", TTL, NOW)
        again = await store.leases.acquire("k", "a", TTL, NOW + 10)
        assert isinstance(first, Acquired)
        assert isinstance(again, Acquired)
        assert again.expires == NOW + 10 + TTL
        assert again.epoch == first.epoch

    async def test_a_held_lease_is_refused_to_others(self, store: Store, second: Store) -> None:
        """Others learn who holds it and until when, and change nothing."""
        await store.leases.acquire("k", "a", TTL, NOW)
        assert await second.leases.acquire("k", "b", TTL, NOW + 10) == HeldBy("a", NOW + TTL)
        held = await store.leases.get("k", NOW + 10)
        assert held is not None
        assert (held.owner, held.expires) == ("a", NOW + TTL)

    async def test_of_many_who_ask_at_once_exactly_one_holds_the_lease(self, store: Store, second: Store) -> None:
        """Acquiring is atomic between connections."""
        asked = [on.leases.acquire("k", f"owner-{i}", TTL, NOW) for i, on in enumerate((store, second) * 5)]
        answers = await asyncio.gather(*asked)
        [winner] = [i for i, answer in enumerate(answers) if isinstance(answer, Acquired)]
        refused = [answer for answer in answers if isinstance(answer, HeldBy)]
        assert refused == [HeldBy(f"owner-{winner}", NOW + TTL)] * 9

    async def test_a_lease_expires_at_the_moment_it_names(self, store: Store) -> None:
        """Expiry is `expires <= now`."""
        await store.leases.acquire("k", "a", TTL, NOW)
        assert await store.leases.get("k", NOW + TTL - 0.001) is not None
        assert await store.leases.get("k", NOW + TTL) is None
        assert isinstance(await store.leases.acquire("k", "b", TTL, NOW + TTL - 0.001), HeldBy)
        assert isinstance(await store.leases.acquire("k", "b", TTL, NOW + TTL), Acquired)

    async def test_an_expired_lease_is_taken_with_a_higher_epoch(self, store: Store, second: Store) -> None:
        """The epoch grows when the lease changes hands, so that older holders can be fenced out."""
        epochs = []
        for i, owner in enumerate("abab"):
            acquired = await (store, second)[i % 2].leases.acquire("k", owner, TTL, NOW + i * TTL)
            assert isinstance(acquired, Acquired)
            epochs.append(acquired.epoch)
        assert epochs == sorted(set(epochs))

    async def test_renewing_prolongs_a_lease(self, store: Store, second: Store) -> None:
        """The holder stays the holder, of the same epoch, until later."""
        acquired = await store.leases.acquire("k", "a", TTL, NOW)
        assert list(await store.leases.renew_all([Renewal("k", "a", TTL)], NOW + 20)) == []
        assert isinstance(acquired, Acquired)
        assert await store.leases.get("k", NOW + 20) == Lease("k", "a", acquired.epoch, NOW + 20 + TTL)
        assert await second.leases.acquire("k", "b", TTL, NOW + TTL + 1) == HeldBy("a", NOW + 20 + TTL)

    async def test_a_lease_of_another_is_not_renewed(self, store: Store) -> None:
        """Only the holder may renew; other keys are returned, and nothing changes."""
        await store.leases.acquire("k", "a", TTL, NOW)
        assert list(await store.leases.renew_all([Renewal("k", "b", TTL)], NOW + 10)) == ["k"]
        held = await store.leases.get("k", NOW + 10)
        assert held is not None
        assert (held.owner, held.expires) == ("a", NOW + TTL)

    async def test_a_lease_that_changed_hands_is_not_renewed(self, store: Store) -> None:
        """A holder that renews too late learns that it is no longer the holder."""
        await store.leases.acquire("k", "a", TTL, NOW)
        await store.leases.acquire("k", "b", TTL, NOW + TTL)
        assert list(await store.leases.renew_all([Renewal("k", "a", TTL)], NOW + TTL)) == ["k"]

    async def test_a_lease_given_back_is_free_at_once(self, store: Store, second: Store) -> None:
        """Releasing does not wait for the expiry."""
        await store.leases.acquire("k", "a", TTL, NOW)
        await store.leases.release("k", "a")
        assert await second.leases.get("k", NOW) is None
        assert isinstance(await second.leases.acquire("k", "b", TTL, NOW), Acquired)

    async def test_many_leases_are_renewed_at_once_and_those_of_others_are_named(
        self, store: Store, second: Store
    ) -> None:
        """`renew_all` prolongs what is still its owner's, expired or not, and says what is not."""
        for key in ("k1", "k2", "k3"):
            await store.leases.acquire(key, "a", TTL, NOW)
        await store.leases.release("k3", "a")
        await second.leases.acquire("k4", "b", TTL, NOW)
        renewals = [Renewal("k1", "a", 60.0), Renewal("k2", "a", 90.5)]
        renewals += [Renewal(key, "a", TTL) for key in ("k3", "k4", "k5")]
        assert sorted(await store.leases.renew_all(renewals, NOW + TTL)) == ["k3", "k4", "k5"]
        kept = [await second.leases.get(key, NOW + TTL) for key in ("k1", "k2", "k3", "k4", "k5")]
        assert [lease and lease.expires for lease in kept] == [NOW + TTL + 60, NOW + TTL + 90.5, None, None, None]
        assert list(await store.leases.renew_all([], NOW)) == []

    async def test_a_lease_given_back_is_taken_with_a_higher_epoch(self, store: Store) -> None:
        """Neither a release nor a sweep after a long while lowers the epoch."""
        epochs = []
        for day in range(3):
            for owner in "ab":
                acquired = await store.leases.acquire("lock:k", owner, TTL, NOW + day * 200_000)
                assert isinstance(acquired, Acquired)
                epochs.append(acquired.epoch)
                await store.leases.release_all(owner) if day else await store.leases.release("lock:k", owner)
            # Another owner acquires a lease, and the store may sweep.
            await store.leases.acquire("other", "c", TTL, NOW + day * 200_000 + 150_000)
        assert epochs == sorted(set(epochs))

    async def test_releasing_a_lease_of_another_raises_not_owner(self, store: Store) -> None:
        """Only the holder may release a lease; it stays held."""
        await store.leases.acquire("k", "a", TTL, NOW)
        with pytest.raises(NotOwner) as caught:
            await store.leases.release("k", "b")
        assert (caught.value.owner, caught.value.held_by) == ("b", "a")
        assert await store.leases.acquire("k", "c", TTL, NOW) == HeldBy("a", NOW + TTL)

    async def test_releasing_a_lease_twice_raises_not_owner(self, store: Store) -> None:
        """A released lease has no holder."""
        await store.leases.acquire("k", "a", TTL, NOW)
        await store.leases.release("k", "a")
        with pytest.raises(NotOwner):
            await store.leases.release("k", "a")

    async def test_an_owner_gives_back_everything_at_once(self, store: Store, second: Store) -> None:
        """`release_all` frees all leases of an owner, returns how many, and no others."""
        for key in ("k1", "k2", "k3"):
            await store.leases.acquire(key, "a", TTL, NOW)
        await store.leases.acquire("k4", "b", TTL, NOW)
        assert await store.leases.release_all("a") == 3
        assert await store.leases.release_all("a") == 0
        assert [await second.leases.get(key, NOW) for key in ("k1", "k2", "k3")] == [None] * 3
        assert await second.leases.acquire("k4", "c", TTL, NOW) == HeldBy("b", NOW + TTL)

    async def test_leases_of_different_keys_are_independent(self, store: Store) -> None:
        """One key says nothing about another, however alike they are."""
        await store.leases.acquire("k", "a", TTL, NOW)
        for key in ("K", "k ", "k:1", "ķ"):
            assert isinstance(await store.leases.acquire(key, "b", TTL, NOW), Acquired)

    async def test_leases_in_force_are_found_by_prefix(self, store: Store, second: Store) -> None:
        """`live` gives the leases that begin with the prefix and have not expired; wildcards mean nothing in it."""
        await store.leases.acquire("orchestrator:a", "a", TTL, NOW)
        await store.leases.acquire("orchestrator:b", "b", 2 * TTL, NOW)
        await store.leases.acquire("Orchestrator:c", "c", TTL, NOW)
        await store.leases.acquire("lock:d", "d", TTL, NOW)
        assert {lease.owner for lease in await second.leases.live("orchestrator:", NOW)} == {"a", "b"}
        [left] = await second.leases.live("orchestrator:", NOW + TTL)
        assert left == Lease("orchestrator:b", "b", left.epoch, NOW + 2 * TTL)
        assert {lease.owner for lease in await second.leases.live("", NOW)} == {"a", "b", "c", "d"}
        assert list(await second.leases.live("orchestrator%", NOW)) == []
        assert list(await second.leases.live("orchestrator_", NOW)) == []

    async def test_leases_given_back_are_not_in_force(self, store: Store) -> None:
        """`live` forgets a lease when it is released."""
        await store.leases.acquire("orchestrator:a", "a", TTL, NOW)
        await store.leases.release("orchestrator:a", "a")
        assert list(await store.leases.live("orchestrator:", NOW)) == []

    async def test_a_missing_lease_is_none(self, store: Store) -> None:
        """A missing lease is an answer, not an error."""
        assert await store.leases.get("k", NOW) is None
        assert list(await store.leases.live("", NOW)) == []
        assert await store.leases.release_all("missing") == 0

    async def test_watching_tells_of_leases_that_have_ended_under_the_prefix(self, store: Store, second: Store) -> None:
        """`watch` yields the keys of released leases, and no others; nothing where `pushes` is False."""
        now = time.time()  # stores wait for the end of a lease by the clock
        await store.leases.acquire("orchestrator:a", "a", TTL, now)
        # Long enough not to end by itself on a slow machine.
        await store.leases.acquire("orchestrator:b", "b", 100 * TTL, now)
        await store.leases.acquire("lock:c", "a", TTL, now)
        noticed = asyncio.ensure_future(anext(aiter(second.leases.watch("orchestrator:"))))
        for _ in range(10):
            await asyncio.sleep(0)
        await store.leases.release_all("a")
        try:
            if self.pushes:
                async with asyncio.timeout(10):
                    while not noticed.done():
                        # Watching may have begun too late to notice the first time.
                        await store.leases.acquire("orchestrator:a", "a", TTL, now)
                        await store.leases.release_all("a")
                        await asyncio.wait([noticed], timeout=0.05)
                assert await noticed == "orchestrator:a"
            assert noticed.done() is self.pushes
        finally:
            noticed.cancel()
            await asyncio.wait([noticed])
