"""Parts of a replay, given a row of `finished_job`: what it said, and its unique key."""

from tenure.errors import KeyTaken
from tenure.job import Json, Unique, Until
from tenure.store.enqueue import key_row, take_keys
from tenure.store.rows import Happening
from tenure.store.session import Row, Tx


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
    holder, _ = (await take_keys(tx, rows))[wanted]
    if holder != id:
        raise KeyTaken(f"job {holder} holds the unique key {key!r}; cancel it or wait for its end")
