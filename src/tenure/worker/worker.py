"""The worker, as users call it: in this process, in several, or inside an application.

Worker(app, queues={"gpu": 1, "default": 32}).run()      # until SIGTERM, SIGINT or SIGHUP
async with Worker(app):                                  # beside an ASGI application
    ...
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from tenure.client import Client
from tenure.errors import ConfigError, InvalidInput
from tenure.rules.limits import check_int
from tenure.waiting import worker_on_this_loop
from tenure.worker import loop
from tenure.worker.children.app_ref import locate, refuse_while_imported
from tenure.worker.environment import Environment
from tenure.worker.process import WorkerProcess
from tenure.worker.protected import start_task
from tenure.worker.settings import Settings, WorkerSettings, check_health_file, settings_of
from tenure.worker.signals import catch_signals
from tenure.worker.supervisor.supervisor import Supervisor

MAX_PROCESSES = 1000
GUARD_SECONDS = 1.0


def queues_of(app: Client) -> dict[str, int]:
    """The queues that a worker serves if none is named: those of the tasks, or else `default`."""
    return dict.fromkeys(sorted({task.options_of_task.queue for task in app}) or ["default"], 0)


class Worker:
    """Runs the jobs of one application.

    `queues` maps each queue to its slots, which are also its weight; 0 means as many as there are.
    Without it, the worker serves the queues of the application's tasks.
    With `processes` above one, `run` starts that many worker processes and replaces those that die.
    """

    told_by_people = True
    """Whether a person sends its signals, and may send a second one. Not so with --reload."""

    def __init__(
        self,
        app: Client,
        queues: Mapping[str, int] | None = None,
        *,
        processes: int = 1,
        environment: Environment | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        if not isinstance(app, Client):
            raise ConfigError(f"a worker needs an application, app = Tenure(...), not {app!r:.60}")
        check_int("processes", processes, 1, MAX_PROCESSES)
        self.app = app
        self.settings: WorkerSettings = settings_of(
            queues_of(app) if queues is None else queues, settings
        )
        self.processes = processes
        self._environment = environment or (
            app.wrapper if isinstance(app.wrapper, Environment) else Environment()
        )
        self._process: WorkerProcess | None = None
        self._supervisor: Supervisor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._stop_asked = False
        self.reached_max_jobs = False
        """Whether it has ended because it has run as many jobs as `max_jobs` says."""

    @property
    def name(self) -> str | None:
        """The name of the worker in the database, while it works."""
        return None if self._process is None else self._process.name

    def run(self) -> None:
        """Work until a signal comes or `stop` is called. A second signal ends the process at once.

        With `until_idle` or `max_jobs` it may end sooner.

        Signals are caught when this is the main thread. SIGUSR1 writes all stacks to stderr.
        """
        self._check()
        if self.processes == 1:
            with catch_signals(self._stop_by_signal, self._exit) as guard:
                loop.run(self._serve_guarded(guard))
            return
        self._supervisor = Supervisor(
            locate(self.app), self.settings, self.processes, self._environment
        )
        if self._stop_asked:
            self._supervisor.stop()
        try:
            with catch_signals(self.stop, self._exit):
                self._supervisor.run()
        finally:  # so that it can be used again
            self._supervisor, self._stop_asked = None, False

    def _exit(self, code: int) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()
        self._environment.exit_now(code)

    async def serve(self) -> None:
        """Work in this process, on this event loop, until `stop` is called. Catches no signals."""
        self._check()
        if self.processes != 1:
            raise ConfigError("serve() works in one process; use run() for processes > 1")
        self._loop = asyncio.get_running_loop()
        self._process = WorkerProcess(self.app, self.settings, self._environment)
        if self._stop_asked:
            self._process.stop()
        try:
            with self.app.in_use_by_worker(), worker_on_this_loop():
                await self._process.run()
        finally:  # so that it can be used again
            self.reached_max_jobs = self._process.reached_max_jobs
            self._process, self._stop_asked = None, False

    def stop(self) -> None:
        """Begin to shut down; may be called from any thread and from a signal handler."""
        self._stop(by_signal=False)

    def _stop_by_signal(self) -> None:
        self._stop(by_signal=self.told_by_people)

    def _stop(self, *, by_signal: bool) -> None:
        self._stop_asked = True
        if self._supervisor is not None:
            self._supervisor.stop()
        if self._loop is not None and self._process is not None:
            with suppress(RuntimeError):  # it has ended already
                self._loop.call_soon_threadsafe(partial(self._process.stop, by_signal=by_signal))

    async def __aenter__(self) -> Self:
        """Begin to work, on the event loop that runs."""
        if self._serving is not None:
            raise InvalidInput("this worker is working already")
        self._serving = start_task(self.serve(), "tenure-worker")
        try:
            await self._until_ready(self._serving)
        except BaseException:
            await self._give_up(self._serving)
            raise
        return self

    async def _until_ready(self, serving: asyncio.Task[None]) -> None:
        """Wait until it works or was stopped. Raises the error that prevents it from working."""
        while self._process is None or not self._process.ready.is_set():
            if serving.done():
                serving.result()
                return
            await asyncio.sleep(0.001)

    async def _give_up(self, serving: asyncio.Task[None]) -> None:
        """The caller of `__aenter__` was cancelled: stop the worker."""
        self.stop()
        if self._process is None or not self._process.ready.is_set():
            serving.cancel()  # there is nothing to drain yet
        while not serving.done():
            with suppress(asyncio.CancelledError):  # a second cancellation: `serving` ends at once
                await asyncio.gather(serving, return_exceptions=True)
        self._serving, self._stop_asked = None, False

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._serving is not None
        self.stop()
        try:
            await self._serving
        finally:
            self._serving, self._stop_asked = None, False

    def _check(self) -> None:
        require_posix()
        refuse_while_imported()
        if self.settings.health_file is not None:
            check_health_file(Path(self.settings.health_file))
        if self.app.tenant is not None:
            raise ConfigError(
                "a worker serves all tenants; give it an application without tenant=..."
            )
        for task in self.app:
            _ = task.signature  # raises for annotations that cannot be used
        refuse_async_arounds(self.app.hooks.async_arounds(), self.app)
        self.app.declared_schedules()  # raises for tasks that need arguments
        self.app.declared_hooks()  # raises for tasks that cannot receive a failed job
        isolated = [task for task in self.app if task.kind == "process"]
        if isolated:
            locate(self.app)  # raise now, not when the first job comes

    async def _serve_guarded(self, guard: Callable[[], None]) -> None:
        async def keep() -> None:
            while True:
                await asyncio.sleep(GUARD_SECONDS)
                guard()

        guarding = start_task(keep(), "tenure-signals")
        try:
            await self.serve()
        finally:
            guarding.cancel()
            await self.app.close_loop()


def require_posix() -> None:
    """Raise ConfigError on Windows."""
    if os.name != "posix":
        raise ConfigError("workers run on Linux and macOS; on Windows Tenure is a client only")


def refuse_async_arounds(hooks: Sequence[str], app: Client) -> None:
    """Raise ConfigError for async `around` hooks if a handler does not run on the event loop."""
    others = sorted(task.name for task in app if task.kind != "async")
    if hooks and others:
        raise ConfigError(
            f"the around hook {hooks[0]} is async and cannot surround {others[0]}, which runs in a "
            "thread or in a child process; use a plain context manager (@contextmanager)"
        )
