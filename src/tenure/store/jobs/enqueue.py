"""enqueue: jobs come in, with their tickets, their unique keys and their parents."""

from collections.abc import Awaitable, Sequence
from datetime import datetime
from itertools import islice

from tenure.errors import StoreBusy
from tenure.rules.codec import fingerprint
from tenure.rules.job import Enqueued, NewJob
from tenure.store.jobs.replace import replace_holders, replaced_before
from tenure.store.keys import claim_keys
from tenure.store.moves import Numbered, insert_new, stamp
from tenure.store.records import StoredJob
from tenure.store.session import Collided, Mode, Scope, Tx, to_json

_JOBS = frozenset({NewJob})


async def enqueue(
    scope: Scope, jobs: Sequence[NewJob], *, on: object | None = None, now: datetime | None = None
) -> list[Enqueued]:
    """Store all of these jobs, or none: one transaction, one answer per job, in order.

    With `on`, the caller's own connection or session, the jobs become real when the caller commits,
    and vanish when the caller rolls back; nothing is committed here. What is refused leaves no row.
    """
    if scope.tenant is None and _JOBS.issuperset(map(type, jobs)):
        jobs = list(jobs)
    else:
        jobs = [stamp(job, scope.tenant) for job in jobs]
    if not jobs:
        return []
    if on is not None:
        lone = len(jobs) == 1 and not jobs[0].parents
        return await scope.run_borrowed(on, _Addition(jobs, None, now), lone=lone)
    ids = await scope.session.reserve_ids(len(jobs))
    return await scope.transact_joint(_Addition(jobs, ids, now), _mode(jobs))


def _mode(jobs: list[NewJob]) -> Mode:
    """One job without a key, parents and a gate is one statement: see `enqueue_in`.

    (On PostgreSQL 3 round trips became 1, or 2 with a notification.)
    """
    [job, *others] = jobs
    is_lone = not others and job.unique is None and not job.parents and job.gate is None
    return Mode.LONE if is_lone else Mode.WRITE


class _Addition:
    """The jobs of one call. What several callers add at the same time is written as one batch."""

    __slots__ = ("ids", "jobs", "now")

    def __init__(self, jobs: list[NewJob], ids: list[int] | None, now: datetime | None) -> None:
        self.jobs = jobs
        self.ids = ids
        self.now = now

    def __call__(self, tx: Tx, /) -> Awaitable[list[Enqueued]]:
        return enqueue_in(tx, self.jobs, self.ids, self.now)

    def goes_with(self, other: object) -> bool:
        return type(other) is _Addition and other.now == self.now and self.ids is None

    async def together(self, tx: Tx, ops: "Sequence[_Addition]") -> list[list[Enqueued]]:
        jobs = [job for op in ops for job in op.jobs]
        answers = iter(await enqueue_in(tx, jobs, None, self.now))
        return [list(islice(answers, len(op.jobs))) for op in ops]


async def enqueue_in(
    tx: Tx, jobs: list[NewJob], ids: list[int] | None, now: datetime | None
) -> list[Enqueued]:
    """The same as a part of a transaction, under ids that were drawn or reserved before, if any."""
    tx.at(now)
    if ids is None:
        ids = await tx.draw_ids(len(jobs))
    new = list(zip(ids, jobs, strict=True))
    answers: dict[int, Enqueued] = {}
    if tx.collided:
        answers = {id: Enqueued(id) for id in await _already_stored(tx, new)}
        answers |= await replaced_before(tx, new)
        new = [(id, job) for id, job in new if id not in answers]
    keyed = [(id, job) for id, job in new if job.unique is not None]
    held = await claim_keys(tx, keyed) if keyed else {}
    if held:
        answers |= held
        new = [(id, job) for id, job in new if id not in held]
    await insert_new(tx, new)
    if held and any(job.unique is not None and job.unique.on_conflict for _, job in keyed):
        await replace_holders(tx, keyed, held)
        answers |= held
    if tx.repeat and not tx.collided and await _landed_before(tx, new, keyed, list(held)):
        raise Collided
    if not answers:
        return list(map(Enqueued, ids))
    return [answers.get(id) or Enqueued(id) for id in ids]


async def _already_stored(tx: Tx, new: Numbered) -> set[int]:
    """Which of these jobs did the unanswered first try store? A stranger's row is not ours.

    The arguments of a job with a key may have been replaced since.
    """
    numbered = dict(new)
    stored = set()
    for found in await tx.fetch_as(StoredJob, "stored_jobs", ids=to_json(list(numbered))):
        job = numbered[found.id]
        same = (found.task, found.queue, found.tenant) == (job.task, job.queue, job.tenant)
        if same and job.unique is None:
            found_print = fingerprint(found.task, found.args.encode())
            same = found_print == fingerprint(job.task, job.args)
        if not same:
            raise StoreBusy(f"job id {found.id} was issued twice by the database; enqueue again")
        stored.add(found.id)
    return stored


async def _landed_before(tx: Tx, new: Numbered, keyed: Numbered, refused: list[int]) -> bool:
    """(!) Did the first try land? Its jobs may have finished, or lost their keys, since.

    So may the jobs that it has replaced. Asked after the insert: a first try that was still
    committing has committed by then.
    """
    if await replaced_before(tx, keyed):
        return True
    if refused and await tx.fetch("stored_jobs", ids=to_json(refused)):
        return True
    ids = to_json([id for id, _ in new])
    return bool(new) and bool(await tx.fetch("finished_among", ids=ids))
