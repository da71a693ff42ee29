"""enqueue with `Replace`: the waiting job that has the key gets new arguments, a due time, or both.

The job gets a new ticket at the end of its line, under a new token, and its old ticket is taken
first. So a claim either had the job before, and nothing is changed, or it gets what is new.
"""

import msgspec

from tenure.rules.codec import fingerprint
from tenure.rules.gates import line_name
from tenure.rules.job import Enqueued, NewJob, Replace
from tenure.store.jobs.operate import lock_job, take_ticket
from tenure.store.keys import holders_of, key_of
from tenure.store.moves import Numbered, add_events, add_tickets
from tenure.store.records import LockedJob, ReplacedJob, WaitingJob
from tenure.store.rows import NewEvent, Ticket
from tenure.store.session import Outdated, Tx


async def replace_holders(tx: Tx, keyed: Numbered, held: dict[int, Enqueued]) -> None:
    """Change the waiting jobs that have the keys of these. `held` is updated: `same_args` tells of
    the job as it is afterwards, so that a repeated call returns the same.

    (!) If a key was given back meanwhile, the call runs again from the start: to take the key now,
    with jobs locked, could wait for a call that has the key and waits for these jobs.
    """
    again: Numbered = []
    meant: dict[int, str] = {}
    order = {id: answer.id for id, answer in held.items()}
    wanted = [(order[id], id, job) for id, job in keyed if id in held and _rule(job) is not None]
    for _, id, job in sorted(wanted, key=lambda each: each[:2]):  # locked in order
        replaced = await _replace(tx, held[id], job, meant)
        if replaced is None:
            again.append((id, job))
        elif replaced:
            held[id] = msgspec.structs.replace(held[id], replaced=True)
    for id, job in keyed if meant else ():
        if id in held and held[id].id in meant:
            same = meant[held[id].id] == fingerprint(job.task, job.args)
            held[id] = msgspec.structs.replace(held[id], same_args=same)
    if again:
        holders = await holders_of(tx, [job for _, job in again])
        if any(holders.get(key_of(job)) != held[id].id for id, job in again):
            raise Outdated


async def replaced_before(tx: Tx, new: Numbered) -> dict[int, Enqueued]:
    """enqueue, repeated: which jobs has the first try, whose COMMIT got no answer, changed?

    They may have run since, and given back their keys.
    """
    keyed = [(id, job) for id, job in new if job.unique is not None]
    if not any(_rule(job) for _, job in keyed):
        return {}
    found = await tx.fetch_as(ReplacedJob, "replaced_by_request", request_id=tx.request_id)
    changed = {(each.tenant, each.unique_scope, each.unique_key): each for each in found}
    answers = {}
    for id, job in keyed:
        holder = changed.get(key_of(job))
        if holder is not None:
            meant = fingerprint(holder.task, holder.args.encode())
            answers[id] = Enqueued(
                holder.id, created=False, same_args=meant == fingerprint(job.task, job.args),
                replaced=_rule(job) is not None,
            )  # fmt: skip
    return answers


def _rule(job: NewJob) -> Replace | None:
    return None if job.unique is None else job.unique.on_conflict


async def _replace(tx: Tx, holder: Enqueued, new: NewJob, meant: dict[int, str]) -> bool | None:
    """Returns whether the holder was changed. None: it is not live any more. `meant` gets the
    fingerprint of its new arguments.

    (!) Its ticket is taken before it is changed: without one, it was claimed.
    """
    rule = _rule(new)
    assert rule is not None
    job = await lock_job(tx, holder.id)
    if job is None:
        return None
    [waiting] = await tx.fetch_as(WaitingJob, "waiting_job", id=job.id)
    changes_args = rule.args and fingerprint(waiting.task, waiting.args.encode()) != fingerprint(
        new.task, new.args
    )
    if waiting.task != new.task or not (changes_args or rule.postpone):
        return False
    if job.parked is None and not await take_ticket(tx, job):
        return False
    await _change(tx, job, new, rule, changes_args=changes_args)
    if changes_args:
        meant[job.id] = fingerprint(new.task, new.args)
    return True


async def _change(
    tx: Tx, job: LockedJob, new: NewJob, rule: Replace, *, changes_args: bool
) -> None:
    [due_at] = await tx.fetch_column(
        "replace_job", id=job.id, change_args=changes_args, args=new.args.decode(),
        metadata=None if new.metadata is None else new.metadata.decode(), size_kb=new.size_kb,
        gate=new.gate,
        gate_key=None if new.gate is None else line_name(new.tenant, new.gate_key),
        postpone=rule.postpone, due_at=tx.time(new.due_at),
        delay=new.delay_seconds, at_most=rule.postpone_at_most_seconds,
        start_by=tx.time(new.expires_at), start_within=new.start_within_seconds,
        finish_by=tx.time(new.finish_by), finish_within=new.finish_within_seconds,
    )  # fmt: skip
    if changes_args:
        tenant, scope, key = key_of(new)
        await tx.fetch(
            "mark_key", tenant=tenant, scope=scope, key=key, job_id=job.id,
            fingerprint=fingerprint(new.task, new.args),
        )  # fmt: skip
    if job.parked is None:
        due = tx.time(tx.when_or_none(due_at))
        await add_tickets(tx, [Ticket(job.id, job.token, due_at=due, reason="replaced")])
    detail: dict[str, object] = {"args": changes_args, "postponed": rule.postpone}
    event = NewEvent(job.id, job.token, "replaced", None, detail, request_id=tx.request_id)
    await add_events(tx, [event])
