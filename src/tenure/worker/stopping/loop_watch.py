"""Reports a handler that blocks the event loop, while it does: which job, for how long, and where.

The timekeeper ticks on the event loop while there are leased jobs. If it does not, the heartbeat
thread looks at the stack of the loop's thread, several times: several handlers may run one after
the other before the loop ticks again, and each of them is blamed only for its own time. A loop that
waits for events is not blocked: then the machine is busy with other programs.
"""

import logging
import math
import selectors
import sys
import threading
import traceback
from types import FrameType

from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob, Watchlist
from tenure.worker.running.run import AttemptRunner

BLOCKED_SECONDS = 2.0
"""The first report comes after this time; each further one when the time has doubled. An idle
worker looks this often whether it is idle."""
LOOKS = 4
"""How many looks a worker with jobs has in this time."""
SHOWN_FRAMES = 12

log = logging.getLogger("tenure.worker")

_RUN = AttemptRunner.run.__code__


class LoopWatch:
    """Watches the event loop of one worker process. `look` is called by the heartbeat thread."""

    def __init__(
        self, worker: str, environment: Environment, watchlist: Watchlist, reporter: EventReporter
    ) -> None:
        self._worker = worker
        self._environment = environment
        self._watchlist = watchlist
        self._reporter = reporter
        self._thread_id = threading.get_ident()
        self._blocking: object = None
        """What was on the loop at the last look: a job, or the worker itself if it was none."""
        self._since = 0.0
        """Since when it has blocked the loop."""
        self._limit = BLOCKED_SECONDS
        """After how many seconds it is reported."""
        self._other_at = -math.inf
        """When something else was on the loop, or the loop was free, although it did not tick."""

    def look(self) -> float:
        """Report a handler that has blocked for some time. Returns when to look again."""
        now, ticked_at = self._environment.monotonic(), self._watchlist.ticked_at
        if not self._watchlist.in_use.is_set():
            self._blocking = None
            return now + BLOCKED_SECONDS
        pause = BLOCKED_SECONDS / LOOKS
        if now - ticked_at < pause:
            self._blocking = None
            return ticked_at + pause
        frame = sys._current_frames().get(self._thread_id)
        if frame is None or frame.f_code.co_filename == selectors.__file__:
            self._blocking, self._other_at = None, now
            return now + pause
        leased = _job_on(frame)
        if self._blocking is not (leased or self) or self._since < ticked_at:
            started_at = ticked_at if leased is None else leased.started_at or ticked_at
            self._since = max(ticked_at, started_at, self._other_at)
            self._blocking, self._limit = leased or self, BLOCKED_SECONDS
        blocked = now - self._since
        if blocked >= self._limit:
            self._report(leased, frame, blocked)
            self._limit = 2 * blocked
        self._other_at = now
        return min(now + pause, self._since + self._limit)

    def _report(self, leased: LeasedJob | None, frame: FrameType, seconds: float) -> None:
        where = "".join(traceback.format_list(_frames_of_handler(frame))).rstrip()
        if leased is None:
            log.warning(
                "worker %s: the event loop has been blocked for %.0f s\n%s",
                self._worker, seconds, where,
            )  # fmt: skip
            return
        self._reporter.say(
            logging.WARNING, leased.job, f"has blocked the event loop for {seconds:.0f} s; other "
            "async jobs, claims and settlements wait. Make it a def task, or use await "
            f"asyncio.to_thread(...)\n{where}",
        )  # fmt: skip


def _job_on(frame: FrameType | None) -> LeasedJob | None:
    """The job whose handler runs on this stack."""
    while frame is not None:
        if frame.f_code is _RUN:
            leased: LeasedJob | None = frame.f_locals.get("leased")
            return leased
        frame = frame.f_back
    return None


def _frames_of_handler(frame: FrameType) -> traceback.StackSummary:
    """The innermost frames, without those of the worker and of asyncio above the handler."""
    stack = traceback.extract_stack(frame)
    runs = [n for n, each in enumerate(stack) if each.filename == _RUN.co_filename]
    first = runs[-1] + 1 if runs else 0
    return traceback.StackSummary.from_list(stack[max(first, len(stack) - SHOWN_FRAMES) :])
