"""What every test runs under: examples of hypothesis are the same at every run, without a clock.

``--hypothesis-profile thorough`` tries ten times as many of them.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "shardplan",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("thorough", settings.get_profile("shardplan"), max_examples=400)
settings.load_profile("shardplan")
