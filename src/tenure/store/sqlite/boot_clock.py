"""The clocks of a host with a SQLite store. Leases are judged by the boot clock and the boot's id.

Linux and macOS name each boot, so a jump of the wall clock harms no lease, and a lease from before
a restart has expired. Where the system gives no such name (Windows), leases are judged by the wall
clock, as on PostgreSQL. The wall clock continues through a restart. A boot clock would start at
zero unnoticed, and old leases would last as long as the machine had been up before. If the wall
clock is set forward, leases expire early there: that costs attempts, and breaks no guarantee. A
name made from wall clock minus boot clock would change with every such step, and with rounding.
"""

import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock:
    """Wall time for people and due times, boot time for leases, both in microseconds.

    An explicit `now` stands for both; the offset between the two clocks is fixed when the store is
    opened, so that a test that drives time gets exact deadlines.
    """

    def __init__(self, boot: str | None) -> None:
        self._ticks = _wall_microseconds if boot is None else _boot_microseconds
        self._boot = "wall clock" if boot is None else boot
        self._offset = self._ticks() - _wall_microseconds()

    def read(self, now: datetime | None) -> dict[str, Any]:
        """The parameters `now`, `tick` and `boot`."""
        if now is not None:
            wall = (now - EPOCH) // MICROSECOND
            return {"now": wall, "tick": wall + self._offset, "boot": self._boot}
        wall = _wall_microseconds()
        return {"now": wall, "tick": self._ticks(), "boot": self._boot}


def _wall_microseconds() -> int:
    return time.time_ns() // 1000


def _boot_microseconds() -> int:
    """Of the clock that goes on while the machine sleeps, where there is one."""
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):  # on macOS the second one does
        if hasattr(time, name):
            return time.clock_gettime_ns(getattr(time, name)) // 1000
    return time.monotonic_ns() // 1000


@lru_cache
def boot_id() -> str | None:
    """Names this boot of this host: a lease from another boot has expired."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() or None
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            sysctl = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
            asked = subprocess.run(sysctl, capture_output=True, text=True, timeout=10, check=True)
            return asked.stdout.strip() or None
    return None
