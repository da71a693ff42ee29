"""A PostgreSQL that does not let us: no schema, no privilege, no connection, no time."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tenure.errors import (
    SchemaMissing,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TenureError,
)
from tenure.rules import lifecycle
from tenure.rules.gates import Limits
from tenure.rules.job import State
from tenure.store import LANDED, Store, open_store
from tenure.store.migrate import VERSION
from tests.conftest import migrate
from tests.faults.everything import run_everything
from tests.support.audit import audit
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain import Plain
from tests.support.postgres import Server, database_name
from tests.support.stores import Clock
from tests.support.work import add, add_many, ids_of, job, take

DOCS = Path(__file__).parents[2] / "docs"
SOON_SECONDS = 300.0
LONG_SECONDS = 3600.0


@pytest.fixture
def admin(pg_migrated_url: str) -> Iterator[psycopg.Connection]:
    """A superuser's connection, outside of any transaction."""
    with psycopg.connect(pg_migrated_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def stranger(pg_migrated_url: str) -> Iterator[psycopg.Connection]:
    """A user's session, which opens a transaction and keeps it."""
    with psycopg.connect(pg_migrated_url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def role(pg_server: Server, pg_migrated_url: str) -> Iterator[str]:
    """The address of the same database for a role that may do nothing yet."""
    with psycopg.connect(pg_server.url(), autocommit=True) as admin:
        admin.execute("create role tenure_run login")
    yield pg_migrated_url.replace("postgres@", "tenure_run@")
    with psycopg.connect(pg_migrated_url, autocommit=True) as admin:
        admin.execute("drop owned by tenure_run")
    with psycopg.connect(pg_server.url(), autocommit=True) as admin:
        admin.execute("drop owned by tenure_run")
        admin.execute("drop role tenure_run")


def opened(url: str, give_up_seconds: float = 0.5) -> Store:
    return open_store(url, give_up_seconds=give_up_seconds)


def test_a_database_without_the_schema_names_the_command(pg_url: str) -> None:
    store = opened(pg_url)
    for call in (lambda: store.enqueue([job()]), lambda: store.claim("w1", {"default": 1})):
        with pytest.raises(SchemaMissing, match=r"call app\.migrate\(\)"):
            call()
    store.close()
    with psycopg.connect(pg_url) as connection:
        [(found,)] = connection.execute("select count(*) from pg_namespace where nspname='tenure'")
    assert found == 0


def test_a_schema_without_one_of_its_tables_names_the_command(
    pg_migrated_url: str, admin: psycopg.Connection
) -> None:
    admin.execute("drop table tenure.ready cascade")
    store = opened(pg_migrated_url)
    with pytest.raises(SchemaMissing, match=r"call app\.migrate\(\)"):
        store.claim("w1", {"default": 1})
    store.close()


def test_a_wrong_role_or_database_is_told_at_once(pg_server: Server) -> None:
    for url, told in (
        (
            pg_server.url("no_such_database"),
            r'database "no_such_database" does not exist.*; create the database .*in the URL$',
        ),
        (
            pg_server.url().replace("postgres@", "no_such_role@"),
            r'role "no_such_role" does not exist.*; create the role, or check the user in the URL$',
        ),
    ):
        store = opened(url, give_up_seconds=LONG_SECONDS)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match=told):
            store.enqueue([job()])
        with pytest.raises(StoreUnavailable, match=told):
            store.migrate()
        assert time.monotonic() - start < SOON_SECONDS
        store.close()


def test_the_traceback_of_an_outage_begins_with_what_the_driver_says(pg_server: Server) -> None:
    store = opened(pg_server.url("no_such_database"))
    for call in (lambda: store.enqueue([job()]), lambda: store.get(1)):
        with pytest.raises(StoreUnavailable) as refusal:
            call()
        error: BaseException = refusal.value
        while (earlier := error.__cause__ or error.__context__) is not None:
            error = earlier
        assert isinstance(error, psycopg.OperationalError)
    store.close()


def test_a_role_that_may_not_connect_is_told_at_once(
    role: str, admin: psycopg.Connection, pg_migrated_url: str
) -> None:
    admin.execute(f"revoke connect on database {database_name(pg_migrated_url)} from public")
    store = opened(role, give_up_seconds=LONG_SECONDS)
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="permission denied"):
        store.enqueue([job()])
    assert time.monotonic() - start < SOON_SECONDS
    store.close()


@pytest.mark.slow
def test_a_wrong_password_is_told_at_once_and_not_repeated() -> None:
    with Server() as server:
        with psycopg.connect(server.url(), autocommit=True) as admin:
            admin.execute("create role careful login password 'right'")
            hba = server.directory / "data" / "pg_hba.conf"
            hba.write_text(
                "host all careful 127.0.0.1/32 scram-sha-256\n"
                "host all barred 127.0.0.1/32 reject\n" + hba.read_text()
            )
            admin.execute("select pg_reload_conf()")
        url = server.url(tcp=True)
        for login, complaint in (
            ("careful:wr0ng", "password authentication failed"),
            ("careful", "no password supplied|password authentication failed"),
            ("barred:wr0ng", "rejects connection|no pg_hba.conf entry"),
        ):
            store = opened(url.replace("postgres@", f"{login}@"), give_up_seconds=LONG_SECONDS)
            start = time.monotonic()
            with pytest.raises(StoreUnavailable, match=complaint) as refusal:
                store.enqueue([job()])
            assert time.monotonic() - start < SOON_SECONDS
            assert "wr0ng" not in str(refusal.value)
            store.close()


def test_a_role_without_privileges_is_told_which_and_where_to_read(role: str) -> None:
    store = opened(role)
    refused = pytest.raises(StoreReadOnly, match=r"permission denied for schema.*least privilege")
    with refused as refusal:
        store.enqueue([job()])
    assert "LINE" not in str(refusal.value)
    store.close()


def test_migrating_without_the_privilege_says_what_is_missing(
    role: str, admin: psycopg.Connection
) -> None:
    admin.execute("drop schema tenure cascade")
    store = opened(role)
    with pytest.raises(StoreReadOnly, match=r"lacks a privilege.*permission denied for database"):
        store.migrate()
    store.close()


def grants() -> str:
    """The documented grants for the running role, without its creation."""
    blocks = re.findall(
        r"```sql\n(.*?)```", (DOCS / "how-to" / "least-privilege.md").read_text(), re.DOTALL
    )
    [block] = [text for text in blocks if "create role tenure_run" in text]
    return str(block).replace("create role tenure_run login;", "")


def out_of_reach(admin: psycopg.Connection) -> list[tuple[str]]:
    """What the running role cannot read of tables and views, but for days of history."""
    return admin.execute(
        "select relname from pg_class where relnamespace = 'tenure'::regnamespace"
        " and relkind in ('r', 'p', 'v') and not relispartition"
        " and not has_table_privilege('tenure_run', oid, 'select') order by 1"
    ).fetchall()


@pytest.mark.slow
def test_the_documented_grants_are_enough_to_run_and_not_to_migrate(
    role: str, admin: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    admin.execute(grants().replace("database app", f"database {database_name(pg_migrated_url)}"))
    with opened(role, give_up_seconds=10) as store:
        run_everything(store, clock)
        audit(pg_migrated_url)
        assert not out_of_reach(admin)
        assert store.migrate() == VERSION  # nothing to do
        with psycopg.connect(role) as connection:
            for forbidden in (
                "create table tenure.mine (id int)",
                "alter table tenure.job add column mine int",
                "drop table tenure.history_default",
                "update tenure.schema_version set version = 2",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden)
                connection.rollback()
        admin.execute("drop schema tenure cascade")
        with pytest.raises(StoreReadOnly, match="lacks a privilege"):
            store.migrate()


@pytest.mark.slow
def test_when_all_connections_are_taken_the_store_waits_for_one() -> None:
    with Server(settings={"max_connections": 12}) as server:
        url = server.create_database()
        migrate(url)
        crowd = []
        with pytest.raises(psycopg.OperationalError, match="too many clients"):  # noqa: PT012
            for _ in range(100):
                crowd += [psycopg.connect(url)]
        store = opened(url)
        with pytest.raises(StoreUnavailable, match="too many clients"):
            store.enqueue([job()])
        store.close()

        patient = opened(url, give_up_seconds=60)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(patient.enqueue, [job()])
            crowd.pop().close()
            assert answer.result(60)[0].created
        patient.close()
        for connection in crowd:
            connection.close()


@pytest.mark.slow
def test_a_statement_timeout_is_retried_until_the_way_is_free(
    admin: psycopg.Connection, stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    admin.execute(f"alter database {database_name(pg_migrated_url)} set statement_timeout = '1s'")
    store = opened(pg_migrated_url, give_up_seconds=60)
    id = add(store, clock.now)
    stranger.execute("lock table tenure.ready in access exclusive mode")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, store, clock.now)
        wait_for_cancelled_statements(admin)
        stranger.rollback()
        assert ids_of(answer.result(60)) == [id]
    store.close()


def wait_for_cancelled_statements(admin: psycopg.Connection) -> None:
    """Until a waiting statement of ours has been seen twice: it was cancelled and tried again."""
    seen: set[object] = set()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(seen) < 2:
        assert time.monotonic() < deadline
        seen |= set(
            admin.execute(
                "select query_start from pg_stat_activity where wait_event_type = 'Lock'"
                " and application_name = 'tenure' and datname = current_database()"
            ).fetchall()
        )
        time.sleep(0.002)


def test_a_table_that_stays_locked_is_reported_politely(
    stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    store = opened(pg_migrated_url, give_up_seconds=0.3)
    add(store, clock.now)
    stranger.execute("lock table tenure.ready in access exclusive mode")
    with pytest.raises(StoreBusy, match="try again"):
        take(store, clock.now)
    stranger.rollback()
    assert len(take(store, clock.now)) == 1
    store.close()


def test_a_claim_that_cannot_look_at_gates_has_taken_nothing(
    stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    """It takes jobs without a gate in a statement that lands at once."""
    store = opened(pg_migrated_url, give_up_seconds=0.3)
    store.declare_gates({"one": Limits(max_running=1)}, now=clock.now)
    id = add(store, clock.now, max_attempts=1)
    stranger.execute("lock table tenure.turn in access exclusive mode")
    with pytest.raises(StoreBusy, match="try again"):
        take(store, clock.now)
    stranger.rollback()
    assert store.sweep(now=clock.advance(60)).finished == 0
    assert ids_of(take(store, clock.now)) == [id]
    store.close()


def test_a_ticket_that_a_stranger_locks_is_skipped(
    stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    store = opened(pg_migrated_url)
    first, *others = add_many(store, clock.now, 5)
    stranger.execute("select from tenure.ready where job_id = %s for update", [first])
    assert ids_of(take(store, clock.now)) == others
    stranger.rollback()
    assert ids_of(take(store, clock.now)) == [first]
    store.close()


@pytest.mark.slow
def test_a_job_that_a_stranger_locks_stops_only_what_must_write_it(
    stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    store = opened(pg_migrated_url, give_up_seconds=0.3)
    locked, *others = add_many(store, clock.now, 5)
    stranger.execute("select from tenure.job where id = %s for update", [locked])

    with pytest.raises(StoreBusy, match="try again"):
        store.cancel(locked, now=clock.now)
    assert store.cancel(others[3], now=clock.now) is State.CANCELLED
    held = {one.id: one for one in take(store, clock.now)}
    assert set(held) == {locked, *others[:3]}  # a claim does not touch the job's row
    with pytest.raises(StoreBusy, match="try again"):
        store.settle("w1", [lifecycle.succeed(held[locked])], now=clock.now)
    flowing = [lifecycle.succeed(held[id]) for id in others[:2]]
    assert store.settle("w1", flowing, now=clock.now) == [LANDED] * 2
    # Its lease has expired: a sweep takes back what it can and leaves the locked one for later.
    assert store.sweep(now=clock.advance(31)).requeued == 1
    assert store.get(locked).state is State.RUNNING
    audit(pg_migrated_url)

    stranger.rollback()

    settled = store.settle("w1", [lifecycle.succeed(held[locked])], now=clock.now)
    assert settled == [LANDED]  # late, but before anybody swept it
    audit(pg_migrated_url)
    store.close()


def test_a_job_that_a_stranger_locks_does_not_keep_its_batch_from_landing(
    stranger: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    store = opened(pg_migrated_url, give_up_seconds=0.3)
    ids = add_many(store, clock.now, 5)
    ends = [lifecycle.succeed(held) for held in take(store, clock.now)]
    stranger.execute("select from tenure.job where id = %s for update", [ids[2]])

    answers = store.settle("w1", ends, now=clock.now)

    assert [answer.landed for answer in answers] == [True, True, False, True, True]
    assert answers[2].busy
    assert not answers[2].stale
    stranger.rollback()
    assert store.settle("w1", ends, now=clock.now) == [LANDED] * 5
    audit(pg_migrated_url)
    store.close()


@pytest.mark.slow
def test_a_read_only_server_is_read_and_waited_for(
    admin: psycopg.Connection, pg_migrated_url: str, clock: Clock
) -> None:
    """As after a failover, when the address still leads to the standby."""
    name = database_name(pg_migrated_url)
    writable = opened(pg_migrated_url)
    id = add(writable, clock.now)
    writable.close()
    admin.execute(f"alter database {name} set default_transaction_read_only = on")
    store = opened(pg_migrated_url)
    with pytest.raises(StoreReadOnly, match="standby"):
        store.claim("w1", {"default": 1})
    assert store.get(id).state is State.QUEUED
    with pytest.raises(StoreReadOnly, match="standby"):
        store.enqueue([job()])

    patient = opened(pg_migrated_url, give_up_seconds=60)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(take, patient, clock.now)
        admin.execute("set default_transaction_read_only = off")
        admin.execute(f"alter database {name} reset default_transaction_read_only")
        assert ids_of(answer.result(60)) == [id]
    store.close()
    patient.close()


def test_jobs_from_plain_sql_are_jobs_like_others(
    admin: psycopg.Connection, pg_migrated_url: str
) -> None:
    store = opened(pg_migrated_url, give_up_seconds=10)
    [(now,)] = admin.execute("select tenure.enqueue('app.send', '{\"to\": \"me\"}')").fetchall()
    [(urgent,)] = admin.execute(
        "select tenure.enqueue('app.send', priority => -5, queue => 'default')"
    ).fetchall()
    [(later,)] = admin.execute(
        "select tenure.enqueue('app.send', delay => interval '1 hour')"
    ).fetchall()
    assert store.get(later).state is State.SCHEDULED
    [lease] = store.claim("w1", {"default": 10})
    assert [held.id for held in lease.jobs] == [urgent, now]
    assert lease.jobs[1].args == '{"to": "me"}'
    ends = [lifecycle.succeed(held) for held in lease.jobs]
    assert store.settle("w1", ends, done_leases=[lease.id]) == [LANDED] * 2
    with admin.transaction(force_rollback=True):
        admin.execute("select tenure.enqueue('app.never')")
    assert store.claim("w1", {"default": 10}) == []
    audit(pg_migrated_url)
    store.close()


@pytest.mark.parametrize(
    "call",
    [
        "tenure.enqueue(null)",
        "tenure.enqueue('a', null)",
        "tenure.enqueue('a', 'not json')",
        "tenure.enqueue('a', priority => 101)",
        "tenure.enqueue('a', priority => 100000)",
        "tenure.enqueue('a', queue => null)",
        "tenure.enqueue('')",
        "tenure.enqueue('a b')",
        "tenure.enqueue('a', queue => 'x''; drop table tenure.job; --')",
    ],
)
def test_what_plain_sql_may_not_enqueue_is_refused_by_the_schema(
    admin: psycopg.Connection, pg_migrated_url: str, call: str
) -> None:
    with pytest.raises(psycopg.DatabaseError):
        admin.execute(f"select {call}")
    with Plain(pg_migrated_url) as plain:
        assert plain.one("select count(*) from tenure.job") == 0


def test_every_error_of_postgresql_becomes_one_of_ours() -> None:
    from tenure.store.postgres.errors import translate

    for name in dir(psycopg.errors):
        kind = getattr(psycopg.errors, name)
        if isinstance(kind, type) and issubclass(kind, psycopg.Error):
            translated = translate(kind("something happened"))
            assert isinstance(translated, TenureError), name
            assert "something happened" in str(translated)
