"""Enqueue one job at a time, by one caller and by 64 at once, against the commit of one bare row.

The other side is a loop on one connection: insert a row with the payload, commit, again, with full
durability. Ours goes through the public API, each caller waiting for its own durable job: one
caller, 64 threads, or 64 coroutines of one process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import psycopg

from bench.engine import bare_postgres, bare_sqlite
from bench.harness import Result, check
from bench.lab import Lab
from bench.work import ARGS, PAYLOAD
from bench.workloads.place import KINDS, Kind, fresh_place
from bench.workloads.turns import compare_sides, take_turns
from tenure import Task, Tenure

FIGURES = ("enqueue_one", "concurrent_enqueue", "concurrent_enqueue_threads")
NAMES = tuple(f"workloads.{store}.{figure}" for store in KINDS for figure in FIGURES)
CALLERS = 64
BARE = "one commit per row"
Send = Task[..., None]


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    few, many = lab.few(3_000), CALLERS * max(1, lab.few(9_600) // CALLERS)
    for store in KINDS:
        sides: dict[str, Callable[[], float]] = {
            BARE: partial(_bare, lab, store, few),
            "enqueue_one": partial(_ours, lab, store, _one_by_one, few),
            "concurrent_enqueue": partial(_ours, lab, store, _coroutines, many),
            "concurrent_enqueue_threads": partial(_ours, lab, store, _threads, many),
        }
        wanted = [each for each in FIGURES if lab.wants(f"workloads.{store}.{each}")]
        if not wanted:
            continue
        rounds = take_turns(lab, {name: sides[name] for name in (BARE, *wanted)})
        for each in wanted:
            yield compare_sides(f"workloads.{store}.{each}", rounds, each, BARE, unit="jobs/s")


def _ours(lab: Lab, store: Kind, enqueue: Callable[[Tenure, Send, int], float], jobs: int) -> float:
    """Jobs per second. One more is enqueued before, to open the database."""
    with fresh_place(lab, store) as place:
        app = Tenure(place.url)

        @app.task(name="mail.send")
        async def send(user_id: int, template: str, locale: str, to: str) -> None:
            pass

        seconds = enqueue(app, send, jobs)
        found = place.count("job"), place.count("ready")
        check(found == (jobs + 1, jobs + 1), f"{found} jobs and tickets are stored, not {jobs + 1}")
    return jobs / seconds


def _one_by_one(app: Tenure, send: Send, jobs: int) -> float:
    send.enqueue(**ARGS)
    start = time.perf_counter()
    for _ in range(jobs):
        send.enqueue(**ARGS)
    seconds = time.perf_counter() - start
    app.close()
    return seconds


def _threads(app: Tenure, send: Send, jobs: int) -> float:
    def caller() -> None:
        for _ in range(jobs // CALLERS):
            send.enqueue(**ARGS)

    send.enqueue(**ARGS)
    with ThreadPoolExecutor(CALLERS) as pool:
        start = time.perf_counter()
        for done in [pool.submit(caller) for _ in range(CALLERS)]:
            done.result()
        seconds = time.perf_counter() - start
    app.close()
    return seconds


def _coroutines(app: Tenure, send: Send, jobs: int) -> float:
    async def caller() -> None:
        for _ in range(jobs // CALLERS):
            await send.enqueue_async(**ARGS)

    async def all_callers() -> float:
        await send.enqueue_async(**ARGS)
        start = time.perf_counter()
        await asyncio.gather(*[caller() for _ in range(CALLERS)])
        seconds = time.perf_counter() - start
        await app.close_async()
        return seconds

    return asyncio.run(all_callers())


def _bare(lab: Lab, store: Kind, rows: int) -> float:
    body = PAYLOAD.decode()
    count = "select count(*) from bare"
    if store == "sqlite":
        with closing(bare_sqlite.connect(lab.file("bare.db"))) as file:
            file.execute(bare_sqlite.TABLE)
            start = time.perf_counter()
            for _ in range(rows):
                file.execute(bare_sqlite.INSERT, (body,))
            seconds = time.perf_counter() - start
            check(file.execute(count).get == rows, "the bare loop lost rows")
        return rows / seconds
    with lab.database() as url, psycopg.connect(url, autocommit=True) as connection:
        connection.execute(bare_postgres.TABLE)
        start = time.perf_counter()
        for _ in range(rows):
            connection.execute("insert into bare (payload) values (%s)", (body,), prepare=True)
        seconds = time.perf_counter() - start
        check(connection.execute(count).fetchone() == (rows,), "the bare loop lost rows")
    return rows / seconds
