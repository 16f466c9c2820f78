"""The persistence and memory settings of a server: what they promise, and which make it unfit for a store."""

from __future__ import annotations

import msgspec

from perdure.errors import InvalidStoreUrl, StoreUnavailable
from perdure.stores.redis.server import Server


class Setup(msgspec.Struct, frozen=True):
    """The settings of a server that matter to a store."""

    version: str
    role: str
    cluster: bool
    # Whether and when it writes commands to its log; `appendfsync` is '' when the server does not say.
    appendonly: bool
    appendfsync: str
    saves: bool
    maxmemory: int
    policy: str

    @property
    def survives_power_loss(self) -> bool:
        """Whether what was acknowledged is on the disk."""
        return self.appendonly and self.appendfsync == "always"

    @property
    def promise(self) -> str:
        """A description of what may be lost when the server goes down."""
        if self.survives_power_loss:
            return "what is acknowledged is on its disk (appendonly yes, appendfsync always)"
        if self.appendonly:
            lost = "some seconds or more" if self.appendfsync == "no" else "about the last second"
            return (
                f"when the server or its machine goes down, {lost} of acknowledged work may be lost and is then done "
                "again, or not at all; for a store that loses nothing set 'appendfsync always'"
            )
        kept = "everything since its last snapshot" if self.saves else "everything"
        return (
            f"it keeps no log on its disk (appendonly no): when the server goes down, {kept} is lost, runs "
            "included; set 'appendonly yes', and 'appendfsync always' for a store that loses nothing"
        )


async def read_setup(server: Server) -> Setup:
    """Read the settings of a server."""
    info = _fields(await server.query("INFO", "everything"))
    fsync = saves = ""
    try:
        answer = await server.query("CONFIG", "GET", "appendfsync")
        fsync = answer[1].decode() if answer else ""
        answer = await server.query("CONFIG", "GET", "save")
        saves = answer[1].decode() if answer else ""
    except StoreUnavailable:
        pass  # hosted servers hide their settings: assume the least
    return Setup(
        version=info.get("redis_version", "0"),
        role=info.get("role", ""),
        cluster=info.get("cluster_enabled") == "1",
        appendonly=info.get("aof_enabled") == "1",
        appendfsync=fsync,
        saves=bool(saves),
        maxmemory=int(info.get("maxmemory", "0")),
        policy=info.get("maxmemory_policy", ""),
    )


def check(server: Server, setup: Setup, *, write: bool) -> list[str]:
    """Raise for a server that cannot hold a store; otherwise return what should be set differently."""
    if tuple(map(int, setup.version.split(".")[:2])) < (6, 2):
        raise InvalidStoreUrl(server.url, f"the server is Redis {setup.version}; perdure needs 6.2 or newer")
    if write and setup.role == "slave":
        raise StoreUnavailable(server.url, "the server is a read-only replica; give the address of its primary")
    if setup.cluster and "{" not in server.address.prefix:
        reason = "the server is part of a cluster; give all keys one slot with braces in the prefix: ?prefix={perdure}:"
        raise InvalidStoreUrl(server.url, reason)
    if setup.policy in ("", "noeviction"):
        return []
    eviction = f"its maxmemory-policy is {setup.policy}"
    if setup.maxmemory and setup.policy.startswith("allkeys"):
        reason = f"{eviction}: it would throw away journals when its memory is full; set 'maxmemory-policy noeviction'"
        raise InvalidStoreUrl(server.url, reason)
    return [f"{eviction}; set it to noeviction, so that nothing is ever thrown away to make room"]


def _fields(info: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in info.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in lines if colon}
