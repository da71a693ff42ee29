"""The rows that reads return: see store/records.py."""

from typing import NamedTuple

from tenure.rules.why import RunningTask
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
    notes: str | None
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


class ById(NamedTuple):
    """A step of a walk along the ids."""

    id: int


class ByFinish(NamedTuple):
    """A step of a walk along the times at which jobs finished."""

    at: Time
    id: int


class InLane(NamedTuple):
    """A step of a walk along the tickets of a lane."""

    priority: int
    position: int
    id: int
    token: int


class AtGate(NamedTuple):
    """A step of a walk along the tickets that wait at the gates of a queue."""

    gate: str
    key: str
    priority: int
    position: int
    id: int
    token: int


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


class HeldRow(NamedTuple):
    """How many jobs a worker has claimed and not settled."""

    worker: str
    jobs: int


class AboutRow(NamedTuple):
    """The engine, the version of the schema, and the clock."""

    engine: str
    engine_version: str
    schema_version: int
    min_code: int
    now: Time


RETURNED_BY: Returned = {
    RunningTask: ("running_tasks",),
    JobRow: ("get_job", "find_live", "find_live_among", "find_finished", "find_finished_among"),
    Holder: ("holders",),
    ById: (
        "walk_live", "walk_finished", "walk_unsuccessful", "walk_keyed_live", "walk_keyed_finished",
        "walk_with_error", "walk_nodes", "walk_all_nodes", "walk_running", "walk_ids",
    ),
    ByFinish: ("walk_by_finish", "walk_unsuccessful_by_finish"),
    InLane: ("walk_ready",),
    AtGate: ("walk_gated",),
    CountRow: ("count_live", "count_finished"),
    OldestRow: ("oldest_ready",),
    EventRow: ("job_events",),
    NoteRow: ("get_note",),
    StepRow: ("job_steps",),
    LateRow: ("late_work",),
    PausedRow: ("paused_queues",),
    WorkerRow: ("list_workers",),
    HeldRow: ("held_jobs",),
    AboutRow: ("about",),
}  # fmt: skip
