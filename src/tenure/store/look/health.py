"""Facts that tell whether jobs make progress, from one snapshot: for `tenure health`."""

from datetime import datetime

import msgspec

from tenure.rules.gates import GateWait
from tenure.rules.why import NO_HANDLER
from tenure.store.look.facts import gate_wait_of
from tenure.store.look.jobs import seen_job
from tenure.store.look.records import LateRow
from tenure.store.session import Mode, Scope, Tx, for_all_tenants, transaction

SAMPLE = 5000
"""How many of the oldest and of the newest jobs are asked for their tasks."""
MAX_GATES = 20
MAX_LINES = 10


class WaitingTask(msgspec.Struct, frozen=True):
    """Jobs of this task wait in this queue."""

    queue: str
    task: str


class GateHead(msgspec.Struct, frozen=True):
    """The first job of a line at a gate."""

    queue: str
    job_id: int
    age_seconds: float
    wait: GateWait

    @property
    def may_pass(self) -> bool:
        """Does the gate let it start now?"""
        limit = self.wait.limits.max_running
        return (limit is None or self.wait.running < limit) and self.wait.start_seconds <= 0


class LeaseOf(msgspec.Struct, frozen=True):
    """How long ago the worker of unexpired leases was seen."""

    worker: str
    seen_seconds: float


class HealthFacts(msgspec.Struct, frozen=True):
    """How long due jobs, expired leases and lines at gates have waited for a worker."""

    due_seconds: float
    """How long the first due job has waited to be put into its queue; below 0: none is due."""
    due_job: int | None
    expired_seconds: float
    """How long ago the first lease expired that was not swept; below 0: none has expired."""
    expired_worker: str | None
    leases: tuple[LeaseOf, ...]
    tasks: tuple[WaitingTask, ...]
    """The tasks of jobs that are ready, or that a worker without their task has put back, among the
    oldest and the newest ones."""
    gates: tuple[GateHead, ...]


async def storage_trouble(scope: Scope, *, now: datetime | None = None) -> str | None:  # noqa: ARG001
    """What is wrong with the files of the database, in words, with the fix. None: nothing.

    On SQLite: a reader that keeps an old snapshot, so that the write-ahead log grows.
    """
    for_all_tenants("storage_trouble", scope.tenant)
    return await scope.session.storage_trouble()


@transaction(Mode.READ)
async def health_facts(tx: Tx, *, now: datetime | None = None) -> HealthFacts:
    """What `tenure health` judges by. Of jobs without a gate it reads a bounded number of rows."""
    for_all_tenants("health_facts", tx.tenant)
    tx.at(now)
    [late] = await tx.fetch_as(LateRow, "late_work")
    leases = await tx.fetch("lease_workers")
    tasks = await tx.fetch("ready_tasks", most=SAMPLE, put_back=NO_HANDLER)
    return HealthFacts(
        -1.0 if late.due_seconds is None else late.due_seconds, late.due_job,
        -1.0 if late.expired_seconds is None else late.expired_seconds, late.expired_worker,
        tuple(LeaseOf(worker, seen) for worker, seen in leases),
        tuple(WaitingTask(queue, task) for queue, task in tasks),
        tuple(await _gate_heads(tx)),
    )  # fmt: skip


async def _gate_heads(tx: Tx) -> list[GateHead]:
    """The first jobs of the longest lines at the first gates, by name, where jobs wait."""
    found: list[GateHead] = []
    gates = await tx.fetch("list_gates", name=None)
    waiting = [name for name, *_, jobs, _lines in gates if jobs]
    for gate in waiting[:MAX_GATES]:
        for queue, key, *_ in await tx.fetch("busiest_lines", name=gate, most=MAX_LINES):
            heads = await tx.fetch("first_at_gate", queue=queue, gate=gate, key=key)
            for id, age_seconds in heads:
                wait = await gate_wait_of(tx, await seen_job(tx, id))
                if wait is not None:
                    found.append(GateHead(queue, id, age_seconds, wait))
    return found
