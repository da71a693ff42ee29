"""Progress reports, notes and checkpoints of a running job, and the mark of its only start.

Fenced like a settlement.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from tenure.rules.job import Json
from tenure.rules.lifecycle import HeldJob
from tenure.rules.limits import check_json, check_name, check_progress
from tenure.rules.notes import NoteValue, checked
from tenure.store.jobs.settle import LANDED, STALE, Answer
from tenure.store.notes import Told, hold_notes, write_told
from tenure.store.session import Mode, Tx, for_all_tenants, transaction


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
    return await _tell(
        tx, worker, [job for job, _, _ in reports],
        [Told(job.id, job.token, (fraction, message), None) for job, fraction, message in reports],
    )  # fmt: skip


@transaction(Mode.WRITE)
async def annotate(
    tx: Tx,
    worker: str,
    notes: Sequence[tuple[HeldJob, Mapping[str, NoteValue]]],
    *,
    now: datetime | None = None,
) -> list[Answer]:
    """Merge values into the notes of held jobs; None removes one. Fenced like a settlement.

    A name has up to 64 letters, digits and `_`; a text has up to 1,000 characters. A job has at
    most 64 notes and 8,192 bytes of them. If earlier notes and the new ones are too many together,
    the oldest go.
    """
    for_all_tenants("annotate", tx.tenant)
    told = [Told(job.id, job.token, None, checked(values)) for job, values in notes]
    tx.at(now)
    return await _tell(tx, worker, [job for job, _ in notes], told)


async def _tell(tx: Tx, worker: str, jobs: list[HeldJob], told: list[Told]) -> list[Answer]:
    held = await hold_notes(tx, worker, jobs)
    await write_told(tx, [each for each in told if (each.id, each.token) in held])
    return [LANDED if (job.id, job.token) in held else STALE for job in jobs]


@transaction(Mode.WRITE)
async def save_checkpoint(
    tx: Tx, worker: str, job: HeldJob, checkpoint: Json, *, now: datetime | None = None
) -> Answer:
    """Keep the state from which a later attempt may go on. Fenced like a settlement."""
    for_all_tenants("save_checkpoint", tx.tenant)
    check_json("checkpoint", checkpoint)
    tx.at(now)
    if not await hold_notes(tx, worker, [job]):
        return STALE
    await tx.fetch("save_checkpoint", id=job.id, token=job.token, checkpoint=checkpoint.decode())
    return LANDED


@transaction(Mode.WRITE)
async def start_once(tx: Tx, worker: str, job: HeldJob, *, now: datetime | None = None) -> Answer:
    """Record that the handler of a job with `at_most_once` starts now. It must not start if this
    does not land: then the lease has expired.

    From now on the job gets no other attempt: a settlement that would run it again, or a sweep,
    fails it. A second call for the same attempt lands, too.
    """
    for_all_tenants("start_once", tx.tenant)
    check_name("worker", worker)
    tx.at(now)
    marked = await tx.fetch(
        "start_once", id=job.id, token=job.token, lease=job.lease_id, worker=worker
    )
    return LANDED if marked else STALE
