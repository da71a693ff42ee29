"""Absurd: durable tasks as SQL functions; tasks and runs are kept.

Its schema comes with its command line, a package of its own.
"""

from __future__ import annotations

from typing import Any

from bench.peers.adapter import Adapter, chunks, payload

BATCH = 100
POLL_SECONDS = 0.01


class Absurd(Adapter):
    """Its synchronous worker, claiming in batches."""

    name = "absurd"
    store = "postgres"
    packages = ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8")
    settings = f"sync worker, batch_size={BATCH}, poll_interval={POLL_SECONDS:g} (default 0.25)"
    on_loop = False
    stored = "select count(*) from absurd.t_default"
    unfinished = (
        "select exists (select from absurd.t_default "
        "where state in ('pending', 'running', 'sleeping'))"
    )
    finished = "select count(*) from absurd.t_default where state = 'completed'"
    drain_jobs = 2_000
    enqueue_jobs = 4_000

    def install(self) -> None:
        import psycopg
        from absurd_sdk import Absurd as Client
        from absurdctl import BUNDLED_SCHEMA_SQL

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL.encode())
        Client(self.url).create_queue("default")

    async def open(self) -> None:
        import psycopg

        self._connection = psycopg.connect(self.url)
        self._producer = self._client(self.url)
        self._in_transaction = self._client(self._connection)

    async def enqueue_many(self, first: int, end: int) -> None:
        for some in chunks(first, end):  # it has no call for many: one transaction of many calls
            for job in some:
                self._in_transaction.spawn("noop", payload(job))
            self._connection.commit()

    async def enqueue(self, job: int) -> None:
        self._producer.spawn("noop", payload(job))

    async def close(self) -> None:
        self._producer.close()
        self._connection.close()

    def work(self, worker: int) -> None:
        client = self._client(self.url)
        self.board.wait_for_go(worker)
        client.start_worker(concurrency=1, batch_size=BATCH, poll_interval=POLL_SECONDS)

    def _client(self, where: object) -> Any:
        from absurd_sdk import Absurd as Client

        client = Client(where, queue_name="default")
        ran = self.board.ran

        @client.register_task("noop")
        def noop(params: dict[str, Any], context: object) -> None:  # noqa: ARG001
            ran(params["number"])

        return client
