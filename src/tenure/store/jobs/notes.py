"""Progress reports and checkpoints of a running job. Fenced like a settlement."""

from collections.abc import Sequence
from datetime import datetime

from tenure.rules.codec import clean_text
from tenure.rules.job import Feature, Json
from tenure.rules.lifecycle import HeldJob
from tenure.rules.limits import check_json, check_progress
from tenure.store.jobs.settle import LANDED, MAX_MESSAGE, STALE, Answer
from tenure.store.moves import leased_rows
from tenure.store.records import LeasedJob
from tenure.store.session import Mode, Tx, for_all_tenants, to_json, transaction


@transaction(Mode.BEAT)
async def report_progress(
    tx: Tx,
    worker: str,
    reports: Sequence[tuple[HeldJob, float | None, str | None]],
    *,
    now: datetime | None = None,
) -> list[Answer]:
    """Note how far held jobs have come: (job, fraction, message). Fenced like a settlement."""
    for_all_tenants("report_progress", tx.tenant)
    for _, fraction, message in reports:
        check_progress(fraction, message)
    tx.at(now)
    held = await _hold_notes(tx, worker, [job for job, _, _ in reports])
    last = {  # of several reports about one job the last one counts
        job.id: {"id": job.id, "token": job.token, "fraction": fraction,
                 "message": None if message is None else clean_text(message, MAX_MESSAGE)}
        for job, fraction, message in reports if (job.id, job.token) in held
    }  # fmt: skip
    if last:
        await tx.fetch("report_progress", rows=to_json(list(last.values())))
    return [LANDED if (job.id, job.token) in held else STALE for job, _, _ in reports]


@transaction(Mode.WRITE)
async def save_checkpoint(
    tx: Tx, worker: str, job: HeldJob, checkpoint: Json, *, now: datetime | None = None
) -> Answer:
    """Keep the state from which a later attempt may go on. Fenced like a settlement."""
    for_all_tenants("save_checkpoint", tx.tenant)
    check_json("checkpoint", checkpoint)
    tx.at(now)
    if not await _hold_notes(tx, worker, [job]):
        return STALE
    await tx.fetch("save_checkpoint", id=job.id, token=job.token, checkpoint=checkpoint.decode())
    return LANDED


async def _hold_notes(tx: Tx, worker: str, jobs: Sequence[HeldJob]) -> set[tuple[int, int]]:
    leased = await tx.fetch_as(LeasedJob, "lock_leased", rows=leased_rows(jobs), worker=worker)
    fresh = [job.id for job in leased if not job.features & Feature.NOTES]
    if fresh:
        await tx.fetch("mark_noted", ids=to_json(fresh))
    return {(job.id, job.token) for job in leased}
