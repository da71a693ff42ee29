"""enqueue: jobs come in, with their tickets, their unique keys and their parents."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec

from tenure.codec import fingerprint
from tenure.errors import InvalidInput, JobNotFound, StoreBusy, TenantMismatch
from tenure.job import Enqueued, Feature, Json, NewJob, Unique, Until
from tenure.store.session import Collided, Scope, Tx, to_json
from tenure.store.settle import free_children

ROWS_PER_STATEMENT = 1000
_KEY_ROUNDS = 20

T = TypeVar("T")
Key = tuple[str, str, str]


async def enqueue(
    scope: Scope, jobs: Sequence[NewJob], *, on: object | None = None, now: datetime | None = None
) -> list[Enqueued]:
    """Store all of these jobs, or none: one transaction, one answer per job, in order.

    With `on`, the caller's own connection or session, the jobs become real when the caller commits,
    and vanish when the caller rolls back; nothing is committed here.
    """
    jobs = [_stamp(job, scope.tenant) for job in jobs]
    if not jobs:
        return []
    if on is not None:
        return await _enqueue(scope.enter(scope.session.borrow(on)), jobs, None, now)
    ids = await scope.session.reserve_ids(len(jobs))
    return await scope.transact(lambda tx: _enqueue(tx, jobs, ids, now))


async def _enqueue(
    tx: Tx, jobs: list[NewJob], ids: list[int] | None, now: datetime | None
) -> list[Enqueued]:
    tx.at(now)
    if ids is None:
        ids = [row[0] for row in await tx.fetch("draw_ids", count=len(jobs))]
    numbered = dict(zip(ids, jobs, strict=True))
    stored = await _already_stored(tx, numbered) if tx.collided else set()
    answers = {id: Enqueued(id) for id in stored}
    missing = {id: job for id, job in numbered.items() if id not in stored}
    answers |= await _take_keys(tx, missing)
    new = {id: job for id, job in missing.items() if answers.get(id, _NEW).created}
    await _insert(tx, new)
    if tx.repeat and not tx.collided and await _any_finished(tx, list(new)):
        raise Collided  # (!) the first try landed, and its jobs have finished already
    return [answers.get(id) or Enqueued(id) for id in ids]


_NEW = Enqueued(0)


def _stamp(job: NewJob, tenant: str | None) -> NewJob:
    if not isinstance(job, NewJob):
        raise InvalidInput(f"enqueue takes NewJob records, not {type(job).__name__}")
    if tenant is None or job.tenant == tenant:
        return job
    if job.tenant:
        raise TenantMismatch(
            f"this store works for tenant {tenant!r}; it cannot enqueue for {job.tenant!r}"
        )
    return msgspec.structs.replace(job, tenant=tenant)


class _JobRow(msgspec.Struct, omit_defaults=True):
    """One row of `insert_jobs`; what has its default stays out of the JSON."""

    id: int
    task: str
    args: msgspec.Raw
    queue: str = "default"
    priority: int = 0
    delay: float | None = None
    due_at: object = None
    tenant: str = ""
    max_attempts: int = 5
    timeout: float | None = None
    retry: msgspec.Raw | None = None
    metadata: msgspec.Raw | None = None
    features: int = 0
    parked: str | None = None
    unique_scope: str | None = None
    unique_key: str | None = None
    unique_until: str | None = None
    unique_seconds: float | None = None


def _job_row(tx: Tx, id: int, job: NewJob) -> _JobRow:
    row = _JobRow(
        id, job.task, msgspec.Raw(job.args), job.queue, job.priority, job.delay_seconds,
        tx.time(job.due_at), job.tenant, job.max_attempts, job.timeout_seconds, _raw(job.retry),
        _raw(job.metadata),
    )  # fmt: skip
    if job.unique is not None:
        row.unique_scope, row.unique_key = job.unique.scope or job.task, job.unique.key
        row.unique_until, row.unique_seconds = job.unique.until, job.unique.period_seconds
        row.features |= Feature.KEY
        if job.unique.until is Until.STARTED:
            row.features |= Feature.KEY_UNTIL_STARTED
    if job.parents:
        row.parked = "parents"
        row.features |= Feature.PARENTS
    return row


async def _insert(tx: Tx, new: dict[int, NewJob]) -> None:
    for part in _chunks(list(new.items())):
        await tx.fetch("insert_jobs", rows=to_json([_job_row(tx, id, job) for id, job in part]))
    children = {id: job for id, job in new.items() if job.parents}
    if children:
        await _join_parents(tx, children)


async def _join_parents(tx: Tx, children: dict[int, NewJob]) -> None:
    """Tie children to their parents. Parents that are final already count as such at once."""
    wanted = {(parent, job.tenant) for job in children.values() for parent in job.parents}
    ids = sorted({parent for parent, _ in wanted})
    known = {(row[0], row[4]) for row in await tx.fetch("stored_jobs", ids=to_json(ids))}
    if unknown := sorted(wanted - known):
        raise JobNotFound(
            f"parent {unknown[0][0]} does not exist for this tenant; enqueue parents first"
        )
    marks = [{"id": id, "tenant": tenant} for id, tenant in sorted(wanted)]
    await tx.fetch("mark_parents", rows=to_json(marks))
    edges = [
        {"job_id": id, "parent_id": parent}
        for id, job in children.items()
        for parent in dict.fromkeys(job.parents)
    ]
    await tx.fetch("add_parents", rows=to_json(edges))
    await free_children(tx, list(children))


async def _already_stored(tx: Tx, numbered: dict[int, NewJob]) -> set[int]:
    """Which of these jobs did the unanswered first try store? A stranger's row is not ours."""
    stored = set()
    for id, task, args, queue, tenant in await tx.fetch("stored_jobs", ids=to_json(list(numbered))):
        job = numbered[id]
        same = (task, queue, tenant) == (job.task, job.queue, job.tenant)
        if not same or msgspec.json.decode(args) != msgspec.json.decode(job.args):
            raise StoreBusy(f"job id {id} was issued twice by the database; enqueue again")
        stored.add(id)
    return stored


async def _any_finished(tx: Tx, ids: list[int]) -> bool:
    return bool(ids) and bool(await tx.fetch("finished_among", ids=to_json(ids)))


async def _take_keys(tx: Tx, jobs: dict[int, NewJob]) -> dict[int, Enqueued]:
    """Take the unique keys of these jobs. Answers for every job whose key was already held."""
    first: dict[Key, int] = {}
    for id, job in jobs.items():
        if job.unique is not None:
            first.setdefault(key_of(job.tenant, job.task, job.unique), id)
    if not first:
        return {}
    holders = await take_keys(
        tx,
        {
            key: key_row(key, id, jobs[id].unique, jobs[id].task, jobs[id].args)
            for key, id in first.items()
        },
    )
    answers: dict[int, Enqueued] = {}
    for id, job in jobs.items():
        if job.unique is None:
            continue
        holder, print_held = holders[key_of(job.tenant, job.task, job.unique)]
        if holder != id:
            same = print_held == fingerprint(job.task, job.args)
            answers[id] = Enqueued(holder, created=False, same_args=same)
    return answers


def key_of(tenant: str, task: str, unique: Unique) -> Key:
    """The full unique key: the tenant is always part of it."""
    return tenant, unique.scope or task, unique.key


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
            for tenant, scope, key, job_id, print_held, over in await tx.fetch(
                "key_holders", rows=to_json(refused)
            ):
                if over:
                    await tx.fetch("drop_key", tenant=tenant, scope=scope, key=key, job_id=job_id)
                else:
                    held[tenant, scope, key] = (job_id, print_held)
        if len(held) == len(wanted):
            return held
    raise StoreBusy("unique keys changed hands too often; enqueue again")


def _key(row: dict[str, object]) -> Key:
    return str(row["tenant"]), str(row["scope"]), str(row["key"])


def _raw(data: Json | None) -> msgspec.Raw | None:
    return None if data is None else msgspec.Raw(data)


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), ROWS_PER_STATEMENT):
        yield items[start : start + ROWS_PER_STATEMENT]
