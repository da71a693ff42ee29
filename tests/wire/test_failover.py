"""The primary is killed under load, and its hot standby takes over.

With synchronous replication nothing that was acknowledged is lost, and clients and workers with a
URL of both hosts go on by themselves. Without it the last commits are gone: what is left is
consistent, and who holds a job of the lost time is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tenure.errors import JobNotFound
from tenure.rules import lifecycle
from tenure.rules.job import State
from tenure.store import LANDED, STALE, open_store
from tests.conftest import migrate
from tests.crash.cast import Stage
from tests.crash.handlers import quick
from tests.faults.test_outages import Toil, wait_for_progress
from tests.processes.crew import Crew
from tests.support.audit import audit
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.postgres import database_name
from tests.support.proxy import Proxy
from tests.support.standby import Pair
from tests.support.stores import Clock
from tests.support.work import add_many, ids_of, job, settle, take

pytestmark = pytest.mark.slow


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two servers, one of which follows the other."""
    with Pair() as running:
        yield running


@pytest.fixture
def url(pair: Pair) -> str:
    """A migrated database that is on both."""
    created = pair.primary.create_database()
    migrate(created)
    return pair.url(database_name(created))


def test_nothing_acknowledged_is_lost_when_a_synchronous_standby_takes_over(
    pair: Pair, url: str
) -> None:
    pair.follow(wait=True)
    store = open_store(url, give_up_seconds=60)
    toil = Toil(store)
    with toil.running():
        wait_for_progress(toil, 100)
        pair.primary.kill()
        pair.promote()
        wait_for_progress(toil, 100)
    toil.finish(url)
    toil.check_nothing_lost(url)
    store.close()


def test_workers_go_on_when_a_standby_takes_over(pair: Pair, url: str, tmp_path: Path) -> None:
    pair.follow(wait=True)
    folder, crew_folder = tmp_path / "stage", tmp_path / "crew"
    folder.mkdir()
    crew_folder.mkdir()
    with Crew(crew_folder) as crew:
        stage = Stage(url, folder, crew)
        workers = [stage.worker(), stage.worker()]
        before = stage.add(*[quick.call() for _ in range(200)])
        stage.heard("ran", times=50)
        pair.primary.kill()
        pair.promote()
        after = stage.add(*[quick.call() for _ in range(50)])
        stage.drained(60)
        for id in (*before, *after):
            assert stage.store.get(id).state is State.SUCCEEDED
        stage.check(disturbed={worker.pid for worker in workers})
        stage.close()


WAITING = """
    select pid from pg_stat_activity
    where wait_event = 'SyncRep' and datname = %s and application_name = 'tenure'
"""


@pytest.mark.parametrize("default", ["on", "off"])
def test_a_repeat_waits_for_the_standby_as_its_first_try_did(
    pair: Pair, url: str, default: str
) -> None:
    """To end the server process of the first try ends its wait, too, and what it has committed can
    be seen. The repeat, which has nothing left to write, still waits until the standby has it.

    Seen failing without the message that `late` writes: the enqueue returned while the standby had
    nothing. So it did where the role's commits do not wait by default.
    """
    pair.follow(wait=True)
    name = database_name(url)
    options = f"-csynchronous_commit%3D{default}"
    with (
        psycopg.connect(pair.primary.url(), autocommit=True) as admin,
        Proxy(pair.primary.port) as proxy,
        open_store(proxy.url(name, options=options), give_up_seconds=PATIENCE_SECONDS) as far,
        ThreadPoolExecutor(1) as pool,
    ):
        far.enqueue([job()])  # has ids in stock
        pair.stream.freeze()
        answer = pool.submit(far.enqueue, [job()])
        try:
            [(first,)] = until(lambda: admin.execute(WAITING, [name]).fetchall())
            [link] = proxy.links
            link.cut_client()
            waiting = until(
                lambda: set(admin.execute(WAITING, [name])) - {(first,)} or answer.done()
            )
            assert waiting is not True
            assert not answer.done()
        finally:
            pair.stream.thaw()
        [added] = answer.result(PATIENCE_SECONDS)
    pair.primary.kill()
    pair.promote()
    with open_store(url, give_up_seconds=60) as store:
        assert store.get(added.id).state is State.QUEUED
    audit(pair.standby.url(name))


def test_a_repeat_that_reaches_the_standby_waits_until_it_takes_over(pair: Pair, url: str) -> None:
    """Without `target_session_attrs` the driver connects to any server that answers."""
    pair.follow(wait=True)
    name = database_name(url)
    any_server = url.removesuffix("&target_session_attrs=read-write")
    with (
        psycopg.connect(pair.primary.url(), autocommit=True) as admin,
        open_store(any_server, give_up_seconds=PATIENCE_SECONDS) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        store.enqueue([job()])  # has ids in stock
        pair.stream.freeze()
        answer = pool.submit(store.enqueue, [job()])
        until(lambda: admin.execute(WAITING, [name]).fetchall())
        pair.primary.kill()
        until(lambda: "during recovery" in pair.standby.log_tail() or answer.done())
        assert not answer.done()
        pair.promote()
        [added] = answer.result(PATIENCE_SECONDS)
        assert store.get(added.id).state is State.QUEUED
    audit(pair.standby.url(name))


def test_after_the_loss_of_the_last_commits_the_rest_is_consistent(
    pair: Pair, url: str, clock: Clock
) -> None:
    pair.follow(wait=False)
    store = open_store(url, give_up_seconds=60)
    ids = add_many(store, clock.now, 4)
    first = take(store, clock.now, 2)
    pair.follow(wait=False)
    pair.stream.freeze()
    lost = add_many(store, clock.now, 2)
    second = take(store, clock.now, 1)
    assert settle(store, clock.now, lifecycle.succeed(first[0])) == [LANDED]
    pair.primary.kill()
    pair.promote()

    # The claim of the lost time gives no right to anything; the one before it still does.
    assert settle(store, clock.now, lifecycle.succeed(second[0])) == [STALE]
    assert settle(store, clock.now, lifecycle.succeed(first[1])) == [LANDED]
    audit(url)
    for id in lost:
        with pytest.raises(JobNotFound):
            store.get(id)
    assert store.sweep(now=clock.advance(31)).requeued == 1  # whose settlement was lost
    fresh = add_many(store, clock.now, 3)
    assert sorted(ids_of(take(store, clock.now))) == sorted({*ids, *fresh} - {first[1].id})
    audit(url)
    store.close()
