"""Bells: a thread that calls when there may be new work, so that idle workers need not poll often.

Workers poll, so they find every job without a bell; with it, they find it sooner. In the same way a
bell tells of cancel requests, which heartbeats find without it. A bell rings too often rather than
too seldom, and each time it has connected. It never raises an error in a worker.
While it cannot reach the database, it logs that once and tries again for ever.

    bell = store.bell(ring)       # `ring` is called from the bell's own thread
    bell.start()
    ...
    bell.stop()
"""

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0

Ring = Callable[[], None]
OnCancel = Callable[[Collection[int] | None], None]
"""Called with the ids of jobs that were asked to stop; None: perhaps any job."""

log = logging.getLogger("tenure.bell")


class Bell(ABC):
    """Calls `ring` from a thread of its own when there may be new work.

    It calls `on_cancel` when running jobs were asked to stop.
    """

    def __init__(self, ring: Ring, on_cancel: OnCancel | None = None) -> None:
        self._ring = ring
        self._on_cancel = on_cancel
        self._thread: threading.Thread | None = None
        self._hears = False
        self._complained = False
        self._ring_failed = False

    @property
    def alive(self) -> bool:
        """True while it hears of new work. False: only polling finds it."""
        return self._hears

    @property
    def ahead_seconds(self) -> float:
        """It rings for new jobs that are due within this time, too. 0: they come unannounced."""
        return 0.0

    def start(self) -> None:
        """Begin to listen. Returns at once, whether or not the database is there."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._complained = False
        self._prepare()
        self._thread = threading.Thread(target=self._run, name="tenure-bell", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and with it its connection. A bell that is stopped twice stays stopped.

        In a fork there is no thread to end; the parent's is left alone.
        """
        thread = self._thread
        if thread is None or not thread.is_alive():
            return
        self._wake()
        if thread is not threading.current_thread():
            thread.join()

    @abstractmethod
    def _prepare(self) -> None:
        """Make what `_run` and `_wake` share."""

    @abstractmethod
    def _run(self) -> None:
        """The body of the thread."""

    @abstractmethod
    def _wake(self) -> None:
        """Have `_run` return soon. Called from another thread, or from `ring`."""

    def _call(self) -> None:
        """Ring."""
        self._guarded(self._ring)

    def _call_cancel(self, ids: Collection[int] | None) -> None:
        """Tell of cancel requests."""
        on_cancel = self._on_cancel
        if on_cancel is not None:
            self._guarded(lambda: on_cancel(ids))

    def _guarded(self, call: Ring) -> None:
        """Call it. What it raises is its owner's mistake, told once."""
        try:
            call()
            self._ring_failed = False
        except Exception:
            if not self._ring_failed:
                log.exception("what the bell rang has failed; the bell goes on")
            self._ring_failed = True

    def _heard(self) -> None:
        """It hears, perhaps again."""
        self._hears = True
        if self._complained:
            log.info("wake-ups arrive again")
        self._complained = False

    def _lost(self, error: BaseException) -> None:
        """It hears no more, or not yet."""
        self._hears = False
        if not self._complained:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            log.warning("wake-ups do not arrive, and new jobs are found by polling: %s", reason)
        self._complained = True


class SilentBell(Bell):
    """Where nothing can be heard: it never rings, and has no thread."""

    def start(self) -> None:
        """There is nothing to listen to."""

    def _prepare(self) -> None:
        """Nothing is shared."""

    def _run(self) -> None:
        """There is no thread."""

    def _wake(self) -> None:
        """There is no thread to wake."""


def pause_seconds(failures: int) -> float:
    """How long to wait after this many failures in a row: longer each time, with jitter."""
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 16))
    return random.uniform(longest / 2, longest)
