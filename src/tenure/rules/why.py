"""Where a job is and why it does not run, in words. Pure: facts in, a sentence out."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from tenure.rules.gates import MAX_BEFORE, GateWait
from tenure.rules.job import Job, State, WorkerSeen
from tenure.rules.ticks import fired_by

_NO_HANDLER = "no handler"
"""The reason that a worker gives when it releases a job whose task it does not know."""
_UNITS = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))


class Facts(NamedTuple):
    """What is known of a job at one moment."""

    job: Job
    now: datetime | None = None
    """The store's clock; None if the job has no due time."""
    workers: Sequence[WorkerSeen] | None = None
    """None if the caller may not see workers, or if they do not matter."""
    pause_reason: str | None = None
    """Why the job's queue is paused."""
    wait: GateWait | None = None
    """How the job waits at its gate."""


def explain(facts: Facts) -> str:
    """One sentence."""
    by = fired_by(facts.job.metadata_json)
    said = _explain(facts) + _deadlines(facts.job)
    return said + ("" if by is None else f"; enqueued by {by}")


def _deadlines(job: Job) -> str:
    """By when it must start, and by when it should finish or should have finished."""
    said = ""
    waits = job.state in (State.WAITING, State.SCHEDULED, State.QUEUED)
    if job.start_by is not None and waits and job.attempts == 0:
        said += f"; it is skipped unless it starts by {_when(job.start_by)}"
    if job.finish_by is not None:
        met = {None: "it should finish", True: "in time", False: "not in time"}[job.met_deadline]
        said += f"; {met}: by {_when(job.finish_by)}"
    return said


def _explain(facts: Facts) -> str:
    job, now = facts.job, facts.now
    match job.state:
        case State.WAITING:
            what = "parent" if job.unfinished_parents == 1 else "parents"
            return f"waiting for {job.unfinished_parents} unfinished {what}"
        case State.SCHEDULED if job.due_at is not None and now is not None and job.due_at > now:
            left = (job.due_at - now).total_seconds()
            return f"due in {_about(left)}, at {_when(job.due_at)}{_because(job)}{_unknown(job)}"
        case State.SCHEDULED | State.QUEUED:
            return _in_queue(facts)
        case State.RUNNING:
            asked = "; it was asked to stop" if job.cancel_requested else ""
            return f"running on {job.worker} since {_when(job.claimed_at)}{asked}"
        case _:
            return f"{job.state} at {_when(job.finished_at)}{_because(job)}{last_error(job)}"


def _in_queue(facts: Facts) -> str:
    job = facts.job
    at_gate = f"at gate {job.gate} " if job.gate is not None else ""
    since = f"{at_gate}in queue {job.queue} since {_when(job.due_at or job.queued_at)}"
    if job.held:
        return f"held{_because(job)}; unhold it to let it run"
    if job.queue_paused:
        reason = f" ({facts.pause_reason})" if facts.pause_reason else ""
        return f"queue {job.queue} is paused{reason}; resume it to let its jobs run"
    if facts.workers is not None and (missing := _missing_worker(job, facts.workers)):
        return f"{since}; {missing}"
    if facts.wait is not None:
        return _at_gate(facts.wait)
    return since + _because(job)


def _missing_worker(job: Job, workers: Sequence[WorkerSeen]) -> str | None:
    """Which worker is missing, if the workers there are cannot run the job."""
    alive = [worker for worker in workers if worker.alive]
    serving = [worker for worker in alive if job.queue in worker.queues]
    if not alive:
        return "no worker is alive: start one"
    if not serving:
        return "no worker serves this queue: start one that does"
    if not any(job.task in worker.tasks for worker in serving):
        return f"no worker there knows task {job.task}: start one with this code"
    return None


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


def last_error(job: Job) -> str:
    """The job's last error, if it has one, to end a sentence: `: ValueError: no such user`."""
    return "" if job.error is None else f": {job.error}"


def _because(job: Job) -> str:
    return f" ({job.reason})" if job.reason else ""


def _unknown(job: Job) -> str:
    if job.reason != _NO_HANDLER:
        return ""
    return f"; the worker that took it does not know task {job.task}: start one with this code"


def _when(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _about(seconds: float) -> str:
    """A length of time in one unit: 45 s, 3 min, 2 h, 5 days."""
    for unit, length in _UNITS:
        if seconds >= 1.95 * length:
            return f"{round(seconds / length)} {unit}"
    return "1 s" if seconds >= 1 else "less than 1 s"
