"""The enqueued jobs, for assertions in tests."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, overload

import msgspec

from tenure.client import Client
from tenure.errors import InvalidInput, PayloadInvalid
from tenure.rules.codec import decode, encode
from tenure.rules.job import FINAL_STATES, LIVE_STATES, Job, State
from tenure.tasks import Call, Task

PAGE = 500
SHOWN_JOBS = 20
MISSING = object()

AnyTask = Task[..., Any] | str


class EnqueuedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A live job, with its arguments decoded from JSON. `job` has all other fields."""

    id: int
    task: str
    args: dict[str, Any]
    queue: str
    priority: int
    tenant: str
    key: str | None
    due_at: datetime | None
    state: State
    job: Job


def enqueued(app: Client, task: AnyTask | None = None) -> list[EnqueuedJob]:
    """The live jobs, oldest first; with `task`, only those of this task."""
    return [_seen(job) for job in _jobs(app, LIVE_STATES, None if task is None else _name(task))]


@overload
def assert_enqueued(
    app: Client,
    what: Call[Any],
    *,
    queue: str | None = None,
    key: str | None = None,
    tenant: str | None = None,
    times: int | None = None,
) -> list[EnqueuedJob]: ...
@overload
def assert_enqueued(
    app: Client,
    what: AnyTask,
    *,
    args: Mapping[str, object] | None = None,
    queue: str | None = None,
    key: str | None = None,
    tenant: str | None = None,
    times: int | None = None,
) -> list[EnqueuedJob]: ...
def assert_enqueued(
    app: Client,
    what: Call[Any] | AnyTask,
    *,
    args: Mapping[str, object] | None = None,
    queue: str | None = None,
    key: str | None = None,
    tenant: str | None = None,
    times: int | None = None,
) -> list[EnqueuedJob]:
    """Assert that live jobs match: at least one, or exactly `times`, which may be 0. Returns them.

    `task.call(...)` matches this call, with defaults filled in. A task or its name matches any
    call, or with `args` those whose arguments have these values. An error lists all jobs.
    """
    __tracebackhide__ = True
    wanted = {"queue": queue, "key": key, "tenant": tenant}
    name = what.task.name if isinstance(what, Call) else _name(what)
    found = [
        job
        for job in enqueued(app)
        if job.task == name
        and all(value is None or getattr(job, field) == value for field, value in wanted.items())
        and (_is_call(job, what) if isinstance(what, Call) else _has_args(job, args or {}))
    ]
    if len(found) == times or (times is None and found):
        return found
    raise AssertionError(_message(app, _asked(what, args, wanted), len(found), times))


def _name(task: object) -> str:
    if not isinstance(task, Task | str):
        raise InvalidInput(f"give a task, its name, or task.call(...), not {task!r:.60}")
    return task if isinstance(task, str) else task.name


def _jobs(app: Client, states: Collection[State], task: str | None = None) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    while True:
        page = app.list_jobs(states=states, task=task, limit=PAGE, after=after)
        found += page.jobs
        after = page.next
        if after is None:
            return found[::-1]


def _seen(job: Job) -> EnqueuedJob:
    return EnqueuedJob(
        id=job.id, task=job.task, args=job.args, queue=job.queue,
        priority=job.priority, tenant=job.tenant, key=job.unique_key, due_at=job.due_at,
        state=job.state, job=job,
    )  # fmt: skip


def _is_call(job: EnqueuedJob, call: Call[Any]) -> bool:
    """Is it a call with the same arguments? They are compared as the function would get them."""
    try:
        return bool(
            call.task.signature.unpack(job.job.args_json)
            == call.task.signature.unpack(call.job.args)
        )
    except PayloadInvalid:  # enqueued by other code
        return False


def _has_args(job: EnqueuedJob, args: Mapping[str, object]) -> bool:
    """Do these arguments have these values? They are compared as JSON."""
    return all(job.args.get(name, MISSING) == _as_json(value) for name, value in args.items())


def _as_json(value: object) -> object:
    return decode(encode(value, what="an expected argument"))


def _asked(
    what: Call[Any] | AnyTask, args: Mapping[str, object] | None, wanted: Mapping[str, str | None]
) -> str:
    text = what.task.name if isinstance(what, Call) else _name(what)
    if isinstance(what, Call):
        text += f" with {what.job.args.decode()}"
    elif args:
        text += f" with {encode(dict(args), what='the expected arguments').decode()}"
    return text + "".join(f", {name} {value!r}" for name, value in wanted.items() if value)


def _message(app: Client, asked: str, found: int, times: int | None) -> str:
    expected = "at least 1 was" if times is None else f"{times} were"
    text = f"{found} live jobs match, {expected} expected: {asked}"
    text += _list("live jobs", [_line(job) for job in _jobs(app, LIVE_STATES)])
    return text + _list("finished jobs", [_line(job) for job in _jobs(app, FINAL_STATES)])


def _list(what: str, lines: list[str]) -> str:
    if not lines:
        return f"\n{what}: none"
    more = [f"  ... and {len(lines) - SHOWN_JOBS} more"] if len(lines) > SHOWN_JOBS else []
    return "\n".join(["", f"{what}:", *lines[:SHOWN_JOBS], *more])


def _line(job: Job) -> str:
    options = [
        f"queue {job.queue!r}",
        *([f"key {job.unique_key!r}"] if job.unique_key else []),
        *([f"tenant {job.tenant!r}"] if job.tenant else []),
        *([f"due {job.due_at:%Y-%m-%d %H:%M:%S}"] if job.due_at else []),
    ]
    return f"  {job.id}: {job.task} with {job.args_json:.200}, {job.state}, {', '.join(options)}"
