"""The connections of one worker process: one per concern, so that none waits for another.

PostgreSQL: claim, settle, heartbeat, and the bell's own. A SQLite file is opened once per process,
because operations that share a session share commits.
"""

from tenure.client import Client
from tenure.store import open_async_store, open_store
from tenure.worker.environment import World
from tenure.worker.settings import WorkerSettings

WRITERS = 4
"""On SQLite: one thread each to claim, settle, promote and sweep. A pool that may grow does: it
starts a thread whenever one is not quite back, and each keeps memory of its own."""


class Stores:
    """What a worker process talks to."""

    def __init__(self, app: Client, settings: WorkerSettings, world: World) -> None:
        self._local = app.is_local
        if self._local:
            shared = app.whole_store
            self.beating = world.wrap(shared)
            writing = shared.in_threads(most=WRITERS, owns_session=False)
            self.claiming = self.settling = world.wrap_async(writing)
            return
        shortest = min([settings.lease_seconds, *settings.queue_lease_seconds.values()])
        give_up = min(10.0, shortest / 4)
        self.beating = world.wrap(open_store(app.url, connections=1, give_up_seconds=give_up))
        claiming = open_async_store(app.url, connections=1, give_up_seconds=give_up)
        self.claiming = world.wrap_async(claiming)  # a claim answered late is worth nothing
        self.settling = world.wrap_async(open_async_store(app.url, connections=1))

    async def close(self) -> None:
        """Close what was opened here; a SQLite file is the application's to close."""
        await self.claiming.close()
        await self.settling.close()
        if not self._local:
            self.beating.close()
