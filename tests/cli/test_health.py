"""`tenure health` and `tenure doctor` notice whatever keeps jobs from making progress."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tenure.cli import health as cli_health
from tenure.rules.codec import encode
from tenure.rules.gates import Limits
from tenure.rules.job import NewJob, WorkerInfo
from tenure.rules.lifecycle import snooze, unknown_task
from tenure.store import Store, open_store
from tests.cli.inside import Ended, inside
from tests.cli.terminal import start
from tests.cli.world import SHOP
from tests.support.patience import until


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("pg_migrated_url"))
    return f"sqlite:///{tmp_path}/jobs.db"


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def announced(store: Store, **more: object) -> None:
    """A worker that is alive, serves `default` and knows the task `known`."""
    info = {"name": "w1", "host": "here", "pid": 1, "queues": {"default": 0}, "tasks": ("known",)}
    store.announce(WorkerInfo(**info | more))  # type: ignore[arg-type]


def health(url: str, *words: str) -> Ended:
    return inside("--url", url, "health", *words)


def unhealthy(url: str, text: str, *words: str) -> None:
    """Health says so, in words and as JSON, and so does doctor."""
    ended = health(url, *words)
    assert (ended.code, ended.err) == (1, ""), ended
    assert text in ended.out
    told = json.loads(health(url, "--json", *words).out)
    assert not told["healthy"]
    assert any(text in problem for problem in told["problems"])
    doctor = inside("--url", url, "doctor")
    assert doctor.code == 1
    problem = re.escape(told["problem"])
    timeless = re.sub(r"\d+\\ s\b", r"\\d+ s", problem)  # a moment has passed since
    assert re.search(rf"FAIL  jobs       {timeless}", doctor.out), (timeless, doctor.out)


def test_doctor_asks_a_database_that_is_away_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def of_database(*given: object) -> list[str]:
        asked.append(given)
        return []

    monkeypatch.setattr(cli_health, "of_database", of_database)
    away = ("--url", "postgresql://bob@127.0.0.1:1/jobs", "--give-up-seconds", "0.1")
    ended = inside(*away, "doctor")
    assert (ended.code, len(ended.out.splitlines())) == (1, 2), ended
    assert asked == []


def test_nothing_waits(url: str) -> None:
    with open_store(url) as store:
        announced(store)
        store.enqueue([NewJob(task="known"), NewJob(task="known", delay_seconds=60)])
        ended = health(url)
        assert (ended.code, ended.out) == (0, "healthy\n")
        assert "ok    jobs       none waits without a cause" in inside("--url", url, "doctor").out


def test_a_due_job_that_no_worker_promotes(url: str) -> None:
    with open_store(url) as store:
        [job] = store.enqueue([NewJob(task="known", delay_seconds=1)], now=ago(100))
        unhealthy(url, f"job {job.id} has been due for ")


def test_an_expired_lease_that_no_worker_sweeps(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="known")], now=ago(200))
        store.claim("w9", {"default": 1}, lease_seconds=30, now=ago(150))
        unhealthy(url, "a lease of worker w9 expired 1")


def test_a_job_that_may_pass_its_gate_and_is_not_claimed(url: str) -> None:
    with open_store(url) as store:
        store.declare_gates({"door": Limits(max_running=1)})
        [first, second] = store.enqueue([NewJob(task="known", gate="door")] * 2, now=ago(100))
        unhealthy(url, f"job {first.id} may pass gate door, and no worker has claimed it for ")
        announced(store)
        store.claim("w1", {"default": 1})  # the other one waits with good cause
        assert health(url).out == "healthy\n"
        assert store.get(second.id).state == "queued"


def test_a_worker_that_has_a_lease_and_is_not_seen(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="known")])
        old = WorkerInfo(
            name="w1", host="here", pid=1, tasks=("known",), settings={"heartbeat_seconds": 2.0}
        )
        store.announce(old, now=ago(6))
        assert health(url).code == 0
        store.claim("w1", {"default": 1}, lease_seconds=600)
        unhealthy(url, "worker w1 has jobs and was last seen ")


def test_jobs_that_no_worker_knows(url: str) -> None:
    with open_store(url) as store:
        announced(store)
        store.enqueue([NewJob(task="shop.old"), NewJob(task="shop.old", queue="unserved")])
        text = (
            "jobs of task shop.old wait in queue default, and no worker of the queue knows the task"
        )
        unhealthy(url, text)
        announced(store, name="w2", tasks=("shop.old",))
        assert health(url).code == 0


def test_jobs_that_were_put_back_because_no_worker_knows_them(url: str) -> None:
    """They are due later, and no queue has them meanwhile."""
    with open_store(url) as store:
        announced(store)
        store.enqueue([NewJob(task="shop.old"), NewJob(task="known")])
        [lease] = store.claim("w1", {"default": 2})
        old, known = lease.jobs
        store.settle("w1", [unknown_task(old, 300, 86_400), snooze(known, 300)])
        unhealthy(url, "jobs of task shop.old wait in queue default, and no worker of the queue")
        announced(store, name="w2", tasks=("shop.old",))
        assert health(url).out == "healthy\n"


def test_a_paused_queue_with_jobs(url: str) -> None:
    with open_store(url) as store:
        store.pause("default", reason="deploy")
        assert health(url).code == 0
        store.enqueue([NewJob(task="known")], now=ago(100))
        unhealthy(url, "; the queue is paused (deploy)")
        assert health(url, "--allow-paused").out == "healthy\n"


def test_a_paused_queue_with_a_job_that_may_pass_its_gate(url: str) -> None:
    with open_store(url) as store:
        store.pause("default", reason="deploy")
        store.declare_gates({"door": Limits(max_running=1)})
        store.enqueue([NewJob(task="known", gate="door")], now=ago(100))
        unhealthy(url, " s; the queue is paused (deploy)")
        assert health(url, "--allow-paused").out == "healthy\n"


def test_a_queue_that_no_worker_serves(url: str) -> None:
    with open_store(url) as store:
        store.enqueue([NewJob(task="known")], now=ago(100))
        unhealthy(url, "s; no worker serves the queue")


def test_a_claim_loop_that_is_dead(url: str) -> None:
    with open_store(url) as store:
        announced(store, counts={"seconds since a claim": 31})
        unhealthy(
            url, "worker w1 has not claimed for 31 s: its event loop is blocked, or its claim"
        )
        assert health(url, "--max-age-seconds", "40").code == 0


@pytest.mark.slow
def test_a_worker_that_is_stopped_and_one_whose_loop_is_blocked(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        SHOP
        + "\n\n@app.task()\nasync def block(seconds: float) -> None:\n    time.sleep(seconds)\n"
    )
    url = f"sqlite:///{tmp_path}/jobs.db"
    words = ("worker", "shop:app", "--heartbeat-seconds", "0.5", "--lease-seconds", "900")
    worker = start(*words, url=url, folder=tmp_path)
    try:
        with open_store(url) as store:
            until(lambda: any(each.alive for each in store.workers()))
            args = encode({"seconds": 900})
            [job] = store.enqueue([NewJob(task="shop.block", args=args)])
            until(lambda: store.get(job.id).state == "running")
            until(lambda: "its event loop is blocked" in health(url, "--max-age-seconds", "2").out)
            worker.send_signal(signal.SIGSTOP)
            until(lambda: "has jobs and was last seen" in health(url, "--allow-paused").out)
    finally:
        worker.kill()
        worker.communicate()


def test_a_health_file_of_the_future_or_a_folder_is_unhealthy(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    file.touch()
    assert inside("health", "--file", str(file)).out == "healthy\n"
    now = time.time()
    for at, text in (
        (now + 3600, "s in the future; check the clock"),
        (now - 100, "was touched 1"),
    ):
        os.utime(file, (at, at))
        ended = inside("health", "--file", str(file))
        assert ended.code == 1
        assert text in ended.out
    ended = inside("health", "--file", str(tmp_path))
    assert (ended.code, "is a folder; name the file" in ended.out) == (1, True)
    assert inside("health", "--file", str(tmp_path / "none")).code == 1
