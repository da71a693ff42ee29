"""Parts of a replay, given a row of `finished_job`: what it said, and its unique key."""

from tenure.errors import KeyTaken, StoreBusy
from tenure.rules.job import Json, Unique, Until
from tenure.store.jobs.enqueue import Key, key_row, take_keys
from tenure.store.rows import Happening
from tenure.store.session import Row, Tx

_ROUNDS = 20


def ended_before(tx: Tx, row: Row) -> Happening:
    """What the row of history said, as a line of the story."""
    id, token, state, worker, finished_at, reason, claimed_at = (
        row[0], row[1], row[2], row[11], row[12], row[13], row[14],
    )  # fmt: skip
    detail: dict[str, object] = {"reason": reason}
    if claimed_at is not None:
        detail["claimed_at"] = tx.when(claimed_at)
    return Happening(id, token, state, worker, detail, tx.time(tx.when(finished_at)))


async def retake_key(tx: Tx, row: Row) -> None:
    """Take the unique key of a finished job again. Raises `KeyTaken` when another job has it."""
    id, tenant, task, args, scope, key, until, period = (
        row[0], row[3], row[4], row[5], row[6], row[7], row[8], row[9],
    )  # fmt: skip
    if key is None:
        return
    unique = Unique(key=key, scope=scope, until=Until(until), period_seconds=period)
    wanted = (tenant, scope, key)
    rows = {wanted: key_row(wanted, id, unique, task, Json(args.encode()))}
    for _ in range(_ROUNDS):
        holder, _print = (await take_keys(tx, rows))[wanted]
        if holder != id:
            raise KeyTaken(
                f"job {holder} holds the unique key {key!r}; cancel it or wait for its end"
            )
        if unique.until is not Until.PERIOD or await _begin_period(tx, wanted, id, period):
            return
    raise StoreBusy("the unique key changed hands too often; replay again")


async def _begin_period(tx: Tx, wanted: Key, id: int, seconds: float | None) -> bool:
    """(!) The period begins anew. False: it was over, and somebody was faster.

    A key that is ours since the first run is not locked yet, and whoever thinks that its period is
    over may give it to another job.
    """
    tenant, scope, key = wanted
    rows = await tx.fetch(
        "begin_period", tenant=tenant, scope=scope, key=key, job_id=id, seconds=seconds
    )
    return bool(rows)
