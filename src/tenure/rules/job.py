"""The records that client, store and worker exchange. They hold data and decide nothing.

    NewJob -> Enqueued            a client's request, and the store's reply
    NewStep -> Step               the result of a step, to be recorded, and as recorded
    Job, Event, Progress          a job, its history and its progress, as read from the store
    WorkerInfo -> WorkerSeen      a worker's report about itself, and as read from the store

Records are frozen. `NewJob` checks its values when it is made, so no invalid job reaches a store.
"""

from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, NewType

import msgspec

from tenure.errors import InvalidInput, InvalidName
from tenure.rules.claim import ALL_NEEDS, UNKNOWN, Kind, size_in_kb
from tenure.rules.limits import (
    MAX_ATTEMPTS_LIMIT,
    MAX_HOST_BYTES,
    MAX_KEY_BYTES,
    MAX_NAME_LENGTH,
    MAX_PID,
    MAX_PRIORITY,
    MAX_SLOTS,
    MIN_PRIORITY,
    JobReference,
    check_int,
    check_json,
    check_name,
    check_parents,
    check_seconds,
    check_step_name,
    check_text,
    check_time,
    known_names,
    not_this,
    take_lengths,
)
from tenure.rules.record import Record, value_of
from tenure.rules.retention import take_keeps

Json = NewType("Json", bytes)
"""Strict JSON in UTF-8, as made by `tenure.rules.codec.encode`."""


class State(StrEnum):
    """The state of a job. The last four are final."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        """True when the job is in history."""
        return self in FINAL_STATES


LIVE_STATES = frozenset({State.WAITING, State.SCHEDULED, State.QUEUED, State.RUNNING})
FINAL_STATES = frozenset(State) - LIVE_STATES


class Feature:
    """Bits of `features`: what a job uses beyond the plain case. Settlement does extra work only
    for these.

    Plain integers, because masking with an IntFlag costs a microsecond per job. SQL uses the same
    names: see `tenure.store.statements`.
    """

    KEY: Final = 1
    """It has a unique key."""
    CHILDREN: Final = 2
    """Other jobs wait for it."""
    NOTES: Final = 4
    """It has reported progress, saved a checkpoint or added notes."""
    KEY_UNTIL_STARTED: Final = 8
    """Its unique key is released when it is claimed."""
    PARENTS: Final = 16
    """It was enqueued with parents."""
    GATE: Final = 32
    """It needs a permit of a gate to run."""
    WORKFLOW: Final = 64
    """It is a node of a workflow."""
    STEPS: Final = 128
    """It has recorded steps."""
    RULE: Final = 256
    """Its rule is not the default, which is to run when all parents have succeeded."""
    KEEP: Final = 512
    """It says itself how long it is kept once it has finished."""
    ONCE: Final = 1024
    """Its handler starts at most once."""


FEATURES: dict[str, int] = {name: bit for name, bit in vars(Feature).items() if name.isupper()}


class When(StrEnum):
    """The condition on its parents under which a job runs. The job is skipped as soon as the
    condition can no longer become true."""

    ALL_SUCCEEDED = "all_succeeded"
    """All have succeeded."""
    ALL_FINISHED = "all_finished"
    """All have finished, in any final state."""
    ANY_SUCCEEDED = "any_succeeded"
    """One has succeeded; the others may still run."""
    ANY_FAILED = "any_failed"
    """One has failed; the others may still run."""


class Until(StrEnum):
    """How long a unique key stays taken."""

    STARTED = "started"
    FINISHED = "finished"
    PERIOD = "period"
    FOREVER = "forever"


class Replace(msgspec.Struct, frozen=True, kw_only=True):
    """What an enqueue does to the waiting job that has its unique key.

    A job that was claimed is not changed, nor is a job of another task.
    """

    args: bool = True
    """Give the waiting job the arguments and the metadata of the new call."""
    postpone: bool = False
    """Give the waiting job the due time of the new call: its delay begins again."""
    postpone_at_most_seconds: float | None = None
    """It is never postponed further than this from when it was created."""

    def __post_init__(self) -> None:
        take_lengths(self, "postpone_at_most_seconds")
        for name in ("args", "postpone"):
            if type(getattr(self, name)) is not bool:
                raise InvalidInput(f"{name} must be True or False, {not_this(getattr(self, name))}")
        if not (self.args or self.postpone):
            raise InvalidInput("Replace must change something: args=True, postpone=True, or both")
        if self.postpone_at_most_seconds is not None:
            check_seconds("postpone_at_most_seconds", self.postpone_at_most_seconds)
            if not self.postpone:
                raise InvalidInput("postpone_at_most_seconds needs postpone=True")


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """At most one live job per (tenant, scope, key). `scope` defaults to the task's name.

    With `retake_failed`, a key that a job still has after it has failed, or was skipped or
    cancelled, goes to the new job.
    """

    key: str
    scope: str | None = None
    until: Until = Until.FINISHED
    period_seconds: float | None = None
    retake_failed: bool = False
    on_conflict: Replace | None = None
    """What happens to the job that has the key already. None: nothing."""

    def __post_init__(self) -> None:
        take_lengths(self, "period_seconds")
        if not (self.on_conflict is None or type(self.on_conflict) is Replace):
            raise InvalidInput(f"on_conflict must be a Replace(...), {not_this(self.on_conflict)}")
        check_text("unique key", self.key, MAX_KEY_BYTES)
        if not self.key:
            raise InvalidName("unique key is empty; leave the key out for a job without one")
        if self.scope is not None:
            check_name("unique scope", self.scope)
        if type(self.until) is not Until:
            raise InvalidInput(
                f"until must be one of Until, such as Until.FINISHED, {not_this(self.until)}"
            )
        if (self.until is Until.PERIOD) != (self.period_seconds is not None):
            raise InvalidInput(
                "period_seconds and until=Until.PERIOD need each other: give both or none"
            )
        if self.period_seconds is not None:
            check_seconds("period_seconds", self.period_seconds)
        if type(self.retake_failed) is not bool:
            raise InvalidInput(
                f"retake_failed must be True or False, {not_this(self.retake_failed)}"
            )


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job to be enqueued. Every value is checked here; the store does not check again."""

    task: str
    args: Json = Json(b"{}")
    queue: str = "default"
    priority: int = 0
    delay_seconds: float | None = None
    due_at: datetime | None = None
    tenant: str = ""
    unique: Unique | None = None
    max_attempts: int = 5
    timeout_seconds: float | None = None
    retry: Json | None = None
    metadata: Json | None = None
    parents: tuple[int, ...] = ()
    gate: str | None = None
    gate_key: str | None = None
    """The key of its line at the gate, without the tenant. None: the line of all jobs."""
    features: int = 0
    """Feature bits of a workflow's node. Set by the store, never by callers."""
    needs: int = UNKNOWN
    """Which slots it needs: see `tenure.rules.claim`. A task sets it."""
    at_most_once: bool = False
    """Its handler starts at most once, also if the worker dies."""
    keep_succeeded_seconds: float | None = None
    """How long it is kept after it has succeeded: 0 not at all, `math.inf` for ever. None: as the
    worker says, or the default."""
    keep_other_seconds: float | None = None
    """The same after it has failed, or was cancelled or skipped."""
    expires_at: datetime | None = None
    """If it has used no attempt by then, the job ends as skipped."""
    start_within_seconds: float | None = None
    """The same, counted from its due time if it has one, else from now."""
    finish_by: datetime | None = None
    """A deadline that people see. Nothing happens when it passes."""
    finish_within_seconds: float | None = None
    """The same, counted like `start_within_seconds`."""

    def __post_init__(self) -> None:
        # A million of these may be created in a row: usual values pass without a function call.
        if type(self.task) is not str or self.task not in known_names:
            check_name("task", self.task)
        if type(self.queue) is not str or self.queue not in known_names:
            check_name("queue", self.queue)
        if self.tenant != "":
            check_text("tenant", self.tenant, MAX_NAME_LENGTH)
        if self.priority != 0 or type(self.priority) is not int:
            check_int("priority", self.priority, MIN_PRIORITY, MAX_PRIORITY)
        if self.max_attempts != 5 or type(self.max_attempts) is not int:
            check_int("max_attempts", self.max_attempts, 1, MAX_ATTEMPTS_LIMIT)
        if type(self.args) is not bytes or self.args != b"{}":
            check_json("args", self.args)
        if self.metadata is not None or self.retry is not None:
            self._check_encoded()
        if self.delay_seconds is not None or self.due_at is not None:
            self._check_due()
        if (
            self.timeout_seconds is not None
            or self.keep_succeeded_seconds is not None
            or self.keep_other_seconds is not None
            or self.expires_at is not None
            or self.start_within_seconds is not None
            or self.finish_by is not None
            or self.finish_within_seconds is not None
        ):
            self._check_limits()
        if self.parents != ():
            check_parents(self.parents)
        if self.gate is not None or self.gate_key is not None:
            self._check_gate()
        if self.features != 0 or self.needs not in ALL_NEEDS or self.at_most_once is not False:
            self._check_rest()

    @property
    def size_kb(self) -> int:
        """The kilobytes that a worker receives with this job."""
        return size_in_kb(self.args, self.metadata, self.retry)

    def _check_rest(self) -> None:
        check_int("features", self.features, 0, _OF_WORKFLOWS)
        check_int("needs", self.needs, ALL_NEEDS[0], ALL_NEEDS[-1])
        if type(self.at_most_once) is not bool:
            raise InvalidInput(f"at_most_once must be a bool, {not_this(self.at_most_once)}")

    @property
    def has_deadline(self) -> bool:
        """Must it start, or is it to finish, by some time?"""
        return (
            self.expires_at is not None
            or self.start_within_seconds is not None
            or self.finish_by is not None
            or self.finish_within_seconds is not None
        )

    def _check_limits(self) -> None:
        if self.timeout_seconds is not None:
            check_seconds("timeout_seconds", self.timeout_seconds, least=0.001)
        take_keeps(self)
        for at, within in (
            ("expires_at", "start_within_seconds"), ("finish_by", "finish_within_seconds")
        ):  # fmt: skip
            time, seconds = getattr(self, at), getattr(self, within)
            if time is not None and seconds is not None:
                raise InvalidInput(f"give {at} or {within}, not both")
            if time is not None:
                check_time(at, time)
            if seconds is not None:
                check_seconds(within, seconds)

    def _check_gate(self) -> None:
        if self.gate is None:
            raise InvalidInput("gate_key needs a gate: give both or none")
        check_name("gate", self.gate)
        if self.gate_key is not None:
            check_text("gate_key", self.gate_key, MAX_KEY_BYTES)

    def _check_encoded(self) -> None:
        if self.metadata is not None:
            check_json("metadata", self.metadata)
        if self.retry is not None:
            check_json("retry", self.retry, "tenure.rules.retry.dump_policy(policy)")

    def _check_due(self) -> None:
        if self.delay_seconds is not None and self.due_at is not None:
            raise InvalidInput("give delay_seconds or due_at, not both")
        if self.delay_seconds is not None:
            check_seconds("delay_seconds", self.delay_seconds)
        if self.due_at is not None:
            check_time("due_at", self.due_at)


_OF_WORKFLOWS = int(Feature.CHILDREN | Feature.PARENTS | Feature.WORKFLOW | Feature.RULE)


class Enqueued(JobReference, Record, msgspec.Struct, frozen=True, gc=False):
    """The result of one enqueue.

    `created` is False when another job already had the unique key; `id` is then the id of that job,
    and `same_args` says whether it was enqueued with the same task and arguments. `gone`: that job
    has finished and is no longer stored; only its key is.
    """

    id: int
    created: bool = True
    same_args: bool = True
    gone: bool = False
    replaced: bool = False
    """Whether the waiting job was changed, as `Replace` says. If not, it had been claimed."""


class Beat(msgspec.Struct, frozen=True):
    """The result of a heartbeat: expired leases, and claimed jobs with a cancel request.

    A lease in `busy` is still ours, but another transaction had locked its row: its deadline was
    not extended.
    """

    lost: tuple[int, ...]
    cancelled: tuple[tuple[int, int], ...]
    busy: tuple[int, ...] = ()


class Progress(Record, msgspec.Struct, frozen=True, dict=True):
    """The last progress report of a running job, and its checkpoint, if any."""

    fraction: float | None = None
    message: str | None = None
    reported_at: datetime | None = None
    checkpoint_json: str | None = None
    saved_at: datetime | None = None

    @cached_property
    def checkpoint(self) -> Any:
        """What the job has saved last; None if it has saved nothing."""
        return value_of(self, "checkpoint_json")


class NewStep(msgspec.Struct, frozen=True):
    """The result of a step of a running job, to be recorded. Checked here."""

    name: str
    function: str
    """The qualified name of the step's function. A later attempt must use the same function."""
    result: Json

    def __post_init__(self) -> None:
        check_step_name(self.name)
        check_text("the name of a step's function", self.function, 4 * MAX_NAME_LENGTH)
        check_json(f"the result of step {self.name!r}", self.result)


class Step(Record, msgspec.Struct, frozen=True, dict=True):
    """A recorded step: its name, its function, the attempt that ran it, and its result."""

    name: str
    function: str
    token: int
    recorded_at: datetime
    result_json: str

    @cached_property
    def result(self) -> Any:
        """What the function of the step returned, as JSON values."""
        return value_of(self, "result_json")


class ErrorInfo(Record, msgspec.Struct, frozen=True):
    """The error of an attempt."""

    type: str = "unknown"
    """The name of its class, such as `ValueError` or `shop.errors.NoSuchUser`."""
    message: str = ""
    traceback: str = ""
    output: str | None = None
    """The end of the output of its child process, if that has ended abnormally."""
    module: str | None = None
    """The module of its class, such as `builtins` or `shop.errors`."""

    @property
    def full_type(self) -> str:
        """The name of its class with the module: `builtins.ValueError`."""
        if self.module is None or self.type.startswith(f"{self.module}."):
            return self.type
        return f"{self.module}.{self.type}"

    def __str__(self) -> str:
        return f"{self.short_type}: {self.message}" if self.message else self.short_type

    @property
    def short_type(self) -> str:
        """The type for people: an error of Tenure without its module."""
        return self.type.removeprefix("tenure.errors.")


_read_error = msgspec.json.Decoder(ErrorInfo).decode


class Job(JobReference, Record, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A live or finished job, with everything that explains its state.

    `args`, `result`, `error`, `metadata`, `notes` and `retry` are Python values, decoded at their
    first use. `args_json` and so on are the stored text.
    """

    id: int
    token: int
    state: State
    task: str
    args_json: str
    queue: str
    priority: int
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: datetime
    queued_at: datetime
    due_at: datetime | None
    claimed_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    duration_seconds: float | None
    worker: str | None
    reason: str | None
    held: bool
    cancel_requested: bool
    queue_paused: bool
    unfinished_parents: int
    timeout_seconds: float | None
    retry_json: str | None
    metadata_json: str | None
    unique_scope: str | None
    unique_key: str | None
    unique_until: str | None
    result_json: str | None
    error_json: str | None
    gate: str | None = None
    gate_key: str | None = None
    needs: Kind | None = None
    """The kind of slot that it needs; None: that is known once a worker has claimed it."""
    notes_json: str | None = None
    start_by: datetime | None = None
    """If it has used no attempt by then, the job ends as skipped, with the reason `expired`."""
    finish_by: datetime | None = None
    """Its deadline. Nothing happens when it passes."""

    @property
    def met_deadline(self) -> bool | None:
        """Has it succeeded by its `finish_by`? None: it has none, or it has not finished."""
        if self.finish_by is None or self.finished_at is None:
            return None
        return self.state is State.SUCCEEDED and self.finished_at <= self.finish_by

    @cached_property
    def args(self) -> dict[str, Any]:
        """The arguments by name."""
        arguments: dict[str, Any] = value_of(self, "args_json")
        return arguments

    @cached_property
    def result(self) -> Any:
        """The handler's result as JSON values; `Handle.result` gives its annotated type."""
        return value_of(self, "result_json")

    @cached_property
    def error(self) -> ErrorInfo | None:
        """The error of the last attempt that has failed."""
        if self.error_json is None:
            return None
        try:
            return _read_error(self.error_json)
        except (ValueError, RecursionError):  # written by other code
            return ErrorInfo(message=self.error_json)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What the client and its callers have added; empty if there is none."""
        return value_of(self, "metadata_json") or {}

    @cached_property
    def notes(self) -> dict[str, Any]:
        """What its attempts have added with `annotate`; empty if there is nothing."""
        return value_of(self, "notes_json") or {}

    @cached_property
    def retry(self) -> dict[str, Any] | None:
        """The retry policy that is stored with the job, such as `{"kind": "fixed", "seconds": 5}`.

        None: the job has none of its own.
        """
        policy: dict[str, Any] | None = value_of(self, "retry_json")
        return policy


class Event(Record, msgspec.Struct, frozen=True):
    """One entry of a job's history: what happened, when, under which token, where, and why."""

    at: datetime
    kind: str
    token: int
    worker: str | None = None
    detail: str | None = None


Setting = str | int | float | bool | None


class JobWait(Record, msgspec.Struct, frozen=True):
    """A running job whose handler waits for another job."""

    job_id: int
    task: str
    waits_for: int
    """The id of the other job."""
    seconds: float
    """How long it has waited."""


class WorkerLoad(Record, msgspec.Struct, frozen=True, kw_only=True):
    """What a worker can run at once, and how fast its jobs end. As old as its last heartbeat."""

    slots: dict[str, int] = {}
    """Its slots by kind: async, thread, process."""
    kinds: dict[str, str] = {}
    """The kind of each task."""
    finished: dict[str, dict[str, int]] = {}
    """How many attempts have ended within `seconds`, by queue and kind."""
    seconds: float = 0.0
    """About a minute; less in a worker that has just started."""
    waits: tuple[JobWait, ...] = ()
    """Jobs that have waited for other jobs for a second or longer: the first hundred."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report about itself. `queues` maps each queue that it serves to its slots."""

    name: str
    host: str
    pid: int
    queues: dict[str, int] = {}
    tasks: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
    """The settings that are worth showing."""
    counts: dict[str, int] = {}
    """Its counters, such as jobs by outcome."""
    load: WorkerLoad = WorkerLoad()

    def __post_init__(self) -> None:
        check_name("worker", self.name)
        check_text("host", self.host, MAX_HOST_BYTES)
        check_int("pid", self.pid, 0, MAX_PID)
        for what in ("queues", "settings", "counts"):
            if type(getattr(self, what)) is not dict:
                raise InvalidInput(f"{what} must be a dict, {not_this(getattr(self, what))}")
        if type(self.tasks) is not tuple:
            raise InvalidInput(f"tasks must be a tuple of names, {not_this(self.tasks)}")
        if type(self.load) is not WorkerLoad:
            raise InvalidInput(f"load must be a WorkerLoad, {not_this(self.load)}")
        for queue, slots in self.queues.items():
            check_name("queue", queue)
            check_int(f"the slots of {queue}", slots, 0, MAX_SLOTS)
        for task in self.tasks:
            check_name("task", task)


class WorkerSeen(Record, msgspec.Struct, frozen=True, kw_only=True):
    """A worker as read from the store. `alive`: it was seen within the requested time.

    `running` is counted by the store at this moment. `counts` is what the worker itself has
    reported at `seen_at`.
    """

    name: str
    host: str
    pid: int
    queues: dict[str, int]
    tasks: tuple[str, ...]
    settings: dict[str, Setting]
    counts: dict[str, int]
    started_at: datetime
    seen_at: datetime
    alive: bool
    running: int = 0
    """How many jobs it has claimed and not settled."""
    load: WorkerLoad = WorkerLoad()
