"""SAQ on its PostgreSQL backend: claims in blocks, then one UPDATE per job; rows live 600 s."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

CONCURRENCY = 100
AT_ONCE = 200


class Saq(Adapter):
    """With psycopg and its default pool."""

    name = "saq"
    store = "postgres"
    packages = ("saq[postgres]==0.26.4", "psycopg[binary,pool]==3.3.8")
    settings = f"concurrency={CONCURRENCY} (default 10), pool of 20 (default), ttl 600 s (default)"
    on_loop = True
    stored = "select count(*) from saq_jobs"
    unfinished = (
        "select exists (select from saq_jobs "
        "where status in ('new', 'deferred', 'queued', 'active'))"
    )
    finished = "select count(*) from saq_jobs where status = 'complete'"
    drain_jobs = 1_500
    enqueue_jobs = 3_000

    def install(self) -> None:
        async def make() -> None:
            await self.open()
            await self.close()

        asyncio.run(make())

    async def open(self) -> None:
        self._producer = self._queue()
        await self._producer.connect()

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end, AT_ONCE):  # it has no call for many: many calls at once
            await asyncio.gather(*[self.enqueue(job) for job in some])

    async def enqueue(self, job: int) -> None:
        await self._producer.enqueue("noop", **payload(job))

    async def close(self) -> None:
        await self._producer.disconnect()

    def work(self, worker: int) -> None:
        ran = self.board.ran

        async def noop(context: object, *, number: int, **_: object) -> None:  # noqa: ARG001
            ran(number)

        async def run() -> None:
            from saq import Worker

            queue = self._queue()
            await queue.connect()
            working = Worker(queue, functions=[("noop", noop)], concurrency=CONCURRENCY)
            self.board.wait_for_go(worker)
            await working.start()

        asyncio.run(run())

    def _queue(self) -> Any:
        from saq.queue.postgres import PostgresQueue

        return PostgresQueue.from_url(self.url)
