"""The records of finished jobs: what readers of the feed get, and what failure hooks receive.

Ended, FeedPage       the end of a job, and a page of the feed
FeedReader            a reader and its position
FailedJob             what a hook receives
NewHook               a hook, as code declares it
"""

from datetime import datetime
from typing import Any

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.job import ErrorInfo, NewJob, State
from tenure.rules.limits import JobReference, check_name, not_this
from tenure.rules.record import Record


class Ended(JobReference, Record, msgspec.Struct, frozen=True, kw_only=True):
    """The end of a job. A job that was replayed ends again, under another token."""

    place: int
    """Its number in the feed. All readers get all ends in this order."""
    id: int
    token: int
    state: State
    task: str
    queue: str
    tenant: str
    attempts: int
    finished_at: datetime
    duration_seconds: float | None = None
    worker: str | None = None
    """The worker that has ended it; None: an operator, a workflow, a sweep or
    its deadline."""
    reason: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    """The first 1,000 characters."""


class FeedPage(Record, msgspec.Struct, frozen=True):
    """Ends in the order of their places, and the position of a reader that is done with them."""

    ends: tuple[Ended, ...]
    position: int
    since: int
    """The position of the reader now. If it is the same, there was nothing to read."""


class FeedReader(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A reader of the feed. `unread`: how many ends of all tenants come after its position."""

    name: str
    tenant: str
    position: int
    created_at: datetime
    seen_at: datetime
    lost_at: datetime | None
    """Since when the feed no longer waits for it, because it was away for too long."""
    unread: int


class FailedJob(JobReference, Record, msgspec.Struct, frozen=True, kw_only=True):
    """A job that has failed for good, as a hook receives it."""

    id: int
    token: int
    task: str
    args: dict[str, Any]
    queue: str
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    """How many of its attempts ended with the death of their worker."""
    finished_at: datetime
    reason: str | None = None
    error: ErrorInfo | None = None
    """The error of the last attempt that has told of one."""
    worker: str | None = None
    metadata: dict[str, Any] | None = None


class NewHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook, as code declares it: `job` is enqueued when a job of this task fails.

    Of `job`, the arguments do not count: `parameter` receives the failed job.
    """

    task: str | None
    """None: every task."""
    parameter: str
    job: NewJob

    def __post_init__(self) -> None:
        if self.task is not None:
            check_name("task", self.task)
        if type(self.parameter) is not str or not self.parameter.isidentifier():
            raise InvalidInput(
                f"parameter must be the name of a parameter, {not_this(self.parameter)}"
            )
        if type(self.job) is not NewJob:
            raise InvalidInput(f"job must be a NewJob, {not_this(self.job)}")
        job = self.job
        if job.unique is not None or job.parents:
            raise InvalidInput("the job of a hook has no unique key and no parents")
        if any(
            each is not None
            for each in (job.delay_seconds, job.due_at, job.expires_at, job.finish_by)
        ):
            raise InvalidInput(
                "the job of a hook is due at once: leave out delay_seconds and due_at, and give "
                "start_within_seconds or finish_within_seconds in place of expires_at or finish_by"
            )
