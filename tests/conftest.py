"""Settings of all tests."""

import signal

from hypothesis import HealthCheck, settings

# Slow is not wrong: on a loaded machine a generated example takes its time.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# nohup and a shell's background jobs hand on ignored signals; what the tests start and
# interrupt must not inherit that.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL,
        )
