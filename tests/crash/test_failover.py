"""The machine of PostgreSQL is lost, and another takes its place: orchestrators find it, and nothing is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.crash.harness import Children
from tests.crash.storms import Storm, queue
from tests.services.plugin import Servers


def test_work_goes_on_where_a_standby_takes_the_place_of_its_server(
    children: Children, servers: Servers, tmp_path: Path
) -> None:
    primary = servers.postgres().start()
    primary.stop()
    standby = servers.standby(primary).start()
    # Whatever was acknowledged is on both.
    primary.settings["synchronous_standby_names"] = "*"
    primary.start()
    both = primary.url.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
    url = f"{both}?target_session_attrs=primary"
    asyncio.run(queue(url, 100, 0.1))
    with Storm(children, url, tmp_path, 100, lease=2.0) as storm:
        for _ in range(2):
            storm.start()
        storm.all_open()
        storm.reach(0.4, "for the work before the server is lost")
        primary.kill()
        standby.promote()
        storm.finish()
        storm.check(explained=False)
