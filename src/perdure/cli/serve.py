"""`perdure serve`: the HTTP API and the dashboard of a store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.options import DEFAULT_STORE, LogLevel, StoreUrl, opened
from perdure.cli.output import log_to_stderr


def serve(
    *,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port to listen on; 0 chooses a free one.")] = 8500,
    log_level: Annotated[LogLevel, Parameter(help="What it logs to stderr.")] = "info",
    store: StoreUrl = DEFAULT_STORE,
) -> int:
    """Serve the dashboard and the HTTP API of a store until Ctrl-C. It executes nothing; workers do."""
    from perdure.client.client import Client
    from perdure.server.serve import serve as run
    from perdure.stored import StoredPrograms

    log_to_stderr(log_level)
    return run(Client(opened(store), structures=StoredPrograms()), host, port)
