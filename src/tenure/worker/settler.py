"""Ends attempts: frees the slot, then writes the settlement, with many others in one batch.

    executor -> ended -> Backlog -> run -> store.settle

The end of each attempt is taken exactly once. After `complete(on=...)` the settler reads the job
first, to see whether the handler's transaction committed.

A batch starts when the previous one has returned. A batch that the store cannot write for now is
sent again until it succeeds. Meanwhile its jobs stay leased, heartbeats go on, and the store
recognises settlements that it has written before. Jobs whose rows another transaction has locked
wait apart, so that they delay no other job. A settlement that the store refuses is replaced by a
failure that says so.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import msgspec

from tenure.errors import SchemaError, StoreBusy, StoreError
from tenure.rules.job import Feature, State
from tenure.rules.lifecycle import Outcome, Settlement
from tenure.rules.retention import Keep
from tenure.store import LANDED, Answer, AsyncStore
from tenure.worker.counting import EndCounter
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import NO_TASK, LeasedJob, LeasedJobs
from tenure.worker.protected import start_task
from tenure.worker.running.attempt import lost_lease, refused
from tenure.worker.running.run import confirm_completion

MAX_BATCH = 1000
MAX_BATCH_KB = 4096
"""More results than this make several batches: each is copied a few times on its way."""
LOCKED_SECONDS = 0.5
"""How often the settler tries again to write jobs whose rows are locked."""
FINAL = frozenset(str(state) for state in State if state.final)
LOOK_AGAIN_SECONDS = 1.0
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.02, 2.0
CATCH_UP_SECONDS, CATCH_UP_LOOKS = 1.5, 30
_CHILDREN = int(Feature.CHILDREN)

log = logging.getLogger("tenure.worker")

Ended = tuple[LeasedJob, Settlement | None]
"""An attempt and its settlement; None when there is nothing to write about it."""


class Backlog:
    """Ended attempts that wait to be written. Lives on the event loop."""

    def __init__(self, leased_jobs: LeasedJobs) -> None:
        self._leased_jobs = leased_jobs
        self.waiting: deque[Ended] = deque()
        self.locked: deque[Ended] = deque()
        """Attempts whose rows another transaction has locked."""
        self._wake = asyncio.Event()
        self._sleeping = True
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """Add an ended attempt."""
        leased.end_taken = True
        if settlement is not None:
            data = settlement.result or settlement.error
            if data is not None and len(data) >= 1024:
                self._leased_jobs.ended(leased, _size_kb(settlement))
        self.waiting.append((leased, settlement))
        if self._sleeping:
            self._sleeping = False
            self._empty.clear()
            self._wake.set()

    def put_back(self, batch: list[Ended]) -> None:
        """Put a batch that could not be written at the head again."""
        self.waiting.extendleft(reversed(batch))

    def take_waiting(self) -> list[Ended]:
        """Remove and return the next batch."""
        return _take(self.waiting)

    def take_locked(self) -> list[Ended]:
        """Remove and return a batch of attempts whose rows were locked."""
        return _take(self.locked)

    async def wait(self) -> None:
        """Wait for the next ended attempt, or until locked rows should be tried again."""
        if not self.locked:
            self._empty.set()
        self._sleeping = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LOCKED_SECONDS if self.locked else None):
                await self._wake.wait()
        self._wake.clear()
        self._sleeping = False

    async def until_empty(self) -> None:
        """Wait until the store has returned an answer for every ended attempt."""
        await self._empty.wait()


def _take(attempts: deque[Ended]) -> list[Ended]:
    """The next batch: bounded by number, and by what it sends to the store."""
    batch = [attempts.popleft() for _ in range(min(MAX_BATCH, len(attempts)))]
    kb = 0
    for n, (leased, settlement) in enumerate(batch):
        if leased.kb and settlement is not None:  # small jobs are not even asked
            kb += _size_kb(settlement)
            if n and kb > MAX_BATCH_KB:
                attempts.extendleft(reversed(batch[n:]))
                return batch[:n]
    return batch


def _size_kb(settlement: Settlement) -> int:
    """The kilobytes of its result or error."""
    return len(settlement.result or settlement.error or b"") >> 10


class Settler:
    """Ends the attempts of one worker process. Lives on the event loop."""

    free_slot: Callable[[LeasedJob, Settlement | None], None]
    """Called with each attempt that has ended. Set before the first job starts."""

    def __init__(
        self,
        store: AsyncStore,
        worker: str,
        environment: Environment,
        *,
        backlog: Backlog,
        leased_jobs: LeasedJobs,
        reporter: EventReporter,
        counter: EndCounter,
        ring: Callable[[], None],
        freed: Callable[[], None],
        keep: Mapping[str, Keep] | None = None,
    ) -> None:
        self._keep = keep
        self._store = store
        self._worker = worker
        self._environment = environment
        self._backlog = backlog
        self._leased_jobs = leased_jobs
        self._reporter = reporter
        self._counter = counter
        self._ring = ring
        self._freed = freed
        self._pause = FIRST_PAUSE_SECONDS
        self._try_now = asyncio.Event()
        self._writing = False
        self._confirming: set[asyncio.Task[None]] = set()

    def ended(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """A handler has ended. Called by the executors."""
        self.free_slot(leased, settlement)
        lost = bool(leased.lost)
        if lost:
            settlement = lost_lease(leased.job, leased.stop)
        if not self.finish(leased, settlement):
            self._reporter.say(
                logging.WARNING, leased.job, "ended after it was given up; not recorded"
            )
        elif lost:
            self._reporter.say(
                logging.WARNING, leased.job, "ended after its lease was lost; not recorded"
            )

    def finish(self, leased: LeasedJob, settlement: Settlement | None) -> bool:
        """Hand over how the attempt ended. Returns False if it was handed over before."""
        # Only attempts with a timeout may be ended by another thread: see blocked_loop.py.
        timed = leased.job.timeout_seconds is not None
        if not leased.take_end() if timed else leased.end_taken:
            return False
        leased.end_taken = True
        if leased.completed and not leased.lost:
            self._confirm_soon(leased, settlement)
        else:
            self._backlog.add(leased, settlement)
        return True

    def write_end(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        """Hand over the end of an attempt that the heartbeat thread has taken."""
        if leased.completed:
            self._confirm_soon(leased, settlement)
        else:
            self._backlog.add(leased, settlement)

    async def until_written(self) -> None:
        """Wait until the store has returned an answer for every ended attempt."""
        while self._confirming:
            await asyncio.wait(self._confirming)
        await self._backlog.until_empty()

    async def abandon_confirmations(self) -> None:
        """Stop looking whether handlers' transactions committed."""
        tasks = list(self._confirming)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _confirm_soon(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        task = start_task(self._confirm(leased, settlement), "tenure-confirm")
        self._confirming.add(task)
        task.add_done_callback(self._confirming.discard)

    async def _confirm(self, leased: LeasedJob, settlement: Settlement | None) -> None:
        try:
            settlement = await self._confirmed(leased, settlement)
        except Exception:
            log.exception(
                "job %d: cannot see whether its completion was committed; given up", leased.job.id
            )
            settlement = None  # if it was not committed, the lease expires and the job runs again
        self._backlog.add(leased, settlement)

    async def _confirmed(
        self, leased: LeasedJob, settlement: Settlement | None
    ) -> Settlement | None:
        """The settlement that is still to be written, as long as the job is ours."""
        while self._leased_jobs.has(leased):
            try:
                kind, settlement = await confirm_completion(
                    leased, settlement, look=self._store.get, worker=self._worker,
                    reporter=self._reporter, environment=self._environment,
                )  # fmt: skip
            except StoreError:
                log.debug(
                    "job %d: cannot see whether its completion was committed; trying again",
                    leased.job.id, exc_info=True,
                )  # fmt: skip
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            else:
                if kind in FINAL:  # otherwise an operator may have put it back
                    seconds = leased.seconds_run(self._environment.monotonic())
                    self._counter.ended(leased, kind, seconds)
                return settlement if self._leased_jobs.has(leased) else None
        return None

    def report(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> None:
        """Report and count what the store returned for a settlement."""
        kind = self._reporter.settled(leased, settlement, answer)
        if kind is not None:
            self._counter.ended(leased, kind, settlement.duration_seconds)

    def failing(self) -> bool:
        """Could the last batch not be written?"""
        return self._pause > FIRST_PAUSE_SECONDS

    # --- writing ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write batches for ever."""
        backlog, locked_at = self._backlog, 0.0
        while True:
            while backlog.waiting:
                await self._flush(backlog.take_waiting())
            if backlog.locked and self._environment.monotonic() >= locked_at:
                await self._flush(backlog.take_locked(), patient=False)
                locked_at = self._environment.monotonic() + LOCKED_SECONDS
            if not backlog.waiting:
                await backlog.wait()

    async def _flush(self, batch: list[Ended], *, patient: bool = True) -> None:
        """Write a batch. With `patient`, wait a little for rows that are locked."""
        self._environment.crash_point("before settle")
        self._writing = True
        try:
            answers = await self._settle(batch, patient)
        except StoreBusy:
            self._backlog.locked.extend(batch)
            self._pause = FIRST_PAUSE_SECONDS  # the store has replied
            return
        except StoreError as error:
            self._backlog.put_back(batch)
            await self._after(error)
            return
        finally:
            self._writing = False
        self._environment.crash_point("after settle")
        if self.failing():
            log.info("settling for %s works again", self._worker)
            self._pause = FIRST_PAUSE_SECONDS
        if self._leased_jobs.gated or _has_children(batch):
            self._ring()
        large = self._leased_jobs.kb
        report_all = self._reporter.reports_successes()
        unwritten: list[LeasedJob] = []
        succeeded: list[tuple[LeasedJob, float | None]] = []
        for leased, settlement in batch:
            if settlement is None:
                unwritten.append(leased)
                continue
            answer = next(answers)
            if report_all or answer is not LANDED or settlement.outcome is not Outcome.SUCCEED:
                self._note(leased, settlement, answer)
            else:
                succeeded.append((leased, settlement.duration_seconds))
        self._counter.succeeded(succeeded)
        self._leased_jobs.settled(unwritten + [leased for leased, _ in succeeded])
        if large > self._leased_jobs.kb:
            self._freed()

    async def _after(self, error: StoreError) -> None:
        if isinstance(error, SchemaError):
            self._leased_jobs.schema_error = error
        if not self.failing():  # logged once: an outage must not fill the disk
            log.warning("settling for %s failed, trying again: %s", self._worker, error)
        self._pause = min(LAST_PAUSE_SECONDS, self._pause * 2)
        self._try_now.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause * (0.5 + self._environment.random())):
                await self._try_now.wait()

    async def catch_up(self) -> None:
        """If a batch is under way or could not be written, wait a moment for it."""
        for _ in range(CATCH_UP_LOOKS):
            if not (self._writing or self.failing()):
                break
            self._try_now.set()
            await asyncio.sleep(CATCH_UP_SECONDS / CATCH_UP_LOOKS)

    async def _settle(self, batch: list[Ended], patient: bool) -> Iterator[Answer]:
        """Returns an answer for each attempt that has a settlement, in order."""
        settlements = [
            settlement
            if settlement.outcome is Outcome.SUCCEED
            and leased.progress is None
            and leased.notes is leased.notes_sent
            else _completed(leased, settlement)
            for leased, settlement in batch if settlement is not None
        ]  # fmt: skip
        done = self._finished_leases(batch)
        if not settlements and not done:
            return iter(())
        return iter(
            await self._store.settle(
                self._worker, settlements, done_leases=done, patient=patient, keep=self._keep
            )
        )

    def _finished_leases(self, batch: list[Ended]) -> list[int]:
        """Leases that have no job left after this batch. The store checks that, too."""
        leaving = Counter([leased.job.lease_id for leased, _ in batch])
        leases = self._leased_jobs.leases
        return [
            id for id, count in leaving.items() if id in leases and len(leases[id].jobs) <= count
        ]

    def _note(self, leased: LeasedJob, settlement: Settlement, answer: Answer) -> None:
        if answer.busy:
            self._backlog.locked.append((leased, settlement))
            return
        self.report(leased, settlement, answer)
        failure = refused(leased.job, settlement, answer)
        if failure is not None:
            self._backlog.add(leased, failure)
        else:
            self._leased_jobs.settled([leased])


def _completed(leased: LeasedJob, settlement: Settlement) -> Settlement:
    """The settlement with what the handler has told since the last heartbeat.

    If the job gets another ticket, it says what the task needs in this code.
    """
    settlement = leased.with_unsent(settlement)
    if leased.task is NO_TASK or leased.task.needs == leased.job.needs:
        return settlement
    return msgspec.structs.replace(settlement, needs=leased.task.needs)


def _has_children(batch: list[Ended]) -> bool:
    """May the batch have made other jobs ready?

    A hint: all nodes of a workflow have children, so a look at the first and the last is enough.
    """
    return bool((batch[0][0].job.features | batch[-1][0].job.features) & _CHILDREN)
