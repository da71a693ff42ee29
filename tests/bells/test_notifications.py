"""Who notifies on PostgreSQL, how often, and when it is better not to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest

from tenure.errors import JobNotFound
from tenure.rules.job import NewJob
from tenure.store import Store, open_store
from tenure.store.postgres import notify
from tenure.store.postgres.session import _PLANNER, Postgres
from tenure.store.records import AddedTicket, NewLane
from tenure.store.statements import statements
from tests.bells.acts import LATER, QUIET, RINGING, SOON
from tests.bells.rings import Listener
from tests.conftest import migrate
from tests.support.postgres import Server, database_name
from tests.support.proxy import Proxy
from tests.support.stores import Clock, open_face
from tests.support.work import add, add_many, job, take

BULK = [NewJob(task="app.work", queue="q")] * 5000


@pytest.fixture(params=["postgres-sync", "postgres-async"])
def pg_store(request: pytest.FixtureRequest, pg_migrated_url: str) -> Iterator[Store]:
    """A store on PostgreSQL, in both colours."""
    opened = open_face(str(request.param), pg_migrated_url)
    yield opened
    opened.close()


@pytest.fixture
def other(pg_migrated_url: str) -> Iterator[Store]:
    """Another store on the same database, which has told nothing yet."""
    with open_store(pg_migrated_url) as opened:
        yield opened


@pytest.fixture
def listener(pg_migrated_url: str) -> Iterator[Listener]:
    with Listener(pg_migrated_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that does things in a row would be calmed down; the tests of calm say so."""
    monkeypatch.setattr(notify, "CALM_SECONDS", 0.0)
    monkeypatch.setattr(notify, "CALM_DUE_SECONDS", 0.0)


@pytest.mark.parametrize("name", [*RINGING, *SOON])
def test_whatever_puts_a_ticket_in_line_now_or_soon_notifies_once(
    pg_store: Store, clock: Clock, listener: Listener, name: str
) -> None:
    act = (RINGING | SOON)[name](pg_store, clock)
    listener.heard()
    act()
    assert listener.heard() == ["q"]


@pytest.mark.parametrize("name", [*QUIET, *LATER])
def test_nothing_else_notifies(
    pg_store: Store, clock: Clock, listener: Listener, name: str
) -> None:
    act = (QUIET | LATER)[name](pg_store, clock)
    listener.heard()
    act()
    assert listener.heard() == []


def test_a_bulk_notifies_once(pg_store: Store, listener: Listener) -> None:
    pg_store.enqueue(BULK)
    assert listener.heard() == ["q"]


def test_a_transaction_about_several_queues_notifies_once_and_names_none(
    pg_store: Store, clock: Clock, listener: Listener
) -> None:
    pg_store.enqueue([NewJob(task="a", queue=name) for name in "ab"], now=clock.now)
    assert listener.heard() == [""]


def test_jobs_from_plain_sql_notify(pg_migrated_url: str, listener: Listener) -> None:
    with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
        plain.execute("select tenure.enqueue('app.send', queue => 'q')")
        assert listener.heard() == ["q"]
        plain.execute("select tenure.enqueue('app.send', queue => 'q')")
        plain.execute("select tenure.enqueue('app.send', queue => 'r', delay => '1 hour')")
    assert listener.heard() == [], "one stands in line already, and the other one does not"


def test_jobs_from_plain_sql_that_are_due_soon_notify(
    pg_migrated_url: str, listener: Listener
) -> None:
    with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
        plain.execute("select tenure.enqueue('app.send', queue => 'q', delay => '0.5 s')")
    assert listener.heard() == ["q"]


def test_jobs_for_now_and_for_soon_notify_once(
    pg_store: Store, clock: Clock, listener: Listener
) -> None:
    pg_store.enqueue([job(queue="q"), job(queue="q", delay_seconds=0.5)], now=clock.now)
    pg_store.enqueue([job(queue="r"), job(queue="s", delay_seconds=0.5)], now=clock.now)
    assert listener.heard() == ["q", ""]


def test_of_what_is_due_soon_workers_are_told_now_and_then(
    pg_store: Store, clock: Clock, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told looks often for a while. A job for now is told of all the same."""
    monkeypatch.setattr(notify, "CALM_DUE_SECONDS", 60.0)
    for _ in range(3):
        add(pg_store, clock.now, queue="q", delay_seconds=0.5)
    assert listener.heard() == ["q"]
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]


def test_the_notification_travels_with_the_commit(
    pg_server: Server, pg_migrated_url: str, listener: Listener
) -> None:
    with Proxy(pg_server.port) as proxy:
        store = open_store(proxy.url(database_name(pg_migrated_url)))
        store.enqueue([NewJob(task="a"), NewJob(task="b")])
        ends = [text for link in proxy.links for text in link.said if text.endswith("commit")]
        store.close()
    assert listener.heard() == ["default"]
    [end] = ends
    assert end.startswith("select pg_notify('tenure.bell', 'default'")
    assert end.endswith("; commit")


def test_a_lone_job_is_one_statement_and_the_notification_another(
    pg_server: Server, pg_migrated_url: str, listener: Listener
) -> None:
    with Proxy(pg_server.port) as proxy:
        store = open_store(proxy.url(database_name(pg_migrated_url)))
        store.enqueue([NewJob(task="a")])  # draws ids, and opens the connection
        store.claim("w1", {"default": 1})
        assert listener.heard() == ["default"]
        before = sum(len(link.said) for link in proxy.links)
        store.enqueue([NewJob(task="a")])
        said = [text for link in proxy.links for text in link.said][before:]
        store.close()
    assert listener.heard() == ["default"]
    insert, notify_workers = said
    assert "insert into" in insert
    assert "pg_notify" in notify_workers


def test_a_lone_job_whose_notification_is_refused_is_there(
    pg_store: Store, clock: Clock, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    session = cast(Postgres, _session(pg_store))
    session._sql = {**session._sql, "notify": ("select 1 / 0",)}
    with caplog.at_level(logging.WARNING, "tenure.bell"):
        id = add(pg_store, clock.now, queue="q")
    assert [held.id for held in take(pg_store, clock.now, queue="q")] == [id]
    assert listener.heard() == []
    assert "refused a notification" in caplog.text


# --- no notification with a backlog ------------------------------------------------------------


def test_no_notification_while_others_stand_in_line(
    pg_store: Store, other: Store, clock: Clock, listener: Listener
) -> None:
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]
    for _ in range(3):
        add(other, clock.now, queue="q")
    other.enqueue(BULK)
    assert listener.heard() == []
    assert len(take(other, clock.now, 10_000, queue="q")) == 5004
    add(other, clock.now, queue="q")
    assert listener.heard() == ["q"]


def test_a_backlog_of_another_lane_is_none(
    pg_store: Store, clock: Clock, listener: Listener
) -> None:
    add(pg_store, clock.now, queue="q", priority=5)
    add(pg_store, clock.now, queue="r")
    listener.heard()
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]


@pytest.mark.parametrize(("between", "heard"), [(31, []), (32, ["q"])])
def test_the_look_for_a_backlog_goes_back_32_positions(
    pg_store: Store, clock: Clock, listener: Listener, between: int, heard: list[str]
) -> None:
    add(pg_store, clock.now, queue="q")
    add_many(pg_store, clock.now, between, queue="elsewhere")
    listener.heard()
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == heard


def test_the_look_for_a_backlog_is_cheap_among_dead_tickets(pg_migrated_url: str) -> None:
    """A snapshot is held, so that 30,000 dead tickets stay in the index just before ours."""
    [sql] = statements("postgres", "tenure")["notify"]
    with (
        psycopg.connect(pg_migrated_url, autocommit=True) as holder,
        psycopg.connect(pg_migrated_url, autocommit=True) as plain,
    ):
        plain.execute(
            "insert into tenure.ready (position, job_id, token, priority, queue)"
            " select 1000000 + n, n, 1, 0, 'q' from generate_series(1, 30000) as n"
        )
        holder.execute("begin isolation level repeatable read")
        holder.execute("select count(*) from tenure.ready")
        plain.execute("delete from tenure.ready")
        for name, value in _PLANNER.items():
            plain.execute(f"set {name} = {value}")
        lane = {
            "payload": "q", "queue": "q", "needs": 0, "priority": 0, "position": 1_031_000,
        }  # fmt: skip
        row = plain.execute(f"explain (analyze, buffers, format json) {sql}", lane).fetchone()
    assert row is not None
    pages = row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"]
    assert row[0][0]["Plan"]["Actual Rows"] == 1, "it did notify"
    assert pages < 32 * 6, "about three pages of the index and one of the table for each position"


# --- calm --------------------------------------------------------------------------------------


def test_a_store_tells_of_a_queue_once_in_a_while(
    pg_store: Store, clock: Clock, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "CALM_SECONDS", 60.0)
    for _ in range(3):
        add(pg_store, clock.now, queue="q")
        take(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]
    add(pg_store, clock.now, queue="r")
    assert listener.heard() == ["r"], "it had not told of this one yet"
    monkeypatch.setattr(notify, "CALM_SECONDS", 0.0)
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]


def test_a_busy_store_notifies_at_most_every_five_milliseconds() -> None:
    assert notify.CALM_SECONDS == 0.0, "in these tests"
    assert _true_calm_seconds == 0.005


_true_calm_seconds = notify.CALM_SECONDS


def test_what_was_rolled_back_was_not_told(
    pg_store: Store, clock: Clock, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "CALM_SECONDS", 60.0)
    child = NewJob(task="a", queue="q", parents=(123456,))
    with pytest.raises(JobNotFound):
        pg_store.enqueue([NewJob(task="a", queue="q"), child], now=clock.now)
    assert listener.heard() == []
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]


# --- the caller's transaction ------------------------------------------------------------------


def test_the_callers_transaction_notifies_when_it_commits(
    other: Store, pg_migrated_url: str, listener: Listener
) -> None:
    with psycopg.connect(pg_migrated_url) as connection:
        other.enqueue(BULK, on=connection)
        other.enqueue([NewJob(task="a", queue="q")], on=connection)
        assert listener.heard() == []
        connection.rollback()
        assert listener.heard() == []
        other.enqueue(BULK, on=connection)
        connection.commit()
        assert listener.heard() == ["q"]
        other.enqueue(BULK, on=connection)
        connection.commit()
        assert listener.heard() == [], "a backlog stands"


def test_one_call_in_the_callers_transaction_sends_one_statement_per_queue() -> None:
    """The server would drop the others; each would cost a round trip."""
    news = notify.Notifier("", on=True).news(calm=False)
    assert news is not None
    assert news.take() is None
    news.add_tickets([NewLane("q", 0, 0, 1000, False)])
    assert news.take() is not None
    news.add_tickets([NewLane("q", 0, 0, 2000, False)])
    assert news.take() is None
    held = AddedTicket(8, 0, "r", 2, 0, position=None, due_soon=False)
    news.add_tickets([AddedTicket(7, 0, "r", 2, 0, position=3000, due_soon=False), held])
    notice = news.take()
    assert notice is not None
    lane = {"queue": "r", "needs": 2, "priority": 0}
    assert notice.params == {"payload": "r", "position": 3000} | lane


# --- turned off --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "heard"),
    [
        ("notify=off", []),
        ("notify=on", ["default"]),
        ("pooler=transaction", []),
        ("pooler=transaction&notify=on", ["default"]),
    ],
)
def test_notifications_can_be_turned_off(
    pg_migrated_url: str, listener: Listener, options: str, heard: list[str]
) -> None:
    with open_store(f"{pg_migrated_url}&{options}") as store:
        store.enqueue([NewJob(task="a")])
        assert listener.heard() == heard
        with psycopg.connect(pg_migrated_url) as connection:
            store.enqueue([NewJob(task="a", queue="q")], on=connection)
        assert listener.heard() == [queue.replace("default", "q") for queue in heard]


def test_a_schema_has_a_channel_of_its_own(pg_url: str) -> None:
    urls = {schema: f"{pg_url}&schema={schema}" for schema in ("tenure", "order")}
    for url in urls.values():
        migrate(url)
    with Listener(pg_url) as usual, Listener(pg_url, '"order".bell') as ordered:
        for schema, url in urls.items():
            with open_store(url) as store:
                store.enqueue([NewJob(task="a", queue=f"of-{schema}")])
        assert usual.heard() == ["of-tenure"]
        assert ordered.heard() == ["of-order"]
        with psycopg.connect(pg_url, autocommit=True) as plain:
            plain.execute("""select "order".enqueue('app.send', queue => 'sql')""")
        assert (usual.heard(), ordered.heard()) == ([], ["sql"])


# --- refused -----------------------------------------------------------------------------------

# A COMMIT that the server refuses once, as it does when its queue of notifications is full.
REFUSE_ONCE = """
create sequence public.commits;
grant usage on sequence public.commits to public;
create function public.refuse_once() returns trigger language plpgsql as $$
begin
    if nextval('public.commits') = 1 then
        raise exception 'too many notifications in the NOTIFY queue' using errcode = '54000';
    end if;
    return null;
end $$;
create constraint trigger refuse_once after insert on tenure.ready
    deferrable initially deferred for each row execute function public.refuse_once();
"""


def test_a_refused_notification_costs_no_job(
    pg_store: Store,
    pg_migrated_url: str,
    clock: Clock,
    listener: Listener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
        plain.execute(REFUSE_ONCE)
    with caplog.at_level(logging.WARNING, "tenure.bell"):
        ids = add_many(pg_store, clock.now, 2, queue="q")
        assert [held.id for held in take(pg_store, clock.now, queue="q")] == ids
        add_many(pg_store, clock.now, 2, queue="q")
    assert listener.heard() == [], "it stays silent for a while"
    assert len(caplog.records) == 1
    assert "refused a notification" in caplog.text
    notifier = cast(Postgres, _session(pg_store))._notifier
    assert notifier._silent_until > 0
    notifier._silent_until = 0.0
    take(pg_store, clock.now, queue="q")
    add(pg_store, clock.now, queue="q")
    assert listener.heard() == ["q"]


def _session(store: Store) -> Any:
    store = getattr(store, "store", store)  # behind an async store's face
    return store._scope.session


def test_what_was_refused_for_another_reason_is_still_refused(
    pg_store: Store, pg_migrated_url: str, clock: Clock, listener: Listener
) -> None:
    with psycopg.connect(pg_migrated_url, autocommit=True) as plain:
        plain.execute(REFUSE_ONCE.replace("= 1 then", "> 0 then"))
    with pytest.raises(Exception, match="too many notifications"):
        add_many(pg_store, clock.now, 2, queue="q")
    assert listener.heard() == []
    assert _session(pg_store)._notifier._silent_until == 0
