"""litequeue on SQLite: a table with put, pop and done. It has no worker: only enqueues compete."""

from __future__ import annotations

import json
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload


class Litequeue(Adapter):
    """Its own setting is `synchronous=NORMAL`: it does not wait for the disk, and we do."""

    name = "litequeue"
    store = "sqlite"
    packages = ("litequeue==0.9",)
    settings = "WAL, synchronous=NORMAL (its own), one transaction per 1,000"
    on_loop = False
    stored = "select count(*) from Queue"
    unfinished = "select exists (select 1 from Queue where status in (0, 1))"
    finished = "select count(*) from Queue where status = 2"
    drain_jobs = 2_000
    enqueue_jobs = 60_000

    def install(self) -> None:
        self._queue().close()

    async def open(self) -> None:
        self._producer = self._queue()

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):
            with self._producer.transaction(mode="IMMEDIATE"):
                for job in some:
                    self._producer.put(json.dumps(payload(job)))

    async def enqueue(self, job: int) -> None:
        self._producer.put(json.dumps(payload(job)))

    async def close(self) -> None:
        self._producer.close()

    def work(self, worker: int) -> None:
        raise NotImplementedError

    def _queue(self) -> Any:
        from litequeue import LiteQueue

        return LiteQueue(self.url.removeprefix("sqlite:///"), timeout=30)
