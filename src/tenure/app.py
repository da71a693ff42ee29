"""The application: tasks, their jobs and their workers in one object.

app = Tenure("sqlite:///jobs.db")       # or postgresql://..., or nothing: TENURE_URL

@app.task()
async def send(to: str) -> None: ...

send.enqueue("user@example.org")
app.run_worker()
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TypeVar, Unpack

from tenure.client import Client
from tenure.hooks import Listener, Setup
from tenure.running import Running
from tenure.worker.settings import Settings
from tenure.worker.worker import Worker

A = TypeVar("A", bound=Callable[[Running], AbstractContextManager[object]])
L = TypeVar("L", bound=Listener)
S = TypeVar("S", bound=Setup)


class Tenure(Client):
    """Tasks, the database of their jobs, and the workers that run them."""

    def run_worker(
        self,
        queues: Mapping[str, int] | None = None,
        *,
        processes: int = 1,
        **settings: Unpack[Settings],
    ) -> None:
        """Run a worker until SIGTERM, SIGINT or SIGHUP; then finish the running jobs and return."""
        Worker(self, queues, processes=processes, **settings).run()

    def around(self, hook: A) -> A:
        """Surround every attempt with a context manager that receives the running job.

        It runs where the handler runs, and sees the handler's exception. An exception of its own
        is logged; it neither stops the job nor changes its outcome.
        """
        self.hooks.arounds.append(hook)
        return hook

    def listen(self, hook: L) -> L:
        """Call a function with a `JobEvent` for each thing that a worker here does with a job."""
        self.hooks.listeners.append(hook)
        return hook

    def on_start(self, hook: S) -> S:
        """Call a function in each worker process before its first job; it may be async."""
        self.hooks.starts.append(hook)
        return hook

    def on_stop(self, hook: S) -> S:
        """Call a function in each worker process after its last job; it may be async."""
        self.hooks.stops.append(hook)
        return hook
