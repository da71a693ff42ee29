"""The rows that statements return, by name.

A record has one field per column, in the order of the columns, and each column of the SQL has the
name of its field. The tables at the end say which statements return which record; a test compares
them with what both databases return. Rows that statements take: see rows.py.

A time is in the form of its store: `Tx.when` reads it. A flag may be 0 or 1. JSON is text.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

Time = Any
"""A time in the form of its store."""
Flag = bool | int
"""PostgreSQL returns a bool, SQLite 0 or 1."""

T = TypeVar("T", bound=tuple[Any, ...])


def as_records(record: type[T], rows: Sequence[Iterable[Any]]) -> list[T]:
    """These rows as records.

    Only the width of the first row is checked: all rows of a statement have the same columns. No
    Python function runs for a row: claims and settlements have many.
    """
    if rows:
        columns = len(cast(Sequence[Any], rows[0]))
        fields: tuple[str, ...] = record._fields  # type: ignore[attr-defined]
        if columns != len(fields):
            raise TypeError(f"{record.__name__} has {len(fields)} fields, the row {columns}")
    make = cast(Any, partial(tuple.__new__, record))
    return list(map(make, rows))


def line_of(queue: str, gate: str, key: str) -> str:
    """The name of a line at a gate as one text, as statements build it."""
    return _BETWEEN.join((queue, gate, key))


def lines_of(names: Set[str | None]) -> list[tuple[str, ...]]:
    """The lines (queue, gate, key) of these names."""
    return sorted(tuple(name.split(_BETWEEN)) for name in names if name is not None)


_BETWEEN = "\x1e"
"""Between the parts of a line's name. No part contains it: it is not printable."""


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
    priority: int
    position: int | None
    due_at: Time
    parked: str | None
    held: Flag
    cancel_requested: Flag
    gate: str | None
    gate_key: str | None
    features: int


class LeasedJob(NamedTuple):
    """A locked job that this worker has on a lease."""

    id: int
    token: int
    attempts: int
    max_attempts: int
    cancel_requested: Flag
    features: int
    claimed_at: Time


class ExpiredJob(NamedTuple):
    """A locked job of an expired lease, whose token still matches."""

    id: int
    token: int
    attempts: int
    max_attempts: int
    cancel_requested: Flag


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
    priority: int
    crashes: int


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


# --- tickets and leases ---------------------------------------------------------------------------


class AddedTicket(NamedTuple):
    """A live job that has just got a ticket, or is held and gets none."""

    id: int
    features: int
    queue: str
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
    cancel_requested: Flag
    lease: int | None
    claimed_at: Time


class ExpiredLease(NamedTuple):
    """A locked lease whose deadline has passed."""

    id: int
    worker: str
    claimed_at: Time
    jobs: str
    started: str | None


class LeaseDeadline(NamedTuple):
    """When a lease expires, in the form in which its store compares deadlines."""

    expires: Any
    id: int


class Peeked(NamedTuple):
    """Whether there is anything to claim, to promote or to sweep, and whether there are gates."""

    ready: Any
    due_seconds: float | None
    expired: Flag
    gates: Flag


class MovedJob(NamedTuple):
    """A job that has just moved to history, and its line at a gate: see `line_of`."""

    id: int
    token: int
    features: int
    line: str | None


# --- workflows ------------------------------------------------------------------------------------


class WorkflowRow(NamedTuple):
    """A row of `workflow`."""

    id: int
    name: str
    key: str | None
    tenant: str
    on_failure: str
    created_at: Time
    ended_at: Time
    outcome: str | None
    paused_at: Time
    cancelled_at: Time
    finaliser_id: int | None
    reason: str | None
    failed: Flag
    stopping: Flag


class StoppingWorkflow(NamedTuple):
    """A workflow, and whether a failed node asks for the rest to be stopped."""

    id: int
    stopping: Flag


class LockedNode(NamedTuple):
    """A live node of a workflow, locked."""

    id: int
    token: int
    queue: str
    priority: int
    position: int | None
    due_at: Time
    parked: str | None
    held: Flag
    cancel_requested: Flag
    gate: str | None
    gate_key: str | None
    rule: str
    paused: Flag
    """It is held because its workflow is paused."""


class NodeRow(NamedTuple):
    """A node with the state of its job."""

    job_id: int
    name: str
    task: str
    state: str
    rule: str
    reason: str | None
    added_by: int | None


class NamedNode(NamedTuple):
    """A node found by its name."""

    name: str
    job_id: int
    rule: str
    waits: Flag
    """It still waits for its parents."""
    task: str
    args: str
    added_by: int | None


class NodeOf(NamedTuple):
    """The workflow to which a job belongs."""

    workflow_id: int
    name: str
    """The name of the node."""
    tenant: str
    is_open: Flag


class Ancestor(NamedTuple):
    """A node, and an unfinished one that it waits for, near or far."""

    node: int
    ancestor: int


class ParentEdge(NamedTuple):
    """A child and one of its parents."""

    job_id: int
    parent_id: int


class EndedParent(NamedTuple):
    """A parent of a job and, once it has finished, its state and result."""

    id: int
    name: str | None
    task: str | None
    state: str | None
    result: str | None


class StateCount(NamedTuple):
    """How many jobs are in a state."""

    state: str
    jobs: int


# --- schedules ------------------------------------------------------------------------------------


class ScheduleRow(NamedTuple):
    """A row of `schedule`."""

    tenant: str
    name: str
    next_at: Time
    done_until: Time
    last_at: Time
    last_job_id: int | None
    created_at: Time
    changed_at: Time
    paused_at: Time
    reason: str | None
    timing: str
    job: str
    declared: str | None


class ScheduleKey(NamedTuple):
    """The key of a schedule."""

    tenant: str
    name: str


class ScheduleOutlook(NamedTuple):
    """When the next schedule is due, and whether the clock was set back."""

    wait_seconds: float | None
    is_early: Flag


class DueSchedule(NamedTuple):
    """A locked schedule that is due, or whose ticks are done up to a later time than now."""

    tenant: str
    name: str
    done_until: Time
    timing: str
    job: str
    now: Time
    sorted_by: Time
    """The time by which a page of these is sorted."""


class AddedTick(NamedTuple):
    """A tick that this transaction has written."""

    tenant: str
    schedule: str
    tick_at: Time


class TickRow(NamedTuple):
    """A tick and the state of its job."""

    tick_at: Time
    fired_at: Time
    triggered: Flag
    job_id: int | None
    state: str | None


# --- prune and copy -------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """A stretch of time that one partition of history serves."""

    start: Time
    stop: Time


class PrunedJob(NamedTuple):
    """A job that is gone; without an id, how far this step has walked."""

    id: int | None
    start: Time
    after: int | None


class RunningJobs(NamedTuple):
    """How many jobs are running, and the first of them."""

    jobs: int
    first_id: int


class TableCount(NamedTuple):
    """How many rows there are of one kind."""

    kind: str
    rows: int


class Counters(NamedTuple):
    """The highest job id and the highest position that were ever drawn."""

    job_id: int
    position: int


class JobSize(NamedTuple):
    """A job, and about how many bytes belong to it."""

    id: int
    bytes: int


# --- what people look at --------------------------------------------------------------------------


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


# --- one database only ----------------------------------------------------------------------------


class DrawnPositions(NamedTuple):
    """PostgreSQL: the first of a thousand positions, and the time."""

    first: int
    now: Time


class NewLane(NamedTuple):
    """PostgreSQL: the tickets of new jobs in one lane."""

    queue: str
    priority: int
    position: int | None
    """The lowest one; None: these tickets are not ready."""
    due_soon: Flag


class FreedNode(NamedTuple):
    """PostgreSQL: a node that has just got a ticket; without a position, one to decide about."""

    id: int
    queue: Any
    priority: Any
    position: int | None


class LanePosition(NamedTuple):
    """PostgreSQL: the lowest position of a lane at which there is a ticket."""

    queue: str
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
    cancel_requested: Flag
    suspect: Flag


class NewLease(NamedTuple):
    """SQLite: a lease that this claim has written."""

    id: int
    claimed_at: Time


class BatchFeatures(NamedTuple):
    """SQLite: features that jobs of a batch have, and their line at a gate."""

    features: int
    line: str | None


# --- which statements return them -----------------------------------------------------------------

RETURNED_BY: Mapping[type[tuple[Any, ...]], tuple[str, ...]] = {
    JobToken: ("still_live", "landed", "request_cancels", "cancel_requested_jobs"),
    StoredJob: ("stored_jobs",),
    LockedJob: ("lock_job",),
    LeasedJob: ("lock_leased",),
    ExpiredJob: ("lock_expired",),
    FinishedJob: ("finished_job", "finished_nodes"),
    FreedChild: ("freed_children",),
    FoundStep: ("find_step",),
    KeyHolder: ("key_holders",),
    AddedTicket: ("add_tickets", "promote", "replay"),
    ExpiredLease: ("lock_lease",),
    LeaseDeadline: ("expired_leases",),
    Peeked: ("peek",),
    MovedJob: ("finish",),
    WorkflowRow: ("workflow_row", "workflow_seen", "list_workflows"),
    StoppingWorkflow: ("lock_workflows", "mark_workflows"),
    LockedNode: ("lock_nodes",),
    NodeRow: ("list_nodes",),
    NamedNode: ("named_nodes",),
    NodeOf: ("node_of",),
    Ancestor: ("nodes_above",),
    ParentEdge: ("node_edges",),
    EndedParent: ("parent_ends",),
    StateCount: ("count_nodes",),
    ScheduleRow: ("lock_schedule", "get_schedule", "list_schedules"),
    ScheduleKey: ("busy_schedules",),
    ScheduleOutlook: ("look_at_schedules",),
    DueSchedule: ("lock_due_schedules", "lock_early_schedules"),
    AddedTick: ("add_ticks",),
    TickRow: ("list_ticks",),
    Stretch: ("history_stretches",),
    PrunedJob: ("prune_finished",),
    RunningJobs: ("first_running",),
    TableCount: ("count_all",),
    Counters: ("counters",),
    JobSize: ("next_jobs",),
    JobRow: ("get_job", "list_live", "list_finished", "list_unsuccessful"),
    Holder: ("holders",),
    Walked: ("live_floor", "finished_floor", "unsuccessful_floor"),
    CountRow: ("count_live", "count_finished"),
    OldestRow: ("oldest_ready",),
    EventRow: ("job_events",),
    NoteRow: ("get_note",),
    StepRow: ("job_steps",),
    PausedRow: ("paused_queues",),
    WorkerRow: ("list_workers",),
    AboutRow: ("about",),
}
"""Of both databases."""

RETURNED_BY_POSTGRES: Mapping[type[tuple[Any, ...]], tuple[str, ...]] = {
    TakenTicket: ("take_tickets", "claimed_before"),
    DrawnPositions: ("draw_positions",),
    NewLane: ("insert_jobs",),
    FreedNode: ("free_nodes",),
    MovedJob: ("succeed",),
    LanePosition: ("lowest_positions",),
}
"""Of PostgreSQL alone, or of a statement that returns other columns there."""

RETURNED_BY_SQLITE: Mapping[type[tuple[Any, ...]], tuple[str, ...]] = {
    ReadTicket: ("take_tickets", "take_suspect", "take_gated"),
    NewLease: ("insert_lease",),
    MovedJob: ("featured_in_batch", "moved_jobs"),
    BatchFeatures: ("features_of_batch",),
}
"""Of SQLite alone, or of a statement that returns other columns there."""
