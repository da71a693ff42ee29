"""prune: finished jobs, and all that belongs to them, go when they are past their retention."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from tenure.errors import ClockDoubted
from tenure.rules.limits import LONG_AGO, check_seconds
from tenure.rules.retention import HOPELESS, Verdict, judge_clock
from tenure.store.feed.readers import prune_feed
from tenure.store.look.workers import forget_dead
from tenure.store.records import Returned, Time
from tenure.store.schedules.fire import KEEP_TICKS_SECONDS, forget_ticks
from tenure.store.schedules.records import read_clock
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, to_json
from tenure.store.statistics.write import roll_up
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


class PruneClock(NamedTuple):
    """When the last prune was, and since when the clock is doubted."""

    trusted_at: Time
    doubted_at: Time


RETURNED_BY: Returned = {
    Stretch: ("history_stretches",),
    PrunedJob: ("prune_finished", "prune_kept"),
    PruneClock: ("read_prune_clock",),
}


async def prune(
    scope: Scope,
    *,
    succeeded_seconds: float = 7 * 86_400,
    other_seconds: float = 30 * 86_400,
    every_seconds: float | None = None,
    force: bool = False,
    now: datetime | None = None,
) -> int:
    """Delete finished jobs older than the retention, in batches. Returns the number of single rows.

    A job that says itself how long it is kept, or whose worker said it, is deleted by that alone.
    PostgreSQL drops whole days if possible, and creates the partitions of the next days. The jobs
    of a workflow are deleted together with the workflow, once its end is past the retention and
    none of them is kept for longer. Workers that were last seen a day ago are deleted, too. So are
    ticks of schedules whose job is finished, after the retention of succeeded jobs, or after a day
    if that is longer. Old statistics are added up to hours and days. Readers of the feed that were
    away for a week are given up.

    With `every_seconds`, nothing is done if the last prune was less than that ago. Raises
    `ClockDoubted`, and deletes nothing, if the clock has jumped ahead; with `force` it is trusted.
    So is a time that is given as `now`.
    """
    for_all_tenants("prune", scope.tenant)
    check_seconds("succeeded_seconds", succeeded_seconds)
    check_seconds("other_seconds", other_seconds)
    if every_seconds is not None:
        check_seconds("every_seconds", every_seconds)

    async def add_days(tx: Tx) -> None:
        tx.at(now)
        await tx.fetch("add_history_days", days=3)

    await scope.transact(add_days)
    if now is None and not await _is_due(scope, every_seconds, force):
        return 0

    async def read(tx: Tx) -> datetime:
        tx.at(now)
        return await read_clock(tx)

    clock = await scope.transact(read, Mode.READ)  # not this host's, which may be wrong
    cuts = _Cuts(
        clock - timedelta(seconds=succeeded_seconds), clock - timedelta(seconds=other_seconds)
    )
    removed = await forget_workflows(scope, *cuts, now=now)
    removed += await _prune_history(scope, cuts, now)
    await _prune_keys(scope, now)
    kept = timedelta(seconds=max(succeeded_seconds, KEEP_TICKS_SECONDS))
    await forget_ticks(scope, clock - kept, PRUNE_BATCH)
    await scope.transact(partial(forget_dead, now=now))
    await roll_up(scope, clock)
    await prune_feed(scope, now)
    return removed


async def _is_due(scope: Scope, every_seconds: float | None, force: bool) -> bool:
    """Was the last prune long enough ago? Raises `ClockDoubted` if the clock cannot be trusted."""

    async def judge(tx: Tx) -> bool | ClockDoubted:
        tx.at(None)
        clock = await read_clock(tx)
        trusted, doubted = clock, None
        for seen in await tx.fetch_as(PruneClock, "read_prune_clock"):
            trusted, doubted = tx.when(seen.trusted_at), tx.when_or_none(seen.doubted_at)
        ago = (clock - trusted).total_seconds()
        if not force and every_seconds is not None and 0 <= ago < every_seconds:
            return False
        verdict = Verdict.TRUST if force else judge_clock(clock, trusted, doubted)
        if verdict is Verdict.TRUST:
            trusted, doubted = clock, None
        elif verdict is Verdict.BEGIN_DOUBT:
            doubted = clock
        await tx.fetch(
            "write_prune_clock", trusted_at=tx.time(trusted), doubted_at=tx.time(doubted)
        )
        return verdict is Verdict.TRUST or ClockDoubted(_why_doubted(clock, trusted))

    verdict = await scope.transact(judge)
    if isinstance(verdict, ClockDoubted):  # raised here: that the doubt has begun is committed
        raise verdict
    return verdict


def _why_doubted(clock: datetime, trusted: datetime) -> str:
    ahead = clock - trusted
    later = "" if ahead > HOPELESS else ", or wait for a day: then it is trusted"
    return (
        f"nothing was pruned: the clock shows {clock:%Y-%m-%d %H:%M} UTC, {ahead.days} days after "
        f"the last prune at {trusted:%Y-%m-%d %H:%M}. If the clock is right, run "
        f"`tenure prune --force`{later}"
    )


async def _prune_history(scope: Scope, cuts: "_Cuts", now: datetime | None) -> int:
    """Remove finished jobs that belong to no workflow. Returns how many, without those of days
    that were dropped as a whole."""
    session = scope.session
    earliest = (session.pruned_until if now is None else None) or LONG_AGO

    async def drop_days(tx: Tx) -> int:
        tx.at(now)
        before = await oldest_workflow(tx, min(cuts))
        [dropped] = await tx.fetch_column("drop_history_days", before=tx.time(before))
        return int(dropped)

    async def stretches(tx: Tx) -> list[Stretch]:
        tx.at(now)
        return await tx.fetch_as(
            Stretch, "history_stretches", earliest=tx.time(earliest), latest=tx.time(max(cuts))
        )

    async def long_ago(tx: Tx) -> object:
        return tx.time(LONG_AGO)

    if await scope.transact(drop_days):
        await _prune_orphans(scope)
    removed = 0
    for start, stop in await scope.transact(stretches, Mode.READ):
        removed += await _walk(scope, "prune_finished", start, now, stop=stop, cuts=cuts)
    if now is None:
        session.pruned_until = min(cuts)
    return removed + await _walk(
        scope, "prune_kept", await scope.transact(long_ago, Mode.READ), now
    )


class _Cuts(NamedTuple):
    """Jobs that finished before these moments are due to go."""

    succeeded: datetime
    other: datetime


async def _walk(
    scope: Scope,
    statement: str,
    start: object,
    now: datetime | None,
    *,
    stop: object = None,
    cuts: _Cuts | None = None,
) -> int:
    """Walk along finished jobs, once, and remove those that are due. Returns how many."""
    removed = after = 0
    while True:

        async def step(tx: Tx, start: object = start, after: int = after) -> list[PrunedJob]:
            tx.at(now)
            await tx.fetch("walk_by_index")
            limits: dict[str, object] = {}
            if cuts is not None:
                limits = {
                    "stop": stop,
                    "succeeded_before": tx.time(cuts.succeeded),
                    "other_before": tx.time(cuts.other),
                }
            rows = await tx.fetch_as(
                PrunedJob, statement, start=start, after=after, most=PRUNE_BATCH, **limits
            )
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
