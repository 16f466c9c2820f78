"""How long a test waits for what must happen."""

from __future__ import annotations

# Long enough for a machine that is busy with other things, and no measure of speed: a test that waits for this has
# failed. Shorter than the time limit of tests, so that the failure says what was waited for.
PATIENCE = 300.0
