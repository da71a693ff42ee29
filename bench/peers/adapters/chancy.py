"""chancy: claims in blocks, writes results once a second; finished jobs are kept until pruned."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from bench.peers.adapter import CHUNK, Adapter, payload
from bench.peers.board import Board

CONCURRENCY = 100
_board: list[Board] = []


async def noop(number: int, **_: object) -> None:
    """The handler; chancy finds it by its import path."""
    _board[0].ran(number)


class Chancy(Adapter):
    """With its asyncio executor and eager polling."""

    name = "chancy"
    store = "postgres"
    packages = ("chancy==0.26.0", "psycopg[binary,pool]==3.3.8")
    settings = f"AsyncExecutor, concurrency={CONCURRENCY}, eager_polling, default plugins, kept"
    on_loop = True
    stored = "select count(*) from chancy_jobs"
    unfinished = (
        "select exists (select from chancy_jobs where state in ('pending', 'running', 'retrying'))"
    )
    finished = "select count(*) from chancy_jobs where state = 'succeeded'"
    drain_jobs = 6_000
    enqueue_jobs = 6_000

    def install(self) -> None:
        async def make() -> None:
            import chancy

            async with self._app() as app:
                await app.migrate()
                queue = chancy.Queue(
                    "default",
                    concurrency=CONCURRENCY,
                    executor=chancy.Chancy.Executor.Async,
                    eager_polling=True,
                )
                await app.declare(queue)

        asyncio.run(make())

    async def open(self) -> None:
        self._producer = self._app()
        await self._producer.__aenter__()

    async def enqueue_many(self, first: int, end: int) -> None:
        jobs = [self._job(job) for job in range(first, end)]
        async for _ in self._producer.push_many(jobs, batch_size=CHUNK):
            pass

    async def enqueue(self, job: int) -> None:
        await self._producer.push(self._job(job))

    async def close(self) -> None:
        await self._producer.__aexit__(None, None, None)

    def work(self, worker: int) -> None:
        _board.append(self.board)

        async def run() -> None:
            import chancy

            async with self._app() as app:
                self.board.wait_for_go(worker)
                async with chancy.Worker(app) as working:
                    await working.wait_for_shutdown()

        asyncio.run(run())

    def _app(self) -> Any:
        import chancy

        quiet = logging.getLogger("chancy.quiet")
        quiet.setLevel(logging.WARNING)
        return chancy.Chancy(self.url, log=quiet)

    @staticmethod
    def _job(job: int) -> Any:
        import chancy

        path = f"{noop.__module__}.{noop.__name__}"
        return chancy.Job(func=path, kwargs=payload(job), queue="default")
