"""Where a job is and why it does not run, in words. Pure: facts in, a sentence out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from tenure.rules.gates import MAX_BEFORE, GateWait
from tenure.rules.job import Job, State, WorkerSeen
from tenure.rules.ticks import fired_by

NO_HANDLER = "no handler"
"""The reason of a job that a worker without its task has put back."""
UNFIT = "arguments do not fit this code"
"""The same for a worker whose task has other parameters; the reason begins with it."""
LATE_HEARTBEATS = 1.5
"""A worker that was not seen for this many heartbeats may be dead."""
_UNITS = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0))
MAX_AHEAD = 1000
BLOCKED_SECONDS = 10
"""A worker whose claim loop has not come round for this long has a blocked event loop."""
WAIT_FIX = "enqueue with parents=, use a workflow, or give more slots"
_TASKS_SHOWN = 3


class RunningTask(NamedTuple):
    """How many jobs of a task a worker has claimed."""

    worker: str
    queue: str
    task: str
    jobs: int


class Line(NamedTuple):
    """What is before a job in its queue."""

    ahead: int
    """Tickets before it that need the same slots; counted up to one more than `MAX_AHEAD`."""
    running: Sequence[RunningTask]
    """What workers have claimed, by task."""


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
    line: Line | None = None
    """What is before it, if workers could run it."""
    file: str | None = None
    """The SQLite file of the job: a worker may use another one by mistake."""


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
            return _running(facts)
        case _:
            return f"{job.state} at {_when(job.finished_at)}{_because(job)}{last_error(job)}"


def _running(facts: Facts) -> str:
    """A worker that has died cannot say so: only its silence and its lease tell."""
    job, now, ends = facts.job, facts.now, facts.job.expires_at
    if now is not None and ends is not None and ends <= now:
        lost = f"was running on {job.worker}, whose lease expired {_ago(now, ends)}"
        then = "; it is cancelled then" if job.cancel_requested else ""
        return f"{lost}; {_taken_back(facts.workers)}{then}"
    said = f"running on {job.worker} since {_when(job.claimed_at)}"
    said += "; it was asked to stop" if job.cancel_requested else ""
    worker = next((each for each in facts.workers or () if each.name == job.worker), None)
    if worker is None or now is None or ends is None:
        return said
    beat = worker.settings.get("heartbeat_seconds")
    limit = LATE_HEARTBEATS * (beat if isinstance(beat, int | float) else 10.0)
    if (now - worker.seen_at).total_seconds() <= limit:
        return said
    silent = f"{job.worker} was last seen {_ago(now, worker.seen_at)}"
    ended = "is cancelled" if job.cancel_requested else "runs again"
    return f"{said}; {silent}; if it is dead, the job {ended} after {_when(ends)}"


def _taken_back(workers: Sequence[WorkerSeen] | None) -> str:
    if workers is not None and not any(worker.alive for worker in workers):
        return "no worker is alive to take it back: start one"
    return "another worker takes it back soon"


def _in_queue(facts: Facts) -> str:
    job = facts.job
    at_gate = f"at gate {job.gate} " if job.gate is not None else ""
    since = f"{at_gate}in queue {job.queue} since {_when(job.due_at or job.queued_at)}"
    if job.held:
        return f"held{_because(job)}; unhold it to let it run"
    if job.queue_paused:
        reason = f" ({facts.pause_reason})" if facts.pause_reason else ""
        return f"queue {job.queue} is paused{reason}; resume it to let its jobs run"
    if facts.workers is not None and (missing := _missing_worker(job, facts.workers, facts.file)):
        return f"{since}; {missing}"
    if facts.wait is not None:
        return _at_gate(facts.wait)
    if facts.line is None or facts.workers is None:
        return since + _because(job)
    return "; ".join([since + _because(job), *_in_line(job, facts.line, facts.workers)])


def _missing_worker(job: Job, workers: Sequence[WorkerSeen], file: str | None) -> str | None:
    """Which worker is missing, if the workers there are cannot run the job."""
    alive = [worker for worker in workers if worker.alive]
    if not alive:
        return "no worker is alive: start one" + (f" on {file}" if file else "")
    if not any(job.queue in worker.queues for worker in alive):
        return "no worker serves this queue: start one that does"
    if not serving(job, workers):
        return f"no worker there knows task {job.task}: start one with this code"
    return None


def serving(job: Job, workers: Sequence[WorkerSeen]) -> list[WorkerSeen]:
    """The workers that could run the job."""
    return [w for w in workers if w.alive and job.queue in w.queues and job.task in w.tasks]


def _in_line(job: Job, line: Line, workers: Sequence[WorkerSeen]) -> Iterator[str]:
    """What a job waits for that workers could run."""
    able = serving(job, workers)
    for worker in able:
        idle = worker.counts.get("seconds since a claim", 0)
        if idle >= BLOCKED_SECONDS:
            yield f"worker {worker.name} has not claimed for {idle} s: its event loop is blocked"
            break
    taken = [_taken(job, worker, line.running) for worker in able]
    full = [each for each in taken if each is not None]
    if len(full) == len(taken):
        yield from _all_taken(full)
    for worker in workers:
        for wait in worker.load.waits:
            if worker.alive and wait.waits_for == job.id:
                yield f"job {wait.job_id} of {wait.task} waits for it"
    yield _ahead(line.ahead)
    if forecast := _forecast(job, line.ahead, able):
        yield forecast


class _Taken(NamedTuple):
    """The slots of a worker that a job needs; all of them are taken."""

    slots: int
    what: str
    tasks: Counter[str]
    """The jobs that have them, by task. The worker may have claimed more jobs than it has slots."""
    waits: int
    """How many of these jobs wait for other jobs."""


def _taken(job: Job, worker: WorkerSeen, running: Sequence[RunningTask]) -> _Taken | None:
    """None if the worker has room for the job, as far as is known."""
    kinds = worker.load.kinds
    kind = kinds.get(job.task)
    here = [each for each in running if each.worker == worker.name]
    room = [
        (worker.queues[job.queue], f"slots of queue {job.queue}",
         [each for each in here if each.queue == job.queue]),
        (worker.load.slots.get(kind or "", 0), f"{kind} slots",
         [each for each in here if kinds.get(each.task) == kind]),
    ]  # fmt: skip
    for slots, what, using in room:
        tasks = Counter[str]()
        for each in using:
            tasks[each.task] += each.jobs
        if slots and tasks.total() >= slots:
            waits = sum(wait.task in tasks for wait in worker.load.waits)
            return _Taken(slots, what, tasks, waits)
    return None


def _all_taken(full: Sequence[_Taken]) -> Iterator[str]:
    slots = sum(each.slots for each in full)
    what = full[0].what if len({each.what for each in full}) == 1 else "slots"
    tasks = sum((each.tasks for each in full), Counter[str]())
    shown = ", ".join(f"{task} ({n})" for task, n in tasks.most_common(_TASKS_SHOWN))
    others = f" and {len(tasks) - _TASKS_SHOWN} other tasks" if len(tasks) > _TASKS_SHOWN else ""
    where = "" if len(full) == 1 else f" of {len(full)} workers"
    be = "all" if slots > 1 else "the only"
    what = what if slots > 1 else what.replace("slots", "slot", 1)
    number = f"{slots} {what}{where} are" if slots > 1 else f"{what}{where} is"
    yield f"{be} {number} taken by jobs of {shown}{others}"
    if waits := min(slots, sum(each.waits for each in full)):
        do = "waits for another job" if waits == 1 else "wait for other jobs"
        yield f"{waits} of them {do}: {WAIT_FIX}"


def _ahead(ahead: int) -> str:
    if ahead > MAX_AHEAD:
        return f"more than {MAX_AHEAD:,} jobs are ahead of it"
    if ahead <= 1:
        return "1 job is ahead of it" if ahead else "it is next"
    return f"{ahead:,} jobs are ahead of it"


def _forecast(job: Job, ahead: int, able: Sequence[WorkerSeen]) -> str | None:
    """The recent rate, and when the job may start; None if no job has ended recently."""
    rate = 0.0
    for worker in able:
        load = worker.load
        ended = load.finished.get(job.queue, {}).get(load.kinds.get(job.task, ""), 0)
        rate += ended / load.seconds if load.seconds > 0 else 0.0
    if rate <= 0:
        return None
    more = "more than " if ahead > MAX_AHEAD else ""
    minute = 60 * rate
    pace = f"{minute:,.0f} jobs per minute" if minute >= 1.5 else f"1 job in {_about(1 / rate)}"
    return f"workers end {pace}, so it may start in {more}{_about((ahead + 1) / rate)}"


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
    return f" ({job.reason})" if job.reason and job.reason != job.state else ""


def _unknown(job: Job) -> str:
    if job.reason != NO_HANDLER:
        return ""
    return f"; the worker that took it does not know task {job.task}: start one with this code"


def _when(at: datetime | None) -> str:
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _ago(now: datetime, at: datetime) -> str:
    return f"{_about((now - at).total_seconds())} ago"


def _about(seconds: float) -> str:
    """A length of time in one unit: 45 s, 3 min, 2 h, 5 days."""
    for unit, length in _UNITS:
        if seconds >= 1.95 * length:
            return f"{round(seconds / length)} {unit}"
    return "1 s" if seconds >= 1 else "less than 1 s"
