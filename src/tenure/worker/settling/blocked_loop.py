"""Ends of attempts that are written beside the event loop, because a handler blocks it.

The heartbeat's thread takes the end of such an attempt and writes it, so that others may try the
job. What it cannot write, the loop's settler writes as soon as the loop goes on. Each end is in one
hand at a time: it is taken once, and whoever writes it has it out of the line first.
"""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tenure.rules.lifecycle import Settlement
from tenure.store import Answer, Store
from tenure.worker.events import Teller
from tenure.worker.leases import Holding, Stop

Write = Callable[[Holding, Settlement | None], None]


class Beside:
    """What the heartbeat's thread owes the database, and what the loop hears of it."""

    def __init__(
        self,
        worker: str,
        tell: Teller,
        on_loop: Callable[..., None],
        *,
        write: Write,
        stuck: Callable[[Holding], None],
    ) -> None:
        self._worker = worker
        self._tell = tell
        self._on_loop = on_loop
        self._write = write
        self._stuck = stuck
        self.owed: deque[tuple[Holding, Settlement]] = deque()
        """Taken, and not written yet."""

    def take(self, holding: Holding, settlement: Settlement, now: float) -> None:
        """End an attempt whose time is over, unless somebody has ended it. Called by the thread."""
        if not holding.take_end():
            return
        holding.stop, holding.asked_at = Stop.TIMEOUT, now
        holding.lost.set()
        self._tell.say(logging.ERROR, holding.job, "timed out while the event loop was blocked")
        self._on_loop(self._goes_on, holding)
        self._owe(holding, settlement)

    def write(self, store: Store) -> None:
        """Write all that is owed. Called by the thread. Raises what the store raises."""
        for _ in range(len(self.owed)):
            with suppress(IndexError):  # the loop goes on, and took it
                self._settle(store, *self.owed.popleft())

    def _settle(self, store: Store, holding: Holding, settlement: Settlement) -> None:
        """Wait for no lock: leases have to be renewed."""
        try:
            [answer] = store.settle(self._worker, [settlement], patient=False)
        except BaseException:
            self._owe(holding, settlement)
            raise
        if answer.busy:
            self._owe(holding, settlement)
        else:
            self._on_loop(self._settled, holding, settlement, answer)

    def _owe(self, holding: Holding, settlement: Settlement) -> None:
        """To be written by whoever comes first: the next heartbeat, or the loop when it goes on."""
        self.owed.append((holding, settlement))
        self._on_loop(self._take_over)

    # --- on the loop, when it goes on -------------------------------------------------------------

    def _goes_on(self, holding: Holding) -> None:
        """Perhaps the handler does so, too: it is stopped."""
        if not holding.over and holding.stop_now is not None:
            self._stuck(holding)
            holding.stop_now()

    def _take_over(self) -> None:
        with suppress(IndexError):
            while True:
                self._write(*self.owed.popleft())

    def _settled(self, holding: Holding, settlement: Settlement, answer: Answer) -> None:
        if holding.completed or answer.error is not None:  # the settler knows what to do with that
            self._write(holding, settlement)
        else:
            self._tell.settled(holding, settlement, answer)
            self._write(holding, None)
