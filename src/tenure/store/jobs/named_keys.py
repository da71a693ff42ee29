"""Unique keys by their names: which job has one, and free it."""

from datetime import datetime
from typing import Protocol

from tenure.errors import InvalidInput, JobGone, JobNotFound, KeyTaken, TenantMismatch
from tenure.rules.job import Job
from tenure.rules.limits import MAX_KEY_BYTES, MAX_NAME_LENGTH, check_name, check_text, not_this
from tenure.store.look.jobs import seen_job
from tenure.store.records import NamedKey
from tenure.store.session import Mode, Tx, transaction


class HasName(Protocol):
    """A task."""

    @property
    def name(self) -> str: ...


@transaction(Mode.READ)
async def get_by_key(
    tx: Tx, task: str | HasName, key: str, *, tenant: str | None = None,
    now: datetime | None = None,
) -> Job:  # fmt: skip
    """The job that holds a unique key: that of a task, or of a scope by its name.

    Raises `JobNotFound` if no job holds it, and `JobGone` if the job has finished and is no longer
    stored: then only its key is. `free_key` frees it.
    """
    tx.at(now)
    named = _named(tx, task, key, tenant)
    shown = f"the unique key {key!r} of {named['scope']}"
    for found in await tx.fetch_as(NamedKey, "find_key", **named):
        if found.over:
            break
        try:
            return await seen_job(tx, found.job_id)
        except JobNotFound:
            ended = f"has {found.outcome}" if found.outcome in ("succeeded", "failed") else "ended"
            raise JobGone(
                f"job {found.job_id} holds {shown}, but it {ended} and is no longer stored; free "
                "the key with free_key() or `tenure key free`"
            ) from None
    raise JobNotFound(f"no job holds {shown}")


@transaction(Mode.WRITE)
async def free_key(
    tx: Tx, task: str | HasName, key: str, *, tenant: str | None = None,
    now: datetime | None = None,
) -> bool:  # fmt: skip
    """Free the unique key of a job that has finished: that of a task, or of a scope by its name.

    The job itself, if it is still stored, is not changed. Returns False if no job has the key.
    Raises `KeyTaken` if its job is live: cancel that first.
    """
    tx.at(now)
    named = _named(tx, task, key, tenant)
    if await tx.fetch("free_key", **named):
        return True
    for found in await tx.fetch_as(NamedKey, "find_key", **named):
        raise KeyTaken(
            f"job {found.job_id} has the unique key {key!r} and is live; cancel it first"
        )
    return tx.repeat


def _named(tx: Tx, task: object, key: str, tenant: str | None) -> dict[str, str]:
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        raise InvalidInput(f"a task or the name of a scope is needed, {not_this(task)}")
    check_name("unique scope", name)
    check_text("unique key", key, MAX_KEY_BYTES)
    if tenant is not None:
        check_text("tenant", tenant, MAX_NAME_LENGTH)
    if tx.tenant is not None and tenant not in (None, tx.tenant):
        raise TenantMismatch(
            f"this store works for tenant {tx.tenant!r} alone, not for {tenant!r}; leave tenant out"
        )
    return {"tenant": tx.tenant or tenant or "", "scope": name, "key": key}
