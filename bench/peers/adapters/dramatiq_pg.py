"""dramatiq-pg: NOTIFY carries the message, one UPDATE per job; messages are kept until purged."""

from __future__ import annotations

import os
import threading
from typing import Any

from bench.peers.adapter import Adapter, payload

THREADS = 8
PREFETCH = 1000


class DramatiqPg(Adapter):
    """With a pool that does not close connections: psycopg2's does, above its minimum."""

    name = "dramatiq-pg"
    store = "postgres"
    packages = ("dramatiq-pg==0.12.0", "dramatiq==1.18.0", "psycopg2-binary==2.9.13")
    settings = f"{THREADS} threads (default), prefetch={PREFETCH}, no results, messages kept"
    on_loop = False
    stored = "select count(*) from dramatiq.queue"
    unfinished = "select exists (select from dramatiq.queue where state in ('queued', 'consumed'))"
    finished = "select count(*) from dramatiq.queue where state = 'done'"
    drain_jobs = 1_500
    enqueue_jobs = 3_000

    def install(self) -> None:
        import psycopg2
        from dramatiq_pg.schema import generate_init_sql

        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        connection.cursor().execute(generate_init_sql())
        connection.close()

    async def open(self) -> None:
        _, self._task = self._actor()

    async def enqueue_many(self, first: int, end: int) -> None:
        for job in range(first, end):  # it has no call for many
            self._task.send(**payload(job))

    async def enqueue(self, job: int) -> None:
        self._task.send(**payload(job))

    def work(self, worker: int) -> None:
        os.environ["dramatiq_queue_prefetch"] = str(PREFETCH)  # noqa: SIM112 - its spelling
        from dramatiq import Worker

        broker, _ = self._actor()
        working = Worker(broker, worker_threads=THREADS, worker_timeout=1000)
        self.board.wait_for_go(worker)
        working.start()
        threading.Event().wait()

    def _actor(self) -> tuple[Any, Any]:
        import dramatiq
        from dramatiq_pg import PostgresBroker
        from psycopg2.pool import ThreadedConnectionPool

        pool = ThreadedConnectionPool(THREADS + 4, THREADS + 8, self.url)
        broker = PostgresBroker(pool=pool, results=False)
        dramatiq.set_broker(broker)
        ran = self.board.ran

        @dramatiq.actor(actor_name="noop")
        def noop(number: int, **_: object) -> None:
            ran(number)

        return broker, noop
