"""huey on SQLite: a job is deleted when a worker takes it, before it runs; nothing is kept."""

from __future__ import annotations

import logging
from typing import Any

from bench.peers.adapter import Adapter, payload

POLL_SECONDS = 0.01


class Huey(Adapter):
    """One thread: more of them are slower."""

    name = "huey"
    store = "sqlite"
    packages = ("huey==3.5.4",)
    settings = (
        f"WAL, synchronous=FULL (fsync=True), one thread, polls each {POLL_SECONDS:g} s; "
        "at most once, nothing is kept"
    )
    on_loop = False
    stored = "select count(*) from task"
    unfinished = "select exists (select 1 from task)"
    finished = None
    drain_jobs = 10_000
    enqueue_jobs = 6_000

    def install(self) -> None:
        self._app()

    async def open(self) -> None:
        _, self._task = self._app()

    async def enqueue_many(self, first: int, end: int) -> None:
        for job in range(first, end):  # it has no call for many
            self._task(**payload(job))

    async def enqueue(self, job: int) -> None:
        self._task(**payload(job))

    def work(self, worker: int) -> None:
        logging.getLogger("huey").setLevel(logging.WARNING)
        app, _ = self._app()
        consumer = app.create_consumer(
            workers=self.slots or 1,
            worker_type="thread",
            periodic=False,
            initial_delay=POLL_SECONDS,
            max_delay=POLL_SECONDS,
        )
        self.board.wait_for_go(worker)
        consumer.run()

    def _app(self) -> tuple[Any, Any]:
        from huey import SqliteHuey

        app = SqliteHuey("bench", filename=self.url.removeprefix("sqlite:///"), fsync=True)
        ran, linger = self.board.ran, self.board.linger

        @app.task(name="noop")
        def noop(number: int, **_: object) -> None:
            ran(number)
            if linger:
                linger(number)

        return app, noop
