"""Options that every command has. The one place where the command line reads the environment."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

# As in perdure.assembly, which questions to a store need not load.
DEFAULT_STORE = "sqlite:///perdure.db"

StoreUrl = Annotated[
    str,
    Parameter(name="--store", env_var="PERDURE_STORE", help="URL of the store."),
]
AsJson = Annotated[
    bool,
    Parameter(name="--json", negative="", help="Write JSON, for programs to read."),
]
RunId = Annotated[str, Parameter(help="The run's id; its run_id does as well.")]
