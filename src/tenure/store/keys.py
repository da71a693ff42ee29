"""Unique keys: take, find the holder, take again for a replay. The unique index is the judge."""

from tenure.errors import KeyTaken, StoreBusy
from tenure.rules.codec import fingerprint
from tenure.rules.job import Enqueued, Json, NewJob, Unique, Until
from tenure.store.moves import Numbered, chunks
from tenure.store.records import FinishedJob, KeyHolder
from tenure.store.session import Tx, to_json

_ROUNDS = 20

Key = tuple[str, str, str]
"""Tenant, scope and key."""


async def claim_keys(tx: Tx, new: Numbered) -> dict[int, Enqueued]:
    """Take the unique keys of these jobs. Returns the holder for each job whose key was taken."""
    keyed = [(id, job, key_of(job)) for id, job in new]
    wanted: dict[Key, dict[str, object]] = {}
    for id, job, key in keyed:
        if key not in wanted:
            wanted[key] = key_row(key, id, job.unique, job.task, job.args)
    holders = await take_keys(tx, wanted)
    answers: dict[int, Enqueued] = {}
    for id, job, key in keyed:
        holder, print_held = holders[key]
        if holder != id:
            same = print_held == fingerprint(job.task, job.args)
            answers[id] = Enqueued(holder, created=False, same_args=same)
    return answers


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
    }  # fmt: skip


async def take_keys(tx: Tx, wanted: dict[Key, dict[str, object]]) -> dict[Key, tuple[int, str]]:
    """Take each key or find its holder: key -> (job id, fingerprint).

    The unique index decides. A holder may finish between the refusal and the look, so the two steps
    are repeated until each key is taken or has a known holder.
    """
    held: dict[Key, tuple[int, str]] = {}
    for _ in range(_ROUNDS):
        rows = [wanted[key] for key in sorted(wanted) if key not in held]
        for part in chunks(rows):
            taken = set(await tx.fetch_column("take_keys", rows=to_json(part)))
            for row in part:
                if row["job_id"] in taken:
                    held[_key(row)] = (int(str(row["job_id"])), str(row["fingerprint"]))
            refused = [row for row in part if row["job_id"] not in taken]
            if not refused:
                continue
            for holder in await tx.fetch_as(KeyHolder, "key_holders", rows=to_json(refused)):
                if holder.over:
                    await tx.fetch(
                        "drop_key", tenant=holder.tenant, scope=holder.scope, key=holder.key,
                        job_id=holder.job_id, expires_at=holder.expires_at,
                    )  # fmt: skip
                else:
                    key = (holder.tenant, holder.scope, holder.key)
                    held[key] = (holder.job_id, holder.fingerprint)
        if len(held) == len(wanted):
            return held
    raise StoreBusy("unique keys changed hands too often; enqueue again")


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
        holder, _print = (await take_keys(tx, rows))[wanted]
        if holder != job.id:
            raise KeyTaken(
                f"job {holder} holds the unique key {key!r}; cancel it or wait for its end"
            )
        if unique.until is not Until.PERIOD or await _begin_period(tx, wanted, job.id, period):
            return
    raise StoreBusy("the unique key changed hands too often; replay again")


async def _begin_period(tx: Tx, wanted: Key, id: int, seconds: float | None) -> bool:
    """(!) Start the period again. False: it was over, and another job has taken the key.

    A key that the job has had since its first run is not locked yet. If its period is over, another
    transaction may give it to another job.
    """
    tenant, scope, key = wanted
    rows = await tx.fetch(
        "begin_period", tenant=tenant, scope=scope, key=key, job_id=id, seconds=seconds
    )
    return bool(rows)
