"""What the model keeps of jobs, leases and keys, and how it shows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from tenure.errors import JobNotFound
from tenure.rules.attempts import Attempt, AttemptOutcome
from tenure.rules.claim import Claimed
from tenure.rules.codec import decode, encode
from tenure.rules.ends import Ended
from tenure.rules.job import (
    ErrorInfo,
    Event,
    Feature,
    Job,
    Json,
    NewJob,
    Progress,
    State,
    Step,
    Until,
)
from tenure.rules.lifecycle import AT_MOST_ONCE, Outcome, Settlement
from tenure.rules.notes import NoteValue
from tenure.store import Count, OldestReady, PausedQueue


class JobId(int):
    """The model's number of a job; every store has its own."""


class LeaseId(int):
    """The model's number of a lease."""


NOBODY = JobId(10**9)
"""A job that was never enqueued."""


class Held(NamedTuple):
    """What a worker presents: a job as it was handed out."""

    id: JobId
    token: int
    lease_id: LeaseId


class Wish(NamedTuple):
    """A job to enqueue, with its parents by the model's ids."""

    job: NewJob
    parents: tuple[JobId, ...] = ()


class Where(Enum):
    """The one place in which a job is."""

    WAITING = auto()
    DUE = auto()
    LINE = auto()
    HELD = auto()
    LEASE = auto()
    HISTORY = auto()


_LIVE_STATE = {
    Where.WAITING: State.WAITING,
    Where.DUE: State.SCHEDULED,
    Where.LINE: State.QUEUED,
    Where.HELD: State.QUEUED,
    Where.LEASE: State.RUNNING,
}

Key = tuple[str, str, str]
Lane = tuple[str, int]


@dataclass
class Work:
    """One job and all that is known of it."""

    id: JobId
    job: NewJob
    queue: str
    priority: int
    created_at: datetime
    where: Where = Where.WAITING
    token: int = 1
    attempts: int = 0
    crashes: int = 0
    held: bool = False
    cancel_requested: bool = False
    due_at: datetime | None = None
    start_by: datetime | None = None
    queued_at: datetime | None = None
    reason: str | None = None
    error: str | None = None
    parents: dict[JobId, State | None] = field(default_factory=dict)
    noted: bool = False
    notes: dict[str, NoteValue] = field(default_factory=dict)
    tries: list[Attempt] = field(default_factory=list)
    """Its attempts that have ended."""
    stepped: bool = False
    has_children: bool = False
    story: list[Event] = field(default_factory=list)
    # Once it is final:
    final: State | None = None
    finished_at: datetime | None = None
    claimed_at: datetime | None = None
    worker: str | None = None
    result: str | None = None
    duration_seconds: float | None = None
    keep_until: datetime | None = None

    @property
    def state(self) -> State:
        return self.final if self.final is not None else _LIVE_STATE[self.where]

    @property
    def live(self) -> bool:
        return self.where is not Where.HISTORY

    @property
    def key(self) -> Key | None:
        unique = self.job.unique
        return (
            None if unique is None else (self.job.tenant, unique.scope or self.job.task, unique.key)
        )

    @property
    def features(self) -> int:
        unique = self.job.unique
        flags = 0
        if unique is not None:
            flags |= Feature.KEY
            if unique.until is Until.STARTED:
                flags |= Feature.KEY_UNTIL_STARTED
        flags |= Feature.CHILDREN if self.has_children else 0
        flags |= Feature.NOTES if self.noted else 0
        flags |= Feature.STEPS if self.stepped else 0
        flags |= Feature.PARENTS if self.parents else 0
        flags |= Feature.ONCE if self.job.at_most_once else 0
        lengths = (self.job.keep_succeeded_seconds, self.job.keep_other_seconds)
        flags |= Feature.KEEP if lengths != (None, None) else 0
        return flags

    @property
    def is_unkept(self) -> bool:
        """Is it to be forgotten with its end? Not if other jobs may want its result."""
        return self.keep_until == self.finished_at is not None and not self.has_children

    @property
    def notes_json(self) -> str | None:
        return encode(self.notes).decode() if self.notes else None

    def attempt(
        self,
        lease: Block,
        outcome: str,
        ended_at: datetime | None = None,
        *,
        charged: bool | None = None,
        reason: str | None = None,
        error: str | None = None,
        duration_seconds: float | None = None,
    ) -> Attempt:
        """The attempt under the present token."""
        return Attempt(
            number=len(self.tries) + 1, token=self.token, worker=lease.worker,
            started_at=lease.claimed_at, ended_at=ended_at, duration_seconds=duration_seconds,
            outcome=AttemptOutcome(outcome), charged=charged, reason=reason,
            error=None if error is None else decode(error, ErrorInfo), notes_json=self.notes_json,
        )  # fmt: skip


@dataclass
class Block:
    """A lease: who holds which attempts until when."""

    worker: str
    claimed_at: datetime
    expires_at: datetime
    jobs: list[tuple[JobId, int]]
    started: set[JobId] = field(default_factory=set)
    once: set[JobId] = field(default_factory=set)
    """Of those that start at most once, the started ones."""


@dataclass
class Hold:
    """Who has a unique key."""

    id: JobId
    until: Until
    meant: tuple[str, Json]
    expires_at: datetime | None
    outcome: State | None = None


class Settled(NamedTuple):
    """How a worker has ended an attempt."""

    worker: str
    told: Settlement
    asked: bool
    """The job was asked to stop."""
    was_last: bool
    spent: bool
    """It failed because it starts at most once."""
    gave_up: bool
    """It failed because no worker has its task."""
    error: str | None
    """What is in its row: without an error of its own, that of an earlier attempt."""
    replayed: bool = False

    def is_told_by(self, s: Settlement) -> bool:
        """Would this settlement have left the same behind?"""
        error = None if s.error is None else s.error.decode()
        if self.spent and s.outcome in GOES_ON and error is None:
            error = not_run_again(f"{AT_MOST_ONCE}: {s.reason}")
        same_error = self.replayed or error in (None, self.error)
        return same_error and self._left(s) == self._left(self.told)

    def _left(self, s: Settlement) -> tuple[object, ...]:
        """What is known of it. After a replay that is little."""
        final, reason, delay = _FINAL.get(s.outcome, str(s.outcome)), s.reason, s.delay_seconds
        if self.asked and s.outcome in GOES_ON:
            final, reason, delay = "cancelled", "cancelled", 0.0
        elif self.spent and s.outcome in GOES_ON:
            final, reason, delay = "failed", f"{AT_MOST_ONCE}: {s.reason}", 0.0
        elif s.give_up_seconds is not None:
            final, delay = ("failed", 0.0) if self.gave_up else ("unknown_task", delay)
        elif s.outcome is Outcome.RETRY and (self.was_last or self.replayed):
            final, delay = "failed", 0.0
        result = None if s.result == b"null" else s.result
        return (final, reason) if self.replayed else (final, reason, delay, result)


def not_run_again(reason: str | None) -> str:
    """The error of a job that starts at most once, and has started."""
    return encode({"type": "NotRunAgain", "message": reason}).decode()


GOES_ON = (Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE)
_FINAL = {Outcome.FAIL: "failed", Outcome.ABORT: "cancelled"}


@dataclass
class Follower:
    """A reader of the feed: the ends that it has not read, in any order within one operation."""

    seen_at: datetime
    unread: list[Ended] = field(default_factory=list)
    lost: bool = False


class Books:
    """All that is known, and the operations that only look."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Work] = {}
        self.lines: dict[Lane, list[tuple[JobId, int]]] = defaultdict(list)
        self.leases: dict[LeaseId, Block] = {}
        self.keys: dict[Key, Hold] = {}
        self.paused: dict[str, PausedQueue] = {}
        self.notes: dict[JobId, Progress] = {}
        self.taken: dict[JobId, list[Step]] = {}
        self.settled: dict[tuple[JobId, int], Settled] = {}
        self.counted: Counter[tuple[str, str, str]] = Counter()
        """The ends that no worker has settled, by queue, task and outcome."""
        self.readers: dict[tuple[str, str], Follower] = {}
        """By tenant and name."""
        self.last_job = 0
        self.last_lease = 0

    def count(self, work: Work, outcome: str) -> None:
        """A job ends without a settlement."""
        self.counted[work.queue, work.job.task, str(outcome)] += 1

    def lease_of(self, work: Work) -> Block:
        """The one lease that holds this running job."""
        [lease] = [x for x in self.leases.values() if (work.id, work.token) in x.jobs]
        return lease

    def get(self, id: JobId, *, now: datetime, tenant: str | None = None) -> Job:  # noqa: ARG002
        work = self.jobs.get(id)
        if work is None or not _visible(work, tenant):
            raise JobNotFound
        return self.shown(work)

    def progress(self, id: JobId, *, now: datetime, tenant: str | None = None) -> Progress:
        self.get(id, now=now, tenant=tenant)
        return self.notes.get(id, Progress())

    def attempts(self, id: JobId, *, now: datetime, tenant: str | None = None) -> list[Attempt]:
        self.get(id, now=now, tenant=tenant)
        work = self.jobs[id]
        lease = self.lease_of(work) if work.where is Where.LEASE else None
        return work.tries + ([work.attempt(lease, "running")] if lease else [])

    def list_jobs(
        self,
        *,
        states: Collection[State] | None = None,
        queue: str | None = None,
        task: str | None = None,
        order: str | None = None,
        limit: int,  # noqa: ARG002
        now: datetime,  # noqa: ARG002
        tenant: str | None = None,
    ) -> list[Job]:
        """All pages at once."""
        return [
            self.shown(work) for _, work in sorted(self.jobs.items(), reverse=order != "oldest")
            if (states is None or work.state in states)
            and queue in (None, work.queue) and task in (None, work.job.task)
            and _visible(work, tenant)
        ]  # fmt: skip

    def count_live(self, *, now: datetime, tenant: str | None = None) -> list[Count]:  # noqa: ARG002
        return _count(w for w in self.jobs.values() if w.live and _visible(w, tenant))

    def count_finished(
        self,
        since: datetime,
        until: datetime,
        *,
        now: datetime,  # noqa: ARG002
        tenant: str | None = None,
    ) -> list[Count]:
        return _count(
            w for w in self.jobs.values()
            if w.finished_at is not None and since <= w.finished_at < until and _visible(w, tenant)
        )  # fmt: skip

    def oldest_ready(self, *, now: datetime) -> list[OldestReady]:
        heads: dict[str, datetime] = {}
        for (queue, _), line in self.lines.items():
            if line:
                head = self.jobs[line[0][0]]
                since = head.queued_at or head.created_at
                heads[queue] = min(since, heads.get(queue, since))
        return [
            OldestReady(queue, since, max(0.0, (now - since).total_seconds()))
            for queue, since in sorted(heads.items())
        ]

    def paused_queues(self, *, now: datetime) -> list[PausedQueue]:  # noqa: ARG002
        return [self.paused[name] for name in sorted(self.paused)]

    def shown(self, work: Work) -> Job:
        """The job as anybody may see it."""
        lease = self.lease_of(work) if work.where is Where.LEASE else None
        unique = work.job.unique
        waiting = work.where is Where.WAITING
        return Job(
            id=work.id, token=work.token, state=work.state, task=work.job.task,
            args_json=work.job.args.decode(), queue=work.queue, priority=work.priority,
            tenant=work.job.tenant, attempts=work.attempts, max_attempts=work.job.max_attempts,
            crashes=work.crashes, created_at=work.created_at,
            queued_at=work.queued_at or work.created_at, due_at=work.due_at,
            claimed_at=lease.claimed_at if lease else work.claimed_at,
            expires_at=lease.expires_at if lease else None, finished_at=work.finished_at,
            duration_seconds=work.duration_seconds,
            worker=lease.worker if lease else work.worker, reason=work.reason, held=work.held,
            cancel_requested=work.cancel_requested,
            queue_paused=work.live and work.queue in self.paused,
            unfinished_parents=list(work.parents.values()).count(None) if waiting else 0,
            timeout_seconds=work.job.timeout_seconds, retry_json=_text(work.job.retry),
            metadata_json=_text(work.job.metadata),
            unique_scope=work.key[1] if work.key else None,
            unique_key=unique.key if unique else None,
            unique_until=unique.until if unique else None, result_json=work.result,
            error_json=work.error, notes_json=work.notes_json, start_by=work.start_by,
            finish_by=work.job.finish_by,
        )  # fmt: skip


def claimed(work: Work, lease: LeaseId) -> Claimed:
    """What a claim hands out."""
    job = work.job
    return Claimed(
        work.id, work.token, lease, job.task, job.args.decode(), work.queue, work.priority,
        job.tenant, work.attempts, job.max_attempts, work.crashes, work.created_at,
        job.timeout_seconds, _text(job.retry), _text(job.metadata), work.features,
        queued_at=work.queued_at,
    )  # fmt: skip


def _text(data: Json | None) -> str | None:
    return None if data is None else data.decode()


def _visible(work: Work, tenant: str | None) -> bool:
    return tenant is None or work.job.tenant in (tenant, "")


def _count(works: Iterable[Work]) -> list[Count]:
    counts: dict[tuple[str, str, State, str], int] = defaultdict(int)
    for work in works:
        counts[work.queue, work.job.task, work.state, work.job.tenant] += 1
    return [Count(*key, jobs) for key, jobs in sorted(counts.items())]
