"""The rows that statements return, by name: jobs, tickets and leases.

The rows of one subject stand with it: workflows/records.py, schedules/records.py, look/records.py,
copy/tables.py, prune.py, and gate_records.py.

A record has one field per column, in the order of the columns, and each column of the SQL has the
name of its field. `RETURNED_BY` says which statements return which record; a test compares them
with what both databases return. Rows that statements take: see rows.py.

A time is in the form of its store: `Tx.when` reads it. A flag may be 0 or 1. JSON is text.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Time = Any
"""A time in the form of its store."""
Flag = bool | int
"""PostgreSQL returns a bool, SQLite 0 or 1."""
Returned = Mapping[type[tuple[Any, ...]], tuple[str, ...]]
"""The statements that return each record."""


# --- jobs -----------------------------------------------------------------------------------------


class JobToken(NamedTuple):
    """A job under one token."""

    id: int
    token: int


class StoredJob(NamedTuple):
    """A job that is stored, live or finished, and what tells whether it is the expected one."""

    id: int
    task: str
    args: str
    queue: str
    tenant: str


class LockedJob(NamedTuple):
    """A live job that an operator's transaction has locked."""

    id: int
    token: int
    queue: str
    needs: int
    priority: int
    position: int | None
    due_at: Time
    parked: str | None
    held: Flag
    cancel_requested: Flag
    gate: str | None
    gate_key: str | None
    features: int


class WaitingJob(NamedTuple):
    """The task and the arguments of a locked job."""

    task: str
    args: str


class ReplacedJob(NamedTuple):
    """A job that a call with `Replace` has changed. It may have finished since."""

    id: int
    task: str
    args: str
    tenant: str
    unique_scope: str | None
    unique_key: str | None


class LateJob(NamedTuple):
    """A locked job that was not started in time."""

    id: int
    start_by: Time


class LeasedJob(NamedTuple):
    """A locked job that this worker has on a lease."""

    id: int
    token: int
    attempts: int
    max_attempts: int
    cancel_requested: Flag
    features: int
    claimed_at: Time
    spent: Flag
    """It starts at most once, and has started."""


class RecordedEnd(NamedTuple):
    """How a worker has settled an attempt before. `detail` is that of the event, if it is one."""

    id: int
    token: int
    kind: str
    reason: str | None
    result: str | None
    error: str | None
    detail: str | None
    in_full: Flag
    was_last: Flag
    asked: Flag


class SweptJob(NamedTuple):
    """A locked job of an expired lease, whose token still matches."""

    lease: int
    id: int
    token: int
    attempts: int
    max_attempts: int
    cancel_requested: Flag
    features: int
    queue: str
    task: str


class FinishedJob(NamedTuple):
    """A locked row of history: what a replay needs."""

    id: int
    token: int
    state: str
    tenant: str
    task: str
    args: str
    unique_scope: str | None
    unique_key: str | None
    unique_until: str | None
    unique_seconds: float | None
    features: int
    worker: str | None
    finished_at: Time
    reason: str | None
    claimed_at: Time
    attempts: int
    duration_seconds: float | None
    error: str | None
    """Without its traceback."""


class FreedChild(NamedTuple):
    """A waiting job whose rule may be decided, and how its parents ended."""

    id: int
    token: int
    due_at: Time
    cancel_requested: Flag
    features: int
    rule: str | None
    unfinished: Flag
    any_succeeded: Flag
    any_failed: Flag
    any_unsuccessful: Flag
    held: Flag
    queue: str
    needs: int
    priority: int
    crashes: int
    size_kb: int


class JobNotes(NamedTuple):
    """The notes of a job."""

    id: int
    notes: str


class FoundStep(NamedTuple):
    """A step that an attempt has recorded, found by its name."""

    token: int
    function: str
    result: str


class KeyHolder(NamedTuple):
    """A unique key and the job that holds it."""

    tenant: str
    scope: str
    key: str
    job_id: int
    fingerprint: str
    over: Flag
    """Its period has ended, and its job is finished."""
    expires_at: Time
    outcome: str | None
    """How its job has ended; None: it is live."""
    gone: Flag
    """Its job has finished and is no longer stored."""


class LastEvent(NamedTuple):
    """The last entry of a job's timeline that is an event, and how old it is."""

    job_id: int
    seq: int
    kind: str
    age_seconds: float
    detail: str | None


class NamedKey(NamedTuple):
    """A unique key that was looked up by its name."""

    job_id: int
    over: Flag
    outcome: str | None


# --- tickets and leases ---------------------------------------------------------------------------


class AddedTicket(NamedTuple):
    """A live job that has just got a ticket, or is held and gets none."""

    id: int
    features: int
    queue: str
    needs: int
    priority: int
    position: int | None
    """None: it is not ready, but held or due later."""
    due_soon: Flag
    """Its ticket will be due within a moment."""


class TakenTicket(NamedTuple):
    """A ticket that a claim has taken, its job and its lease. A void ticket has no job."""

    queue: str
    priority: int
    position: int
    id: Any
    """None: the ticket is void."""
    token: int
    task: str
    args: str
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: Time
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    features: int
    ends: int
    """0: it may run. 1: its cancellation is requested. 2: it has expired."""
    needs: int
    queued_at: Time
    """When it got this ticket; None: at its creation."""
    lease: int | None
    claimed_at: Time


class HeldTicket(NamedTuple):
    """A job on a lease, and the deadline of the lease."""

    queue: str
    priority: int
    position: int
    id: int
    token: int
    task: str
    args: str
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: Time
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    features: int
    needs: int
    queued_at: Time
    lease: int
    claimed_at: Time
    expires_at: Time


class SeenTicket(NamedTuple):
    """A ticket that a claim looks at, and the task of its job. None: the ticket is void."""

    queue: str
    needs: int
    priority: int
    position: int
    suspect: Flag
    size_kb: int
    task: str | None


class ExpiredLease(NamedTuple):
    """A locked lease whose deadline has passed."""

    id: int
    worker: str
    claimed_at: Time
    jobs: str
    started: str | None
    once: str | None
    """The ids of its jobs that start at most once, and have started."""


class LeaseDeadline(NamedTuple):
    """When a lease expires, in the form in which its store compares deadlines, and how many jobs
    it has."""

    expires: Any
    id: int
    jobs: int


class Peeked(NamedTuple):
    """Whether there is anything to claim, to promote or to sweep, and whether there are gates."""

    ready: Any
    due_seconds: float | None
    expired: Flag
    gates: Flag


class MovedJob(NamedTuple):
    """A job that has just ended, and its line at a gate: see gate_records.py."""

    id: int
    token: int
    features: int
    line: str | None
    key: str | None
    """Its unique key as JSON: [tenant, scope, key]."""
    kept: Flag
    """It is in history now; else nothing of it is kept."""


class EndedJob(NamedTuple):
    """The same for a job that did not succeed, with what statistics and hooks need."""

    id: int
    token: int
    features: int
    line: str | None
    key: str | None
    kept: Flag
    queue: str
    task: str
    calls: str | None
    """The hooks of its failure, and what they receive, as JSON: see templates.py."""


# --- one database only ----------------------------------------------------------------------------


class DrawnPositions(NamedTuple):
    """PostgreSQL: the first of a thousand positions, and the time."""

    first: int
    now: Time


class NewLane(NamedTuple):
    """PostgreSQL: the tickets of new jobs in one lane."""

    queue: str
    needs: int
    priority: int
    position: int | None
    """The lowest one; None: these tickets are not ready."""
    due_soon: Flag


class FreedNode(NamedTuple):
    """PostgreSQL: a node that has just got a ticket; without a position, one to decide about."""

    id: int
    queue: Any
    needs: Any
    priority: Any
    position: int | None


class LanePosition(NamedTuple):
    """PostgreSQL: the lowest position of a lane at which there is a ticket."""

    queue: str
    needs: int
    priority: int
    position: int | None


class ReadTicket(NamedTuple):
    """SQLite: a ticket at the head of a queue and its job. A void ticket has no job."""

    queue: str
    priority: int
    position: int
    id: int | None
    token: int
    task: str
    args: str
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: Time
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    features: int
    ends: int
    needs: int
    queued_at: Time
    start_by: Time


class NewLease(NamedTuple):
    """SQLite: a lease that this claim has written."""

    id: int
    claimed_at: Time


class BatchFeatures(NamedTuple):
    """SQLite: features that jobs of a batch have, and their line at a gate."""

    features: int
    line: str | None


# --- which statements return them -----------------------------------------------------------------

RETURNED_BY: Returned = {
    JobToken: ("lock_unlocked", "still_live", "request_cancels", "cancel_requested_jobs"),
    StoredJob: ("stored_jobs",),
    LockedJob: ("lock_job", "lock_live_jobs", "started_too_soon"),
    WaitingJob: ("waiting_job",),
    ReplacedJob: ("replaced_by_request",),
    LateJob: ("late_jobs",),
    LeasedJob: ("lock_leased",),
    RecordedEnd: ("recorded_ends",),
    SweptJob: ("lock_swept",),
    FinishedJob: ("finished_job", "finished_jobs", "finished_nodes"),
    FreedChild: ("freed_children",),
    JobNotes: ("notes_of",),
    FoundStep: ("find_step",),
    KeyHolder: ("key_holders",),
    NamedKey: ("find_key",),
    LastEvent: ("last_events",),
    AddedTicket: ("add_tickets", "promote", "replay", "replay_jobs"),
    SeenTicket: ("look_ahead",),
    ExpiredLease: ("lock_leases",),
    LeaseDeadline: ("expired_leases",),
    Peeked: ("peek",),
    EndedJob: ("finish",),
    HeldTicket: ("jobs_held_by",),
}
"""Of both databases."""

RETURNED_BY_POSTGRES: Returned = {
    TakenTicket: ("take_tickets", "take_spots", "claimed_before"),
    DrawnPositions: ("draw_positions",),
    NewLane: ("insert_jobs",),
    FreedNode: ("free_nodes",),
    MovedJob: ("succeed",),
    LanePosition: ("lowest_positions",),
}
"""Of PostgreSQL alone, or of a statement that returns other columns there."""

RETURNED_BY_SQLITE: Returned = {
    ReadTicket: ("take_tickets", "take_suspect", "take_gated"),
    NewLease: ("insert_lease",),
    MovedJob: ("featured_in_batch", "moved_jobs"),
    BatchFeatures: ("features_of_batch",),
}
"""Of SQLite alone, or of a statement that returns other columns there."""
