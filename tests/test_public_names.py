"""What `import perdure` offers."""

from __future__ import annotations

import subprocess
import sys

import perdure


def test_every_public_name_can_be_loaded() -> None:
    assert set(perdure.__all__) == set(perdure._HOMES)
    for name in perdure.__all__:
        assert getattr(perdure, name) is not None
    assert set(perdure.__all__) <= set(dir(perdure))


def test_importing_perdure_loads_no_engine_yet() -> None:
    code = "import sys, perdure; print([m for m in ('asyncio', 'apsw', 'msgspec') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    assert not hasattr(perdure, "nonsense")
