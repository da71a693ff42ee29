"""What users hang around their jobs. None of it can break a job: failures are logged, no more.

around      a context manager per attempt, entered where the handler runs
listeners   told of each step of a job that this worker makes
start, stop run once per worker process, before its first job and after its last
"""

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
    """One step of a job, as its worker saw it.

    `kind` is started, succeeded, failed, retried, snoozed, released, cancelled, skipped, lost or
    stale. A lost lease and a stale settlement mean that the job goes on elsewhere.
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

    def tell(self, event: JobEvent) -> None:
        """Tell every listener."""
        for listener in self.listeners:
            try:
                listener(event)
            except BaseException:  # even SystemExit: a listener is not who ends a worker
                log.exception("a listener failed; job %d of %s goes on", event.id, event.task)

    @contextmanager
    def around(self, job: Running) -> Iterator[None]:
        """Everything that surrounds an attempt, the first registered outermost."""
        with ExitStack() as stack:
            for around in self.arounds:
                stack.enter_context(_harmless(around, job))
            yield


@contextmanager
def _harmless(around: Around, job: Running) -> Generator[None, None, None]:
    """The context manager of a user, kept from breaking the job or hiding its error."""
    try:
        manager = around(job)
        manager.__enter__()
    except BaseException:  # even SystemExit: nothing that the job itself did
        log.exception("what surrounds job %d of %s failed; it runs without", job.id, job.task)
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
            log.exception("what surrounds job %d of %s failed at its end", job.id, job.task)
