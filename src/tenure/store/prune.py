"""prune: finished jobs, and all that belongs to them, go when they are past their retention."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from tenure.rules.limits import LONG_AGO, check_seconds
from tenure.store.look.workers import forget_dead
from tenure.store.records import Returned, Time
from tenure.store.schedules.fire import KEEP_TICKS_SECONDS, forget_ticks
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json
from tenure.store.workflows.prune import forget_workflows, oldest_workflow


class Stretch(NamedTuple):
    """A stretch of time that one partition of history serves."""

    start: Time
    stop: Time


class PrunedJob(NamedTuple):
    """A job that is gone; without an id, how far this step has walked."""

    id: int | None
    start: Time
    after: int | None


RETURNED_BY: Returned = {
    Stretch: ("history_stretches",),
    PrunedJob: ("prune_finished",),
}


async def prune(
    scope: Scope,
    *,
    succeeded_seconds: float = 7 * 86_400,
    other_seconds: float = 30 * 86_400,
    now: datetime | None = None,
) -> int:
    """Delete finished jobs older than the retention, in batches. Returns the number of single rows.

    PostgreSQL drops whole days if possible, and creates the partitions of the next days. The jobs
    of a workflow are deleted together with the workflow, once its end is past the retention.
    Workers that were last seen a day ago are deleted, too. So are ticks of schedules whose job is
    finished, after the retention of succeeded jobs, or after a day if that is longer.
    """
    for_all_tenants("prune", scope.tenant)
    check_seconds("succeeded_seconds", succeeded_seconds)
    check_seconds("other_seconds", other_seconds)

    async def read_clock(tx: Tx) -> datetime:
        tx.at(now)
        [clock] = await tx.fetch_column("clock")
        return tx.when(clock)

    clock = await scope.transact(read_clock, Mode.READ)  # not this host's, which may be wrong
    cuts = _Cuts(
        clock - timedelta(seconds=succeeded_seconds), clock - timedelta(seconds=other_seconds)
    )

    async def add_days(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("add_history_days", days=3)

    async def drop_days(tx: Tx) -> int:
        tx.at(now)
        before = await oldest_workflow(tx, min(cuts))
        [dropped] = await tx.fetch_column("drop_history_days", before=tx.time(before))
        return int(dropped)

    async def stretches(tx: Tx) -> list[Stretch]:
        tx.at(now)
        return await tx.fetch_as(Stretch, "history_stretches", latest=tx.time(max(cuts)))

    await scope.transact(add_days)
    removed = await forget_workflows(scope, *cuts, now=now)
    if await scope.transact(drop_days):
        await _prune_orphans(scope)
    for start, stop in await scope.transact(stretches, Mode.READ):
        removed += await _prune_stretch(scope, start, stop, cuts, now)
    await _prune_keys(scope, now)
    kept = timedelta(seconds=max(succeeded_seconds, KEEP_TICKS_SECONDS))
    await forget_ticks(scope, clock - kept, PRUNE_BATCH)
    await scope.transact(partial(forget_dead, now=now))
    return removed


class _Cuts(NamedTuple):
    """Jobs that finished before these moments are due to go."""

    succeeded: datetime
    other: datetime


async def _prune_stretch(
    scope: Scope, start: object, stop: object, cuts: _Cuts, now: datetime | None
) -> int:
    """Walk along the finished jobs of a stretch of time, once, and remove those that are due."""
    removed = after = 0
    while True:

        async def step(tx: Tx, start: object = start, after: int = after) -> list[PrunedJob]:
            tx.at(now)
            await tx.fetch("walk_by_index")
            rows = await tx.fetch_as(
                PrunedJob, "prune_finished", start=start, stop=stop, after=after, most=PRUNE_BATCH,
                succeeded_before=tx.time(cuts.succeeded), other_before=tx.time(cuts.other),
            )  # fmt: skip
            if gone := [row.id for row in rows if row.id is not None]:
                await tx.fetch("forget_jobs", ids=to_json(gone))
            return rows

        rows = await scope.transact(step)
        reached = [row for row in rows if row.id is None]
        if not reached:
            return removed
        [last] = reached
        assert last.after is not None
        start, after = last.start, last.after
        removed += len(rows) - 1


async def _prune_keys(scope: Scope, now: datetime | None) -> None:
    """Give back the unique keys whose period is over, in batches."""
    after: object = None
    while True:

        async def step(tx: Tx, after: object = after) -> list[Any]:
            tx.at(now)
            since = tx.time(LONG_AGO) if after is None else after
            return await tx.fetch_column("prune_keys", after=since, most=PRUNE_BATCH)

        expired = await scope.transact(step)
        if not expired:
            return
        after = max(expired)


async def _prune_orphans(scope: Scope) -> None:
    """Forget the jobs of dropped days: a walk along the ids of all that has a story, in batches."""
    walked: int | None = 0
    while walked is not None:
        after = walked

        async def walk(tx: Tx, after: int = after) -> int | None:
            [last] = await tx.fetch_column("prune_orphans", after=after, most=PRUNE_BATCH)
            return None if last is None else int(last)

        walked = await scope.transact(walk)


PRUNE_BATCH = 1000
