"""What keeps jobs from making progress, in words: for `health` and `doctor`."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tenure.errors import JobNotFound
from tenure.rules.gates import shown
from tenure.rules.job import State

if TYPE_CHECKING:
    from tenure.client import Client
    from tenure.rules.job import WorkerSeen

HEARTBEATS = 2.5
"""A worker that has leases and was not seen for this many heartbeats is stopped or cut off."""
MAX_WAITS = 20
FUTURE_SECONDS = 2.0
"""A health file may be dated this far ahead: clocks are read at different times."""


def of_file(file: Path, max_age_seconds: float) -> str | None:
    """What is wrong with a health file."""
    try:
        status = file.stat()
    except OSError as error:
        return f"{file}: {error.strerror}; does the worker run with --health-file?"
    if file.is_dir():
        return f"{file} is a folder; name the file of the worker's --health-file"
    age = time.time() - status.st_mtime
    if age < -FUTURE_SECONDS:
        return (
            f"{file} is dated {-age:.0f} s in the future; check the clock of the worker's machine"
        )
    return f"{file} was touched {age:.0f} s ago" if age > max_age_seconds else None


def of_database(
    client: "Client", max_age_seconds: float, *, least: int = 0, allow_paused: bool = False
) -> Iterator[str]:
    """Everything that keeps jobs from making progress, the most telling first."""
    workers = client.workers()
    alive = [worker for worker in workers if worker.alive]
    if len(alive) < least:
        yield f"{len(alive)} workers are alive; at least {least} are needed"
    paused = {
        queue.name: f"; the queue is paused{f' ({queue.reason})' if queue.reason else ''}"
        for queue in client.paused_queues()
    }
    skipped = frozenset(paused if allow_paused else ())
    yield from _of_queues(client, max_age_seconds, alive, paused, skipped)
    if trouble := client.store.storage_trouble():
        yield trouble
    yield from _of_waits(client, alive)
    facts = client.store.health_facts()
    if facts.due_seconds > max_age_seconds:
        yield (
            f"job {facts.due_job} has been due for {facts.due_seconds:.0f} s, and no worker has "
            "put it into its queue"
        )
    if facts.expired_seconds > max_age_seconds:
        yield (
            f"a lease of worker {facts.expired_worker} expired {facts.expired_seconds:.0f} s ago, "
            "and no worker has taken its jobs back"
        )
    beats = {worker.name: worker.settings.get("heartbeat_seconds") for worker in workers}
    for lease in facts.leases:
        beat = beats.get(lease.worker)
        limit = HEARTBEATS * (beat if isinstance(beat, int | float) else 10.0)
        if lease.seen_seconds > limit:
            yield (
                f"worker {lease.worker} has jobs and was last seen {lease.seen_seconds:.0f} s ago: "
                "it is stopped, dead or cut off from the database"
            )
    for head in facts.gates:
        if head.age_seconds > max_age_seconds and head.may_pass and head.queue not in skipped:
            yield (
                f"job {head.job_id} may pass gate {shown(head.wait.gate)}, and no worker has "
                f"claimed it for {head.age_seconds:.0f} s{paused.get(head.queue, '')}"
            )
    yield from _of_tasks({(each.queue, each.task) for each in facts.tasks}, alive)
    yield from _of_schedules(client, max_age_seconds)


def _of_queues(
    client: "Client", max_age_seconds: float, alive: list["WorkerSeen"],
    paused: Mapping[str, str], skipped: frozenset[str],
) -> Iterator[str]:  # fmt: skip
    """`paused` says so of the paused queues; those in `skipped` are no trouble."""
    for head in client.oldest_ready():
        if head.age_seconds <= max_age_seconds or head.queue in skipped:
            continue
        since = f"queue {head.queue} has had a job ready for {head.age_seconds:.0f} s"
        if head.queue in paused:
            yield since + paused[head.queue]
        else:
            served = any(head.queue in worker.queues for worker in alive)
            yield since if served else f"{since}; no worker serves the queue"
    for worker in alive:
        idle = worker.counts.get("seconds since a claim", 0)
        if idle > max_age_seconds:
            yield (
                f"worker {worker.name} has not claimed for {idle} s: its event loop is blocked, or "
                "its claim loop is dead"
            )


def _of_waits(client: "Client", alive: list["WorkerSeen"]) -> Iterator[str]:
    """Handlers that wait for jobs that are in a queue, because they themselves have the slots."""
    waits = [wait for worker in alive for wait in worker.load.waits]
    for wait in waits[:MAX_WAITS]:
        with suppress(JobNotFound):
            if client.get(wait.waits_for).state is State.QUEUED:
                yield (
                    f"job {wait.job_id} of {wait.task} waits for job {wait.waits_for}: "
                    f"{client.why(wait.waits_for)}"
                )


def _of_tasks(ready: set[tuple[str, str]], alive: list["WorkerSeen"]) -> Iterator[str]:
    """Jobs of tasks that no worker of their queue knows are put back for ever."""
    for queue, task in sorted(ready):
        serving = [worker for worker in alive if queue in worker.queues]
        if serving and not any(task in worker.tasks for worker in serving):
            yield (
                f"jobs of task {task} wait in queue {queue}, and no worker of the queue knows the "
                "task: start one with its code"
            )


def _of_schedules(client: "Client", max_age_seconds: float) -> Iterator[str]:
    """Schedules whose due tick no worker has fired."""
    now = client.about().now
    for schedule in client.schedules.list():
        if schedule.next_at is not None:
            late = (now - schedule.next_at).total_seconds()
            if late > max_age_seconds:
                yield f"schedule {schedule.name} has been due for {late:.0f} s"
