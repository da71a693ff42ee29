"""Idle workers hear of new jobs, however seldom they poll."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tenure import Tenure
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.support import ROOT, eventually, working

ENQUEUE = """
import sys, time
from tenure import Tenure
from tenure.rules.job import NewJob

url, rounds = sys.argv[1], int(sys.argv[2])
with Tenure(url) as app:
    app.count_live()
    for _ in range(rounds):
        sys.stdin.readline()
        app.store.enqueue([NewJob(task="moments")])
        print(time.monotonic(), flush=True)
"""
NEVER = 3600.0
SOON_SECONDS = 1.0
"""The best of five is faster by far, also on a busy machine."""


@pytest.mark.slow
def test_a_job_from_another_process_starts_at_once(app: Tenure, url: str) -> None:
    """Polling is off for an hour: it was the bell."""
    moments: list[float] = []

    @app.task(name="moments")
    async def moment() -> None:
        moments.append(time.monotonic())

    rounds = 5
    with (
        working(app, idle_poll_seconds=NEVER, busy_poll_seconds=NEVER),
        subprocess.Popen(
            [sys.executable, "-c", ENQUEUE, url, str(rounds)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other,
    ):  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None
        waits = []
        for n in range(rounds):
            other.stdin.write("\n")
            other.stdin.flush()
            enqueued = float(other.stdout.readline())
            eventually(lambda n=n: len(moments) > n)  # type: ignore[misc]
            waits.append(moments[n] - enqueued)
        assert other.wait(PATIENCE_SECONDS) == 0
    assert min(waits) < SOON_SECONDS


def test_a_job_from_this_process_starts_at_once(app: Tenure) -> None:
    moments: list[float] = []

    @app.task()
    async def moment() -> None:
        moments.append(time.monotonic())

    with working(app, idle_poll_seconds=NEVER, busy_poll_seconds=NEVER):
        waits = []
        for n in range(5):
            enqueued = time.monotonic()
            moment.enqueue()
            eventually(lambda n=n: len(moments) > n)  # type: ignore[misc]
            waits.append(moments[n] - enqueued)
    assert min(waits) < SOON_SECONDS


@pytest.mark.slow
def test_a_job_that_becomes_due_starts_on_time(app: Tenure) -> None:
    moments: list[float] = []

    @app.task()
    async def moment() -> None:
        moments.append(time.monotonic())

    with working(app, idle_poll_seconds=NEVER, busy_poll_seconds=NEVER):
        enqueued = time.monotonic()
        moment.options(delay_seconds=0.5).enqueue()
        eventually(lambda: moments)
    assert moments[0] - enqueued >= 0.45
