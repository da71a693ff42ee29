"""The handle of an enqueued job: look at it, wait for it, stop it, and get its typed result."""

from typing import Generic, Protocol, TypeVar, cast

from tenure.errors import JobFailed, PayloadInvalid
from tenure.rules.codec import decode
from tenure.rules.job import Enqueued, Job, Progress, State
from tenure.rules.limits import JobId, JobReference, Timeout
from tenure.rules.why import last_error

D = TypeVar("D")
R_co = TypeVar("R_co", covariant=True)


class _App(Protocol):
    """The part of an application that a handle uses."""

    def wait(self, id: JobId, *, timeout_seconds: Timeout = None) -> Job: ...
    async def wait_async(self, id: JobId, *, timeout_seconds: Timeout = None) -> Job: ...
    def get(self, id: JobId) -> Job: ...
    async def get_async(self, id: JobId) -> Job: ...
    def progress(self, id: JobId) -> Progress: ...
    async def progress_async(self, id: JobId) -> Progress: ...
    def cancel(self, id: JobId, *, reason: str = ...) -> State: ...
    async def cancel_async(self, id: JobId, *, reason: str = ...) -> State: ...


class _Signature(Protocol):
    @property
    def result_type(self) -> object: ...


class _Task(Protocol):
    """The part of a task that a handle uses."""

    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> _Signature: ...


class Handle(JobReference, Generic[R_co]):
    """An enqueued job. `created` is False when this job already held the unique key; `gone`: it has
    finished and is no longer stored, and only its key is. `replaced` says whether this call has
    changed that job: see `Replace`.
    """

    __slots__ = ("_app", "_task", "created", "gone", "id", "replaced", "same_args")

    def __init__(self, app: _App, task: _Task, enqueued: Enqueued) -> None:
        self.id = enqueued.id
        self.created = enqueued.created
        self.same_args = enqueued.same_args
        self.gone = enqueued.gone
        self.replaced = enqueued.replaced
        self._app = app
        self._task = task

    def __repr__(self) -> str:
        return f"<Handle of {self._task.name} {self.id}>"

    def wait(self, timeout_seconds: Timeout = None) -> R_co:
        """The typed result. Raises `JobFailed`, `WaitTimeout`, or `JobGone` if it is not kept."""
        return self._result(self._app.wait(self.id, timeout_seconds=timeout_seconds))

    async def wait_async(self, timeout_seconds: Timeout = None) -> R_co:
        """The typed result. Raises `JobFailed`, `WaitTimeout`, or `JobGone` if it is not kept."""
        return self._result(await self._app.wait_async(self.id, timeout_seconds=timeout_seconds))

    def job(self) -> Job:
        """The job as it is now. Raises `JobNotFound` if it was pruned."""
        return self._app.get(self.id)

    async def job_async(self) -> Job:
        """The job as it is now. Raises `JobNotFound` if it was pruned."""
        return await self._app.get_async(self.id)

    def status(self) -> State:
        """The state of the job now."""
        return self.job().state

    async def status_async(self) -> State:
        """The state of the job now."""
        return (await self.job_async()).state

    def progress(self) -> Progress:
        """The last progress and the last checkpoint of the job."""
        return self._app.progress(self.id)

    async def progress_async(self) -> Progress:
        """The last progress and the last checkpoint of the job."""
        return await self._app.progress_async(self.id)

    def cancel(self, *, reason: str = "cancelled") -> State:
        """Cancel the job. Returns its state afterwards: `running` if its worker still stops it."""
        return self._app.cancel(self.id, reason=reason)

    async def cancel_async(self, *, reason: str = "cancelled") -> State:
        """Cancel the job. Returns its state afterwards: `running` if its worker still stops it."""
        return await self._app.cancel_async(self.id, reason=reason)

    def result(self, default: D) -> R_co | D:
        """The typed result if the job has succeeded, `default` while it is not finished.

        Raises `JobFailed` if it has finished without a result.
        """
        job = self.job()
        return self._result(job) if job.state.final else default

    async def result_async(self, default: D) -> R_co | D:
        """The typed result if the job has succeeded, `default` while it is not finished.

        Raises `JobFailed` if it has finished without a result.
        """
        job = await self.job_async()
        return self._result(job) if job.state.final else default

    def _result(self, job: Job) -> R_co:
        if job.state is not State.SUCCEEDED:
            because = f" ({job.reason})" if job.reason and job.reason != job.state else ""
            raise JobFailed(
                f"job {job.id} of {job.task} is {job.state}{because}{last_error(job)}",
                state=job.state,
                error=job.error,
            )
        try:
            return cast(R_co, decode(job.result_json or "null", self._task.signature.result_type))
        except PayloadInvalid as error:
            raise PayloadInvalid(
                f"job {job.id} of {job.task} succeeded, but its result does not fit the task's "
                f"annotation: {error}"
            ) from error
