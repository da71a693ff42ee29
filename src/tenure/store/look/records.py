"""The rows that reads return: see store/records.py."""

from typing import NamedTuple

from tenure.store.records import Flag, Returned, Time


class JobRow(NamedTuple):
    """A job, live or finished, as people see it."""

    id: int
    token: int
    state: str
    task: str
    args: str
    queue: str
    priority: int
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: Time
    queued_at: Time
    due_at: Time
    claimed_at: Time
    finished_at: Time
    duration_seconds: float | None
    worker: str | None
    reason: str | None
    held: Flag
    cancel_requested: Flag
    queue_paused: Flag
    unfinished_parents: int
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    unique_scope: str | None
    unique_key: str | None
    unique_until: str | None
    result: str | None
    error: str | None
    gate: str | None
    gate_key: str | None
    needs: int
    start_by: Time
    finish_by: Time


class Holder(NamedTuple):
    """A running job and its lease."""

    job_id: int
    token: int
    lease_id: int
    worker: str
    claimed_at: Time
    expires_at: Time


class Walked(NamedTuple):
    """How far a bounded walk down the ids came."""

    lowest_id: int | None
    rows: int


class CountRow(NamedTuple):
    """How many jobs share these four values."""

    queue: str
    task: str
    state: str
    tenant: str
    jobs: int


class OldestRow(NamedTuple):
    """Since when the head of a queue has been ready."""

    queue: str
    since: Time
    age_seconds: float


class EventRow(NamedTuple):
    """An entry of a job's timeline."""

    at: Time
    kind: str
    token: int
    worker: str | None
    detail: str | None


class NoteRow(NamedTuple):
    """The last progress report and the last checkpoint of a job."""

    fraction: float | None
    message: str | None
    reported_at: Time
    checkpoint: str | None
    saved_at: Time


class StepRow(NamedTuple):
    """A step that a job has recorded."""

    name: str
    function: str
    token: int
    recorded_at: Time
    result: str


class LateRow(NamedTuple):
    """What is late: the first due job and the first expired lease."""

    due_seconds: float | None
    due_job: int | None
    expired_seconds: float | None
    expired_worker: str | None


class PausedRow(NamedTuple):
    """A paused queue."""

    name: str
    paused_at: Time
    reason: str | None


class WorkerRow(NamedTuple):
    """A worker that has announced itself."""

    name: str
    host: str
    pid: int
    started_at: Time
    seen_at: Time
    info: str
    alive: Flag


class AboutRow(NamedTuple):
    """The engine, the version of the schema, and the clock."""

    engine: str
    engine_version: str
    schema_version: int
    min_code: int
    now: Time


RETURNED_BY: Returned = {
    JobRow: ("get_job", "list_live", "list_finished", "list_unsuccessful"),
    Holder: ("holders",),
    Walked: ("live_floor", "finished_floor", "unsuccessful_floor"),
    CountRow: ("count_live", "count_finished"),
    OldestRow: ("oldest_ready",),
    EventRow: ("job_events",),
    NoteRow: ("get_note",),
    StepRow: ("job_steps",),
    LateRow: ("late_work",),
    PausedRow: ("paused_queues",),
    WorkerRow: ("list_workers",),
    AboutRow: ("about",),
}
