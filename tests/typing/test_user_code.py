"""A type checker sees the types of users' functions through perdure's decorators."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent


@pytest.mark.timeout(120)
def test_mypy_strict_finds_the_types_and_the_mistakes_of_user_code(tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    report, errors, status = api.run(
        [
            "--strict",
            "--config-file=",
            f"--python-version={version}",
            f"--cache-dir={tmp_path}",
            "--follow-imports=silent",
            str(HERE / "user_code.py"),
        ]
    )
    assert status == 0, report + errors


def test_the_package_says_that_it_is_typed() -> None:
    import perdure

    assert perdure.__file__ is not None
    assert (Path(perdure.__file__).parent / "py.typed").exists()
