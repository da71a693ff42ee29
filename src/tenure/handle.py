"""The handle of an enqueued job: wait for it and get its typed result."""

from typing import Generic, Protocol, TypeVar, cast

from tenure.errors import JobFailed, PayloadInvalid
from tenure.rules.codec import decode
from tenure.rules.job import Enqueued, Job, State
from tenure.rules.why import last_error

R_co = TypeVar("R_co", covariant=True)


class _App(Protocol):
    """The part of an application that a handle uses."""

    def wait(self, id: int, *, timeout_seconds: float | None = None) -> Job: ...
    async def wait_async(self, id: int, *, timeout_seconds: float | None = None) -> Job: ...


class _Signature(Protocol):
    @property
    def result_type(self) -> object: ...


class _Task(Protocol):
    """The part of a task that a handle uses."""

    @property
    def name(self) -> str: ...
    @property
    def signature(self) -> _Signature: ...


class Handle(Generic[R_co]):
    """An enqueued job. `created` is False when this job already held the unique key."""

    __slots__ = ("_app", "_task", "created", "id", "same_args")

    def __init__(self, app: _App, task: _Task, enqueued: Enqueued) -> None:
        self.id = enqueued.id
        self.created = enqueued.created
        self.same_args = enqueued.same_args
        self._app = app
        self._task = task

    def __repr__(self) -> str:
        return f"<Handle of {self._task.name} {self.id}>"

    def wait(self, *, timeout_seconds: float | None = None) -> R_co:
        """The typed result. Raises `JobFailed` or `WaitTimeout`."""
        return self._result(self._app.wait(self.id, timeout_seconds=timeout_seconds))

    async def wait_async(self, *, timeout_seconds: float | None = None) -> R_co:
        """The typed result. Raises `JobFailed` or `WaitTimeout`."""
        return self._result(await self._app.wait_async(self.id, timeout_seconds=timeout_seconds))

    def _result(self, job: Job) -> R_co:
        if job.state is not State.SUCCEEDED:
            because = f" ({job.reason})" if job.reason else ""
            raise JobFailed(
                f"job {job.id} of {job.task} is {job.state}{because}{last_error(job)}",
                state=job.state,
                error=job.error,
            )
        try:
            return cast(R_co, decode(job.result or "null", self._task.signature.result_type))
        except PayloadInvalid as error:
            raise PayloadInvalid(
                f"job {job.id} of {job.task} succeeded, but its result does not fit the task's "
                f"annotation: {error}"
            ) from error
