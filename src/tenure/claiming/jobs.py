"""Claimed jobs: their data, and how to end them with plain values."""

import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar, cast

from tenure.rules import lifecycle
from tenure.rules.claim import Claimed
from tenure.rules.codec import decode, encode, error_json
from tenure.rules.job import Feature
from tenure.rules.lifecycle import Settlement, Standing
from tenure.rules.retry import delay_seconds, load_policy
from tenure.running import Flag
from tenure.store.session import drive

if TYPE_CHECKING:
    from tenure.claiming.core import Core
    from tenure.store.api import Runner

T = TypeVar("T")


class HeldHere:
    """A job that this claimer holds."""

    def __init__(self, claimed: Claimed, core: "Core", runner: "Callable[[], Runner]") -> None:
        self._claimed = claimed
        self._core = core
        self._runner = runner
        self.lost = Flag()
        """True once the lease is lost: stop, nothing of this attempt can be recorded any more."""
        self.cancelled = Flag()
        """True once an operator has asked this job to stop."""
        self.is_ended = False
        """It was ended; with `on=`, after the next heartbeat has seen that this was committed."""
        self.may_be_ended = False
        """It was ended with `on=`: if that transaction is committed."""
        self.claimed_from = time.monotonic()
        """The time before its claim was sent."""
        self.waited_seconds = 0.0
        """From the time at which it was ready until its claim."""

    # fmt: off
    @property
    def id(self) -> int:
        """The job's id."""
        return self._claimed.id
    @property
    def token(self) -> int:
        """The fencing number of this attempt: use it to fence writes elsewhere."""
        return self._claimed.token
    @property
    def lease_id(self) -> int:
        """The lease under which it is held."""
        return self._claimed.lease_id
    @property
    def task(self) -> str:
        """The name of its task."""
        return self._claimed.task
    @property
    def queue(self) -> str:
        """The queue from which it was claimed."""
        return self._claimed.queue
    @property
    def priority(self) -> int:
        """Lower runs first."""
        return self._claimed.priority
    @property
    def tenant(self) -> str:
        """Its tenant; empty for a global job."""
        return self._claimed.tenant
    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._claimed.attempts + 1
    @property
    def max_attempts(self) -> int:
        """How many attempts the job may use."""
        return self._claimed.max_attempts
    @property
    def crashes(self) -> int:
        """How often a worker died with this job."""
        return self._claimed.crashes
    @property
    def created_at(self) -> datetime:
        """When it was enqueued."""
        return self._claimed.created_at
    @property
    def starts_once(self) -> bool:
        """It was enqueued with `at_most_once`."""
        return bool(self._claimed.features & Feature.ONCE)
    # fmt: on

    @property
    def args(self) -> Mapping[str, object]:
        """The arguments by name, as JSON has them."""
        return cast(Mapping[str, object], decode(self._claimed.args, dict[str, object]))

    def args_as(self, type: type[T]) -> T:
        """The arguments as a dataclass, a msgspec struct or another type with these fields."""
        return decode(self._claimed.args, type)

    @property
    def metadata(self) -> Mapping[str, object]:
        """The metadata that was enqueued with the job."""
        data = self._claimed.metadata
        return decode(data, dict[str, object]) if data else {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.task}, token {self.token}>"

    def standing(self) -> Standing:
        """What decides what an end makes of it, as far as this claimer knows."""
        job = self._claimed
        return Standing(job.attempts, job.max_attempts, bool(self.cancelled), self.starts_once)

    def _seconds(self) -> float:
        return time.monotonic() - self.claimed_from

    def _succeeded(self, result: object) -> Settlement:
        data = None if result is None else encode(result, what=f"the result of job {self.id}")
        return lifecycle.succeed(self, data, self._seconds())

    def _failed(self, error: BaseException | str, reason: str) -> Settlement:
        return lifecycle.fail(self, error_json(error), reason, self._seconds())

    def _retried(self, error: BaseException | str, after_seconds: float | None) -> Settlement:
        if after_seconds is None:
            policy, attempts = load_policy(self._claimed.retry), self._claimed.attempts
            after_seconds = delay_seconds(policy, attempts, random.random)
        data = error_json(error)
        seconds = self._seconds()
        return lifecycle.retry(self, data, after_seconds, duration_seconds=seconds)

    def _skipped(self, reason: str) -> Settlement:
        return lifecycle.skip(self, reason, self._seconds())

    def _cancelled(self, reason: str) -> Settlement:
        return lifecycle.abort(self, reason, self._seconds())


class ClaimedJob(HeldHere):
    """A job that a `Claimer` holds. End it once, in one of these ways.

    All of them raise `LeaseLost`, and write nothing, if the job is no longer held under this token.
    With `on=`, the end is a part of your own transaction.
    """

    def succeed(self, result: object = None, *, on: object | None = None) -> None:
        """The job is finished with this result: any value that JSON can carry."""
        self._end(self._succeeded(result), on)

    def fail(
        self, error: BaseException | str, *, reason: str = "error", on: object | None = None
    ) -> None:
        """The job has failed, and is not tried again."""
        self._end(self._failed(error, reason), on)

    def retry(
        self,
        error: BaseException | str,
        *,
        after_seconds: float | None = None,
        on: object | None = None,
    ) -> None:
        """The attempt failed. The job is tried again, or has failed if no attempt is left.

        Without `after_seconds` the retry policy of the job decides.
        """
        self._end(self._retried(error, after_seconds), on)

    def snooze(self, seconds: float, *, reason: str = "snoozed", on: object | None = None) -> None:
        """Not now: it comes back after this time, uncharged."""
        self._end(lifecycle.snooze(self, seconds, reason), on)

    def skip(self, reason: str = "skipped", *, on: object | None = None) -> None:
        """There is nothing to do; the job is finished as skipped."""
        self._end(self._skipped(reason), on)

    def cancel(self, reason: str = "cancelled", *, on: object | None = None) -> None:
        """The job is finished as cancelled. Do this when `cancelled` is true."""
        self._end(self._cancelled(reason), on)

    def release(
        self, reason: str = "released", *, delay_seconds: float = 0.0, on: object | None = None
    ) -> None:
        """Put it back in its queue, uncharged."""
        self._end(lifecycle.release(self, reason, delay_seconds), on)

    def _end(self, settlement: Settlement, on: object | None) -> None:
        drive(self._core.end(self._runner(), self, settlement, on))


class AsyncClaimedJob(HeldHere):
    """A job that an `AsyncClaimer` holds. End it once, in one of these ways.

    All of them raise `LeaseLost`, and write nothing, if the job is no longer held under this token.
    With `on=`, the end is a part of your own transaction.
    """

    async def succeed(self, result: object = None, *, on: object | None = None) -> None:
        """The job is finished with this result: any value that JSON can carry."""
        await self._end(self._succeeded(result), on)

    async def fail(
        self, error: BaseException | str, *, reason: str = "error", on: object | None = None
    ) -> None:
        """The job has failed, and is not tried again."""
        await self._end(self._failed(error, reason), on)

    async def retry(
        self,
        error: BaseException | str,
        *,
        after_seconds: float | None = None,
        on: object | None = None,
    ) -> None:
        """The attempt failed. The job is tried again, or has failed if no attempt is left.

        Without `after_seconds` the retry policy of the job decides.
        """
        await self._end(self._retried(error, after_seconds), on)

    async def snooze(
        self, seconds: float, *, reason: str = "snoozed", on: object | None = None
    ) -> None:
        """Not now: it comes back after this time, uncharged."""
        await self._end(lifecycle.snooze(self, seconds, reason), on)

    async def skip(self, reason: str = "skipped", *, on: object | None = None) -> None:
        """There is nothing to do; the job is finished as skipped."""
        await self._end(self._skipped(reason), on)

    async def cancel(self, reason: str = "cancelled", *, on: object | None = None) -> None:
        """The job is finished as cancelled. Do this when `cancelled` is true."""
        await self._end(self._cancelled(reason), on)

    async def release(
        self, reason: str = "released", *, delay_seconds: float = 0.0, on: object | None = None
    ) -> None:
        """Put it back in its queue, uncharged."""
        await self._end(lifecycle.release(self, reason, delay_seconds), on)

    async def _end(self, settlement: Settlement, on: object | None) -> None:
        await self._core.end(self._runner(), self, settlement, on)
