"""Gives memory back to the system after large arguments, results and errors.

The C library keeps freed memory in one arena per thread, and keeps more of it the larger the freed
blocks were: after 10,000 failures with long tracebacks, 80 MB for good. `malloc_trim` returns it,
in about 20 ms. Only the GNU C library has it, and only there it is needed.
"""

import ctypes
from collections.abc import Callable

from tenure.worker.leases import LeasedJobs

WORTH_KB = 4096
"""Less than this is not worth a call."""


class Memory:
    """The memory of one worker process."""

    def __init__(self, leased_jobs: LeasedJobs) -> None:
        self._leased_jobs = leased_jobs
        self._trimmed_kb = 0
        self._again = False
        """Large jobs were leased at the last call: their memory is still to be returned."""
        self._trim = _find_trim()

    def give_back(self) -> None:
        """If large jobs have come through, return freed memory. Called in the heartbeat thread."""
        moved_kb, is_busy = self._leased_jobs.moved_kb, self._leased_jobs.kb > 0
        worth = moved_kb - self._trimmed_kb >= WORTH_KB or (self._again and not is_busy)
        if worth and self._trim is not None:
            self._trimmed_kb, self._again = moved_kb, is_busy
            self._trim(0)


def _find_trim() -> Callable[[int], int] | None:
    try:
        trim: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or another system
        return None
    return trim
