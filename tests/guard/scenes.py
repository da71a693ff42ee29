"""The work that is counted: each step of a job's life alone, and a worker that drains a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal
from unittest.mock import patch

from tenure import Tenure
from tenure.rules.claim import Lease
from tenure.rules.codec import encode
from tenure.rules.job import NewJob
from tenure.rules.lifecycle import succeed
from tenure.store import Store
from tenure.tasks import Task
from tenure.worker.environment import Environment
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain import Plain
from tests.worker.support import eventually, working

Kind = Literal["async", "thread"]
Step = Callable[[Store], object]

WORKER = "web-1-4711-0a1b2c3d"
QUEUE = "default"
CHUNK = 1000
BLOCK = 500
TIMES = 64
"""How often a small step is repeated, so that what happens now and then evens out."""
QUIET: dict[str, Any] = {
    "lease_seconds": 3600.0,
    "heartbeat_seconds": 1000.0,
    "promote_seconds": 1000.0,
    "sweep_seconds": 1000.0,
    "schedule_seconds": 1000.0,
    "drain_seconds": PATIENCE_SECONDS,
}
"""Nothing of the worker happens by the clock; two runs of other lengths differ by their jobs."""
IDLE: dict[str, Any] = {
    "lease_seconds": 3.0,
    "heartbeat_seconds": 1.0,
    "promote_seconds": 0.025,
    "sweep_seconds": 0.1,
    "schedule_seconds": 1.0,
    "idle_poll_seconds": 0.1,
}
"""The defaults, in an environment where everything happens at ten times the speed."""
ARGS = {"user_id": 1234567, "template": "welcome", "locale": "en_GB", "to": "some.one@example.com"}


class StillEnvironment(Environment):
    """Time does not pass, so a slow machine takes the same decisions as a fast one.

    (`conjugate` of a number is that number: like the real clock, a C function without arguments.)
    """

    monotonic = staticmethod((1000.0).conjugate)


def fill(store: Store, jobs: int) -> None:
    """Put jobs in line, a thousand at a time."""
    args = encode(ARGS)
    while jobs > 0:
        store.enqueue([NewJob(task="mail.send", args=args)] * min(CHUNK, jobs))
        jobs -= CHUNK


def claim(store: Store) -> list[Lease]:
    """Claim one block."""
    return store.claim(WORKER, {QUEUE: BLOCK}, lease_seconds=60.0)


def settle(store: Store, leases: list[Lease]) -> None:
    """Report success for all of them."""
    jobs = [job for lease in leases for job in lease.jobs]
    assert len(jobs) == BLOCK
    done = [lease.id for lease in leases]
    answers = store.settle(WORKER, [succeed(job, None, 0.01) for job in jobs], done_leases=done)
    assert all(answer.landed for answer in answers)


def beat(store: Store, leases: list[Lease]) -> None:
    """One heartbeat for one lease, of which ten jobs have started."""
    [lease] = leases
    started = [job.id for job in lease.jobs[:10]]
    assert not store.extend(WORKER, {lease.id: started}, lease_seconds=60.0).lost


def send_task(app: Tenure, kind: Kind, done: list[int]) -> Task[..., None]:
    """A handler that does nothing but say that it ran."""
    if kind == "async":

        @app.task(name="mail.send")
        async def send(user_id: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
            done.append(user_id)

        return send

    @app.task(name="mail.send")
    def send_here(user_id: int, template: str, locale: str, to: str) -> None:  # noqa: ARG001
        done.append(user_id)

    return send_here


def drain(app: Tenure, done: list[int], jobs: int) -> None:
    """A real worker runs these jobs, which stand in line, and stops when all are settled.

    Its name, which each finished job carries, does not depend on the name of the machine.
    """
    named = patch("tenure.worker.process.new_name", return_value=WORKER)
    with named, working(app, environment=StillEnvironment(), **QUIET):
        eventually(lambda: len(done) >= jobs, seconds=PATIENCE_SECONDS)
    assert len(done) == jobs


def idle(app: Tenure, minutes: float) -> None:
    """A real worker has nothing to do for so long."""
    with working(app, **IDLE):
        time.sleep(6.0 * minutes)  # that it is idle is what is looked at


def audit(url: str, finished: int) -> None:
    """Raise unless all jobs are in history, and none was ever put back."""
    with Plain(url) as plain:
        for table, expected in (("job", 0), ("ready", 0), ("lease", 0), ("event", 0)):
            assert plain.rows(f"select count(*) from tenure.{table}") == [(expected,)], table
        assert plain.rows("select count(*) from tenure.history") == [(finished,)]
