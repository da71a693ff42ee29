"""Tenure, as a user would run it: an application, `enqueue_many`, `run_worker`. History is kept."""

from __future__ import annotations

from bench.peers.adapter import Adapter, chunks, payload
from tenure import Tenure
from tenure.tasks import Task

KEPT = "history is kept"


class Ours(Adapter):
    """`async def` handlers, all settings at their defaults."""

    on_loop = False
    settings = f"async def handler, default settings, {KEPT}"

    def install(self) -> None:
        self._app().migrate()

    async def open(self) -> None:
        self._producer = self._app()
        self._task: Task[..., None] = self._declare(self._producer)
        self._producer.migrate()  # opens the database

    async def enqueue_many(self, first: int, end: int) -> None:
        call = self._task.call
        for some in chunks(first, end):
            self._producer.enqueue_many([call(**payload(job)) for job in some])

    async def enqueue(self, job: int) -> None:
        self._task.enqueue(**payload(job))

    async def close(self) -> None:
        self._producer.close()

    def work(self, worker: int) -> None:
        app = self._app()
        self._declare(app)
        app.migrate()  # finds nothing to do; now the driver is loaded, as it is on the other side
        self.board.wait_for_go(worker)
        if self.slots is None:
            app.run_worker()
        else:
            app.run_worker(async_slots=self.slots, thread_slots=self.slots)

    def _app(self) -> Tenure:
        return Tenure(self.url)

    def _declare(self, app: Tenure) -> Task[..., None]:
        ran, linger = self.board.ran, self.board.linger_async

        @app.task(name="noop")
        async def noop(number: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
            ran(number)
            if linger:
                await linger(number)

        return noop


class Postgres(Ours):
    """On PostgreSQL."""

    name = "tenure-postgres"
    store = "postgres"
    stored = "select count(*) from tenure.job"
    unfinished = "select exists (select from tenure.job)"
    finished = "select count(*) from tenure.history where state = 'succeeded'"
    drain_jobs = 60_000
    enqueue_jobs = 60_000


class Sqlite(Ours):
    """On SQLite, with `synchronous=FULL`."""

    name = "tenure-sqlite"
    store = "sqlite"
    settings = f"async def handler, synchronous=FULL, default settings, {KEPT}"
    stored = "select count(*) from tenure_job"
    unfinished = "select exists (select 1 from tenure_job)"
    finished = "select count(*) from tenure_history where state = 'succeeded'"
    drain_jobs = 60_000
    enqueue_jobs = 60_000


class SqliteThread(Sqlite):
    """`def` handlers, in threads."""

    name = "tenure-sqlite-thread"
    settings = f"def handler, synchronous=FULL, default settings, {KEPT}"
    drain_jobs = 40_000

    def _declare(self, app: Tenure) -> Task[..., None]:
        ran = self.board.ran

        @app.task(name="noop")
        def noop(number: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
            ran(number)

        return noop
