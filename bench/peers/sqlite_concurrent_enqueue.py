"""64 enqueuers at once on SQLite, each waiting for its own durable job, against a commit per job.

Ours are 64 coroutines, and 64 threads, of one process, through the public API. The other side are
64 threads, each with a connection of its own that waits for the others as long as it takes: insert
a bare row, commit, again, with `synchronous=FULL`. That is how queues on SQLite enqueue. (For the
same against a lone loop that waits for nobody see `workloads.sqlite.concurrent_enqueue`.)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from bench.engine import bare_sqlite
from bench.harness import Result, Round, check, compare
from bench.lab import Lab
from bench.peers.adapter import payload
from bench.work import PAYLOAD
from tenure import Tenure
from tenure.tasks import Task

WORKLOAD = "peers.sqlite.concurrent_enqueue"
NAMES = (WORKLOAD, f"{WORKLOAD}_threads")
ENQUEUERS = 64
PATIENCE_MILLISECONDS = 60_000


def run(lab: Lab) -> Iterator[Result]:
    """Measure."""
    each = lab.size(200, 20)
    bare = lab.size(40, 5)
    for name, ours in zip(NAMES, (_coroutines, _threads), strict=True):
        if not lab.wants(name):
            continue
        rounds = []
        for number in range(lab.rounds):
            sides = [lambda: ours(lab, each), lambda: _commit_each(lab, bare)]  # noqa: B023
            if number % 2:
                other = sides[1]()
                rounds.append(Round(sides[0](), other))
            else:
                rounds.append(Round(sides[0](), sides[1]()))
        yield compare(name, rounds, "64 with a commit per job")


def _coroutines(lab: Lab, each: int) -> float:
    async def enqueuer(noop: Task[..., None]) -> None:
        for job in range(each):
            await noop.enqueue_async(**payload(job))

    async def race(app: Tenure, noop: Task[..., None]) -> float:
        await noop.enqueue_async(**payload(0))
        start = time.perf_counter()
        await asyncio.gather(*[enqueuer(noop) for _ in range(ENQUEUERS)])
        seconds = time.perf_counter() - start
        await app.close_async()
        return seconds

    path, app, noop = _application(lab)
    seconds = asyncio.run(race(app, noop))
    return _rate(path, each, seconds)


def _threads(lab: Lab, each: int) -> float:
    def enqueuer() -> None:
        for job in range(each):
            noop.enqueue(**payload(job))

    path, app, noop = _application(lab)
    noop.enqueue(**payload(0))
    seconds = _all_at_once(enqueuer)
    app.close()
    return _rate(path, each, seconds)


def _application(lab: Lab) -> tuple[Path, Tenure, Task[..., None]]:
    path = lab.file("jobs.db")
    app = Tenure(f"sqlite:///{path}")

    @app.task(name="noop")
    async def noop(number: int, template: str, locale: str, to: str) -> None:
        pass

    return path, app, noop


def _rate(path: Path, each: int, seconds: float) -> float:
    jobs = ENQUEUERS * each
    with closing(bare_sqlite.connect(path)) as connection:
        found = bare_sqlite.Count(connection)("job")
    check(found == jobs + 1, f"{found} jobs are stored, not {jobs + 1}")
    return jobs / seconds


def _commit_each(lab: Lab, each: int) -> float:
    path = lab.file("bare.db")
    body = PAYLOAD.decode()

    def enqueuer() -> None:
        with closing(bare_sqlite.connect(path)) as connection:
            connection.set_busy_timeout(PATIENCE_MILLISECONDS)
            for _ in range(each):
                connection.execute(bare_sqlite.INSERT, (body,))

    with closing(bare_sqlite.connect(path)) as connection:
        connection.execute(bare_sqlite.TABLE)
        seconds = _all_at_once(enqueuer)
        found = int(connection.execute("select count(*) from bare").get)
    check(found == ENQUEUERS * each, f"{found} rows are stored, not {ENQUEUERS * each}")
    return found / seconds


def _all_at_once(enqueuer: Callable[[], None]) -> float:
    """Seconds that it takes as many threads as there are enqueuers."""
    with ThreadPoolExecutor(ENQUEUERS) as pool:
        start = time.perf_counter()
        for done in [pool.submit(enqueuer) for _ in range(ENQUEUERS)]:
            done.result()
        return time.perf_counter() - start
