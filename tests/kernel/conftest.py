"""Properties of the kernel hold on a busy machine too: examples have no time limit."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("kernel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kernel")
