"""Settings of all tests."""

from hypothesis import HealthCheck, settings

# Slow is not wrong: on a loaded machine a generated example takes its time.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")
