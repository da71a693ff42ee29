"""The rows that batch statements take. What has its default stays out of the JSON."""

import msgspec

from tenure.rules.gates import line_name
from tenure.rules.job import Feature, NewJob, State, Until


class JobRow(msgspec.Struct, omit_defaults=True, gc=False):
    """One row of `insert_jobs`."""

    id: int
    task: str
    args: msgspec.Raw
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    due_at: object = None
    tenant: str = ""
    max_attempts: int = 5
    timeout: float | None = None
    retry: msgspec.Raw | None = None
    metadata: msgspec.Raw | None = None
    features: int = 0
    parked: str | None = None
    unique_scope: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    unique_seconds: float | None = None
    gate: str | None = None
    gate_key: str | None = None
    needs: int = 0
    size_kb: int = 0
    keep_succeeded: float | None = None
    keep_other: float | None = None
    start_by: object = None
    start_within: float | None = None
    finish_by: object = None
    finish_within: float | None = None


def job_row(id: int, job: NewJob, due_at: object) -> JobRow:
    """A new job as `insert_jobs` takes it; `due_at` in the store's form."""
    row = JobRow(
        id, job.task, msgspec.Raw(job.args), job.queue, job.priority, job.delay_seconds, due_at,
        job.tenant, job.max_attempts, job.timeout_seconds, raw(job.retry), raw(job.metadata),
        features_of(job), "parents" if job.parents or job.features & Feature.PARENTS else None,
    )  # fmt: skip
    if job.unique is not None:
        row.unique_scope, row.unique_key = job.unique.scope or job.task, job.unique.key
        row.unique_until, row.unique_seconds = job.unique.until, job.unique.period_seconds
    if job.gate is not None:
        row.gate, row.gate_key = job.gate, line_name(job.tenant, job.gate_key)
    row.needs, row.size_kb = job.needs, job.size_kb
    row.keep_succeeded, row.keep_other = job.keep_succeeded_seconds, job.keep_other_seconds
    if job.has_deadline:
        row.start_by, row.start_within = job.expires_at, job.start_within_seconds
        row.finish_by, row.finish_within = job.finish_by, job.finish_within_seconds
    return row


def is_plain(job: NewJob) -> bool:
    """Is it ready at once, and does it use only what most jobs use?"""
    return (
        job.unique is None
        and job.retry is None
        and job.delay_seconds is None
        and job.due_at is None
        and job.timeout_seconds is None
        and job.metadata is None
        and not job.parents
        and job.gate is None
        and job.features == 0
        and not job.at_most_once
        and job.keep_succeeded_seconds is None
        and job.keep_other_seconds is None
        and job.expires_at is None
        and job.start_within_seconds is None
        and job.finish_by is None
        and job.finish_within_seconds is None
    )


def features_of(job: NewJob) -> int:
    """What settlement will have to look at for this job."""
    features = job.features
    if job.unique is not None:
        features |= Feature.KEY
        if job.unique.until is Until.STARTED:
            features |= Feature.KEY_UNTIL_STARTED
    if job.parents:
        features |= Feature.PARENTS
    if job.gate is not None:
        features |= Feature.GATE
    if job.at_most_once:
        features |= Feature.ONCE
    if job.keep_succeeded_seconds is not None or job.keep_other_seconds is not None:
        features |= Feature.KEEP
    return features


class Finish(msgspec.Struct, omit_defaults=True, gc=False):
    """One row of `finish`. Without a lease it is the store's own doing, not a worker's."""

    id: int
    token: int
    state: State
    lease: int | None = None
    worker: str | None = None
    charged: int = 0
    crashed: int = 0
    error: msgspec.Raw | None = None
    reason: str | None = None
    duration: float | None = None


class Ticket(msgspec.Struct, omit_defaults=True, gc=False):
    """One row of `add_tickets`."""

    id: int
    token: int
    delay: float | None = None
    due_at: object = None
    charged: int = 0
    crashed: int = 0
    reason: str | None = None
    error: msgspec.Raw | None = None
    queue: str | None = None
    priority: int | None = None
    needs: int | None = None


class Freed(msgspec.Struct, frozen=True, gc=False):
    """A child that waits for its parents no more."""

    id: int
    token: int
    queue: str
    needs: int
    priority: int
    size_kb: int
    suspect: bool
    reason: str | None
    due_at: object = None
    elsewhere: bool = False
    """It is held, delayed or at a gate."""

    @property
    def ticket(self) -> Ticket:
        """What `add_tickets` takes."""
        return Ticket(self.id, self.token, due_at=self.due_at, reason=self.reason)


class NewEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """One row of `add_events`."""

    job_id: int
    token: int
    kind: str
    worker: str | None = None
    detail: dict[str, object] | None = None
    at: object = None
    request_id: str = ""
    n: int = 0


def raw(data: bytes | None) -> msgspec.Raw | None:
    """Encoded JSON, to be embedded as it is."""
    return None if data is None else msgspec.Raw(data)
