"""How an attempt ended, as a settlement. Pure functions: no I/O, no clock.

A settlement of None means that nothing is written, because the job is no longer ours.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tenure.control import Cancel, Control, Retry, Skip, Snooze
from tenure.errors import (
    AttemptTimedOut,
    ChildDied,
    InvalidInput,
    NotCommitted,
    PayloadInvalid,
    StoreUnavailable,
    ValueRefused,
    WorkerStopping,
)
from tenure.rules import lifecycle
from tenure.rules.arriving import SAME
from tenure.rules.claim import Claimed
from tenure.rules.codec import encode, encode_error, which_unfit
from tenure.rules.job import Json
from tenure.rules.lifecycle import Settlement
from tenure.rules.retry import DEFAULT_POLICY, delay_seconds, load_policy
from tenure.rules.why import UNFIT
from tenure.signature import check_result, refuse_containers
from tenure.store import Answer
from tenure.tasks import TaskOptions
from tenure.worker.leases import LeasedJob, Stop

UNKNOWN_TASK_FIRST_SECONDS, UNKNOWN_TASK_LAST_SECONDS = 5.0, 300.0
SUSPECT_FIRST_SECONDS, SUSPECT_LAST_SECONDS = 0.25, 10.0
DEPLOY_TRIES = 6
"""How often a job is put back while a deploy may be under way, about five minutes in all."""
UNCHECKED: object = object()
"""The result type of an attempt that has completed itself: what it returns is not used."""
UNREACHABLE = "the database could not be reached"
REFUSED = "the store refused how it ended"

_WORKER_FOLDER = str(Path(__file__).parents[1])
log = logging.getLogger("tenure.worker")


class StoreAway(StoreUnavailable):
    """Our own database failed in an operation of the handler that cannot be repeated."""


class Attempt:
    """One attempt of a job whose task this code has."""

    __slots__ = ("job", "options", "random", "result_type")

    def __init__(
        self,
        job: Claimed,
        options: TaskOptions,
        random: Callable[[], float],
        result_type: object = object,
    ) -> None:
        self.job = job
        self.result_type = result_type
        self.options = options
        self.random = random

    @classmethod
    def of(cls, leased: LeasedJob, random: Callable[[], float]) -> Self:
        """The attempt of a leased job."""
        task = leased.task
        kind = UNCHECKED if leased.completed else task.signature.result_type
        return cls(leased.job, task.options_of_task, random, kind)

    def returned(self, result: object, seconds: float) -> Settlement | None:
        """The handler returned."""
        kind = self.result_type
        if isinstance(result, Control):
            return self.raised(result, seconds)
        why = "the result cannot be stored"
        try:
            data = encode(result, what=f"the result of {self.job.task}")
            if kind is UNCHECKED:
                pass
            elif kind is object or kind is Any:
                if type(result) not in SAME:
                    refuse_containers(self.job.task, result)
            elif type(result) is not kind or kind not in SAME:
                why = "the result does not fit its annotation"
                check_result(self.job.task, data, kind)
        except InvalidInput as error:
            return lifecycle.fail(self.job, encode_error(error), why, seconds)
        return lifecycle.succeed(self.job, data, seconds)

    def raised(
        self, error: BaseException, seconds: float, stop: Stop | None = None
    ) -> Settlement | None:
        """The handler raised, perhaps because it was stopped."""
        _trim(error)
        try:
            return self._raised(error, seconds, stop)
        except Exception as broken:  # noqa: BLE001 - a broken subclass of Retry, say
            return self._retry(encode_error(broken), "error", seconds)

    def _raised(self, error: BaseException, seconds: float, stop: Stop | None) -> Settlement | None:
        job = self.job
        match error:
            case asyncio.CancelledError() if stop is not None:
                return self.stopped(stop, seconds)
            case asyncio.CancelledError() if not isinstance(error, self.options.fail_on):
                return self._retry(
                    encode_error(error), "error", seconds
                )  # the handler or a library cancelled it
            case StoreAway() if _may_be_a_deploy(job):
                return lifecycle.release(job, UNREACHABLE, _in_a_deploy(job))
            case Snooze():
                return lifecycle.snooze(job, error.seconds, error.reason, seconds)
            case Skip():
                return lifecycle.skip(job, error.reason, seconds)
            case Cancel():
                return lifecycle.abort(job, error.reason, seconds)
            case Retry():
                delay = error.after_seconds
                delay = self.delay_seconds() if delay is None else delay
                return lifecycle.retry(job, encode_error(error), delay, error.reason, seconds)
        if stop is Stop.SHUTDOWN:  # if its clean-up failed, the attempt is not charged either
            if not isinstance(error, WorkerStopping):
                log.warning(
                    "job %d of %s raised %s when a shutdown stopped it; put back",
                    job.id, job.task, type(error).__name__,
                )  # fmt: skip
            return self.stopped(stop, seconds)
        if self.options.retries(error):
            return self._retry(encode_error(error), "error", seconds)
        return lifecycle.fail(job, encode_error(error), "error", seconds)

    def stopped(self, why: Stop, seconds: float) -> Settlement | None:
        """The worker stopped the handler."""
        match why:
            case Stop.TIMEOUT:
                error = AttemptTimedOut(f"stopped after {self.job.timeout_seconds:g} s")
                return self._retry(encode_error(error), "timeout", seconds)
            case Stop.CANCELLED:
                return lifecycle.abort(self.job, "cancelled", seconds)
            case Stop.SHUTDOWN:
                return lifecycle.release(self.job, "shutdown", duration_seconds=seconds)
            case Stop.LOST | Stop.EXPIRED:
                return lost_lease(self.job, why)

    def cancelled_by(self, id: int) -> Settlement:
        """The handler of another job cancelled this one: put back, uncharged, ever later."""
        delay = _growing(self.job, SUSPECT_FIRST_SECONDS, SUSPECT_LAST_SECONDS)
        return lifecycle.release(self.job, f"cancelled by the handler of job {id}", delay)

    def child_died(self, reason: str, seconds: float) -> Settlement:
        """The child process that ran it died."""
        error = encode_error(ChildDied(f"the child process ended: {reason}"))
        return self._retry(error, reason, seconds)

    def not_started(self, reason: str, output: str) -> Settlement:
        """The child process ended before the handler began: put back, uncharged, ever later.

        After several times the attempt is charged: the job's arguments may kill each process.
        """
        if not _may_be_a_deploy(self.job):
            return self.child_died(reason, 0.0)
        told = "; ".join([reason, *output.strip().splitlines()[-1:]])
        why = f"the child process did not start the handler: {told}"
        return lifecycle.release(self.job, why, _in_a_deploy(self.job))

    def not_given(self, error: Exception) -> Settlement:
        """No child process could be started: put back, uncharged, ever later."""
        return lifecycle.release(self.job, f"no child process: {error}", _in_a_deploy(self.job))

    def not_committed(self, seconds: float) -> Settlement:
        """The handler ended its job with `on=`, but that transaction did not commit."""
        error = NotCommitted(
            "the handler ended its job with on=, but its transaction was not committed when the "
            "handler ended"
        )
        return self._retry(encode_error(error), "not committed", seconds)

    def _retry(self, error: Json, reason: str, seconds: float) -> Settlement:
        return lifecycle.retry(self.job, error, self.delay_seconds(), reason, seconds)

    def delay_seconds(self) -> float:
        """After which time the retry policy tries it again."""
        own, attempts = self.options.retry, self.job.attempts
        try:
            policy = own if callable(own) else load_policy(self.job.retry)
            return delay_seconds(policy, attempts, self.random)
        except BaseException as error:  # noqa: BLE001 - a user's function; the failure is kept
            log.error(
                "the retry policy of %s failed; using the default policy: %s", self.job.task, error
            )
            return delay_seconds(DEFAULT_POLICY, attempts, self.random)


def _trim(error: BaseException) -> None:
    """Remove the worker's own frames from the start of the traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_WORKER_FOLDER):
        trace = trace.tb_next
    if trace is not None:
        error.__traceback__ = trace


def unstarted(
    job: Claimed, stop: Stop | None, reason: str, *, spread: float = 0.0
) -> Settlement | None:
    """The job was claimed and never started: put back, uncharged.

    With a random `spread`, from 0 to 1, it comes back later, and later each time. So jobs that
    wait for the same suspect do not all come back at the same time.
    """
    match stop:
        case Stop.LOST:
            return None
        case Stop.CANCELLED:
            return lifecycle.abort(job)
        case _:
            delay = spread * _growing(job, SUSPECT_FIRST_SECONDS, SUSPECT_LAST_SECONDS)
            return lifecycle.release(job, reason, delay)


def lost_lease(job: Claimed, stop: Stop | None) -> Settlement | None:
    """The lease is lost: nothing is recorded.

    If the store could only not be reached, the job is put back, uncharged, unless a sweep was
    faster: the handler is not to blame.
    """
    return lifecycle.release(job, UNREACHABLE) if stop is Stop.EXPIRED else None


def unknown_task(job: Claimed, give_up_seconds: float = 7 * 86_400.0) -> Settlement:
    """This code has no such task: put back, uncharged, ever later. Another worker may have it."""
    return lifecycle.unknown_task(job, _in_a_deploy(job), give_up_seconds)


def undecodable(job: Claimed, error: PayloadInvalid) -> Settlement:
    """The arguments do not fit this code: put back while a deploy may be under way, then fail."""
    if _may_be_a_deploy(job):
        return lifecycle.release(job, f"{UNFIT}{which_unfit(error)}", _in_a_deploy(job))
    return lifecycle.fail(job, encode_error(error), "arguments do not fit")


def refused(job: Claimed, settlement: Settlement, answer: Answer) -> Settlement | None:
    """The failure to write instead of a settlement that the store refused; None if it did not."""
    if answer.error is None or settlement.reason == REFUSED:
        return None
    return lifecycle.fail(job, encode_error(ValueRefused(answer.error)), REFUSED)


def _may_be_a_deploy(job: Claimed) -> bool:
    return job.token - job.attempts <= DEPLOY_TRIES


def _growing(job: Claimed, first_seconds: float, last_seconds: float) -> float:
    """A delay that doubles each time the job is put back uncharged."""
    doublings = min(job.token - job.attempts - 1, 20)
    return min(last_seconds, first_seconds * 2.0**doublings)


def _in_a_deploy(job: Claimed) -> float:
    return _growing(job, UNKNOWN_TASK_FIRST_SECONDS, UNKNOWN_TASK_LAST_SECONDS)
