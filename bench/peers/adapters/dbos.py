"""DBOS: durable workflows on a queue; workflow rows are kept."""

from __future__ import annotations

import threading
from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

CONCURRENCY = 100
POLL_SECONDS = 0.01


class Dbos(Adapter):
    """Synchronous workflows in threads."""

    name = "dbos"
    store = "postgres"
    packages = ("dbos==3.3.0", "psycopg[binary]==3.3.8")
    settings = (
        f"worker_concurrency={CONCURRENCY}, polling_interval_sec={POLL_SECONDS:g} (default 1), "
        "workflows in threads, kept"
    )
    on_loop = False
    stored = "select count(*) from dbos.workflow_status"
    unfinished = (
        "select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))"
    )
    finished = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
    drain_jobs = 1_200
    enqueue_jobs = 2_000

    @property
    def _url(self) -> str:
        return self.url.replace("postgresql://", "postgresql+psycopg://")

    def install(self) -> None:
        from dbos import run_dbos_database_migrations

        run_dbos_database_migrations(system_database_url=self._url)

    async def open(self) -> None:
        from dbos import DBOSClient

        self._producer = DBOSClient(system_database_url=self._url)
        self._register(self._producer)
        self._options: Any = {"queue_name": "bench", "workflow_name": "noop"}

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):  # it has no call for many: one transaction of many calls
            with self._producer._sys_db.engine.begin() as connection:
                for job in some:
                    self._producer.enqueue_in_transaction(connection, self._options, payload(job))

    async def enqueue(self, job: int) -> None:
        self._producer.enqueue(self._options, payload(job))

    async def close(self) -> None:
        self._producer.destroy()

    def work(self, worker: int) -> None:
        from dbos import DBOS

        ran, linger = self.board.ran, self.board.linger
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self._url,
                "log_level": "ERROR",
                "executor_id": f"worker-{worker}",  # with the same one, jobs run twice
            }
        )

        @DBOS.workflow(name="noop")
        def noop(args: dict[str, Any]) -> None:
            ran(args["number"])
            if linger:
                linger(args["number"])

        self.board.wait_for_go(worker)
        DBOS.launch()
        self._register(DBOS)
        threading.Event().wait()

    def _register(self, client: Any) -> None:
        slots = self.slots or CONCURRENCY
        client.register_queue("bench", worker_concurrency=slots, polling_interval_sec=POLL_SECONDS)
