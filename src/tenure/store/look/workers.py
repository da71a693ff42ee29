"""The list of workers, for people to read: announce, retire, workers.

A worker announces itself when it starts and with its heartbeats. Nothing is decided by the list:
after a worker has died, only its leases decide about its jobs.
"""

from datetime import datetime

import msgspec

from tenure.errors import InvalidInput
from tenure.rules.codec import encode
from tenure.rules.job import Setting, WorkerInfo, WorkerLoad, WorkerSeen
from tenure.rules.limits import check_int, check_name, check_seconds
from tenure.store.look.records import HeldRow, WorkerRow
from tenure.store.session import Mode, Tx, for_all_tenants, transaction

MAX_WORKERS = 10_000
ALIVE_SECONDS = 30.0
"""A worker that was seen within this time counts as alive."""
FORGET_SECONDS = 86_400.0
"""`prune` forgets a worker that was last seen longer ago than this."""


class _Info(msgspec.Struct, frozen=True):
    """The column `info`. Fields that another version has added or left out are no error."""

    queues: dict[str, int] = {}
    tasks: tuple[str, ...] = ()
    settings: dict[str, Setting] = {}
    counts: dict[str, int] = {}
    load: WorkerLoad = WorkerLoad()


_decoder = msgspec.json.Decoder(_Info)


@transaction(Mode.BEAT)
async def announce(tx: Tx, info: WorkerInfo, *, now: datetime | None = None) -> None:
    """Put a worker on the list, or note that it is still alive.

    Only `workers` and `why` read this: a worker that does not announce itself can still work.
    """
    for_all_tenants("announce", tx.tenant)
    if not isinstance(info, WorkerInfo):
        raise InvalidInput(f"announce takes a WorkerInfo record, not {type(info).__name__}")
    kept = encode(_Info(info.queues, info.tasks, info.settings, info.counts, info.load))
    tx.at(now)
    await tx.fetch("announce", name=info.name, host=info.host, pid=info.pid, info=kept.decode())


@transaction(Mode.BEAT)
async def retire(tx: Tx, worker: str, *, now: datetime | None = None) -> None:
    """Remove a worker from the list, because it has stopped."""
    for_all_tenants("retire", tx.tenant)
    check_name("worker", worker)
    tx.at(now)
    await tx.fetch("retire", name=worker)


@transaction(Mode.READ)
async def workers(
    tx: Tx,
    *,
    alive_seconds: float = ALIVE_SECONDS,
    limit: int = 1000,
    now: datetime | None = None,
) -> list[WorkerSeen]:
    """Workers that have announced themselves: workers that are alive first, newest first.

    A worker is alive if it was seen within `alive_seconds`. The others have died or cannot reach
    the database; `prune` forgets them after a day.
    """
    for_all_tenants("workers", tx.tenant)
    check_seconds("alive_seconds", alive_seconds)
    check_int("limit", limit, 1, MAX_WORKERS)
    tx.at(now)
    seen = await seen_workers(tx, alive_seconds, limit)
    held = {row.worker: row.jobs for row in await tx.fetch_as(HeldRow, "held_jobs")}
    return [msgspec.structs.replace(each, running=held.get(each.name, 0)) for each in seen]


async def seen_workers(
    tx: Tx, alive_seconds: float = ALIVE_SECONDS, limit: int = 1000
) -> list[WorkerSeen]:
    """A part of `workers` and of `why`. Their running jobs are not counted."""
    rows = await tx.fetch_as(WorkerRow, "list_workers", alive_seconds=alive_seconds, most=limit)
    return [_seen(tx, row) for row in rows]


async def forget_dead(tx: Tx, *, now: datetime | None = None) -> None:
    """A part of `prune`: forget workers that were last seen a day ago or longer."""
    tx.at(now)
    await tx.fetch("prune_workers", seconds=FORGET_SECONDS)


def _seen(tx: Tx, row: WorkerRow) -> WorkerSeen:
    kept = _read(row.info)
    return WorkerSeen(
        name=row.name, host=row.host, pid=row.pid, queues=kept.queues, tasks=kept.tasks,
        settings=kept.settings, counts=kept.counts, started_at=tx.when(row.started_at),
        seen_at=tx.when(row.seen_at), alive=bool(row.alive), load=kept.load,
    )  # fmt: skip


def _read(info: str) -> _Info:
    try:
        return _decoder.decode(info)
    except msgspec.MsgspecError:  # written by other code: the worker is still shown
        return _Info()
