"""The hooks of an application. A hook cannot break a job: its failures are only logged.

around      a context manager per attempt, entered where the handler runs
listeners   called with each event of a job in this worker
start, stop called once per worker process, before its first job and after its last
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime

import msgspec

from tenure.running import Running

Around = Callable[[Running], AbstractContextManager[object]]
Setup = Callable[[], Awaitable[None] | None]
log = logging.getLogger("tenure.hooks")


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has just done with a job.

    `kind` is started, succeeded, failed, retried, snoozed, released, cancelled, skipped, lost or
    stale. After a lost lease or a stale settlement another worker continues with the job.
    """

    kind: str
    id: int
    token: int
    task: str
    queue: str
    tenant: str
    attempt: int
    worker: str
    at: datetime
    reason: str | None = None
    duration_seconds: float | None = None


Listener = Callable[[JobEvent], None]


class Hooks:
    """The hooks of one application."""

    def __init__(self) -> None:
        self.arounds: list[Around] = []
        self.listeners: list[Listener] = []
        self.starts: list[Setup] = []
        self.stops: list[Setup] = []

    async def set_up(self) -> None:
        """Call the `on_start` hooks. Raises their errors: the worker must not start then."""
        for hook in self.starts:
            await _finished(hook())

    async def tear_down(self) -> None:
        """Call the `on_stop` hooks. If one fails, the others are still called."""
        for hook in self.stops:
            try:
                await _finished(hook())
            except Exception:
                log.exception("on_stop hook failed")

    def tell(self, event: JobEvent) -> None:
        """Call every listener."""
        for listener in self.listeners:
            try:
                listener(event)
            except BaseException:  # even SystemExit: a listener must not end a worker
                log.exception(
                    "a listener failed for job %d of %s; the job continues", event.id, event.task
                )

    @contextmanager
    def around(self, job: Running) -> Iterator[None]:
        """All `around` hooks of an attempt, the first registered outermost."""
        with ExitStack() as stack:
            for around in self.arounds:
                stack.enter_context(_harmless(around, job))
            yield


async def _finished(returned: Awaitable[None] | None) -> None:
    if inspect.isawaitable(returned):
        await returned


@contextmanager
def _harmless(around: Around, job: Running) -> Generator[None, None, None]:
    """One `around` hook, kept from breaking the job or hiding its error."""
    try:
        manager = around(job)
        manager.__enter__()
    except BaseException:  # even SystemExit: it is not an error of the job
        log.exception(
            "around hook failed for job %d of %s; running the job without it", job.id, job.task
        )
        yield
        return
    try:
        yield
    except BaseException as error:
        _leave(manager, error, job)
        raise
    _leave(manager, None, job)


def _leave(
    manager: AbstractContextManager[object], error: BaseException | None, job: Running
) -> None:
    try:
        if error is None:
            manager.__exit__(None, None, None)
        else:
            manager.__exit__(type(error), error, error.__traceback__)
    except BaseException as failure:
        if failure is not error:
            log.exception("around hook failed at the end of job %d of %s", job.id, job.task)
