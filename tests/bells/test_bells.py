"""What every bell does, on both databases and in every style."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Collection, Iterator

import psutil
import pytest

from tenure.errors import TenantMismatch
from tenure.store import Bell, Store
from tests.bells.rings import Rings, bell_threads
from tests.support.patience import until
from tests.support.stores import Clock, open_face
from tests.support.work import add, take

SOON_SECONDS = 1.0
"""The best of twenty is faster by far, also on a busy machine."""

ENQUEUE = """
import sys, time
from tenure.rules.job import NewJob
from tenure.store import open_store
with open_store(sys.argv[1]) as store:
    for line in sys.stdin:
        store.enqueue([NewJob(task="a", queue=line.strip())])
        print(time.monotonic(), flush=True)
"""

FORK = """
import os, sys, threading
from tenure.rules.job import NewJob
from tenure.store import open_store

def expect(event, what):
    assert event.wait(180), what
    event.clear()

store = open_store(sys.argv[1])
rung = threading.Event()
bell = store.bell(rung.set)
bell.start()
expect(rung, "the parent's bell rings when it begins to hear")
pid = os.fork()
if pid == 0:
    bell.stop()  # there is no thread here: nothing happens, above all not to the parent
    own_rung = threading.Event()
    own = store.bell(own_rung.set)
    own.start()
    expect(own_rung, "the child's bell rings")
    store.enqueue([NewJob(task="a", queue="from-the-child")])
    expect(own_rung, "the child's bell hears the child")
    own.stop()
    store.close()
    os._exit(0)
_, status = os.waitpid(pid, 0)
assert status == 0, status
expect(rung, "the parent's bell hears the child")
store.enqueue([NewJob(task="a", queue="from-the-parent")])
expect(rung, "the parent's bell still hears the parent")
bell.stop()
store.close()
print("well")
"""


@pytest.fixture
def rings() -> Rings:
    return Rings()


@pytest.fixture
def bell(store: Store, rings: Rings) -> Iterator[Bell]:
    """A bell that hears."""
    started = store.bell(rings)
    started.start()
    assert rings.wait_for(1)
    yield started
    started.stop()


def test_it_rings_once_when_it_begins_to_hear(bell: Bell, rings: Rings) -> None:
    assert bell.alive
    rings.stay_quiet(0.1)
    assert rings.count == 1
    assert rings.thread == "tenure-bell"


@pytest.mark.usefixtures("bell")
def test_it_hears_the_store_itself(store: Store, clock: Clock, rings: Rings) -> None:
    for round in range(2, 6):
        add(store, clock.now, queue=f"q{round}")
        assert rings.wait_for(round), "it did not ring"


@pytest.mark.usefixtures("bell")
def test_it_hears_another_store_in_this_process(
    style: str, store_url: str, clock: Clock, rings: Rings
) -> None:
    other = open_face(style, store_url)
    add(other, clock.now)
    assert rings.wait_for(2)
    other.close()


@pytest.mark.usefixtures("bell")
def test_it_hears_another_process_soon(store_url: str, rings: Rings) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", ENQUEUE, store_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        delays = []
        for round in range(2, 22):
            other.stdin.write(f"q{round}\n")
            other.stdin.flush()
            committed = float(other.stdout.readline())
            assert rings.wait_for(round)
            delays.append(rings.at - committed)
    assert min(delays) < SOON_SECONDS


def test_a_stopped_bell_leaves_nothing_behind(store: Store, clock: Clock, rings: Rings) -> None:
    """SQLite keeps one descriptor of a file for the next connection, as long as any is open: so the
    first bell is not counted."""
    add(store, clock.now)
    store.count_live()
    before = 0
    for round in range(1, 4):
        bell = store.bell(rings)
        bell.start()
        assert rings.wait_for(round)
        [thread] = bell_threads()
        assert open_files() > before, "the test would see what it leaves"
        bell.stop()
        assert not thread.is_alive()
        assert bell_threads() == []
        before = before or open_files()
        assert open_files() == before
        assert not bell.alive
    add(store, clock.now)
    rings.stay_quiet(0.1)


def open_files() -> int:
    return psutil.Process().num_fds()


def test_start_and_stop_may_be_repeated(store: Store, clock: Clock, rings: Rings) -> None:
    bell = store.bell(rings)
    bell.stop()
    for round in range(1, 6, 2):
        bell.start()
        bell.start()
        assert rings.wait_for(round)
        assert len(bell_threads()) == 1
        add(store, clock.now, queue=f"q{round}")
        assert rings.wait_for(round + 1)
        bell.stop()
        bell.stop()
    assert rings.count == 6


def test_it_may_be_stopped_at_once(store: Store, rings: Rings) -> None:
    for _ in range(20):
        bell = store.bell(rings)
        bell.start()
        bell.stop()
        assert not bell_threads()


def test_two_bells_of_one_store_both_ring(
    bell: Bell, store: Store, clock: Clock, rings: Rings
) -> None:
    others = Rings()
    other = store.bell(others)
    other.start()
    assert others.wait_for(1)
    add(store, clock.now)
    assert rings.wait_for(2)
    assert others.wait_for(2)
    other.stop()
    take(store, clock.now)
    add(store, clock.now, queue="more")
    assert rings.wait_for(3), "the other one has taken nothing away"
    assert others.count == 2
    assert bell.alive


def test_it_tells_of_the_cancel_of_a_running_job_and_rings_for_nothing(
    store: Store, clock: Clock, rings: Rings
) -> None:
    ids = [add(store, clock.now, queue="q") for _ in range(3)]
    take(store, clock.now, queue="q", most=3)
    told: list[Collection[int] | None] = []
    bell = store.bell(rings, told.append)
    bell.start()
    assert rings.wait_for(1)
    until(lambda: told == [None])  # it may have missed something until now
    store.cancel(ids[0], now=clock.now)
    until(lambda: len(told) == 2)
    assert told[1] is None or set(told[1]) == {ids[0]}
    store.cancel_many(ids, now=clock.now)
    until(lambda: len(told) == 3)
    assert told[2] is None or set(told[2]) == set(ids[1:]), "the first was asked before"
    assert rings.count == 1, "there is no new work"
    bell.stop()


def test_a_ring_that_raises_does_not_end_the_bell(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    rings = Rings()

    def ring() -> None:
        rings()
        raise RuntimeError("what rings is broken")

    bell = store.bell(ring)
    with caplog.at_level(logging.INFO, "tenure.bell"):
        bell.start()
        assert rings.wait_for(1)
        add(store, clock.now)
        assert rings.wait_for(2)
        bell.stop()
    assert [record.levelname for record in caplog.records] == ["ERROR"], "once"
    assert "what rings is broken" in caplog.text


def test_a_ring_may_stop_its_own_bell(store: Store) -> None:
    def ring() -> None:
        own.stop()

    own = store.bell(ring)
    own.start()
    until(lambda: not bell_threads())
    own.stop()


def test_a_bell_is_for_all_tenants(store: Store, rings: Rings) -> None:
    with pytest.raises(TenantMismatch, match="bell concerns all tenants"):
        store.for_tenant("acme").bell(rings)


@pytest.mark.slow
def test_a_fork_has_its_own_bells_and_leaves_its_parents_alone(store_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, store_url],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("well\n", 0), done.stderr
