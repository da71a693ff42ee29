"""Stops attempts that are past their timeout, cancelled, or on a lost lease.

It gives up attempts that do not stop. It also puts back jobs that have waited too long for a slot.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from tenure.store import Store
from tenure.worker.claiming.intake import Intake
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob, LeasedJobs, Stop, Watchlist
from tenure.worker.running.attempt import Attempt
from tenure.worker.settings import WorkerSettings
from tenure.worker.settler import Settler
from tenure.worker.stopping.blocked_loop import BlockedLoop

TICK_SECONDS = 0.02


class Timekeeper:
    """Stops the attempts of one worker process. Lives on the event loop, except where it says so.

    `post` calls a function on the event loop, from another thread.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        environment: Environment,
        *,
        intake: Intake,
        settler: Settler,
        blocked_loop: BlockedLoop,
        leased_jobs: LeasedJobs,
        watchlist: Watchlist,
        reporter: EventReporter,
        post: Callable[..., None],
    ) -> None:
        self._settings = settings
        self._environment = environment
        self._intake = intake
        self._settler = settler
        self.blocked_loop = blocked_loop
        self._leased_jobs = leased_jobs
        self._watchlist = watchlist
        self._reporter = reporter
        self._post = post

    async def run(self) -> None:
        """Keep time while there are leased jobs or successes to count in the log, for ever."""
        watchlist = self._watchlist
        while True:
            await watchlist.in_use.wait()
            await asyncio.sleep(TICK_SECONDS)
            now = watchlist.ticked_at = self._environment.monotonic()
            uncounted = self._reporter.has_uncounted()
            if not self._leased_jobs.leases and not watchlist.stopping and not uncounted:
                watchlist.in_use.clear()
            if uncounted:
                self._reporter.end_second(now)
            for leased in self._overdue(now):
                limit = leased.job.timeout_seconds
                self._reporter.say(logging.WARNING, leased.job, f"runs longer than {limit:g} s")
                self.stop(leased, Stop.TIMEOUT)
                if leased.task.kind == "thread":
                    self.give_up(leased)
            for leased in list(watchlist.stopping):
                if now - leased.asked_at >= self._settings.kill_seconds:
                    self._give_up_or_note(leased)
            self.stop_leases(self._leased_jobs.give_up_expired(now))
            self._intake.put_back_late(now)

    # --- stopping --------------------------------------------------------------------------------

    def stop(self, leased: LeasedJob, why: Stop) -> None:
        """Tell an attempt to stop."""
        leased.ask_to_stop(why, self._environment.monotonic())
        # A stuck job is watched again only for a timeout, after which it is given up.
        noted = leased in self._watchlist.stuck and why is not Stop.TIMEOUT
        if leased.started_at is not None and not leased.slot_freed and not noted:
            self._watchlist.stopping[leased] = None

    def stop_leases(self, lost: Sequence[int]) -> None:
        """These leases are lost: stop their jobs."""
        for lease_id in lost:
            lease = self._leased_jobs.drop(lease_id)
            if lease is None:
                continue
            why = Stop.EXPIRED if lease.unreachable else Stop.LOST
            for leased in list(lease.jobs.values()):
                if not leased.end_taken:
                    self._reporter.say(
                        logging.WARNING, leased.job, "lease lost; the attempt is stopped"
                    )
                    self._reporter.event("lost", leased.job)
                self.stop(leased, why)

    def stop_cancelled(self, cancelled: Sequence[tuple[int, int]]) -> None:
        """An operator cancelled these jobs, given by id and token: stop them."""
        wanted = set(cancelled)
        for leased in self._leased_jobs.all():
            if (leased.job.id, leased.job.token) in wanted:
                self.stop(leased, Stop.CANCELLED)

    def give_up(self, leased: LeasedJob) -> None:
        """End an attempt whose handler still runs. The slot is taken until the handler ends."""
        if leased.slot_freed or leased.stop is None:
            return
        seconds = leased.seconds_run(self._environment.monotonic())
        if self._settler.finish(leased, self._attempt(leased).stopped(leased.stop, seconds)):
            self._note_stuck(leased)
            leased.lost.set()

    def _give_up_or_note(self, leased: LeasedJob) -> None:
        self._watchlist.stopping.pop(leased, None)
        if leased.slot_freed or leased.task.kind == "process":
            return
        if leased.stop is Stop.TIMEOUT:
            self.give_up(leased)
        else:
            self._note_stuck(leased)

    def _note_stuck(self, leased: LeasedJob) -> None:
        """Logged once for each attempt."""
        if self._watchlist.note_stuck(leased):
            self._reporter.stuck(leased.job)

    # --- called by the heartbeat thread ----------------------------------------------------------

    def stop_soon(self, lost: Sequence[int], cancelled: Sequence[tuple[int, int]] = ()) -> None:
        """Stop jobs of lost leases, and cancelled jobs, as soon as the event loop runs."""
        if lost:
            self._post(self.stop_leases, lost)
        if cancelled:
            self._post(self.stop_cancelled, cancelled)

    def time_out_if_blocked(self, store: Store) -> None:
        """Settle timed-out async jobs while the event loop is blocked.

        A blocked loop cannot end an attempt. Another worker may run the job, and attempts that wait
        for the loop continue.
        """
        now = self._environment.monotonic()
        at = now - self._settings.kill_seconds
        late = [*self._overdue(at), *self._unstopped(at)] if self._watchlist.ticked_at < at else []
        for leased in late:
            settlement = self._attempt(leased).stopped(Stop.TIMEOUT, leased.seconds_run(now))
            if leased.task.kind == "async" and settlement is not None:
                self.blocked_loop.time_out(leased, settlement, now)
        self.blocked_loop.write(store)

    def has_slot_like(self, leased: LeasedJob) -> bool:
        """Is a slot free of the kind and in the queue of this running job?"""
        return self._intake.has_slot(leased.task.kind, leased.job.queue)

    def tell_of_wait(self, leased: LeasedJob, id: int, why: str) -> None:
        """Log that a handler waits for a job, and why that job does not run."""
        self._reporter.say(logging.WARNING, leased.job, f"waits for job {id}: {why}")

    def _overdue(self, at: float) -> list[LeasedJob]:
        """Jobs that were past their timeout at this time and were not stopped.

        Cancelled jobs count as not stopped: a handler may ignore that. (A cancelled child is killed
        anyway.)
        """
        return [
            leased
            for leased in list(self._watchlist.timed)
            if leased.started_at is not None
            and at - leased.started_at >= (leased.job.timeout_seconds or 0.0)
            and leased.stop in (None, Stop.CANCELLED)
            and not (leased.end_taken or (leased.stop and leased.task.kind == "process"))
        ]

    def _unstopped(self, at: float) -> list[LeasedJob]:
        """Jobs that were told to stop by this time because of their timeout, and still run."""
        return [
            leased
            for leased in list(self._watchlist.stopping)
            if leased.stop is Stop.TIMEOUT and leased.asked_at <= at and not leased.end_taken
        ]

    def _attempt(self, leased: LeasedJob) -> Attempt:
        return Attempt.of(leased, self._environment.random)
