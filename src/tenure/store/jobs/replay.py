"""replay: a finished job runs again."""

from datetime import datetime

from tenure.errors import JobNotFound
from tenure.rules.job import Feature, State
from tenure.rules.limits import JobId, id_of
from tenure.store.jobs.operate import done_before, finished_job, lock_job
from tenure.store.keys import retake_key
from tenure.store.moves import add_events, finished_before, note_new_tickets
from tenure.store.notes import noted
from tenure.store.records import AddedTicket
from tenure.store.rows import NewEvent
from tenure.store.session import Mode, Tx, to_json, transaction
from tenure.store.workflows.replay import replay_node


@transaction(Mode.WRITE)
async def replay(tx: Tx, id: JobId, *, afresh: bool = False, now: datetime | None = None) -> bool:
    """Run a finished job again: token + 1, attempts 0, its unique key retaken.

    A job that succeeded starts from the beginning. Any other job continues with its steps and its
    checkpoint, unless `afresh` deletes them. Children that still wait, wait for its new end.
    Returns False if the job is live already. Raises `KeyTaken` if another job has its unique key.
    A node opens its workflow again: nodes below it that were skipped or cancelled wait again, and
    the node itself waits for parents that are live.
    """
    id = id_of(id)
    tx.at(now)
    if await done_before(tx, id):
        return True
    job = await finished_job(tx, id)
    if job is None:
        if await lock_job(tx, id) is None:
            raise JobNotFound(f"there is no job {id}")
        return False
    if afresh or job.state == State.SUCCEEDED:
        await _forget_work(tx, id, job.features)
    if job.features & Feature.WORKFLOW:
        return await replay_node(tx, job)
    await retake_key(tx, job)
    notes = await noted(tx, {id: job.features})
    waiting = await tx.fetch("reopen_edges", id=id)
    features = Feature.CHILDREN if waiting else 0
    await note_new_tickets(tx, await tx.fetch_as(AddedTicket, "replay", id=id, features=features))
    replayed = NewEvent(id, job.token + 1, "replayed", request_id=tx.request_id)
    await add_events(tx, [finished_before(tx, job, notes), replayed])
    return True


async def _forget_work(tx: Tx, id: int, features: int) -> None:
    """What earlier attempts have left to go on from."""
    if features & Feature.STEPS:
        await tx.fetch("forget_steps", id=id)
    if features & Feature.NOTES:
        await tx.fetch("forget_checkpoints", ids=to_json([id]))
