"""The hooks of an application. A hook cannot break a job: its failures are only logged.

around      a context manager per attempt, entered where the handler runs
listeners   called with each event of a job in this worker
start, stop called once per worker process, before its first job and after its last
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from datetime import datetime

import msgspec

from tenure.running import Running

Manager = AbstractContextManager[object] | AbstractAsyncContextManager[object]
Around = Callable[[Running], Manager]
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
        self._useless: list[Around] = []
        """Those of which the log says that they return no context manager."""
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

    @asynccontextmanager
    async def around(self, job: Running) -> AsyncIterator[None]:
        """All `around` hooks of an attempt, the first registered outermost.

        It suspends only in async hooks, and those surround `async def` handlers only.
        """
        async with AsyncExitStack() as stack:
            for around in self.arounds:
                await stack.enter_async_context(self._harmless(around, job))
            yield

    @asynccontextmanager
    async def _harmless(self, around: Around, job: Running) -> AsyncIterator[None]:
        """One `around` hook, kept from breaking the job or hiding its error."""
        try:
            manager: object = around(job)
            if isinstance(manager, AbstractAsyncContextManager):
                await manager.__aenter__()
            elif isinstance(manager, AbstractContextManager):
                manager.__enter__()
            else:
                self._tell_useless(around, manager)
        except BaseException as failure:  # even SystemExit: it is not an error of the job
            if isinstance(failure, asyncio.CancelledError):
                raise  # the worker stops the attempt
            log.exception(
                "around hook failed for job %d of %s; running the job without it", job.id, job.task
            )
            yield
            return
        try:
            yield
        except BaseException as error:
            await _leave(manager, error, job)
            raise
        await _leave(manager, None, job)

    def _tell_useless(self, around: Around, returned: object) -> None:
        """Say once that a hook does not return a context manager."""
        if around not in self._useless:
            self._useless.append(around)
            log.error(
                "around hook %s returned %s, which is not a context manager: decorate it with "
                "@contextmanager and yield in it; jobs run without it",
                _name(around), f"{returned!r:.60}",
            )  # fmt: skip

    def async_arounds(self) -> list[str]:
        """The names of the `around` hooks that are async context managers."""
        return [_name(hook) for hook in self.arounds if is_async(hook)]


def _name(hook: Around) -> str:
    return getattr(hook, "__name__", repr(hook))


def is_async(hook: Around) -> bool:
    """Does this `around` hook return an async context manager?"""
    return inspect.isasyncgenfunction(inspect.unwrap(hook)) or hasattr(hook, "__aenter__")


def gives_manager(hook: Around) -> bool:
    """May this `around` hook return a context manager? Of a plain function only a call can tell."""
    if isinstance(hook, type):
        return hasattr(hook, "__enter__") or hasattr(hook, "__aenter__")
    generates = inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook)
    return not generates and not inspect.iscoroutinefunction(inspect.unwrap(hook))


async def _finished(returned: Awaitable[None] | None) -> None:
    if inspect.isawaitable(returned):
        await returned


async def _leave(manager: object, error: BaseException | None, job: Running) -> None:
    facts = (None, None, None) if error is None else (type(error), error, error.__traceback__)
    try:
        if isinstance(manager, AbstractAsyncContextManager):
            await manager.__aexit__(*facts)
        elif isinstance(manager, AbstractContextManager):
            manager.__exit__(*facts)
    except BaseException as failure:
        if isinstance(failure, asyncio.CancelledError):
            raise
        if failure is not error:
            log.exception("around hook failed at the end of job %d of %s", job.id, job.task)
