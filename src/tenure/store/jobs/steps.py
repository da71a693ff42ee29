"""step: the result of a part of a job is stored, so that a later attempt need not run it again.

Fenced like a settlement: the job is locked by (id, token), and the worker's own lease row must be
there. Jobs without steps pay nothing: the flag on the job's row tells the next attempt to look.
"""

from datetime import datetime

from tenure.errors import PayloadTooLarge, StepConflict, TooManySteps
from tenure.rules.codec import MAX_BYTES
from tenure.rules.job import Feature, NewStep
from tenure.rules.lifecycle import HeldJob
from tenure.rules.limits import MAX_STEP_BYTES, MAX_STEPS
from tenure.store.jobs.settle import LANDED, STALE, Answer
from tenure.store.moves import lock_leased
from tenure.store.records import FoundStep
from tenure.store.session import Mode, Tx, for_all_tenants, transaction


@transaction(Mode.WRITE)
async def record_step(
    tx: Tx, worker: str, job: HeldJob, step: NewStep, *, now: datetime | None = None
) -> Answer:
    """Store the result of a step of a claimed job. Fenced like a settlement.

    To record the same step again under the same token changes nothing. Raises `StepConflict` if the
    job has another step of this name, and `TooManySteps` if it has the maximum number.
    """
    for_all_tenants("record_step", tx.tenant)
    if len(step.result) > MAX_BYTES:
        raise PayloadTooLarge(
            f"the result of step {step.name!r} has {len(step.result):,} bytes as JSON; at most "
            f"{MAX_BYTES:,} fit. Store the data elsewhere and return a reference to it"
        )
    tx.at(now)
    leased = await lock_leased(tx, worker, job)
    if leased is None:
        return STALE
    recorded = await tx.fetch(
        "record_step", id=job.id, token=job.token, name=step.name, function=step.function,
        result=step.result.decode(), bytes=len(step.result), most_steps=MAX_STEPS,
        most_bytes=MAX_STEP_BYTES,
    )  # fmt: skip
    if not recorded:
        await _recorded_before(tx, job, step)
    if not leased.features & Feature.STEPS:
        await tx.fetch("mark_stepped", id=job.id)
    return LANDED


async def _recorded_before(tx: Tx, job: HeldJob, step: NewStep) -> None:
    """A repeat after an unanswered COMMIT finds its own row. Anything else is refused."""
    found = await tx.fetch_as(FoundStep, "find_step", id=job.id, name=step.name)
    if found == [FoundStep(job.token, step.function, step.result.decode())]:
        return
    if found:
        raise StepConflict(
            f"job {job.id} has recorded another step {step.name!r} already; give each step of a "
            "job a name of its own"
        )
    raise TooManySteps(
        f"step {step.name!r} is one too many for job {job.id}: a job has at most {MAX_STEPS:,} "
        f"steps, with results of {MAX_STEP_BYTES:,} bytes in all. Use larger steps, or jobs of "
        "their own, and return references to large data"
    )
