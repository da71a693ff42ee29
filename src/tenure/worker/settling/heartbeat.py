"""Heartbeats: off the event loop, from the claim until the settlement has landed.

A thread of its own renews the leases, so a handler that blocks the loop keeps its job. When the
database cannot be reached, the worker decides by its monotonic clock, counted from before the last
successful claim or heartbeat was sent, that a lease may be gone, and stops the jobs on it.
"""

import logging
from collections.abc import Callable, Sequence

from tenure.errors import StoreError
from tenure.rules.job import Beat
from tenure.store import Store
from tenure.worker.environment import World
from tenure.worker.leases import Held, HeldLease, Holding
from tenure.worker.settings import WorkerSettings

MARGIN = 0.15
"""This part of the lease is kept as a margin: handlers are stopped before the lease ends."""
RETRY_SECONDS = 0.5

Tell = Callable[[Sequence[int], Sequence[tuple[int, int]]], None]
log = logging.getLogger("tenure.worker")


class Heartbeat:
    """Renews the leases of one worker, announces the worker, and carries progress along."""

    def __init__(
        self,
        store: Store,
        worker: str,
        held: Held,
        settings: WorkerSettings,
        world: World,
        *,
        tell: Tell,
        announce: Callable[[], None],
        beside: Callable[[], None],
    ) -> None:
        self._store = store
        self._worker = worker
        self._held = held
        self._settings = settings
        self._world = world
        self._tell = tell
        self._announce = announce
        self._beside = beside
        self._stop = world.event()
        self._thread = world.thread(self._run, "tenure-heartbeat")
        self._failing = False

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End; returns when the last beat is over."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = self._world.monotonic()
            try:
                self.beat()
                self._beside()
                self._announce()
                if self._failing:
                    log.info("heartbeats of %s go on", self._worker)
                self._failing = False
            except StoreError as error:
                if not self._failing:  # said once: an outage must not fill the disk
                    log.warning("a heartbeat of %s failed, trying again: %s", self._worker, error)
                self._failing = True
                pause = min(self._rest(began), RETRY_SECONDS)
            except Exception:
                log.exception("a heartbeat of %s failed", self._worker)
                pause = min(self._rest(began), RETRY_SECONDS)
            else:
                pause = self._rest(began)
            self.give_up_expired()

    def _rest(self, began: float) -> float:
        """Until the next beat, at a steady pace: after one that took long it follows at once, for
        leases that were claimed meanwhile have waited for it."""
        return max(0.0, self._settings.heartbeat_seconds - (self._world.monotonic() - began))

    def beat(self) -> None:
        """Renew every lease once, but those that were given up, and carry progress along."""
        by_length: dict[float, list[HeldLease]] = {}
        for lease in list(self._held.leases.values()):
            if not lease.given_up:  # while the event loop is blocked, it is still in hand
                by_length.setdefault(lease.lease_seconds, []).append(lease)
        for lease_seconds, leases in by_length.items():
            self._extend(leases, lease_seconds)
        self._report_progress()

    def _extend(self, leases: list[HeldLease], lease_seconds: float) -> None:
        started = {lease.id: _started(lease) for lease in leases}
        self._world.crash_point("before heartbeat")
        before = self._world.monotonic()
        beat: Beat = self._store.extend(self._worker, started, lease_seconds=lease_seconds)
        unmoved = {*beat.lost, *beat.busy}
        for lease in leases:
            if lease.id not in unmoved:
                lease.safe_until = before + lease_seconds * (1 - MARGIN)
        if beat.lost or beat.cancelled:
            self._tell(beat.lost, beat.cancelled)

    def _report_progress(self) -> None:
        reports = [(h, h.progress) for h in self._held.all() if h.progress is not None]
        if reports:
            self._store.report_progress(self._worker, [(h.job, *told) for h, told in reports])
        for holding, told in reports:
            if holding.progress is told:  # nothing newer: it has arrived
                holding.progress = None

    def give_up_expired(self) -> None:
        """Stop the jobs of leases that may have ended. Called by the event loop as well."""
        now = self._world.monotonic()
        leases = list(self._held.leases.values())
        gone = [lease for lease in leases if lease.safe_until <= now and not lease.given_up]
        if gone:
            for lease in gone:
                lease.given_up = True
                for holding in list(lease.holdings.values()):
                    holding.lost.set()  # at once: the event loop may be blocked
            self._tell([lease.id for lease in gone], [])


def _started(lease: HeldLease) -> list[int]:
    holdings: list[Holding] = list(lease.holdings.values())
    return [holding.job.id for holding in holdings if holding.started_at is not None]
