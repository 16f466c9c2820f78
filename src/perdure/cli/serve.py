"""`perdure serve`: the HTTP API and the dashboard of a store."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import Problem
from perdure.cli.options import DEFAULT_STORE, LogLevel, StoreUrl, opened_itself, settings
from perdure.cli.output import log_to_stderr


def serve(
    *,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port to listen on; 0 takes one that is free.")] = 8500,
    allow_host: Annotated[
        list[str] | None, Parameter(help="A name that the server is reached by; may be repeated.", negative="")
    ] = None,
    trusted: Annotated[str, Parameter(help="The addresses of proxies whose headers are believed, with commas.")] = "",
    trace_url: Annotated[str | None, Parameter(help="Where traces are shown, with {trace_id} in it.")] = None,
    metrics: Annotated[bool, Parameter(help="Serve the figures of the store at api/v1/metrics.", negative="")] = False,
    log_level: Annotated[LogLevel, Parameter(help="How much it logs to stderr.")] = "info",
    store: StoreUrl = DEFAULT_STORE,
) -> int:
    """Serve the dashboard and the HTTP API of a store until Ctrl-C. It executes nothing: workers do.

    Without a token it listens to this machine alone. Tokens are made with
    `perdure token new`.
    """
    from perdure.client.client import Client
    from perdure.stored import StoredPrograms

    try:
        from perdure.server.serve import ServeConfig
        from perdure.server.serve import serve as run
    except ModuleNotFoundError as error:
        raise Problem(f"{error.name} is not installed: pip install 'perdure[server]'") from error

    log_to_stderr(log_level)
    config = ServeConfig(host, port, tuple(allow_host or ()), trusted, trace_url, metrics)
    return run(Client(opened_itself(store), structures=StoredPrograms(), redact=settings().redact or ()), config)
