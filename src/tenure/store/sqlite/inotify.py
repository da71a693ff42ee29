"""Linux tells when a file is written to. Nothing is opened: only the path is given to the kernel.

So no descriptor of the file ever exists here whose closing could drop SQLite's locks. Where there
is no inotify, or no more of it to be had, `watch` answers None.
"""

import ctypes
import os
import select
import sys
from contextlib import suppress

_IN_MODIFY = 0x2
_EVENTS_BYTES = 4096


class Watch:
    """Waits for writes to one file, which may be removed and made anew meanwhile."""

    def __init__(self, libc: ctypes.CDLL, descriptor: int, path: str) -> None:
        self._libc = libc
        self._descriptor = descriptor
        self._path = os.fsencode(path)
        self._mark = -1
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait for a write since the last call, at most so long. True, too, for a new file."""
        mark = self._libc.inotify_add_watch(self._descriptor, self._path, _IN_MODIFY)
        if mark != self._mark:  # no file is a mark as well: -1
            self._mark = mark
            return True
        if not self._poll.poll(1000 * seconds):
            return False
        with suppress(BlockingIOError):
            os.read(self._descriptor, _EVENTS_BYTES)
        return True

    def close(self) -> None:
        """Give it back to the kernel."""
        os.close(self._descriptor)


def watch(path: str) -> Watch | None:
    """A watch on this file, or None where there is none to be had."""
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL(None)
        descriptor = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        return None
    return Watch(libc, descriptor, path) if descriptor >= 0 else None
