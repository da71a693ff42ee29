"""Unique keys: take, find the holder, take again for a replay. The unique index is the judge."""

from collections.abc import Sequence
from typing import NamedTuple

from tenure.errors import KeyTaken, StoreBusy
from tenure.rules.codec import fingerprint
from tenure.rules.job import FINAL_STATES, Enqueued, Json, NewJob, State, Unique, Until
from tenure.store.moves import Numbered, chunks
from tenure.store.records import FinishedJob, KeyHolder
from tenure.store.session import Outdated, Tx, keys_changed_hands, to_json

_ROUNDS = 20
OUTLIVING = (Until.PERIOD, Until.FOREVER)
"""A key that is kept until then may outlive its job."""
_UNSUCCESSFUL = tuple(FINAL_STATES - {State.SUCCEEDED})

Key = tuple[str, str, str]
"""Tenant, scope and key."""


async def claim_keys(tx: Tx, new: Numbered) -> dict[int, Enqueued]:
    """Take the unique keys of these jobs. Returns the holder for each job whose key was taken.

    Of several jobs with one key the first asks for it. If it is refused, one that may take the key
    of failed work asks again, also for the jobs behind it.
    """
    own = {id for id, _ in new}
    answers: dict[int, Enqueued] = {}
    while new:
        wanted: dict[Key, dict[str, object]] = {}
        for id, job in new:
            key = key_of(job)
            if key not in wanted:
                wanted[key] = key_row(key, id, job.unique, job.task, job.args)
        holders = await take_keys(tx, wanted)
        again: Numbered = []
        asking: set[Key] = set()
        for id, job in new:
            key, holder = key_of(job), holders[key_of(job)]
            if _retakes(job) and not wanted[key]["retake"] and holder.id not in own:
                asking.add(key)
            if key in asking:
                again.append((id, job))
            elif holder.id != id:
                same = holder.fingerprint == fingerprint(job.task, job.args)
                answers[id] = Enqueued(holder.id, created=False, same_args=same, gone=holder.gone)
        new = again
    return answers


def _retakes(job: NewJob) -> bool:
    """May it take the key of a job that did not succeed?"""
    return job.unique is not None and job.unique.retake_failed


def key_of(job: NewJob) -> Key:
    """The full unique key: the tenant is always part of it."""
    assert job.unique is not None
    return job.tenant, job.unique.scope or job.task, job.unique.key


def key_row(
    key: Key, job_id: int, unique: Unique | None, task: str, args: Json
) -> dict[str, object]:
    """One row of `take_keys`."""
    assert unique is not None
    tenant, scope, name = key
    return {
        "tenant": tenant, "scope": scope, "key": name, "job_id": job_id, "until": unique.until,
        "fingerprint": fingerprint(task, args), "seconds": unique.period_seconds,
        "retake": unique.retake_failed,
    }  # fmt: skip


class Held(NamedTuple):
    """The job that holds a key."""

    id: int
    fingerprint: str
    gone: bool = False
    """It has finished and is no longer stored."""


async def take_keys(tx: Tx, wanted: dict[Key, dict[str, object]]) -> dict[Key, Held]:
    """Take each key or find its holder.

    The unique index decides. A holder may finish between the refusal and the look, so the two steps
    are repeated until each key is taken or has a known holder. (!) Not with keys taken: two calls
    that take keys out of order wait for each other.
    """
    held: dict[Key, Held] = {}
    for _ in range(_ROUNDS):
        took = given_back = False
        rows = [wanted[key] for key in sorted(wanted) if key not in held]
        for part in chunks(rows):
            taken = set(await tx.fetch_column("take_keys", rows=to_json(part)))
            for row in part:
                if row["job_id"] in taken:
                    held[_key(row)] = Held(int(str(row["job_id"])), str(row["fingerprint"]))
            took = took or bool(taken)
            refused = [row for row in part if row["job_id"] not in taken]
            if not refused:
                continue
            holders = await tx.fetch_as(KeyHolder, "key_holders", rows=to_json(refused))
            given_back = given_back or len(holders) < len(refused)
            for holder in holders:
                key = (holder.tenant, holder.scope, holder.key)
                if holder.over or (wanted[key]["retake"] and holder.outcome in _UNSUCCESSFUL):
                    await tx.fetch(
                        "drop_key", tenant=holder.tenant, scope=holder.scope, key=holder.key,
                        job_id=holder.job_id, expires_at=holder.expires_at, outcome=holder.outcome,
                    )  # fmt: skip
                else:
                    held[key] = Held(holder.job_id, holder.fingerprint, bool(holder.gone))
        if len(held) == len(wanted):
            return held
        if took and given_back:
            raise Outdated
    raise keys_changed_hands()


async def holders_of(tx: Tx, jobs: Sequence[NewJob]) -> dict[Key, int]:
    """Which jobs have the keys of these? Takes nothing."""
    rows = [dict(zip(("tenant", "scope", "key"), key_of(job), strict=True)) for job in jobs]
    found = await tx.fetch_as(KeyHolder, "key_holders", rows=to_json(rows))
    return {(each.tenant, each.scope, each.key): each.job_id for each in found}


def _key(row: dict[str, object]) -> Key:
    return str(row["tenant"]), str(row["scope"]), str(row["key"])


async def retake_key(tx: Tx, job: FinishedJob) -> None:
    """Take the unique key of a finished job again. Raises `KeyTaken` when another job has it."""
    key, scope, until = job.unique_key, job.unique_scope, job.unique_until
    if key is None or scope is None or until is None:
        return
    period = job.unique_seconds
    unique = Unique(key=key, scope=scope, until=Until(until), period_seconds=period)
    wanted = (job.tenant, scope, key)
    rows = {wanted: key_row(wanted, job.id, unique, job.task, Json(job.args.encode()))}
    for _ in range(_ROUNDS):
        holder = (await take_keys(tx, rows))[wanted]
        if holder.id != job.id:
            raise KeyTaken(
                f"job {holder.id} holds the unique key {key!r}; cancel it or wait for its end"
            )
        if unique.until not in OUTLIVING or await _hold_on(tx, wanted, job.id, period):
            return
    raise StoreBusy("the unique key changed hands too often; replay again")


async def _hold_on(tx: Tx, wanted: Key, id: int, seconds: float | None) -> bool:
    """(!) The holder is live again, and its period starts again. False: another job has the key.

    A key that the job has had since its first run is not locked yet. If its period is over, or if
    the job has failed, another transaction may give it to another job.
    """
    tenant, scope, key = wanted
    rows = await tx.fetch(
        "hold_key", tenant=tenant, scope=scope, key=key, job_id=id, seconds=seconds
    )
    return bool(rows)


async def free_keys_of(tx: Tx, jobs: Sequence[FinishedJob]) -> None:
    """Free the keys that these jobs hold, however long they were to be kept."""
    rows = [
        {"tenant": job.tenant, "scope": job.unique_scope, "key": job.unique_key, "job_id": job.id}
        for job in jobs if job.unique_key is not None
    ]  # fmt: skip
    if rows:
        await tx.fetch("free_keys", rows=to_json(rows))
