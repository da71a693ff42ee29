"""Oban for Python: claims in blocks, acknowledges in batches; finished jobs are kept for a day."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

LIMIT = 100


class Oban(Adapter):
    """With uvloop and orjson, as its own command line sets it up."""

    name = "oban"
    store = "postgres"
    packages = ("oban==0.7.0", "psycopg[binary,pool]==3.3.8", "uvloop==0.23.0", "orjson==3.13.0")
    python = (3, 12)
    settings = f"queue limit={LIMIT}, uvloop, orjson, pool of 10, jobs kept"
    on_loop = True
    stored = "select count(*) from oban_jobs"
    unfinished = (
        "select exists (select from oban_jobs where state in "
        "('available', 'executing', 'scheduled', 'retryable'))"
    )
    finished = "select count(*) from oban_jobs where state = 'completed'"
    drain_jobs = 6_000
    enqueue_jobs = 6_000

    def install(self) -> None:
        async def make() -> None:
            from oban.schema import install

            pool = await self._pool()
            await install(pool)
            await pool.close()

        asyncio.run(make())

    async def open(self) -> None:
        import oban

        self._connections = await self._pool()
        self._producer = oban.Oban(pool=self._connections)
        await self._producer.start()
        self._task = self._declare()

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):
            await self._producer.enqueue_many([self._task.new(payload(job)) for job in some])

    async def enqueue(self, job: int) -> None:
        await self._producer.enqueue(self._task.new(payload(job)))

    async def close(self) -> None:
        await self._producer.stop()
        await self._connections.close()

    def work(self, worker: int) -> None:
        import oban
        import orjson
        import uvloop
        from psycopg.types.json import set_json_dumps, set_json_loads

        async def run() -> None:
            set_json_dumps(orjson.dumps)
            set_json_loads(orjson.loads)
            pool = await self._pool()
            self._declare()
            working = oban.Oban(pool=pool, queues={"default": LIMIT})
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            self.board.wait_for_go(worker)
            await working.start()
            await stopped.wait()

        uvloop.run(run())

    async def _pool(self) -> Any:
        from psycopg_pool import AsyncConnectionPool

        pool: Any = AsyncConnectionPool(self.url, min_size=1, max_size=10, open=False)
        await pool.open()
        return pool

    def _declare(self) -> Any:
        from oban import worker

        ran = self.board.ran

        @worker(queue="default")
        class Noop:
            async def process(self, job: Any) -> None:
                ran(job.args["number"])

        return Noop
