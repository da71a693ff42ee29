"""One attempt, from the arguments to the settlement. The same body runs in every place:

    executors.py        awaited on the event loop, or driven in a thread
    children/child.py   driven in a child process
    testing/run.py      driven or awaited by a test

The body is a coroutine. Where handlers are plain functions it never suspends, and `drive` runs it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from tenure.batches import alone
from tenure.client import Client
from tenure.errors import JobNotFound, PayloadInvalid
from tenure.rules.claim import Claimed
from tenure.rules.job import Feature, Job
from tenure.rules.lifecycle import Outcome, Settlement, succeed
from tenure.running import reset_current, set_current
from tenure.worker.environment import Environment
from tenure.worker.events import EventReporter
from tenure.worker.leases import LeasedJob
from tenure.worker.running.attempt import Attempt, undecodable
from tenure.worker.running.context import RunningHere

_ONCE = int(Feature.ONCE)

Prepared = tuple[Callable[..., Any], list[Any], dict[str, Any], RunningHere]
"""The handler, its decoded arguments, and the running job."""


class AttemptRunner:
    """Runs attempts. Subclasses override the parts that differ in their place."""

    awaits = False
    """Whether handlers are coroutine functions, awaited here. If not, `run` never suspends."""

    def __init__(self, app: Client, worker: str, environment: Environment) -> None:
        self._app = app
        self._worker = worker
        self._environment = environment

    async def run(self, leased: LeasedJob) -> Settlement | None:
        """Run the handler. Returns the settlement; None if the job is no longer ours."""
        if leased.stop is not None:
            return self.attempt(leased).stopped(leased.stop, 0.0)
        now, hooks = self._environment.monotonic, self._app.hooks
        started = now()
        try:
            try:
                fn, args, kwargs, running = self.prepare(leased)
            except PayloadInvalid as error:
                return self.undecodable(leased, error)
            if leased.job.features & _ONCE:
                await self.start_once(running)
                if (stop := leased.stop_reason()) is not None:
                    return self.attempt(leased).stopped(stop, 0.0)
                started = now()
            leased.started_at = started
            before = set_current(running)
            try:
                if hooks.arounds:
                    async with hooks.around(running):
                        result = fn(*args, **kwargs)
                        if self.awaits:
                            result = await result
                else:
                    result = fn(*args, **kwargs)
                    if self.awaits:
                        result = await result
            finally:
                reset_current(before)
            if result is None and (leased.task.signature.accepts_none or leased.completed):
                return succeed(leased.job, None, now() - started)
            return self.attempt(leased).returned(result, now() - started)
        except BaseException as error:  # noqa: BLE001 - any exception of a handler is its failure
            return self.raised(leased, error, now() - started)

    async def start_once(self, running: RunningHere) -> None:
        """The mark comes before the handler: after a crash the job must not run again."""
        if self.awaits:
            await running.start_once_async()
        else:
            running.start_once()

    def prepare(self, leased: LeasedJob) -> Prepared:
        """Decode the arguments and make the running job. Raises PayloadInvalid."""
        task = leased.task
        signature = task.signature
        args, kwargs = signature.unpack(leased.job.args)
        running = RunningHere(leased, self._app, self._worker)
        if signature.wants_running:
            args.insert(0, running)
        if task.options_of_task.batch is not None:
            return alone(task.fn, running, awaits=self.awaits), args, kwargs, running
        return task.fn, args, kwargs, running

    def raised(self, leased: LeasedJob, error: BaseException, seconds: float) -> Settlement | None:
        """The settlement of an attempt whose handler raised."""
        return self.attempt(leased).raised(error, seconds, leased.stop_reason())

    def undecodable(self, leased: LeasedJob, error: PayloadInvalid) -> Settlement:
        """The settlement of an attempt whose arguments do not fit the task in this code."""
        return undecodable(leased.job, error)

    def attempt(self, leased: LeasedJob) -> Attempt:
        """The rules by which this attempt is settled."""
        return Attempt.of(leased, self._environment.random)


async def confirm_completion(
    leased: LeasedJob,
    settlement: Settlement | None,
    *,
    look: Callable[[int], Awaitable[Job]],
    worker: str,
    reporter: EventReporter,
    environment: Environment,
) -> tuple[str | None, Settlement | None]:
    """The handler ended its job with `on=`: did its transaction commit?

    If so, returns how the attempt has ended, and no settlement. If not, returns None and the
    settlement that is still to be written. `look` reads the job; its errors are raised.
    """
    job = leased.job
    try:
        kind = _ended(job, await look(job.id), worker)
    except JobNotFound:
        kind = "succeeded"  # finished, and deleted since
    if kind is not None:
        if settlement is None or settlement.outcome is not Outcome.SUCCEED:
            reporter.say(logging.ERROR, job, "failed after it had completed itself")
        reporter.event(kind, job)
        return kind, None
    if settlement is not None and settlement.outcome is Outcome.SUCCEED:
        attempt = Attempt.of(leased, environment.random)
        return None, attempt.not_committed(leased.seconds_run(environment.monotonic()))
    return None, settlement


def _ended(job: Claimed, seen: Job, worker: str) -> str | None:
    """How the handler has ended its job, if it has: the kind of the event. None: it has not.

    A job with a newer token was put back, by the handler or by a sweep, which counts a crash.
    """
    if seen.token == job.token:
        return str(seen.state) if seen.state.final and seen.worker == worker else None
    if seen.crashes != job.crashes:
        return None
    return "retried" if seen.attempts > job.attempts else "snoozed"
