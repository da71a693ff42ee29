"""The connections of one worker process: one for each purpose, so that none waits for another.

On PostgreSQL: claims, settlements, heartbeats, and one more for the bell. A SQLite file is opened
once per process, because operations that share a session share commits.
"""

from tenure.client import Client
from tenure.store import open_async_store, open_store
from tenure.worker.environment import Environment
from tenure.worker.settings import WorkerSettings

WRITERS = 4
"""On SQLite: one thread each to claim, settle, promote and sweep. A larger pool would grow whenever
a thread is not quite idle again, and each thread keeps memory of its own."""


class Stores:
    """The stores of one worker process."""

    def __init__(self, app: Client, settings: WorkerSettings, environment: Environment) -> None:
        self._local = app.is_local
        if self._local:
            shared = app.whole_store
            self.beating = environment.wrap(shared)
            writing = shared.in_threads(most=WRITERS, owns_session=False)
            self.claiming = self.settling = environment.wrap_async(writing)
            return
        shortest = min([settings.lease_seconds, *settings.queue_lease_seconds.values()])
        give_up = min(10.0, shortest / 4)
        self.beating = environment.wrap(open_store(app.url, connections=1, give_up_seconds=give_up))
        claiming = open_async_store(app.url, connections=1, give_up_seconds=give_up)
        self.claiming = environment.wrap_async(claiming)  # a claim that returns late is useless
        self.settling = environment.wrap_async(open_async_store(app.url, connections=1))

    async def close(self) -> None:
        """Close the stores. The application closes a SQLite file itself."""
        await self.claiming.close()
        await self.settling.close()
        if not self._local:
            self.beating.close()
