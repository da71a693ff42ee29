"""Times out async jobs from the heartbeat thread while a handler blocks the event loop.

The heartbeat thread takes the end of such an attempt and writes it, so that another worker may run
the job. If it cannot write the end, the settler does so as soon as the loop runs again. Each end is
written by one of them only: it is taken once, and removed from `owed` before it is written.
"""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

from tenure.rules.lifecycle import Settlement
from tenure.rules.retention import Keep
from tenure.store import Answer, Store
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob, Stop, Watchlist
from tenure.worker.settler import Settler


class BlockedLoop:
    """The attempts that the heartbeat thread has ended. `post` calls a function on the loop."""

    def __init__(
        self,
        worker: str,
        *,
        settler: Settler,
        watchlist: Watchlist,
        reporter: EventReporter,
        post: Callable[..., None],
        keep: Mapping[str, Keep] | None = None,
    ) -> None:
        self._worker = worker
        self._keep = keep
        self._settler = settler
        self._watchlist = watchlist
        self._reporter = reporter
        self._post = post
        self.owed: deque[tuple[LeasedJob, Settlement]] = deque()
        """Ends that are taken and not written yet."""

    def time_out(self, leased: LeasedJob, settlement: Settlement, now: float) -> None:
        """End an attempt that is past its timeout, unless it has ended. Called by the thread."""
        if not leased.take_end():
            return
        leased.asked_at = now
        leased.mark_stopped(Stop.TIMEOUT)
        self._reporter.say(logging.ERROR, leased.job, "timed out while the event loop was blocked")
        self._post(self._stop_handler, leased)
        self._owe(leased, settlement)

    def write(self, store: Store) -> None:
        """Write all ends that are owed. Called by the thread. Raises the store's errors."""
        for _ in range(len(self.owed)):
            with suppress(IndexError):  # the loop runs again, and took it
                self._settle(store, *self.owed.popleft())

    def _settle(self, store: Store, leased: LeasedJob, settlement: Settlement) -> None:
        """Does not wait for locked rows: the thread has leases to renew."""
        try:
            told = leased.with_unsent(settlement)
            [answer] = store.settle(
                self._worker, [told], done_leases=(), patient=False, keep=self._keep
            )
        except BaseException:
            self._owe(leased, settlement)
            raise
        if answer.busy:
            self._owe(leased, settlement)
        else:
            self._post(self._settled, leased, settlement, answer)

    def _owe(self, leased: LeasedJob, settlement: Settlement) -> None:
        """The next heartbeat writes it, or the settler, if the loop runs again before that."""
        self.owed.append((leased, settlement))
        self._post(self._take_over)

    # --- on the event loop, when it runs again ---------------------------------------------------

    def _stop_handler(self, leased: LeasedJob) -> None:
        """If the handler still runs, stop it."""
        if not leased.slot_freed and leased.stop_now is not None:
            if self._watchlist.note_stuck(leased):
                self._reporter.stuck(leased.job)
            leased.stop_now()

    def _take_over(self) -> None:
        with suppress(IndexError):
            while True:
                self._settler.write_end(*self.owed.popleft())

    def _settled(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> None:
        if leased.completed or answer.error is not None:  # the settler handles these cases
            self._settler.write_end(leased, settlement)
        else:
            self._settler.report(leased, settlement, answer)
            self._settler.write_end(leased, None)
