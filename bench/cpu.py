"""CPU time of another process, as exactly as the kernel knows it.

The usual figure counts in ticks of 10 ms: what an idle process uses in seconds is less than one.
"""

from __future__ import annotations

import sys
import time

import psutil

_SCHEDULER_CLOCK = 2
"""Nanoseconds that the scheduler gave to all threads, those that have ended included."""


def cpu_seconds(pid: int) -> float:
    """What the process has used so far, without its children."""
    if sys.platform != "linux":
        used = psutil.Process(pid).cpu_times()
        return float(used.user + used.system)
    return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)  # as clock_getcpuclockid(3) has it
