"""A request arrives long after its caller has given up the connection, and has repeated it.

A proxy cuts the client and keeps the last bytes for the server; or the server process is stopped.
What comes late changes nothing, whatever has become of the jobs meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pytest
from msgspec.json import decode

from tenure.errors import OutcomeUnknown
from tenure.rules import lifecycle
from tenure.rules.job import NewJob, Unique
from tenure.rules.limits import MAX_SECONDS
from tenure.store import LANDED, Store, open_store
from tests.conftest import Count
from tests.faults.test_postgres_refusals import grants
from tests.support.audit import audit
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.pgbouncer import Bouncer
from tests.support.plain import Plain
from tests.support.postgres import Server, database_name
from tests.support.proxy import Fault, Proxy
from tests.support.stores import Clock, open_face
from tests.support.work import add_many, ids_of, job, settle, take
from tests.wire.bench import Bench
from tests.wire.conftest import Share
from tests.wire.deeds import BULK, DEEDS

ROLE = "tenure_late"
LOGIN = "tenure_late_login"
AWAITED = "select pid from pg_locks where not granted and ? = any (pg_blocking_pids(pid))"

JOBS: dict[str, list[NewJob]] = {
    "one": [job()],
    "two": [job(), job()],
    "with a key": [job(unique=Unique(key="a"))],
    "by COPY": [job()] * BULK,
}


@pytest.fixture
def proxy(pg_server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(pg_server.port) as running:
        yield running


@pytest.fixture
def give_up_seconds() -> float:
    """How long the store behind the proxy tries."""
    return PATIENCE_SECONDS


@pytest.fixture
def far(colour: str, proxy: Proxy, pg_migrated_url: str, give_up_seconds: float) -> Iterator[Store]:
    """A store behind the proxy."""
    url = proxy.url(database_name(pg_migrated_url))
    opened = open_face(colour, url, give_up_seconds=give_up_seconds)
    yield opened
    opened.close()


@pytest.fixture
def near(pg_migrated_url: str) -> Iterator[Store]:
    """A store on the same database that no fault reaches."""
    with open_store(pg_migrated_url) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", DEEDS)
def test_every_message_comes_late_once(bench: Bench, share: Share, name: str, count: Count) -> None:
    chosen = share(bench.faults(DEEDS[name], "late"), 1)
    count("late deliveries", len(chosen))
    for fault in chosen:
        try:
            bench.do(DEEDS[name], fault)
            assert fault.times == 1
        except BaseException as error:
            error.add_note(f"{name}: {fault}")
            raise


@pytest.mark.parametrize("name", DEEDS)
def test_the_last_request_comes_late(bench: Bench, name: str) -> None:
    """It is the one that commits."""
    kinds = bench.listen(DEEDS[name])["client"].rstrip("X")
    bench.do(DEEDS[name], Fault("client", len(kinds), "late"))


@pytest.mark.parametrize("name", JOBS)
def test_a_late_enqueue_does_not_bring_back_a_job_that_has_finished(
    far: Store, near: Store, proxy: Proxy, clock: Clock, pg_migrated_url: str, name: str
) -> None:
    """Seen failing without the end of the first server process: the job was in history and, with
    the same id and token, in its queue again."""
    far.enqueue(JOBS[name], now=clock.now)  # has ids in stock
    assert len(take(near, clock.now, 1000)) == len(JOBS[name])
    with Plain(pg_migrated_url) as plain:
        plain.wipe()
        proxy.order(None)
        far.enqueue(JOBS[name], now=clock.now)
        held = take(near, clock.now, 1000)
        assert settle(near, clock.now, *map(lifecycle.succeed, held)) == [LANDED] * len(held)
        [messages] = [len(link.passed["client"]) for link in proxy.links]
        # One job is one statement that commits itself; a notification may follow it.
        fault = proxy.order(Fault("client", 1 if name == "one" else messages, "late"))
        ids = [added.id for added in far.enqueue(JOBS[name], now=clock.now)]
        assert fault is not None
        assert fault.times == 1
        held = take(near, clock.now, 1000)
        assert ids_of(held) == ids
        assert settle(near, clock.now, *map(lifecycle.succeed, held)) == [LANDED] * len(held)

        assert proxy.deliver_late() == 1

        assert plain.rows("select id from tenure.job") == []
        assert plain.rows("select job_id from tenure.ready") == []
        for id in ids:
            assert plain.rows("select id from tenure.history where id = ?", id) == [(id,)]
    audit(pg_migrated_url)


@dataclass(frozen=True)
class Stopped:
    """A server process that is stopped, and the call that it has not answered."""

    pid: int
    answer: Future[Any]
    plain: Plain

    def is_gone(self) -> bool:
        """Has the process ended?"""
        return not self.plain.rows("select from pg_stat_activity where pid = ?", self.pid)


def server_process(plain: Plain) -> int:
    """The server process of the one store behind the proxy: it came by TCP, from our host."""
    sql = """
        select pid from pg_stat_activity
        where application_name = 'tenure' and datname = current_database()
          and client_addr is not null
    """
    [(pid,)] = plain.rows(sql)
    return int(pid)


@pytest.fixture
def stopped(far: Store, proxy: Proxy, clock: Clock, pg_migrated_url: str) -> Iterator[Stopped]:
    """The server process of the far store is stopped, and an enqueue waits for its answer."""
    far.enqueue([job()], now=clock.now)
    with Plain(pg_migrated_url) as plain, ThreadPoolExecutor(1) as pool:
        plain.wipe()
        pid = server_process(plain)
        proxy.order(None)
        [link] = proxy.links
        os.kill(pid, signal.SIGSTOP)
        try:
            answer = pool.submit(partial(far.enqueue, [job()], now=clock.now))
            until(lambda: link.passed["client"].endswith("S"))
            link.cut_client()
            yield Stopped(pid, answer, plain)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("give_up_seconds", [PATIENCE_SECONDS, MAX_SECONDS])
def test_a_server_process_that_was_stopped_does_nothing_when_it_goes_on(
    stopped: Stopped, near: Store, clock: Clock, pg_migrated_url: str
) -> None:
    """The repeat waits for its end, which comes as soon as the process goes on."""
    until(lambda: stopped.plain.rows(AWAITED, stopped.pid))
    os.kill(stopped.pid, signal.SIGCONT)
    [added] = stopped.answer.result(PATIENCE_SECONDS)
    held = take(near, clock.now)
    assert ids_of(held) == [added.id]
    assert settle(near, clock.now, *map(lifecycle.succeed, held)) == [LANDED]
    assert stopped.is_gone()
    assert [found.id for found in near.list_jobs().jobs] == [added.id]
    audit(pg_migrated_url)


@pytest.mark.parametrize("give_up_seconds", [0.5])
def test_nothing_is_repeated_while_a_server_process_stays_stopped(
    stopped: Stopped, near: Store, clock: Clock, pg_migrated_url: str
) -> None:
    with pytest.raises(OutcomeUnknown, match="may have been kept"):
        stopped.answer.result(PATIENCE_SECONDS)
    assert not near.list_jobs().jobs
    os.kill(stopped.pid, signal.SIGCONT)
    until(stopped.is_gone)
    assert len(take(near, clock.now)) <= 1
    audit(pg_migrated_url)


@pytest.fixture
def admin(pg_migrated_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Makes a role with no more than the documented grants."""
    name = database_name(pg_migrated_url)
    with psycopg.connect(pg_migrated_url, autocommit=True) as admin:
        admin.execute(f"create role {ROLE} login")
        admin.execute(
            grants().replace("database app", f"database {name}").replace("tenure_run", ROLE)
        )
        try:
            yield admin
        finally:
            admin.execute(f"drop owned by {ROLE}; drop role {ROLE}")


def claim_late(far: Store, near: Store, proxy: Proxy, clock: Clock) -> list[int]:
    """The last request of a claim comes late. Answers which of four jobs it has got."""
    add_many(near, clock.now, 4)
    for _ in range(2):  # then its statements are prepared
        proxy.order(None)
        take(far, clock.now, 1)
    [messages] = [len(link.passed["client"]) for link in proxy.links if link.passed["client"]]
    fault = proxy.order(Fault("client", messages, "late"))
    try:
        return ids_of(take(far, clock.now, 1, worker="w2"))
    finally:
        assert fault is not None
        assert fault.times == 1


def check_late_claim(got: list[int], proxy: Proxy, url: str) -> None:
    """The worker has what it knows of, and no more."""
    with Plain(url) as plain:
        assert proxy.deliver_late() == 1
        leases = plain.rows("select jobs::text from tenure.lease where worker = 'w2'")
        assert [decode(jobs)[0][0] for (jobs,) in leases] == got
        assert len(got) == 1
    audit(url)


def test_a_role_of_few_rights_can_end_its_own_server_processes(
    admin: object, near: Store, proxy: Proxy, clock: Clock, pg_migrated_url: str
) -> None:
    assert admin
    url = proxy.url(database_name(pg_migrated_url)).replace("postgres@", f"{ROLE}@")
    with open_store(url, give_up_seconds=PATIENCE_SECONDS) as far:
        check_late_claim(claim_late(far, near, proxy, clock), proxy, pg_migrated_url)


def test_a_login_that_acts_as_another_role_can_end_its_own_server_processes(
    admin: psycopg.Connection[Any],
    near: Store,
    proxy: Proxy,
    clock: Clock,
    pg_migrated_url: str,
) -> None:
    admin.execute(f"create role {LOGIN} login noinherit; grant {ROLE} to {LOGIN}")
    admin.execute(f"grant connect on database {database_name(pg_migrated_url)} to {LOGIN}")
    url = proxy.url(database_name(pg_migrated_url), options=f"-c%20role%3D{ROLE}")
    try:
        with open_store(
            url.replace("postgres@", f"{LOGIN}@"), give_up_seconds=PATIENCE_SECONDS
        ) as far:
            check_late_claim(claim_late(far, near, proxy, clock), proxy, pg_migrated_url)
    finally:
        admin.execute(f"drop owned by {LOGIN}; drop role {LOGIN}")


def test_a_role_that_may_not_end_a_server_process_repeats_nothing(
    admin: psycopg.Connection[Any],
    near: Store,
    proxy: Proxy,
    clock: Clock,
    pg_migrated_url: str,
) -> None:
    url = proxy.url(database_name(pg_migrated_url)).replace("postgres@", f"{ROLE}@")
    admin.execute("revoke execute on function pg_terminate_backend from public")
    with (
        open_store(url, give_up_seconds=0.5) as far,
        pytest.raises(OutcomeUnknown, match="may have been kept"),
    ):
        claim_late(far, near, proxy, clock)
    with Plain(pg_migrated_url) as plain:
        assert plain.count("lease", "worker = 'w2'") == 0
    assert proxy.deliver_late() == 1
    with Plain(pg_migrated_url) as plain:  # as it was said
        assert plain.count("lease", "worker = 'w2'") == 1
    audit(pg_migrated_url)


@pytest.mark.slow
def test_behind_a_pooler_the_process_of_the_transaction_is_ended(
    pg_server: Server, near: Store, clock: Clock, pg_migrated_url: str
) -> None:
    """The first claim has its tickets locked. Without its end, the repeat would take others."""
    with Bouncer(pg_server) as bouncer, Proxy(bouncer.port) as proxy:
        url = f"{proxy.url(database_name(pg_migrated_url))}&pooler=transaction"
        with open_store(url, give_up_seconds=PATIENCE_SECONDS) as far:
            check_late_claim(claim_late(far, near, proxy, clock), proxy, pg_migrated_url)
