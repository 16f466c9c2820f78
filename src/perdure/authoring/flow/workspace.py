"""The workspace of a run: its own folder below a root, which one step creates and another one removes.

Both are ordinary steps: after a crash they are executed again, and find what is already done. Only the folder of the
run is removed: symbolic links in it are removed, and not followed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from hashlib import sha256
from urllib.parse import quote

from perdure.errors import UsageError

# The name of the value with the workspace's path; ids of steps have no dot.
WORKSPACE = ".workspace"
MAKE, REMOVE = "workspace.make", "workspace.remove"
_LONGEST = 100


def folder_of(id: str) -> str:
    """The name of a run's folder: one path segment, whatever characters the id has. Raises UsageError without an id."""
    if not id:
        raise UsageError("a run without an id has no workspace")
    name = quote(id, safe=" @=+,")
    name = re.sub(r"^\.", "%2E", name)  # neither a hidden folder nor `..`
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{sha256(id.encode()).hexdigest()[:16]}"


def place_of(root: str, folders: Sequence[str]) -> str:
    """The real path of a root, with links resolved. Raises UsageError if it is in none of these folders."""
    place = os.path.realpath(root)
    for folder in map(os.path.realpath, folders):
        if place == folder or os.path.commonpath([place, folder]) == folder:
            return place
    raise UsageError(
        f"the workspace {root} is outside of the folder of this flow; if it may be there, say so in the settings, as "
        f"`flows: {{workspaces: [{os.path.dirname(place)}]}}`"
    )


def make(root: str, id: str, folders: Sequence[str]) -> str:
    """Create the workspace of a run, and return its path. Raises UsageError if it would be in none of these folders."""
    place = place_of(root, folders)
    os.makedirs(place, exist_ok=True)
    path = os.path.join(place, folder_of(id))
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.path.islink(path):
        raise UsageError(f"the workspace {path} is a symbolic link; remove it, and retry the run")
    return path


def remove(path: str, id: str, folders: Sequence[str]) -> bool:
    """Remove the workspace of a run. Returns whether it existed.

    A fork continues in the workspace of its origin, and does not remove it. Raises UsageError if the path leads
    elsewhere by now.
    """
    root, name = os.path.split(path)
    if name != folder_of(id):
        return False
    if os.path.realpath(root) != root:
        raise UsageError(f"{path} leads elsewhere by now; it is not removed")
    place_of(root, folders)
    if os.path.islink(path):
        os.unlink(path)
        return True
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return False
    return True
