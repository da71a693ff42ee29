"""The bell of PostgreSQL outlives everything that can happen to its connection."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tenure.rules.job import NewJob
from tenure.store import Bell, Store, open_store
from tenure.store.bell import LONGEST_PAUSE_SECONDS, pause_seconds
from tenure.store.postgres import bell as bell_postgres
from tests.bells.rings import Rings, bell_threads, cpu_share
from tests.conftest import migrate
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.postgres import Server, database_name, free_port
from tests.support.proxy import Proxy

PROMPT_SECONDS = 120.0
LONG_SECONDS = 600.0


@pytest.fixture
def rings() -> Rings:
    return Rings()


@contextmanager
def ringing(url: str, rings: Rings) -> Iterator[tuple[Store, Bell]]:
    """A store and its bell, started."""
    with open_store(url) as store:
        bell = store.bell(rings)
        bell.start()
        try:
            yield store, bell
        finally:
            bell.stop()


def bells_of(url: str) -> list[int]:
    """The sessions of bells, as the server sees them."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "select pid from pg_stat_activity"
            " where datname = current_database() and application_name = 'tenure bell'"
        ).fetchall()
    return [pid for (pid,) in rows]


def states(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the bell said of itself: silent or again."""
    return [
        "silent" if "do not arrive" in record.message else "again"
        for record in caplog.records
        if record.name == "tenure.bell"
    ]


def test_it_has_one_connection_and_leaves_none(pg_migrated_url: str, rings: Rings) -> None:
    with ringing(pg_migrated_url, rings):
        assert rings.wait_for(1)
        assert len(bells_of(pg_migrated_url)) == 1
    until(lambda: bells_of(pg_migrated_url) == [])


@pytest.mark.slow
def test_an_idle_bell_costs_nothing(pg_migrated_url: str, rings: Rings) -> None:
    with ringing(pg_migrated_url, rings):
        assert rings.wait_for(1)
        [thread] = bell_threads()
        assert cpu_share(thread, rings) < 0.003


def test_it_rings_again_after_its_session_was_ended(
    pg_migrated_url: str, rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.bell")
    with (
        ringing(pg_migrated_url, rings) as (store, bell),
        psycopg.connect(pg_migrated_url, autocommit=True) as killer,
    ):
        assert rings.wait_for(1)
        for round in range(1, 4):
            [pid] = bells_of(pg_migrated_url)
            killer.execute("select pg_terminate_backend(%s)", [pid])
            assert rings.wait_for(2 * round), "it may have missed something"
            assert bell.alive
            store.enqueue([NewJob(task="a", queue=f"q{round}")])
            assert rings.wait_for(2 * round + 1)
    assert states(caplog) == ["silent", "again"] * 3


@pytest.mark.slow
def test_it_comes_back_with_the_server_and_was_not_there_before_it(
    rings: Rings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tenure.bell")
    with Server() as server:
        url = server.create_database()
        migrate(url)
        server.stop("fast")
        with ringing(url, rings) as (store, bell):
            until(lambda: states(caplog) == ["silent"])
            assert not bell.alive
            rings.stay_quiet(0.5)
            assert states(caplog) == ["silent"], "it is said once"
            server.start()
            assert rings.wait_for(1)
            server.restart("immediate")
            assert rings.wait_for(2)
            store.enqueue([NewJob(task="a")])
            assert rings.wait_for(3)
            assert states(caplog) == ["silent", "again"] * 2


@pytest.mark.slow
def test_an_answer_that_comes_in_pieces_holds_up_nobody(
    pg_server: Server, pg_migrated_url: str, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wire is a thread of this process: a bell that waits in libpq would wait for ever."""
    monkeypatch.setattr(bell_postgres, "PROBE_SECONDS", 0.05)
    with Proxy(pg_server.port) as proxy:
        proxy.slow_seconds = 0.005
        with ringing(proxy.url(database_name(pg_migrated_url)), rings) as (_, bell):
            assert rings.wait_for(1)
            [link] = proxy.links
            until(lambda: link.said.count("select 1") >= 10)
            assert bell.alive


@pytest.mark.slow
def test_a_connection_into_nowhere_is_noticed(
    pg_server: Server,
    pg_migrated_url: str,
    rings: Rings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every packet is acknowledged, and nobody answers: only a question can find out."""
    caplog.set_level(logging.INFO, "tenure.bell")
    monkeypatch.setattr(bell_postgres, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(bell_postgres, "ANSWER_SECONDS", 2.0)
    with (
        Proxy(pg_server.port) as proxy,
        open_store(pg_migrated_url) as near,
        ringing(proxy.url(database_name(pg_migrated_url)), rings) as (_, bell),
    ):
        assert rings.wait_for(1)
        [link] = proxy.links
        until(lambda: link.said.count("select 1") >= 3)
        assert bell.alive, "probes that are answered are no reason to worry"
        assert rings.count == 1
        proxy.freeze()
        until(lambda: "no answer for 2 s" in caplog.text and not bell.alive)
        near.enqueue([NewJob(task="a")])
        proxy.thaw()
        assert rings.wait_for(2)
        near.enqueue([NewJob(task="a", queue="q2")])
        assert rings.wait_for(3)


def test_it_is_noticed_within_half_a_minute() -> None:
    probe, answer = bell_postgres.PROBE_SECONDS, bell_postgres.ANSWER_SECONDS
    assert probe + answer + LONGEST_PAUSE_SECONDS <= 30


def test_a_notification_during_a_probe_is_heard(
    pg_migrated_url: str, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes follow each other without a pause, so every notification meets one."""
    monkeypatch.setattr(bell_postgres, "PROBE_SECONDS", 0.0)
    with ringing(pg_migrated_url, rings) as (store, _):
        assert rings.wait_for(1)
        for round in range(2, 52):
            store.enqueue([NewJob(task="a", queue=f"q{round}")])
            assert rings.wait_for(round)


def test_it_stops_at_once_while_the_other_end_is_gone(
    pg_server: Server, pg_migrated_url: str, rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_postgres, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(bell_postgres, "ANSWER_SECONDS", LONG_SECONDS)
    with Proxy(pg_server.port) as proxy:
        with ringing(proxy.url(database_name(pg_migrated_url)), rings) as (_, bell):
            assert rings.wait_for(1)
            proxy.freeze()
            until(lambda: proxy.held_back)
            assert timed_stop(bell) < PROMPT_SECONDS
        assert bell_threads() == []


def test_it_stops_at_once_while_it_connects(rings: Rings) -> None:
    """Somebody takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        mute.settimeout(PATIENCE_SECONDS)
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable&connect_timeout=600"
        with ringing(url, rings) as (_, bell):
            client, _address = mute.accept()
            with client:
                assert client.recv(1), "it has begun to talk"
                assert timed_stop(bell) < PROMPT_SECONDS
    assert bell_threads() == []


def test_it_stops_at_once_between_two_tries(
    rings: Rings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell_postgres, "pause_seconds", lambda _: LONG_SECONDS)
    url = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    with ringing(url, rings) as (_, bell):
        until(lambda: states(caplog) == ["silent"])
        assert timed_stop(bell) < PROMPT_SECONDS


def timed_stop(bell: Bell) -> float:
    start = time.monotonic()
    bell.stop()
    return time.monotonic() - start


def test_pauses_grow_up_to_a_limit_and_differ() -> None:
    for failures, longest in ((1, 0.2), (2, 0.4), (3, 0.8), (10, 5.0), (10_000, 5.0)):
        pauses = {pause_seconds(failures) for _ in range(50)}
        assert longest / 2 <= min(pauses) < max(pauses) <= longest


def test_behind_a_pooler_nobody_listens(pg_migrated_url: str, rings: Rings) -> None:
    with ringing(f"{pg_migrated_url}&pooler=transaction", rings) as (_, bell):
        assert bell_threads() == []
        assert bells_of(pg_migrated_url) == []
        assert not bell.alive
        with open_store(pg_migrated_url) as other:
            other.enqueue([NewJob(task="a")])
    assert rings.count == 0


def test_the_bell_of_a_schema_hears_this_schema_alone(pg_url: str, rings: Rings) -> None:
    urls = [f"{pg_url}&schema={schema}" for schema in ("tenure", "order")]
    for url in urls:
        migrate(url)
    with ringing(urls[1], rings) as (store, _), open_store(urls[0]) as other:
        assert rings.wait_for(1)
        other.enqueue([NewJob(task="a")])
        rings.stay_quiet(0.1)
        store.enqueue([NewJob(task="a")])
        assert rings.wait_for(2)
