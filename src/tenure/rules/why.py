"""Where a job is and why it does not run, in words. Pure: facts in, a sentence out."""

from collections.abc import Iterable
from datetime import datetime

from tenure.errors import PayloadInvalid
from tenure.rules.codec import decode
from tenure.rules.gates import MAX_BEFORE, GateWait
from tenure.rules.job import Job, State, WorkerSeen
from tenure.rules.ticks import fired_by

_NO_HANDLER = "no handler"
"""The reason that a worker gives when it puts back a job of a task that it does not know."""
_UNITS = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


def explain(
    job: Job,
    now: datetime,
    *,
    workers: Iterable[WorkerSeen] | None,
    paused: str | None,
    wait: GateWait | None = None,
) -> str:
    """One sentence. `workers` is None for whom they are not to be seen; `paused` is why.

    `wait` is how it stands at its gate.
    """
    by = fired_by(job.metadata)
    what = _explain(job, now, workers, paused, wait)
    return what + ("" if by is None else f"; enqueued by {by}")


def _explain(
    job: Job,
    now: datetime,
    workers: Iterable[WorkerSeen] | None,
    paused: str | None,
    wait: GateWait | None,
) -> str:
    match job.state:
        case State.WAITING:
            what = "parent" if job.unfinished_parents == 1 else "parents"
            return f"waiting for {job.unfinished_parents} unfinished {what}"
        case State.SCHEDULED if job.due_at is not None and job.due_at > now:
            left = (job.due_at - now).total_seconds()
            return f"due in {_about(left)}, at {_when(job.due_at)}{_because(job)}{_unknown(job)}"
        case State.SCHEDULED | State.QUEUED:
            return _in_line(job, workers, paused, wait)
        case State.RUNNING:
            asked = "; it was asked to stop" if job.cancel_requested else ""
            return f"running on {job.worker} since {_when(job.claimed_at)}{asked}"
        case _:
            return f"{job.state} at {_when(job.finished_at)}{_because(job)}{told(job)}"


def _in_line(
    job: Job, workers: Iterable[WorkerSeen] | None, paused: str | None, wait: GateWait | None
) -> str:
    at_gate = f" at gate {job.gate}" if job.gate is not None else ""
    since = f"in line{at_gate} in queue {job.queue} since {_when(job.due_at or job.queued_at)}"
    if job.held:
        return f"held{_because(job)}; unhold it to let it run"
    if job.queue_paused:
        reason = f" ({paused})" if paused else ""
        return f"queue {job.queue} is paused{reason}; resume it to let its jobs run"
    if workers is None:
        return since + _because(job)
    alive = [worker for worker in workers if worker.alive]
    serving = [worker for worker in alive if job.queue in worker.queues]
    if not alive:
        return f"{since}; no worker is alive: start one"
    if not serving:
        return f"{since}; no worker serves this queue: start one that does"
    if not any(job.task in worker.tasks for worker in serving):
        return f"{since}; no worker there knows task {job.task}: start one with this code"
    if wait is not None and job.due_at is None:
        return _at_gate(wait)
    return since + _because(job)


def _at_gate(wait: GateWait) -> str:
    limits = wait.limits
    said = []
    if limits.max_running is not None:
        said.append(f"{wait.running} of {limits.max_running} running")
    if limits.rate is not None:
        seconds = wait.start_seconds
        said.append(
            "it may start now" if seconds <= 0 else f"the next may start in {seconds:.1f} s"
        )
    most = wait.before >= MAX_BEFORE
    said.append(f"{MAX_BEFORE} or more before it" if most else f"{wait.before} before it")
    return f"waits at gate {wait.gate}: {', '.join(said)}"


def told(job: Job) -> str:
    """What its last error was, if there was one: `: ValueError: no such user`."""
    if job.error is None:
        return ""
    try:
        error = decode(job.error, dict[str, object])
    except PayloadInvalid:  # written by somebody else
        return ""
    return f": {error.get('type')}: {error.get('message')}"


def _because(job: Job) -> str:
    return f" ({job.reason})" if job.reason else ""


def _unknown(job: Job) -> str:
    if job.reason != _NO_HANDLER:
        return ""
    return f"; the worker that took it does not know task {job.task}: start one with this code"


def _when(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _about(seconds: float) -> str:
    """A length of time as people say it: 45 s, 3 min, 2 h, 5 days."""
    for unit, length in _UNITS:
        if seconds >= 1.95 * length:
            return f"{round(seconds / length)} {unit}"
    return "1 s" if seconds >= 1 else "less than 1 s"
