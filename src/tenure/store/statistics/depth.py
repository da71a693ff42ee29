"""sample_depth, depth: live jobs are counted now and then, and everyone reads the last count.

To count takes one walk along all live jobs, about half a second for a million. One process does it
at a time. It takes at most a hundredth of the time: the longer it took, the later is the next one.
"""

from datetime import datetime
from functools import partial

from tenure.rules.job import State
from tenure.rules.limits import check_seconds
from tenure.rules.statistics import WRITE_SECONDS, Depth, QueueDepth
from tenure.store.look.records import OldestRow
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json, transaction
from tenure.store.statistics.records import DepthOfQueue, SampledDepth

SHARE = 100
"""After a sample, this many times as long as it took until the next one."""
_STATES = (State.WAITING, State.SCHEDULED, State.QUEUED, State.RUNNING)


async def sample_depth(
    scope: Scope,
    *,
    every_seconds: float = WRITE_SECONDS,
    force: bool = False,
    now: datetime | None = None,
) -> bool:
    """Count the live jobs by queue and state for `depth`, if it is time. Returns whether it was.

    It is time `every_seconds`, and later if the last sample took long; with `force`, now.
    """
    for_all_tenants("sample_depth", scope.tenant)
    check_seconds("every_seconds", every_seconds)

    async def begin(tx: Tx) -> object:
        tx.at(now)
        return next(iter(await tx.fetch_column("begin_depth", force=force)), None)

    async def count(tx: Tx) -> list[dict[str, object]]:
        tx.at(now)
        queues = await tx.fetch_as(DepthOfQueue, "count_depth")
        oldest = {row.queue: row.since for row in await tx.fetch_as(OldestRow, "oldest_ready")}
        return [
            {"queue": row.queue, "state": state, "jobs": getattr(row, state),
             "oldest_at": oldest.get(row.queue) if state is State.QUEUED else None}
            for row in queues for state in _STATES if getattr(row, state)
        ]  # fmt: skip

    began = await scope.transact(begin)
    if began is None:
        return False
    rows = await scope.transact(count, Mode.COUNT)
    await scope.transact(partial(_end, began=began, rows=rows, every=every_seconds, now=now))
    return True


async def _end(
    tx: Tx, began: object, rows: list[dict[str, object]], every: float, now: datetime | None
) -> None:
    tx.at(now)
    named = {"sampled_at": began, "began": began, "every": every, "factor": SHARE}
    if await tx.fetch("end_depth", **named):
        await tx.fetch("clear_depth")
        await tx.fetch("write_depth", rows=to_json(rows))


@transaction(Mode.READ)
async def depth(tx: Tx, *, now: datetime | None = None) -> Depth | None:
    """How many live jobs there are, by queue and state, as they were last counted, and how long ago
    that was. It reads no job. None: they were never counted.

    Workers count them every ten seconds, or less often if there are many jobs.
    """
    for_all_tenants("depth", tx.tenant)
    tx.at(now)
    rows = await tx.fetch_as(SampledDepth, "read_depth")
    if not rows:
        return None
    queues = tuple(
        QueueDepth(row.queue, row.state, row.jobs, tx.when_or_none(row.oldest_at))
        for row in rows if row.queue is not None
    )  # fmt: skip
    first = rows[0]
    return Depth(tx.when(first.sampled_at), first.age_seconds, first.took_seconds, queues)
