"""enqueue: jobs come in, with their tickets, their unique keys and their parents."""

from collections.abc import Awaitable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec

from tenure.errors import InvalidInput, JobNotFound, StoreBusy, TenantMismatch
from tenure.rules.codec import fingerprint
from tenure.rules.job import Enqueued, Json, NewJob, Unique
from tenure.store.gates.passing import give_turns
from tenure.store.jobs.settle import free_children
from tenure.store.session import Collided, Mode, Scope, Tx, to_json

ROWS_PER_STATEMENT = 1000
_KEY_ROUNDS = 20
_PARENT_ROUNDS = 3

_JOBS = frozenset({NewJob})

T = TypeVar("T")
Key = tuple[str, str, str]
Numbered = list[tuple[int, NewJob]]


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
        return await scope.lend(on, _Addition(jobs, None, now), lone=lone)
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
        new = [(id, job) for id, job in new if id not in answers]
    held = await claim_keys(tx, new)
    if held:
        answers |= held
        new = [(id, job) for id, job in new if id not in held]
    await insert_new(tx, new)
    if tx.repeat and not tx.collided and await _landed_before(tx, new, list(held)):
        raise Collided
    if not answers:
        return list(map(Enqueued, ids))
    return [answers.get(id) or Enqueued(id) for id in ids]


def stamp(job: NewJob, tenant: str | None) -> NewJob:
    """The job with the tenant of the store; one of another tenant is refused."""
    if not isinstance(job, NewJob):
        raise InvalidInput(f"enqueue takes NewJob records, not {type(job).__name__}")
    if tenant is None or job.tenant == tenant:
        return job
    if job.tenant:
        raise TenantMismatch(
            f"this store works for tenant {tenant!r}; it cannot enqueue for {job.tenant!r}"
        )
    return msgspec.structs.replace(job, tenant=tenant)


async def insert_new(tx: Tx, new: Numbered) -> None:
    """Write these jobs, with their tickets, their places at gates and their parents."""
    for part in _chunks(new):
        await tx.insert_jobs(part)
    special = [(id, job) for id, job in new if job.parents or job.gate is not None]
    if special:
        await _insert_special(tx, special)


async def _insert_special(tx: Tx, new: Numbered) -> None:
    gated = [id for id, job in new if job.gate is not None]
    for part in _chunks(gated):
        await give_turns(tx, part)
    children = {id: job for id, job in new if job.parents}
    if children:
        await _join_parents(tx, children)


async def _join_parents(tx: Tx, children: dict[int, NewJob]) -> None:
    """Tie children to their parents. Parents that are final already count as such at once.

    Every parent is locked where it is, live or in history, before the edges are written: one that
    settles, is replayed or deleted at the same time waits, or is seen.
    """
    wanted = {(parent, job.tenant) for job in children.values() for parent in job.parents}
    rows = to_json([{"id": id, "tenant": tenant} for id, tenant in sorted(wanted)])
    missing = {id for id, _ in wanted}
    torn = {id for id in missing if len({tenant for other, tenant in wanted if other == id}) > 1}
    for _ in range(_PARENT_ROUNDS):  # a replay moves a parent from history to live between the two
        for lock in ("mark_parents", "lock_finished_parents"):
            missing -= {row[0] for row in await tx.fetch(lock, rows=rows)}
        if not missing:
            break
    missing |= torn  # wanted for two tenants: for one of them it does not exist
    if missing:
        raise JobNotFound(
            f"parent {min(missing)} does not exist for this tenant; enqueue parents first"
        )
    edges = [
        {"job_id": id, "parent_id": parent}
        for id, job in children.items()
        for parent in dict.fromkeys(job.parents)
    ]
    await tx.fetch("add_parents", rows=to_json(edges))
    await free_children(tx, list(children))


async def _already_stored(tx: Tx, new: Numbered) -> set[int]:
    """Which of these jobs did the unanswered first try store? A stranger's row is not ours."""
    numbered = dict(new)
    stored = set()
    for id, task, args, queue, tenant in await tx.fetch("stored_jobs", ids=to_json(list(numbered))):
        job = numbered[id]
        same = (task, queue, tenant) == (job.task, job.queue, job.tenant)
        if not same or fingerprint(task, args.encode()) != fingerprint(job.task, job.args):
            raise StoreBusy(f"job id {id} was issued twice by the database; enqueue again")
        stored.add(id)
    return stored


async def _landed_before(tx: Tx, new: Numbered, refused: list[int]) -> bool:
    """(!) Did the first try land? Its jobs may have finished, or lost their keys, since.

    Asked after the insert: whoever was still committing has then committed.
    """
    if refused and await tx.fetch("stored_jobs", ids=to_json(refused)):
        return True
    ids = to_json([id for id, _ in new])
    return bool(new) and bool(await tx.fetch("finished_among", ids=ids))


async def claim_keys(tx: Tx, new: Numbered) -> dict[int, Enqueued]:
    """Take the unique keys of these jobs. Answers for every job whose key was already held."""
    keyed = [(id, job, key_of(job)) for id, job in new if job.unique is not None]
    if not keyed:
        return {}
    wanted: dict[Key, dict[str, object]] = {}
    for id, job, key in keyed:
        if key not in wanted:
            wanted[key] = key_row(key, id, job.unique, job.task, job.args)
    holders = await take_keys(tx, wanted)
    answers: dict[int, Enqueued] = {}
    for id, job, key in keyed:
        holder, print_held = holders[key]
        if holder != id:
            same = print_held == fingerprint(job.task, job.args)
            answers[id] = Enqueued(holder, created=False, same_args=same)
    return answers


def key_of(job: NewJob) -> Key:
    """The full unique key: the tenant is always part of it."""
    assert job.unique is not None
    return job.tenant, job.unique.scope or job.task, job.unique.key


def key_row(
    key: Key, job_id: int, unique: Unique | None, task: str, args: Json
) -> dict[str, object]:
    """One row of `take_keys`."""
    assert unique is not None
    return {
        "tenant": key[0], "scope": key[1], "key": key[2], "job_id": job_id, "until": unique.until,
        "fingerprint": fingerprint(task, args), "seconds": unique.period_seconds,
    }  # fmt: skip


async def take_keys(tx: Tx, wanted: dict[Key, dict[str, object]]) -> dict[Key, tuple[int, str]]:
    """Take each key or find its holder: key -> (job id, fingerprint).

    The unique index is the judge. A holder may finish between the refusal and the look, so the two
    steps are repeated until each key is ours or somebody's.
    """
    held: dict[Key, tuple[int, str]] = {}
    for _ in range(_KEY_ROUNDS):
        rows = [wanted[key] for key in sorted(wanted) if key not in held]
        for part in _chunks(rows):
            taken = {row[0] for row in await tx.fetch("take_keys", rows=to_json(part))}
            for row in part:
                if row["job_id"] in taken:
                    held[_key(row)] = (int(str(row["job_id"])), str(row["fingerprint"]))
            refused = [row for row in part if row["job_id"] not in taken]
            if not refused:
                continue
            for tenant, scope, key, job_id, print_held, over, expires_at in await tx.fetch(
                "key_holders", rows=to_json(refused)
            ):
                if over:
                    await tx.fetch(
                        "drop_key", tenant=tenant, scope=scope, key=key, job_id=job_id,
                        expires_at=expires_at,
                    )  # fmt: skip
                else:
                    held[tenant, scope, key] = (job_id, print_held)
        if len(held) == len(wanted):
            return held
    raise StoreBusy("unique keys changed hands too often; enqueue again")


def _key(row: dict[str, object]) -> Key:
    return str(row["tenant"]), str(row["scope"]), str(row["key"])


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), ROWS_PER_STATEMENT):
        yield items[start : start + ROWS_PER_STATEMENT]
