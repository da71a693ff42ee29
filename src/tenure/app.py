"""The application: tasks, their jobs and their workers in one object.

app = Tenure("sqlite:///jobs.db")       # or postgresql://..., or nothing: TENURE_URL

@app.task()
async def send(to: str) -> None: ...

send.enqueue("user@example.org")
app.run_worker()
"""

from collections.abc import Callable, Mapping
from typing import TypeVar, Unpack

from tenure.client import Client
from tenure.errors import InvalidInput
from tenure.feed import Listening
from tenure.hooks import Around, Listener, Setup, gives_manager, is_async
from tenure.rules.ends import Ended
from tenure.worker.settings import Settings
from tenure.worker.worker import Worker, refuse_async_arounds

A = TypeVar("A", bound=Around)
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
        is logged; it neither stops the job nor changes its outcome. An async context manager needs
        an application whose tasks are all `async def`, without `isolation="process"`.
        """
        if not gives_manager(hook):
            raise InvalidInput(
                "around needs a function that returns a context manager: decorate it with "
                "@contextmanager or @asynccontextmanager, and yield in it"
            )
        if is_async(hook):
            refuse_async_arounds([getattr(hook, "__name__", repr(hook))], self)
        self.hooks.arounds.append(hook)
        return hook

    def listen(self, hook: L) -> L:
        """Call a function with a `JobEvent` for each thing that a worker here does with a job."""
        self.hooks.listeners.append(hook)
        return hook

    def listen_everywhere(
        self, hook: Callable[[Ended], object], *, reader: str | None = None
    ) -> Listening:
        """Call a function with each job that ends from now on, wherever that is, in order.

        The calls come from a thread of this process until you call `stop` on what is returned, or
        leave its `with` block. If a call fails, that is logged, and the next one follows. With
        `reader`, the name of a reader of the feed, they go on after a restart where they were: what
        has ended meanwhile comes first, and some ends may come again.
        """
        return Listening(lambda: self.store, hook, reader)

    def on_start(self, hook: S) -> S:
        """Call a function in each worker process before its first job; it may be async."""
        self.hooks.starts.append(hook)
        return hook

    def on_stop(self, hook: S) -> S:
        """Call a function in each worker process after its last job; it may be async."""
        self.hooks.stops.append(hook)
        return hook
