"""The database cannot be reached: handlers stop before their lease ends, and the worker goes on.

The worker connects through a proxy that the test cuts, or its server processes are stopped, so that
nothing is refused and nothing is answered.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg.conninfo import conninfo_to_dict

from tenure.rules.job import State
from tenure.tasks import Task
from tests.crash.cast import Stage, gone
from tests.crash.handlers import hold, hold_async, hold_in_child, quick
from tests.support.patience import until
from tests.support.plain import Plain
from tests.support.postgres import Server
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(pg_server: Server) -> Iterator[Proxy]:
    """A way to the database that can be cut."""
    with Proxy(pg_server.port) as running:
        yield running


def url_through(proxy: Proxy, stage: Stage) -> str:
    """The stage's database behind the proxy."""
    return proxy.url(str(conninfo_to_dict(stage.url)["dbname"]))


@contextmanager
def cut(proxy: Proxy) -> Iterator[None]:
    """While this lasts nobody gets through."""
    proxy.hold_new()
    proxy.cut_all()
    try:
        yield
    finally:
        proxy.let_new()


@contextmanager
def silence(stage: Stage) -> Iterator[None]:
    """While this lasts the server answers nothing on the connections that are open now."""
    with Plain(stage.url) as plain:
        found = plain.rows(
            "select pid from pg_stat_activity where datname = current_database()"
            " and client_addr is not null and pid <> pg_backend_pid()"
        )
    backends = [row[0] for row in found]
    assert backends
    for pid in backends:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in backends:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("how", "task"),
    [("cut", hold), ("cut", hold_async), ("cut", hold_in_child), ("silence", hold)],
    ids=["cut-thread", "cut-async", "cut-process", "silence-thread"],
)
def test_the_handler_is_stopped_before_its_lease_ends_and_the_worker_goes_on(
    postgres_stage: Stage, proxy: Proxy, task: Task[[str], str], how: str
) -> None:
    stage = postgres_stage
    [id] = stage.add(task.call("never"))
    worker = stage.worker(url=url_through(proxy, stage), lease_seconds=3.0)
    stage.heard("ran", id)
    began = time.time()
    with cut(proxy) if how == "cut" else silence(stage):
        ends = stage.store.get(id).expires_at  # read now: the worker may put the job back
        assert ends is not None
        told = stage.heard("told", id)[0]
        assert began < told.at < ends.timestamp(), "it was told too late"
        assert told.token == 1
        until(lambda: time.time() > ends.timestamp(), "the end of the lease")
    job = stage.finished(id)
    [after] = stage.add(quick.call())

    assert stage.finished(after).state is State.SUCCEEDED
    assert (job.state, job.token) == (State.SUCCEEDED, 2)
    assert job.crashes <= 1  # 0 if the worker could put the job back before a sweep took it
    assert {word.pid for word in stage.said("ran", after)} == {worker.pid}
    stage.check(disturbed={worker.pid})


def test_results_that_cannot_be_written_at_the_end_are_no_success(
    postgres_stage: Stage, proxy: Proxy
) -> None:
    stage = postgres_stage
    ids = stage.add(*[hold_async.call("end") for _ in range(5)])
    worker = stage.victim(url=url_through(proxy, stage), drain_seconds=1.0)
    stage.heard("ran", times=5)
    proxy.close()  # for good: connections are refused
    stage.open("end")
    until(lambda: "settling for" in stage.log_of(worker), "settling fails")
    worker.signal(signal.SIGTERM)
    assert gone(worker) == 0
    assert {stage.store.get(id).state for id in ids} == {State.RUNNING}
    stage.worker()
    stage.drained()

    assert {stage.store.get(id).token for id in ids} == {2}
    assert {stage.store.get(id).state for id in ids} == {State.SUCCEEDED}
    stage.check(disturbed={worker.pid})
