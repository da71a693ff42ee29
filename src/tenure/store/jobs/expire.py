"""expire: jobs that were not started in time end as skipped. So does a claim that meets them.

A job that has used an attempt does not expire. The index `job_start_by` has the others alone, so
the walk meets few that it has to leave: those that run now.
"""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import NamedTuple

from tenure.rules.job import Feature, State
from tenure.rules.lifecycle import EXPIRED
from tenure.rules.limits import check_int
from tenure.rules.retention import Keep, check_keep
from tenure.store.moves import finish_jobs
from tenure.store.records import LateJob, LockedJob, Time
from tenure.store.rows import Finish
from tenure.store.session import Scope, Tx, for_all_tenants, to_json
from tenure.store.workflows.act import before_waiting_nodes_end
from tenure.store.workflows.end import end_workflows
from tenure.store.workflows.nodes import take_node_tickets

MAX_PAGE = 1000


class _Page(NamedTuple):
    """What one transaction did, and where the next one goes on."""

    ended: int
    at: Time
    id: int


async def expire(
    scope: Scope,
    *,
    most: int = 500,
    keep: Mapping[str, Keep] | None = None,
    now: datetime | None = None,
) -> int:
    """End the jobs that were not started in time as skipped. Returns how many.

    Each transaction looks at up to `most` jobs. Running jobs are left alone. `keep`: as in
    `settle`.
    """
    for_all_tenants("expire", scope.tenant)
    check_int("most", most, 1, MAX_PAGE)
    if keep is not None:
        check_keep(keep)
    page: _Page | None = _Page(0, None, 0)
    ended = 0
    while page is not None:
        op = partial(_expire, after=page, most=most, keep=keep, now=now)
        page = await scope.transact(op)
        ended += 0 if page is None else page.ended
    return ended


async def _expire(
    tx: Tx, after: _Page, most: int, keep: Mapping[str, Keep] | None, now: datetime | None
) -> _Page | None:
    """(!) The jobs are locked before their tickets are taken: one without a ticket is running."""
    tx.at(now)
    tx.keep_by(keep)
    late = await tx.fetch_as(LateJob, "late_jobs", after=after.at, after_id=after.id, most=most)
    if not late:
        return None
    ids = to_json([job.id for job in late])
    jobs = await tx.fetch_as(LockedJob, "lock_live_jobs", ids=ids, tenant=None)
    nodes = [job.id for job in jobs if job.parked == "parents" and job.features & Feature.WORKFLOW]
    await before_waiting_nodes_end(tx, nodes)
    taken = await take_node_tickets(tx, jobs)
    ending = [job for job in jobs if job.parked is not None or job.id in taken]
    if ending:
        ends = [Finish(job.id, job.token, State.SKIPPED, reason=EXPIRED) for job in ending]
        await finish_jobs(tx, ends)
        await end_workflows(tx)
    return _Page(len(ending), late[-1].start_by, late[-1].id)
