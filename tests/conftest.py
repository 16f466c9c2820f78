"""What every test may ask for, and how properties are searched."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.processes", "tests.services.plugin"]

# Bounded by examples, never by time: a busy machine changes nothing. The same examples each time: a change of the code,
# not chance, makes the suite fail.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# New examples each time: `make soak` searches with it.
settings.register_profile("soak", settings.get_profile("suite"), derandomize=False, print_blob=True)
settings.load_profile("suite")
