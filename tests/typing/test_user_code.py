"""A type checker sees the types of users' functions through perdure's decorators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE

HERE = Path(__file__).parent


def strict(path: Path, cache: Path, config: str = "") -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options = [f"--config-file={config}", f"--python-version={version}", f"--cache-dir={cache}"]
    # In a process of its own: mypy raises the recursion limit of its process beyond what the stack holds.
    command = [sys.executable, "-m", "mypy", "--strict", *options, "--follow-imports=silent", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_mypy_strict_finds_the_types_and_the_mistakes_of_user_code(tmp_path: Path) -> None:
    strict(HERE / "user_code.py", tmp_path)
    strict(HERE / "graph_code.py", tmp_path)


def test_the_plugin_types_a_plain_call_of_a_def_step_as_what_it_returns(tmp_path: Path) -> None:
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nplugins = perdure.mypy_plugin\n", encoding="utf-8")
    strict(HERE / "plain_calls.py", tmp_path / "cache", str(config))


def test_the_package_says_that_it_is_typed() -> None:
    import perdure

    assert perdure.__file__ is not None
    assert (Path(perdure.__file__).parent / "py.typed").exists()
