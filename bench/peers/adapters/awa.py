"""awa: a Rust core with Python handlers; append-only tables, thrown away as they drain."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

WORKERS = 256
CONNECTIONS = 20
SCHEMA = "awa"


@dataclass
class Noop:
    """The type of the arguments is the kind of the job."""

    number: int
    template: str
    locale: str
    to: str


class Awa(Adapter):
    """With its queue storage and COPY, as its own benchmarks use it."""

    name = "awa"
    store = "postgres"
    packages = ("awa-pg==0.6.9",)
    settings = (
        f"queue storage, enqueue_many_copy, {WORKERS} workers, {CONNECTIONS} connections, "
        "poll_interval_ms=50; it forgets finished jobs within seconds"
    )
    on_loop = True
    stored = "select count(*) from awa.jobs"
    unfinished = (
        "select exists (select from awa.jobs where state not in "
        "('completed', 'failed', 'cancelled'))"
    )
    finished = (
        "select coalesce((select sum(pruned_completed_count) from awa.queue_terminal_rollups), 0)"
        " + (select count(*) from awa.terminal_jobs where state = 'completed')"
    )
    drain_jobs = 15_000
    enqueue_jobs = 30_000

    def install(self) -> None:
        async def make() -> None:
            await self.open()
            await self._client.migrate()
            await self._client.install_queue_storage(schema=SCHEMA)
            await self.close()

        asyncio.run(make())

    async def open(self) -> None:
        self._client = self._connect()

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):
            jobs = [self._job(job) for job in some]
            await self._client.enqueue_many_copy(jobs, queue="default")

    async def enqueue(self, job: int) -> None:
        await self._client.insert(self._job(job), queue="default")

    async def close(self) -> None:
        await self._client.close()

    def work(self, worker: int) -> None:
        ran = self.board.ran

        async def run() -> None:
            client = self._connect()

            @client.task(Noop, queue="default")
            async def noop(job: Any) -> None:
                ran(job.args.number)

            self.board.wait_for_go(worker)
            await client.start(
                [("default", WORKERS)], poll_interval_ms=50, queue_storage_schema=SCHEMA
            )
            await asyncio.Event().wait()

        asyncio.run(run())

    def _connect(self) -> Any:
        from awa import AsyncClient

        return AsyncClient(self.url, max_connections=CONNECTIONS)

    @staticmethod
    def _job(job: int) -> Noop:
        return Noop(**payload(job))  # type: ignore[arg-type]
