"""procrastinate: claims one job per call of a stored function; finished jobs are kept."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

CONCURRENCY = 10


class Procrastinate(Adapter):
    """With psycopg and one connection per concurrent job."""

    name = "procrastinate"
    store = "postgres"
    packages = ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8")
    settings = f"concurrency={CONCURRENCY}, pool of {CONCURRENCY + 5}, async task, jobs kept"
    on_loop = True
    stored = "select count(*) from procrastinate_jobs"
    unfinished = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"
    finished = "select count(*) from procrastinate_jobs where status = 'succeeded'"
    drain_jobs = 1_500
    enqueue_jobs = 10_000

    def install(self) -> None:
        async def make() -> None:
            app, _ = self._app()
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

        asyncio.run(make())

    async def open(self) -> None:
        self._producer, self._task = self._app()
        await self._producer.open_async()

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):
            await self._task.batch_defer_async(*[payload(job) for job in some])

    async def enqueue(self, job: int) -> None:
        await self._task.defer_async(**payload(job))

    async def close(self) -> None:
        await self._producer.close_async()

    def work(self, worker: int) -> None:
        slots = self.slots or CONCURRENCY

        async def run() -> None:
            app, _ = self._app(connections=slots + 5)
            async with app.open_async():
                self.board.wait_for_go(worker)
                await app.run_worker_async(concurrency=slots)

        asyncio.run(run())

    def _app(self, connections: int = 4) -> tuple[Any, Any]:
        import procrastinate

        connector = procrastinate.PsycopgConnector(
            conninfo=self.url, min_size=1, max_size=connections
        )
        app = procrastinate.App(connector=connector)
        ran, linger = self.board.ran, self.board.linger_async

        @app.task(name="noop")
        async def noop(number: int, **_: object) -> None:
            ran(number)
            if linger:
                await linger(number)

        return app, noop


class WithRecipe(Procrastinate):
    """With a periodic task that retries the jobs of workers which show no sign of life."""

    name = "procrastinate-recipe"
    settings = f"{Procrastinate.settings}, stalled jobs retried each minute"

    def _app(self, connections: int = 4) -> tuple[Any, Any]:
        app, noop = super()._app(connections)

        @app.periodic(cron="* * * * *")
        @app.task(name="retry_stalled_jobs", queueing_lock="retry_stalled_jobs")
        async def retry_stalled_jobs(timestamp: int) -> None:  # noqa: ARG001
            for job in await app.job_manager.get_stalled_jobs():
                await app.job_manager.retry_job(job)

        return app, noop
