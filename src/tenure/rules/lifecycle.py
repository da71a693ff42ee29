"""The state machine of a job. Stores execute these transitions; this module decides them.

            enqueue            promote            claim              succeed, fail, skip, abort
    (client) ──┬──> scheduled ────────> queued ─────────> running ──────────────> succeeded
               ├──────────────────────────^ ^                │ │                  failed
               └──> waiting ──────────────┘ └────────────────┘ │                  skipped
                      │      free             retry, snooze,   │                  cancelled
                      │                       release, sweep   │                      │
                      └── free, cancel ────────────────────────┴── cancel ────────────┤
                                             queued <──────────── replay ─────────────┘

Invariants per state, which the database also enforces as constraints:
    waiting     no ticket, no lease, at least one unfinished parent
    scheduled   one ticket in `due`; its token is the job's token
    queued      one ticket in `ready` with the job's token, or parked because it is held
    running     no ticket; (job, token) is on exactly one lease
    final       one row in `history`, none in `job`; it keeps the token of its last attempt

The token grows by one each time the job gets a new ticket, so it identifies one attempt. Every
write about a running job presents the token and the lease, and changes nothing if one is outdated.
"""

import json
import math
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Protocol, assert_never

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.codec import clean_text, encode
from tenure.rules.job import FINAL_STATES, Json, State, When
from tenure.rules.limits import MAX_REASON_LENGTH, check_seconds, not_encoded, not_this
from tenure.rules.notes import NoteValue
from tenure.rules.why import NO_HANDLER

AT_MOST_ONCE = "not run again, because it starts at most once"
"""How the reason begins why such a job has failed."""

W, S, Q, R = State.WAITING, State.SCHEDULED, State.QUEUED, State.RUNNING


class By(StrEnum):
    """The actor that may make a transition."""

    CLIENT = "client"
    WORKER = "worker"
    ANY_WORKER = "any worker"
    STORE = "store"
    OPERATOR = "operator"


class Transition(msgspec.Struct, frozen=True):
    """One row of the table: sources, targets, the actor, and what the actor must present."""

    name: str
    sources: frozenset[State]
    targets: frozenset[State]
    by: By
    presents: str


def _row(name: str, sources: set[State], targets: set[State], by: By, presents: str) -> Transition:
    return Transition(name, frozenset(sources), frozenset(targets), by, presents)


_HELD = "token and lease"
_END = set(FINAL_STATES)

TRANSITIONS: Mapping[str, Transition] = {
    row.name: row
    for row in (
        _row("enqueue", set(), {W, S, Q}, By.CLIENT, "a valid job, a free unique key"),
        _row("free", {W}, {S, Q, State.CANCELLED, State.SKIPPED}, By.STORE, "finished parents"),
        _row("promote", {S}, {Q}, By.ANY_WORKER, "a due time that has come; the token stays"),
        _row("claim", {Q}, {R, State.CANCELLED, State.SKIPPED}, By.WORKER, "the live ticket"),
        _row("expire", {W, S, Q}, {State.SKIPPED}, By.ANY_WORKER, "a time to start that is over"),
        _row("succeed", {R}, {State.SUCCEEDED}, By.WORKER, _HELD),
        _row("retry", {R}, {S, Q, State.FAILED, State.CANCELLED}, By.WORKER, _HELD),
        _row("fail", {R}, {State.FAILED}, By.WORKER, _HELD),
        _row("snooze", {R}, {S, Q, State.FAILED, State.CANCELLED}, By.WORKER, _HELD),
        _row("release", {R}, {S, Q, State.FAILED, State.CANCELLED}, By.WORKER, _HELD),
        _row("abort", {R}, {State.CANCELLED}, By.WORKER, _HELD),
        _row("skip", {R}, {State.SKIPPED}, By.WORKER, _HELD),
        _row("sweep", {R}, {Q, State.FAILED, State.CANCELLED}, By.ANY_WORKER, "an expired lease"),
        _row("cancel", {W, S, Q, R}, {R, State.CANCELLED}, By.OPERATOR, "the id"),
        _row("hold", {W, S, Q, R}, {W, Q, R}, By.OPERATOR, "the id"),
        _row("unhold", {W, Q, R}, {W, S, Q, R}, By.OPERATOR, "the id"),
        _row("move", {W, S, Q}, {W, S, Q}, By.OPERATOR, "the id of a job that does not run"),
        _row("replay", _END, {W, S, Q}, By.OPERATOR, "the id, a free unique key; the token grows"),
        _row("delete", _END, set(), By.OPERATOR, "the id"),
    )
}


class Outcome(StrEnum):
    """How an attempt ended, as the worker reports it. Each names its transition."""

    SUCCEED = "succeed"
    RETRY = "retry"
    FAIL = "fail"
    SNOOZE = "snooze"
    RELEASE = "release"
    ABORT = "abort"
    SKIP = "skip"


class HeldJob(Protocol):
    """A claimed job: what a worker must present to settle it."""

    @property
    def id(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def lease_id(self) -> int: ...


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt. Create it with one of the functions below."""

    id: int
    token: int
    lease: int
    outcome: Outcome
    result: Json | None = None
    error: Json | None = None
    delay_seconds: float = 0.0
    reason: str | None = None
    duration_seconds: float | None = None
    needs: int | None = None
    """What the job needs in the worker's code, if its ticket says something else."""
    progress: tuple[float | None, str | None] | None = None
    """The last progress report, if the store does not have it yet."""
    notes: dict[str, NoteValue] | None = None
    """Notes that the store does not have yet."""
    give_up_seconds: float | None = None
    """The worker's code has no such task. Once that was so for this long, the job fails."""


def succeed(
    job: HeldJob, result: Json | None = None, duration_seconds: float | None = None
) -> Settlement:
    """The attempt succeeded. The job is finished, and the attempt is charged."""
    if result is not None and type(result) is not bytes:
        raise not_encoded("the result")
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.SUCCEED, result, duration_seconds=duration_seconds
    )


def retry(
    job: HeldJob,
    error: Json,
    delay_seconds: float,
    reason: str = "error",
    duration_seconds: float | None = None,
) -> Settlement:
    """The attempt failed and is charged: retry after the delay, or `failed` if none is left."""
    if type(error) is not bytes:
        raise not_encoded("the error")
    check_seconds("delay_seconds", delay_seconds)
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.RETRY, None, error, delay_seconds, reason,
        duration_seconds,
    )  # fmt: skip


def fail(
    job: HeldJob, error: Json, reason: str = "error", duration_seconds: float | None = None
) -> Settlement:
    """The attempt failed, and the job must not be retried, even if attempts are left."""
    if type(error) is not bytes:
        raise not_encoded("the error")
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.FAIL, None, error, 0.0, reason, duration_seconds
    )


def snooze(
    job: HeldJob,
    delay_seconds: float,
    reason: str = "snoozed",
    duration_seconds: float | None = None,
) -> Settlement:
    """Run the job again after the delay. The attempt is not charged."""
    check_seconds("delay_seconds", delay_seconds)
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.SNOOZE, None, None, delay_seconds, reason,
        duration_seconds,
    )  # fmt: skip


def release(
    job: HeldJob,
    reason: str = "shutdown",
    delay_seconds: float = 0.0,
    duration_seconds: float | None = None,
) -> Settlement:
    """The worker returns the job unfinished. The attempt is not charged."""
    check_seconds("delay_seconds", delay_seconds)
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.RELEASE, None, None, delay_seconds, reason,
        duration_seconds,
    )  # fmt: skip


NO_TASK = "no worker has its task"
"""Why a job failed that no worker could run."""


def unknown_task(job: HeldJob, delay_seconds: float, give_up_seconds: float) -> Settlement:
    """The worker's code has no such task: put the job back, uncharged, or fail it in the end.

    All such tries in a row, of any worker, are one entry of the timeline.
    """
    check_seconds("delay_seconds", delay_seconds)
    check_seconds("give_up_seconds", give_up_seconds)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.RELEASE, None, None, delay_seconds, NO_HANDLER,
        give_up_seconds=give_up_seconds,
    )  # fmt: skip


def abort(
    job: HeldJob, reason: str = "cancelled", duration_seconds: float | None = None
) -> Settlement:
    """The handler stopped because the job was cancelled, or cancelled itself."""
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.ABORT, None, None, 0.0, reason, duration_seconds
    )


def skip(
    job: HeldJob, reason: str = "skipped", duration_seconds: float | None = None
) -> Settlement:
    """The handler decided that there is nothing to do."""
    reason = _storable(reason)
    return Settlement(
        job.id, job.token, job.lease_id, Outcome.SKIP, None, None, 0.0, reason, duration_seconds
    )


def _storable(reason: str) -> str:
    """A reason that every database accepts: a handler's reason must not prevent the settlement."""
    if not isinstance(reason, str):
        raise InvalidInput(f"a reason must be a string, {not_this(reason)}")
    if reason.isprintable() and len(reason) <= MAX_REASON_LENGTH:
        return reason
    return clean_text(reason, MAX_REASON_LENGTH)


class Standing(msgspec.Struct, frozen=True):
    """The facts about a running job that decide what happens when its attempt ends."""

    attempts: int
    max_attempts: int
    cancel_requested: bool
    spent: bool = False
    """Its handler may start only once, and has started."""


class Move(msgspec.Struct, frozen=True):
    """The next state of the job. A live `to` is `queued` or, with a delay, `scheduled`."""

    to: State
    charged: bool = False
    delay_seconds: float = 0.0
    reason: str | None = None


def is_last_attempt(attempts: int, max_attempts: int) -> bool:
    """Is this the last attempt? The only such comparison, for errors and for crashes."""
    return attempts + 1 >= max_attempts


def after_settlement(job: Standing, settlement: Settlement) -> Move:
    """Turn a worker's outcome into the job's next state.

    A job that may start only once, and has started, gets no other attempt, whatever the worker
    reports.
    """
    delay, reason = settlement.delay_seconds, settlement.reason
    match settlement.outcome:
        case Outcome.SUCCEED:
            return Move(State.SUCCEEDED, charged=True, reason=reason)
        case Outcome.FAIL:
            return Move(State.FAILED, charged=True, reason=reason)
        case Outcome.SKIP:
            return Move(State.SKIPPED, charged=True, reason=reason)
        case Outcome.ABORT:
            return Move(State.CANCELLED, reason=reason)
        case Outcome.RETRY:
            if job.cancel_requested:
                return Move(State.CANCELLED, charged=True, reason="cancelled")
            if job.spent:
                return _spent(reason)
            if is_last_attempt(job.attempts, job.max_attempts):
                return Move(State.FAILED, charged=True, reason=reason)
            return _in_line(delay, reason, charged=True)
        case Outcome.SNOOZE | Outcome.RELEASE:
            if job.cancel_requested:
                return Move(State.CANCELLED, reason="cancelled")
            if job.spent:
                return _spent(reason)
            return _in_line(delay, reason, charged=False)
        case _:  # pragma: no cover
            assert_never(settlement.outcome)


def after_unknown(job: Standing, settlement: Settlement, waited_seconds: float) -> Move:
    """The job's next state, after its task was unknown for so long."""
    move = after_settlement(job, settlement)
    give_up = settlement.give_up_seconds
    if give_up is None or move.to.final or waited_seconds < give_up:
        return move
    return Move(State.FAILED, reason=NO_TASK)


def error_of(settlement: Settlement, move: Move) -> Json | None:
    """The error that is recorded. If a job fails without an error of its own, it gets one."""
    if move.reason == NO_TASK:
        return _NO_TASK_ERROR
    if settlement.error is None and move.to is State.FAILED:
        return encode({"type": "NotRunAgain", "message": move.reason})
    return settlement.error


_NO_TASK_ERROR = Json(b'{"type":"UnknownTask","message":"no worker has had the task for too long"}')

KIND_OF: Mapping[Outcome, str] = {
    Outcome.SUCCEED: "succeeded",
    Outcome.RETRY: "retried",
    Outcome.FAIL: "failed",
    Outcome.SNOOZE: "snoozed",
    Outcome.RELEASE: "released",
    Outcome.ABORT: "cancelled",
    Outcome.SKIP: "skipped",
}
"""What the tables call each outcome: the state of a finished job, or the kind of an event."""

UNKNOWN_TASK = "unknown_task"
"""Kind of the event for tries of workers that do not have the task."""


def kind_of(settlement: Settlement) -> str:
    """The kind of the event for a settlement after which the job goes on."""
    return KIND_OF[settlement.outcome] if settlement.give_up_seconds is None else UNKNOWN_TASK


class Recorded(msgspec.Struct, frozen=True):
    """How an attempt ended, as the tables tell it."""

    kind: str
    reason: str | None
    result: str | None = None
    error: str | None = None
    delay_seconds: float = 0.0
    in_full: bool = True
    """False: the job was replayed since, and only the kind and the reason are known."""
    was_last: bool = True
    """No attempt was left after it, as far as is known."""
    cancel_requested: bool = False


def is_recorded(settlement: Settlement, recorded: Recorded) -> bool:
    """Is this what the tables tell of the attempt? A duration may differ."""
    reason = recorded.reason or ""
    was_last = recorded.was_last and recorded.kind == State.FAILED
    job = Standing(
        0, 1 if was_last else 2, recorded.cancel_requested, spent=reason.startswith(AT_MOST_ONCE)
    )
    waited = math.inf if reason == NO_TASK else -math.inf
    move = after_unknown(job, settlement, waited)
    kind = str(move.to) if move.to.final else kind_of(settlement)
    if (kind, move.reason) != (recorded.kind, recorded.reason):
        return False
    error = error_of(settlement, move)  # without one, the job keeps that of an earlier attempt
    return not recorded.in_full or (
        move.delay_seconds == recorded.delay_seconds
        and _same_json(settlement.result, recorded.result)
        and (error is None or _same_json(error, recorded.error))
    )


def _same_json(given: Json | None, stored: str | None) -> bool:
    """Databases may store the same value with other blanks."""
    one, other = (given or b"null").decode(), stored or "null"
    try:
        return one == other or json.dumps(json.loads(one)) == json.dumps(json.loads(other))
    except (ValueError, RecursionError):  # then it is not what is stored
        return False


def after_crash(job: Standing, *, charged: bool) -> Move:
    """Turn an expired lease into the job's next state.

    A job is charged if it was reported started, or if it was alone on its lease. The other jobs
    return uncharged, with a crash on record, and each is then tried alone. So the job that kills
    its worker is found, and no other job fails without having run.
    A job that may start only once fails if it has started.
    """
    if job.cancel_requested:
        return Move(State.CANCELLED, charged=charged, reason="cancelled")
    if job.spent:
        return _spent("lease lost")
    if charged and is_last_attempt(job.attempts, job.max_attempts):
        return Move(State.FAILED, charged=True, reason="lease lost")
    return Move(State.QUEUED, charged=charged, reason="lease lost")


def _spent(reason: str | None) -> Move:
    """The job may start only once, and its attempt ended without a result."""
    return Move(State.FAILED, charged=True, reason=_storable(f"{AT_MOST_ONCE}: {reason}"))


class Ends(msgspec.Struct, frozen=True):
    """The facts about the parents of a waiting job."""

    unfinished: bool
    """One has not finished."""
    any_succeeded: bool
    any_failed: bool
    any_unsuccessful: bool
    """One has finished in another state than succeeded."""


_RULES: Mapping[When, tuple[Callable[[Ends], bool], str]] = {
    When.ALL_SUCCEEDED: (
        lambda ends: not (ends.unfinished or ends.any_unsuccessful),
        "a parent did not succeed",
    ),
    When.ALL_FINISHED: (lambda ends: not ends.unfinished, ""),
    When.ANY_SUCCEEDED: (lambda ends: ends.any_succeeded, "no parent succeeded"),
    When.ANY_FAILED: (lambda ends: ends.any_failed, "no parent failed"),
}
"""Per rule: may the job run, and the reason for skipping it if all parents have finished."""

WAITS_FOR_ALL = frozenset({When.ALL_SUCCEEDED, When.ALL_FINISHED})
"""Under these rules a job finishes after all of its parents."""


PARENTS_FINISHED = "parents finished"
EXPIRED = "expired"
"""The reason of a job that was not started in time."""


def after_parents(
    ends: Ends, *, when: When = When.ALL_SUCCEEDED, cancel_requested: bool
) -> Move | None:
    """Turn the end of a parent into the child's next state. None: the child keeps waiting."""
    may_run, why_not = _RULES[when]
    runs = may_run(ends)
    if not runs and ends.unfinished:
        return None
    if cancel_requested:
        return Move(State.CANCELLED, reason="cancelled")
    if not runs:
        return Move(State.SKIPPED, reason=why_not)
    return Move(State.QUEUED, reason=PARENTS_FINISHED)


def _in_line(delay_seconds: float, reason: str | None, *, charged: bool) -> Move:
    to = State.SCHEDULED if delay_seconds > 0 else State.QUEUED
    return Move(to, charged=charged, delay_seconds=delay_seconds, reason=reason)
