"""The records that travel between client, store and worker. They hold data and decide nothing.

    NewJob -> Enqueued            what a client asks for, and what it is told
    Lease of Claimed jobs         what a worker receives
    NewStep -> Step               what a part of a job has answered
    Job, Event, Progress          what everybody may look at
    WorkerInfo -> WorkerSeen      what a worker says of itself, and what is known of it

Records are frozen. `NewJob` checks itself when it is made, so nothing invalid reaches a store.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NewType

import msgspec

from tenure.errors import InvalidInput, InvalidName, OutOfRange, PayloadInvalid
from tenure.rules.permits import Permits

Json = NewType("Json", bytes)
"""Strict JSON in UTF-8, as made by `tenure.codec.encode`."""

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_ATTEMPTS_LIMIT = 10_000
MAX_SECONDS = 100 * 366 * 86_400
MAX_NAME_LENGTH = 200
MAX_REASON_LENGTH = 1000
MAX_KEY_BYTES = 512
MAX_PARENTS = 10_000
MAX_STEPS = 1000
MAX_STEP_BYTES = 16 * 2**20
"""All results of the steps of one job."""
MAX_ID = 2**53 - 1
MAX_HOST_BYTES = 255
MAX_PID = 2**31 - 1
MAX_SLOTS = 1_000_000
FAR_FUTURE = datetime(9000, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

_json_reader = msgspec.json.Decoder(msgspec.Raw)
_BACKSLASH = ord("\\")
_ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:<>-]*\Z")


class State(StrEnum):
    """Where a job is in its life. The last four are final."""

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
    """Bits of `features`: what a job uses beyond the happy path. Settlement pays only for these.

    Plain integers: masking with an IntFlag costs a microsecond per job. SQL names them, too:
    see `tenure.store.statements`.
    """

    KEY: Final = 1
    """It holds a unique key."""
    CHILDREN: Final = 2
    """Other jobs wait for it."""
    NOTES: Final = 4
    """It has reported progress or saved a checkpoint."""
    KEY_UNTIL_STARTED: Final = 8
    """Its unique key is given back when it is claimed."""
    PARENTS: Final = 16
    """It was enqueued with parents."""
    GATE: Final = 32
    """It needs a permit of a gate to run."""
    WORKFLOW: Final = 64
    """It is a node of a workflow."""
    STEPS: Final = 128
    """It has recorded steps."""
    RULE: Final = 256
    """It has another rule than: run when all parents have succeeded."""


FEATURES: dict[str, int] = {name: bit for name, bit in vars(Feature).items() if name.isupper()}


class When(StrEnum):
    """Which ends of its parents let a job run. It is skipped once they cannot come any more."""

    ALL_SUCCEEDED = "all_succeeded"
    """All have succeeded."""
    ALL_FINISHED = "all_finished"
    """All have ended, however."""
    ANY_SUCCEEDED = "any_succeeded"
    """One has succeeded; the others may still be at work."""
    ANY_FAILED = "any_failed"
    """One has failed; the others may still be at work."""


class Until(StrEnum):
    """How long a unique key is held."""

    STARTED = "started"
    FINISHED = "finished"
    PERIOD = "period"
    FOREVER = "forever"


class Unique(msgspec.Struct, frozen=True, kw_only=True):
    """At most one live job per (tenant, scope, key). `scope` defaults to the task's name."""

    key: str
    scope: str | None = None
    until: Until = Until.FINISHED
    period_seconds: float | None = None

    def __post_init__(self) -> None:
        check_text("unique key", self.key, MAX_KEY_BYTES)
        if not self.key:
            raise InvalidName("unique key is empty; leave the key out for a job without one")
        if self.scope is not None:
            check_name("unique scope", self.scope)
        if type(self.until) is not Until:
            raise InvalidInput(
                f"until must be one of Until, such as Until.FINISHED, {_not(self.until)}"
            )
        if (self.until is Until.PERIOD) != (self.period_seconds is not None):
            raise InvalidInput(
                "period_seconds goes with until=Until.PERIOD, and only with it: give both or none"
            )
        if self.period_seconds is not None:
            check_seconds("period_seconds", self.period_seconds)


class NewJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job to be enqueued. Every value is checked here; the store trusts what it gets."""

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
    """Its line there, without the tenant. None: the one for all."""
    features: int = 0
    """What a workflow knows of it. Set by the store, never by callers."""

    def __post_init__(self) -> None:
        # A million of these are made in a row: usual values pass without a function call.
        if type(self.task) is not str or self.task not in _known_names:
            check_name("task", self.task)
        if type(self.queue) is not str or self.queue not in _known_names:
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
        if self.timeout_seconds is not None:
            check_seconds("timeout_seconds", self.timeout_seconds, least=0.001)
        if self.parents != ():
            check_parents(self.parents)
        if self.gate is not None or self.gate_key is not None:
            self._check_gate()
        if self.features != 0:
            check_int("features", self.features, 0, _OF_WORKFLOWS)

    def _check_gate(self) -> None:
        if self.gate is None:
            raise InvalidInput("gate_key goes with a gate; give both or none")
        check_name("gate", self.gate)
        if self.gate_key is not None:
            check_text("gate_key", self.gate_key, MAX_KEY_BYTES)

    def _check_encoded(self) -> None:
        if self.metadata is not None:
            check_json("metadata", self.metadata)
        if self.retry is not None:
            check_json("retry", self.retry, "tenure.policy.dump_policy(policy)")

    def _check_due(self) -> None:
        if self.delay_seconds is not None and self.due_at is not None:
            raise InvalidInput("give delay_seconds or due_at, not both")
        if self.delay_seconds is not None:
            check_seconds("delay_seconds", self.delay_seconds, least=-MAX_SECONDS)
        if self.due_at is not None:
            check_time("due_at", self.due_at)


_OF_WORKFLOWS = int(Feature.CHILDREN | Feature.PARENTS | Feature.WORKFLOW | Feature.RULE)


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """The answer to one enqueue.

    `created` is False when a unique key was already held; `id` is then the holder's. `same_args`
    tells whether the holder was enqueued with the same task and arguments.
    """

    id: int
    created: bool = True
    same_args: bool = True


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """One job handed to a worker. `token` fences every write about this attempt."""

    id: int
    token: int
    lease_id: int
    task: str
    args: str
    queue: str
    priority: int
    tenant: str
    attempts: int
    max_attempts: int
    crashes: int
    created_at: datetime
    timeout_seconds: float | None
    retry: str | None
    metadata: str | None
    features: int


class Lease(msgspec.Struct, frozen=True):
    """One worker's hold on a block of jobs until `expires_at`, pushed out by heartbeats."""

    id: int
    worker: str
    claimed_at: datetime
    expires_at: datetime
    jobs: tuple[Claimed, ...]


class Claim(list[Lease]):
    """The leases of one claim, and what its worker has to know besides."""

    __slots__ = ("more", "permits")

    def __init__(
        self,
        leases: Iterable[Lease] = (),
        permits: tuple[Permits, ...] = (),
        more: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(leases)
        self.permits = permits
        """Of the worker, at each gate that limits how many of these jobs run at once."""
        self.more = more
        """Queues at whose gates the claim had no time to look at all lines: claim there again."""

    def plus(self, other: "Claim") -> "Claim":
        """Both together. Where both have permits of one gate, the later ones come last."""
        return Claim([*self, *other], self.permits + other.permits, self.more | other.more)


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: leases that are gone, and held jobs asked to stop.

    A lease in `busy` is still ours, but somebody had its row locked: its deadline has not moved.
    """

    lost: tuple[int, ...]
    cancelled: tuple[tuple[int, int], ...]
    busy: tuple[int, ...] = ()


class Progress(msgspec.Struct, frozen=True):
    """What a running job last reported, and its checkpoint, if any."""

    fraction: float | None = None
    message: str | None = None
    reported_at: datetime | None = None
    checkpoint: str | None = None
    saved_at: datetime | None = None


class NewStep(msgspec.Struct, frozen=True):
    """What a step of a running job has answered, to be kept. Checked here."""

    name: str
    function: str
    """The function that ran, by its name in the code: another one may not take its place."""
    result: Json

    def __post_init__(self) -> None:
        check_step_name(self.name)
        check_text("the name of a step's function", self.function, 4 * MAX_NAME_LENGTH)
        check_json(f"the result of step {self.name!r}", self.result)


class Step(msgspec.Struct, frozen=True):
    """A recorded step: its name, its function, the attempt that ran it, and its result as JSON."""

    name: str
    function: str
    token: int
    recorded_at: datetime
    result: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as anybody may see it: live or finished, with everything that explains its state."""

    id: int
    token: int
    state: State
    task: str
    args: str
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
    retry: str | None
    metadata: str | None
    unique_scope: str | None
    unique_key: str | None
    unique_until: str | None
    result: str | None
    error: str | None
    gate: str | None = None
    gate_key: str | None = None


class Event(msgspec.Struct, frozen=True):
    """One line of a job's story: what happened, when, under which token, by whom, and why."""

    at: datetime
    kind: str
    token: int
    worker: str | None = None
    detail: str | None = None


Setting = str | int | float | bool | None


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself. `queues` maps each queue it serves to its slots there."""

    name: str
    host: str
    pid: int
    queues: dict[str, int] = {}
    tasks: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
    """Whatever of its settings is worth seeing."""
    counts: dict[str, int] = {}
    """How much it has done: jobs by outcome, say."""

    def __post_init__(self) -> None:
        check_name("worker", self.name)
        check_text("host", self.host, MAX_HOST_BYTES)
        check_int("pid", self.pid, 0, MAX_PID)
        for what in ("queues", "settings", "counts"):
            if type(getattr(self, what)) is not dict:
                raise InvalidInput(f"{what} must be a dict, {_not(getattr(self, what))}")
        if type(self.tasks) is not tuple:
            raise InvalidInput(f"tasks must be a tuple of names, {_not(self.tasks)}")
        for queue, slots in self.queues.items():
            check_name("queue", queue)
            check_int(f"the slots of {queue}", slots, 0, MAX_SLOTS)
        for task in self.tasks:
            check_name("task", task)


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as anybody may see it. `alive`: it was seen within the time that was asked for."""

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


_known_names: set[str] = {"default"}
_KNOWN_NAMES_LIMIT = 4096


def check_name(what: str, name: str) -> None:
    """Accept 1 to 200 ASCII letters, digits and `_ . : < > -`; refuse everything else."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} must be a string, not {type(name).__name__}")
    if name in _known_names:
        return
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidName(f"{what} is {len(name)} characters long; at most {MAX_NAME_LENGTH} fit")
    if not _NAME.match(name):
        raise InvalidName(
            f"{what} {name[:60]!r} is not a valid name: use letters, digits and _ . : < > -, "
            "and start with a letter, a digit or _"
        )
    if len(_known_names) < _KNOWN_NAMES_LIMIT:
        _known_names.add(name)


def check_text(what: str, text: str, max_bytes: int) -> None:
    """Accept printable text up to a size in UTF-8: an index of the database must hold it."""
    if not isinstance(text, str):
        raise InvalidName(f"{what} must be a string, not {type(text).__name__}")
    if not text.isprintable():
        raise InvalidName(
            f"{what} {text[:60]!r} has control or unprintable characters; remove them"
        )
    if len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
        raise InvalidName(f"{what} takes {len(text.encode())} bytes; at most {max_bytes} fit")


def check_json(what: str, data: bytes, maker: str = "tenure.codec.encode(value)") -> None:
    """Accept strict JSON in UTF-8 without NUL in its text: what every store keeps as it is.

    `encode` makes nothing else. Bytes from elsewhere would be refused by one store and kept by the
    other, or be taken for a part of the statement's own JSON. (0.2 microseconds for 120 bytes.)
    """
    if type(data) is not bytes:
        raise InvalidInput(f"{what} must be encoded first: use {maker}")
    try:
        _json_reader.decode(data)
        if not data.isascii():
            data.decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadInvalid(f"{what} is not strict JSON ({error}); use {maker}") from error
    if _BACKSLASH in data and _ESCAPED_NUL.search(data):
        raise PayloadInvalid(f"{what} has NUL in its text, which no database keeps; remove it")


def check_step_name(name: str) -> None:
    """Accept printable text: what tells one step of a job from the others."""
    check_text("the name of a step", name, MAX_NAME_LENGTH)
    if not name:
        raise InvalidName("the name of a step is empty; name each step of a job")


def check_reason(reason: str) -> None:
    """Accept what an operator says of an act: printable text on one line."""
    check_text("reason", reason, MAX_REASON_LENGTH)


def check_progress(fraction: float | None, message: str | None) -> None:
    """Accept a part of the whole, from 0 to 1, and a text."""
    if fraction is not None:
        _check_fraction(fraction)
    if message is not None:
        _check_message(message)


def _check_message(message: object) -> None:
    if not isinstance(message, str):
        raise InvalidInput(f"a progress message must be a string, {_not(message)}")


def _check_fraction(fraction: object) -> None:
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise OutOfRange(f"progress is a fraction from 0 to 1, {_not(fraction)}")


def check_parents(parents: tuple[int, ...]) -> None:
    """Accept a tuple of job ids."""
    if type(parents) is not tuple:
        raise InvalidInput(f"parents must be a tuple of job ids, {_not(parents)}")
    if len(parents) > MAX_PARENTS:
        raise OutOfRange(f"a job has at most {MAX_PARENTS} parents; got {len(parents)}")
    for parent in parents:
        check_int("a parent's id", parent, 1, MAX_ID)


def check_int(what: str, value: int, least: int, most: int) -> None:
    """Accept a true integer within the bounds."""
    if type(value) is not int or not least <= value <= most:
        raise OutOfRange(f"{what} must be a whole number from {least} to {most}, {_not(value)}")


def is_id(value: int) -> bool:
    """Can this be the id of a job? What cannot is never sent to a database."""
    return type(value) is int and 1 <= value <= MAX_ID


def check_seconds(what: str, value: float, least: float = 0.0) -> None:
    """Accept a finite number of seconds up to a hundred years."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OutOfRange(f"{what} must be a number of seconds, {_not(value)}")
    if not least <= value <= MAX_SECONDS:  # also refuses NaN
        raise OutOfRange(f"{what} must be from {least:g} to {MAX_SECONDS:g} seconds, {_not(value)}")


def _not(value: object) -> str:
    """The end of a message about any value; one that cannot be shown is named by its type."""
    try:
        return f"not {value!r:.60}"
    except Exception:  # noqa: BLE001 - 10**5000 raises here, and so may any stranger's repr
        return f"not this {type(value).__name__}"


def check_time(what: str, value: datetime) -> None:
    """Accept an aware datetime between 1970 and 9000; a naive one is refused."""
    if not isinstance(value, datetime):
        raise OutOfRange(f"{what} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise OutOfRange(
            f"{what} has no time zone; use datetime.now(timezone.utc) or set tzinfo on it"
        )
    if not LONG_AGO <= value <= FAR_FUTURE:
        raise OutOfRange(
            f"{what} must lie between the years 1970 and 9000, not {value.isoformat()}"
        )
