"""pgqueuer: claims and completes in batches; deletes finished jobs, keeps a log of their states."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

BATCH = 500


class Pgqueuer(Adapter):
    """With asyncpg and uvloop, as its own command line runs it."""

    name = "pgqueuer"
    store = "postgres"
    packages = ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    settings = f"asyncpg, uvloop, batch_size={BATCH} (default 10), durable tables (default)"
    on_loop = True
    stored = "select count(*) from pgqueuer"
    unfinished = "select exists (select from pgqueuer where status in ('queued', 'picked'))"
    finished = "select count(*) from pgqueuer_log where status = 'successful'"
    drain_jobs = 40_000
    enqueue_jobs = 40_000

    def install(self) -> None:
        async def make() -> None:
            await self.open()
            await self._queries.install()
            await self.close()

        asyncio.run(make())

    async def open(self) -> None:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        self._connection = await asyncpg.connect(self.url)
        self._queries = Queries(AsyncpgDriver(self._connection))

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):
            bodies = [json.dumps(payload(job)).encode() for job in some]
            await self._queries.enqueue(["noop"] * len(some), bodies, [0] * len(some))

    async def enqueue(self, job: int) -> None:
        await self._queries.enqueue("noop", json.dumps(payload(job)).encode())

    async def close(self) -> None:
        await self._connection.close()

    def work(self, worker: int) -> None:
        import asyncpg
        import uvloop
        from pgqueuer import PgQueuer

        ran, linger = self.board.ran, self.board.linger_async
        batch = BATCH if self.slots is None else self.slots // 2

        async def run() -> None:
            queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))

            @queue.entrypoint("noop")
            async def noop(job: Any) -> None:
                number = json.loads(job.payload)["number"]
                ran(number)
                if linger:
                    await linger(number)

            self.board.wait_for_go(worker)
            await queue.run(batch_size=batch, max_concurrent_tasks=self.slots)

        uvloop.run(run())
