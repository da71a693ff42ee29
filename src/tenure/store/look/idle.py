"""Whether queues have any work left."""

from collections.abc import Collection
from datetime import datetime

from tenure.rules.limits import check_name, check_seconds
from tenure.store.session import Mode, Tx, for_all_tenants, to_json, transaction


@transaction(Mode.READ)
async def is_idle(
    tx: Tx, queues: Collection[str], *, within_seconds: float = 0.0, now: datetime | None = None
) -> bool:
    """Do these queues have no work left: no job that is ready, running, or due within this time?

    Running jobs of all workers count, because they may fail and come back. Held jobs, jobs of
    paused queues and jobs that wait for parents do not count.
    """
    for_all_tenants("is_idle", tx.tenant)
    for name in queues:
        check_name("queue", name)
    check_seconds("within_seconds", within_seconds)
    tx.at(now)
    [(busy,)] = await tx.fetch("is_busy", queues=to_json([*queues]), within_seconds=within_seconds)
    return not busy
