"""The server ends sessions, restarts, crashes or stays away: work goes on, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg
import pytest

from tenure.rules import lifecycle
from tenure.rules.job import NewJob
from tenure.store import LANDED, Store, open_store
from tenure.store.postgres.session import Postgres
from tests.conftest import migrate
from tests.support.audit import audit
from tests.support.patience import until
from tests.support.plain import Plain
from tests.support.postgres import Mode, Server, database_name
from tests.support.proxy import Proxy
from tests.support.stores import Clock
from tests.support.work import add_many, ids_of, take


@dataclass
class Toil:
    """A client and a worker in threads of one store, who know exactly what they were told."""

    store: Store
    enqueued: set[int] = field(default_factory=set)
    settled: list[int] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def enqueue(self) -> None:
        while not self._over.is_set():
            self.enqueued |= {answer.id for answer in self.store.enqueue([NewJob(task="a")] * 3)}

    def work(self) -> None:
        while not self._over.is_set():
            self.work_once()

    def work_once(self) -> int:
        leases = self.store.claim("w1", {"default": 20}, lease_seconds=60)
        for lease in leases:
            ends = [lifecycle.succeed(held) for held in lease.jobs]
            answers = self.store.settle("w1", ends, done_leases=[lease.id])
            assert answers == [LANDED] * len(answers)
            self.settled += [held.id for held in lease.jobs]
        return len(leases)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Work in the background; what a thread raised is raised at the end."""
        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(self.enqueue), pool.submit(self.work)]
            try:
                yield
            finally:
                self._over.set()
            for thread in threads:
                thread.result(60)

    def finish(self, url: str) -> None:
        """Take back what unanswered claims left on leases, and run it all."""
        with Plain(url) as plain:
            plain.rows("update tenure.lease set expires_at = now() - interval '1 second'")
        while self.store.sweep().more:
            pass
        while self.work_once():
            pass

    def check_nothing_lost(self, url: str) -> None:
        with Plain(url) as plain:
            history = [row[0] for row in plain.rows("select id from tenure.history")]
            assert plain.one("select count(*) from tenure.job") == 0
        assert len(history) == len(set(history))
        assert self.enqueued == set(history)
        assert sorted(self.settled) == sorted(history)
        audit(url)


def wait_for_progress(toil: Toil, jobs: int) -> None:
    """Until so many more jobs have been settled."""
    target = len(toil.settled) + jobs
    until(lambda: len(toil.settled) >= target)


@pytest.mark.slow
def test_nothing_is_lost_when_every_backend_is_terminated_again_and_again(
    pg_migrated_url: str,
) -> None:
    store = open_store(pg_migrated_url, give_up_seconds=60)
    toil = Toil(store)
    with (
        psycopg.connect(pg_migrated_url, autocommit=True, application_name="killer") as killer,
        toil.running(),
    ):
        wait_for_progress(toil, 50)
        killed = 0
        for _ in range(20):
            killed += len(
                killer.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and application_name = 'tenure'"
                ).fetchall()
            )
            wait_for_progress(toil, 10)
    assert killed >= 20
    toil.finish(pg_migrated_url)
    toil.check_nothing_lost(pg_migrated_url)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_work_goes_on_after_a_restart_of_the_server(mode: Mode) -> None:
    with Server() as server:
        url = server.create_database()
        migrate(url)
        store = open_store(url, give_up_seconds=60)
        toil = Toil(store)
        with toil.running():
            for _ in range(2):
                wait_for_progress(toil, 50)
                server.restart(mode)
            wait_for_progress(toil, 50)
        toil.finish(url)
        toil.check_nothing_lost(url)
        store.close()


@pytest.mark.slow
def test_floors_are_forgotten_with_the_connection(
    pg_server: Server, pg_migrated_url: str, clock: Clock
) -> None:
    """After a failover or a restored backup, another server may give lower positions."""
    with Proxy(pg_server.port) as proxy:
        store = open_store(proxy.url(database_name(pg_migrated_url)))
        floors = cast(Postgres, cast(Any, store)._scope.session).floors
        floors.full_scan_seconds = 1e9
        while floors._floors.get(("default", 0, 0), 0) == 0:
            add_many(store, clock.now, 2500)
            while take(store, clock.now, 1000):
                pass
        with Plain(pg_migrated_url) as plain:
            plain.rows("select setval('tenure.position', 1)")
            plain.wipe()
        proxy.cut_all()

        ids = add_many(store, clock.now, 3)

        assert ids_of(take(store, clock.now)) == ids
        store.close()
