"""Takes claimed jobs on: starts them as slots come free, and puts back those that cannot start.

A job waits for a permit at its gate, then for a slot of its queue, then for a slot of its executor.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tenure.client import Client
from tenure.rules.claim import Kind, Lease, Permits
from tenure.rules.lifecycle import Settlement
from tenure.worker.claiming.batches import Batches, whole
from tenure.worker.claiming.gates import GatePermits
from tenure.worker.claiming.polling import Polling
from tenure.worker.claiming.slots import Means, Pace, QueueKinds, Slots, Suspects
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import NO_TASK, LeasedJob, LeasedJobs, Watchlist
from tenure.worker.running.attempt import unknown_task, unstarted
from tenure.worker.running.executors import Executor
from tenure.worker.settings import WorkerSettings
from tenure.worker.settler import Backlog

PREFETCH_PATIENCE_SECONDS = 2.0
"""Jobs claimed ahead that have waited this long for a slot are put back, for other workers."""
MAX_SORTED = 100
"""The most jobs that wait here because they turned out to be of a kind whose slots are taken."""

log = logging.getLogger("tenure.worker")


class Intake:
    """The unstarted jobs of one worker process, and its slots. Lives on the event loop."""

    def __init__(
        self,
        app: Client,
        worker: str,
        settings: WorkerSettings,
        environment: Environment,
        *,
        executors: Mapping[Kind, Executor],
        polling: Polling,
        backlog: Backlog,
        leased_jobs: LeasedJobs,
        watchlist: Watchlist,
        reporter: EventReporter,
    ) -> None:
        self._app = app
        self._worker = worker
        self._settings = settings
        self._environment = environment
        self._polling = polling
        self._backlog = backlog
        self._leased_jobs = leased_jobs
        self._watchlist = watchlist
        self._reporter = reporter
        self.executors = executors
        self.slots = Slots(settings.queues)
        self.kinds = QueueKinds(app, settings.queues)
        self.pace, self.queue_pace = Pace(), Pace()
        self.result_kb = Means()
        """The kilobytes of results and errors, by kind."""
        self._large_results: set[Kind] = set()
        self._permits = GatePermits(lambda kind: executors[kind].slots, self.slots.waiting_kinds)
        self.batches: Batches | None = None
        """None: the application has no batch tasks."""
        if any(task.options_of_task.batch is not None for task in app):
            self.batches = Batches(self._start_batches, environment.monotonic)
        self._suspects = Suspects()
        self._stopping = False
        self.ended: dict[tuple[str, Kind], int] = {}
        """How many attempts have ended, by queue and kind."""
        self.left = settings.max_jobs
        """How many more jobs this process may start. None: any number."""
        self.on_progress: Callable[[], None] | None = None
        """Called when a handler has reported progress, in its thread."""

    def stop(self) -> None:
        """Start nothing from now on: jobs that a claim still brings are put back."""
        self._stopping = True

    def take_on(
        self, lease: Lease, permits: Sequence[Permits], lease_seconds: float, safe_until: float
    ) -> None:
        """Take on the jobs of a claimed lease. `permits`: what the claim says of gates."""
        now = self._environment.monotonic()
        self._watchlist.wake(now)
        if self.left is not None:
            self.left -= len(lease.jobs)
        if now >= safe_until:  # the claim returned late: other workers may have these jobs by now
            log.warning("worker %s got a lease too late; its jobs are put back", self._worker)
            self._permits.lower(permits)
            late = [LeasedJob(job, NO_TASK, now) for job in lease.jobs]
            self._put_back(late, "claimed too late")
            return
        find, timed, on_progress = self._app.find, self._watchlist.timed, self.on_progress
        unsure = self.kinds.unsure
        known: list[LeasedJob] = []
        unknown: list[LeasedJob] = []
        sorted_out: Counter[tuple[str, Kind]] = Counter()
        for job in lease.jobs:
            task = find(job.task)
            if task is None:
                unknown.append(LeasedJob(job, NO_TASK, now))
                continue
            leased = LeasedJob(job, task, now, on_progress)
            known.append(leased)
            if job.timeout_seconds is not None:
                timed[leased] = None
            if job.needs in unsure:
                sorted_out[job.queue, task.kind] += 1
        for (queue, kind), jobs in sorted_out.items():
            self.kinds.learn_unsure(queue, kind, jobs)
        self._leased_jobs.add(lease, known + unknown, lease_seconds, safe_until)
        self._give_up(unknown)
        if self._stopping:  # the claim was under way when the worker was told to stop
            self._put_back(known, "shutdown")
        elif len(known) == 1 and not self._suspects.may_run(known[0]):
            spread = self._environment.random()
            first = self._suspects.tried
            other = "another such job" if first is None else f"job {first.job.id}"
            self._put_back(known, f"its worker died twice, so it waits for {other} to end", spread)
        else:
            if permits:
                known = self._permits.admit(known, permits)
            if self.batches is not None:
                known = self.batches.gather(known)
            self._start(self.slots.admit(known))

    def _start_batches(self, jobs: Sequence[LeasedJob]) -> None:
        """They go before jobs that wait for slots: most of those were claimed later."""
        self._start(self.slots.admit(jobs), first=True)

    def _start(self, jobs: Sequence[LeasedJob], *, first: bool = False) -> None:
        for kind in {leased.task.kind: None for leased in jobs}:
            some = [leased for leased in jobs if leased.task.kind == kind]
            self.kinds.learn({leased.job.queue for leased in some}, kind)
            self.executors[kind].submit(some, first=first)
        if self._app.hooks.listeners:
            for leased in whole(jobs):
                self._reporter.event("started", leased.job)

    def free_slot(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """A handler has ended: start the next job."""
        if leased.stop is not None or leased.job.timeout_seconds is not None:
            self._watchlist.forget(leased)
        if leased is self._suspects.tried:
            self._suspects.ended(leased)
        if leased.started_at is not None:
            lane = (leased.job.queue, leased.task.kind)
            self.ended[lane] = self.ended[lane] + 1 if lane in self.ended else 1
        if leased.batch is not None and leased.batch[0] is not leased:
            return  # the first job of its batch had the slot
        following = self.slots.ended(leased)
        if following is not None:
            self._start([following])
        if leased in self._permits.users:
            self._free_permit(leased)
        if self._polling.resting:
            self._polling.slot_came_free()
        if leased.started_at is not None:
            self._learn(leased, settlement)

    def _free_permit(self, leased: LeasedJob) -> None:
        """The job has ended or was put back: its permit goes to the next job at the gate."""
        following = self._permits.free(leased)
        if following:
            self._start(self.slots.admit(following))

    def _learn(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """Learn how long jobs take, without the time until a thread's report reached the loop."""
        seconds = None if settlement is None else settlement.duration_seconds
        if seconds is None:
            seconds = leased.seconds_run(self._environment.monotonic())
        kind = leased.task.kind
        self.pace.learn(kind, seconds)
        data = None if settlement is None else settlement.result or settlement.error
        kb = 0 if data is None else len(data) >> 10
        if kb:
            self._large_results.add(kind)
        if kind in self._large_results:
            self.result_kb.learn(kind, kb)
        if leased.job.queue in self.slots.limits:
            self.queue_pace.learn(leased.job.queue, seconds)

    def has_slot(self, kind: Kind, queue: str) -> bool:
        """Could another job of this kind and queue start? From any thread."""
        limit = self.slots.limits.get(queue, math.inf)
        return self.executors[kind].free > 0 and self.slots.in_use(queue) < limit

    def room_to_sort(self, kind: Kind) -> int:
        """How many jobs whose tickets do not say their kind may wait if they are of a full kind.

        If none were claimed, the jobs of other kinds behind them would wait as well. If the jobs of
        the full kind are short, these start soon. If not, they are put back with the right tickets.
        """
        executor = self.executors[kind]
        free = executor.free - self.slots.waiting(kind)
        if free > 0:  # there is no room for another reason
            return 0
        is_short = self.pace.mean(kind, math.inf) <= PREFETCH_PATIENCE_SECONDS
        most = executor.slots if is_short else MAX_SORTED
        left = most + free
        return left if 2 * left >= most else 0  # not worth a claim

    def is_stuck(self) -> bool:
        """Are all slots of a kind, or of a queue, taken by handlers that were given up?"""
        given_up = [leased for leased in self._watchlist.stuck if leased.lost]
        kinds = Counter(leased.task.kind for leased in given_up)
        queues = Counter(leased.job.queue for leased in given_up)
        return any(n >= self.executors[kind].slots for kind, n in kinds.items()) or any(
            n >= self.slots.limits.get(queue, math.inf) for queue, n in queues.items()
        )

    # --- putting back ----------------------------------------------------------------------------

    def put_back_late(self, now: float) -> None:
        """Put back jobs that were claimed ahead and have waited too long."""
        for kind, executor in self.executors.items():
            waits_since = executor.waits_since()
            if waits_since is None or now - waits_since < PREFETCH_PATIENCE_SECONDS:
                continue
            late = executor.take_back()
            self.pace.slow_down(kind)
            self._release(late, "waited too long for a slot")
            self._polling.slot_came_free()  # others may wait now
        since = now - PREFETCH_PATIENCE_SECONDS
        at_gates = self._permits.take_back_waiting(since=since)
        for leased in at_gates:
            self.pace.slow_down(leased.task.kind)
        self._put_back(at_gates, "waited too long for a permit at its gate")
        in_queues = self.slots.take_back_waiting(since=since)
        for leased in in_queues:
            self.queue_pace.slow_down(leased.job.queue)
        self._put_back(in_queues, "waited too long for a slot")

    def put_back_unstarted(self) -> None:
        """Put back all jobs that have not started: the worker shuts down."""
        if self.batches is not None:
            self._put_back(self.batches.take_back(), "shutdown")
        self._put_back(self._permits.take_back_waiting(), "shutdown")
        self._put_back(self.slots.take_back_waiting(), "shutdown")
        for executor in self.executors.values():
            self._release(executor.take_back(), "shutdown")

    def _release(self, jobs: Sequence[LeasedJob], reason: str) -> None:
        """Put back jobs that have a slot of their queue."""
        self.slots.take_back(jobs)
        self._put_back(jobs, reason)

    def _may_start_more(self, count: int) -> None:
        """This many claimed jobs were put back: they do not count."""
        if self.left is not None:
            self.left += count

    def _give_up(self, unknown: Sequence[LeasedJob]) -> None:
        """Put back jobs of tasks that this worker does not have, or fail them in the end."""
        for leased in unknown:
            self._reporter.say(
                logging.WARNING, leased.job, "this worker has no such task; put back"
            )
            give_up = self._settings.unknown_task_seconds
            self._backlog.add(leased, unknown_task(leased.job, give_up))
        self._may_start_more(len(unknown))

    def _put_back(self, jobs: Sequence[LeasedJob], reason: str, spread: float = 0.0) -> None:
        jobs = whole(jobs)
        self._may_start_more(len(jobs))
        for leased in jobs:
            leased.slot_freed = True
            self._watchlist.timed.pop(leased, None)
            self._suspects.ended(leased)
            if leased in self._permits.users:
                self._free_permit(leased)
            self._backlog.add(leased, unstarted(leased.job, leased.stop, reason, spread=spread))
