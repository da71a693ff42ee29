"""A role that may call our functions on PostgreSQL gains nothing else by them.

Two of them run with the rights of the owner of the schema. The role here may make temporary
objects, as every role may by default, and gives them the names that the functions use.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tenure.rules.lifecycle import fail, succeed
from tenure.store import Store, open_store
from tests.faults.test_postgres_refusals import grants
from tests.support.postgres import Server, database_name
from tests.support.work import ERROR, add_many, settle, take

Connection = psycopg.Connection[tuple[object, ...]]

ROLE = "tenure_intruder"

# What the role would have the owner do, when a value is cast or a row is read in the owner's name.
EVIL = f"""
create function pg_temp.evil() returns boolean language plpgsql as $$
begin
    if current_user <> '{ROLE}' then
        execute 'alter role {ROLE} superuser';
    end if;
    return true;
end $$;
"""

TRICKS = {
    "a domain called date": """
        create domain pg_temp.date as pg_catalog.date check (pg_temp.evil());
    """,
    "a domain called text": """
        create domain pg_temp.text as pg_catalog.text check (pg_temp.evil());
    """,
    "a domain called timestamptz": """
        create domain pg_temp.timestamptz as pg_catalog.timestamptz check (pg_temp.evil());
    """,
    "a domain called regclass": """
        create domain pg_temp.regclass as pg_catalog.regclass check (pg_temp.evil());
    """,
    "a domain called int4": """
        create domain pg_temp.int4 as pg_catalog.int4 check (pg_temp.evil());
    """,
    "a table called record": """
        create table pg_temp.record (name pg_catalog.text check (pg_temp.evil()));
    """,
    "views called pg_class and pg_inherits": """
        create view pg_temp.pg_class as
            select 1::pg_catalog.oid as oid, 'history_20000101; drop table public.secret'::name
            as relname where pg_temp.evil();
        create view pg_temp.pg_inherits as
            select 1::pg_catalog.oid as inhrelid, c.oid as inhparent
            from pg_catalog.pg_class c where c.relname = 'history' and pg_temp.evil();
    """,
    "functions called like the system's": """
        create function pg_temp.clock_timestamp() returns pg_catalog.timestamptz language sql as
            'select pg_temp.evil(); select ''infinity''::pg_catalog.timestamptz';
        create function pg_temp.to_regclass(pg_catalog.text) returns pg_catalog.regclass
            language sql as 'select pg_temp.evil(); select null::pg_catalog.regclass';
        create function pg_temp.format(pg_catalog.text, variadic pg_catalog.text[])
            returns pg_catalog.text
            language sql as 'select pg_temp.evil(); select ''drop table public.secret''';
        set search_path = pg_temp, pg_catalog;
    """,
    "settings of the session": """
        set datestyle = 'SQL, DMY'; set timezone = 'Asia/Kathmandu'; set lock_timeout = '1ms';
    """,
}


@pytest.fixture
def admin(pg_migrated_url: str) -> Iterator[Connection]:
    """A superuser's connection, outside of any transaction."""
    with psycopg.connect(pg_migrated_url, autocommit=True) as connection:
        connection.execute("create table public.secret (x int)")
        yield connection


@pytest.fixture
def intruder(pg_server: Server, pg_migrated_url: str, admin: Connection) -> Iterator[Connection]:
    """A session of a role that may execute the functions, and nothing else."""
    admin.execute(f"create role {ROLE} login")
    admin.execute(f"grant usage on schema tenure to {ROLE}")
    admin.execute(f"grant execute on all functions in schema tenure to {ROLE}")
    with psycopg.connect(pg_migrated_url.replace("postgres@", f"{ROLE}@"), autocommit=True) as own:
        yield own
    admin.execute(f"drop owned by {ROLE}")
    with psycopg.connect(pg_server.url(), autocommit=True) as other:
        other.execute(f"drop owned by {ROLE}")
        other.execute(f"drop role {ROLE}")


def days_of(admin: Connection) -> list[tuple[object, ...]]:
    """Every partition with its bounds."""
    admin.execute("set timezone = 'UTC'")
    return admin.execute(
        "select c.relname, pg_get_expr(c.relpartbound, c.oid), c.relowner::regrole::text"
        " from pg_inherits i join pg_class c on c.oid = i.inhrelid"
        " where i.inhparent = 'tenure.history'::regclass order by 1"
    ).fetchall()


def name_of(at: datetime) -> str:
    return f"history_{at:%Y%m%d}"


def bounds_of(at: datetime) -> str:
    first, end = (f"'{day:%Y-%m-%d} 00:00:00+00'" for day in coming(at, 2))
    return f"FOR VALUES FROM ({first}) TO ({end})"


def coming(at: datetime, days: int) -> list[datetime]:
    return [at + timedelta(days=ahead) for ahead in range(days)]


@pytest.mark.parametrize("trick", TRICKS)
def test_names_of_the_callers_own_are_not_mistaken_for_the_systems(
    admin: Connection, intruder: Connection, trick: str
) -> None:
    intruder.execute(EVIL + TRICKS[trick])
    before = datetime.now(UTC)
    [(added,)] = intruder.execute("select tenure.add_history_days(2)").fetchall()
    [(dropped,)] = intruder.execute("select tenure.drop_history_days('infinity')").fetchall()
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        intruder.execute("select tenure.enqueue('app.send')")
    assert (added, dropped) == (3, 0)
    [row] = admin.execute(
        "select rolsuper, rolcreaterole, rolcreatedb from pg_roles where rolname = %s", [ROLE]
    ).fetchall()
    assert row == (False, False, False)
    [(secret,)] = admin.execute("select to_regclass('public.secret') is not null").fetchall()
    assert secret
    expected = [(name_of(at), bounds_of(at), "postgres") for at in coming(before, 3)]
    if datetime.now(UTC).date() == before.date():
        assert days_of(admin) == [*expected, ("history_default", "DEFAULT", "postgres")]


def test_the_trick_works_where_the_temporary_schema_is_searched_first(
    admin: Connection, intruder: Connection
) -> None:
    """So the test above sees what it is there to see."""
    for function in ("add_history_days(int)", "drop_history_days(timestamptz)"):
        admin.execute(f"alter function tenure.{function} set search_path = pg_catalog")
    admin.execute("""
        create function tenure.careless() returns text language plpgsql security definer
        set search_path = pg_catalog as 'declare day date := now(); begin return day; end'
    """)
    admin.execute(f"grant execute on function tenure.careless to {ROLE}")
    intruder.execute(EVIL + TRICKS["a domain called date"])
    for call in ("add_history_days(1)", "drop_history_days('infinity')"):
        intruder.execute(f"select tenure.{call}")
    [(is_super,)] = admin.execute("select rolsuper from pg_roles where rolname = %s", [ROLE])
    assert not is_super, "names that carry their schema are a second wall"
    intruder.execute("select tenure.careless()")
    [(is_super,)] = admin.execute("select rolsuper from pg_roles where rolname = %s", [ROLE])
    admin.execute(f"alter role {ROLE} nosuperuser")
    assert is_super


def test_the_functions_leave_no_setting_behind(intruder: Connection) -> None:
    with intruder.transaction():
        intruder.execute("set local lock_timeout = '7s'")
        for call in (
            "tenure.add_history_days(1)",
            "tenure.drop_history_days('2000-01-01')",
            "tenure.drop_history_days(null)",
        ):
            intruder.execute(f"select {call}")
            for setting, value in (("lock_timeout", "7s"), ("search_path", '"$user", public')):
                [(found,)] = intruder.execute(f"show {setting}").fetchall()
                assert found == value


def test_nobody_else_may_call_the_functions(admin: Connection, intruder: Connection) -> None:
    admin.execute(f"revoke execute on all functions in schema tenure from {ROLE}")
    for call in ("add_history_days(1)", "drop_history_days(now())", "enqueue('a')"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            intruder.execute(f"select tenure.{call}")


@pytest.mark.slow
def test_a_day_that_somebody_else_is_making_is_left_to_them(
    pg_migrated_url: str, admin: Connection
) -> None:
    """No error and no long wait; the next call makes what is missing."""
    today = name_of(datetime.now(UTC))
    with psycopg.connect(pg_migrated_url) as other:
        other.execute(f"create table tenure.{today} (like tenure.history including all)")
        [(added,)] = admin.execute("select tenure.add_history_days(2)").fetchall()
        other.rollback()
    assert added == 0
    [(added,)] = admin.execute("select tenure.add_history_days(2)").fetchall()
    assert added == 3


@pytest.mark.slow
def test_settlements_into_other_days_go_on_while_a_day_waits_to_be_made(
    pg_migrated_url: str, admin: Connection
) -> None:
    """A reader of the default partition keeps the new day out, and only that."""
    admin.execute("select tenure.add_history_days(0)")
    with psycopg.connect(pg_migrated_url) as reader, open_store(pg_migrated_url) as store:
        reader.execute("select count(*) from tenure.history_default")
        [(added,)] = admin.execute("select tenure.add_history_days(1)").fetchall()
        assert added == 0
        now = datetime.now(UTC)
        add_many(store, now, 1)
        [answer] = settle(store, now, *(succeed(job) for job in take(store, now)))
        assert answer.landed
        reader.rollback()
    [(added,)] = admin.execute("select tenure.add_history_days(1)").fetchall()
    assert added == 1


def test_a_role_that_owns_nothing_prunes_days_that_it_did_not_make(
    pg_migrated_url: str, admin: Connection, intruder: Connection
) -> None:
    """The documented grants name `history`, not its partitions."""
    assert not intruder.closed
    granted = grants().replace("database app", f"database {database_name(pg_migrated_url)}")
    admin.execute(granted.replace("tenure_run", ROLE))
    with open_store(pg_migrated_url.replace("postgres@", f"{ROLE}@")) as store:
        store.prune()
        now = datetime.now(UTC)
        finish(store, now)
        assert store.prune(now=now + timedelta(days=8)) == 5
        assert store.prune(now=now + timedelta(days=31)) == 5


def finish(store: Store, now: datetime) -> None:
    """Five jobs that succeed, five that fail."""
    add_many(store, now, 10)
    jobs = take(store, now, 10)
    settle(store, now, *(succeed(job) for job in jobs[:5]), *(fail(job, ERROR) for job in jobs[5:]))


@pytest.mark.parametrize(
    ("call", "complaint", "fix"),
    [
        ("'no such name!'", "task 'no such name!' is not a valid name", "1 to 200 letters, digits"),
        ("'.hidden'", "task '.hidden' is not a valid name", "start with a letter, a digit or _"),
        (r"e'line\n'", "task ", "1 to 200 letters, digits"),
        ("'é'", "task 'é' is not a valid name", "1 to 200 letters, digits"),
        ("repeat('a', 201)", "task 'aaa", "1 to 200 letters, digits"),
        ("''", "task '' is not a valid name", "1 to 200 letters, digits"),
        ("null", "task NULL is not a valid name", "1 to 200 letters, digits"),
        ("'a', queue => 'a b'", "queue 'a b' is not a valid name", "1 to 200 letters, digits"),
        ("'a', queue => null", "queue NULL is not a valid name", "1 to 200 letters, digits"),
        ("'a', priority => 101", "priority '101' is out of range", "Use -100"),
        ("'a', priority => -101", "priority '-101' is out of range", "Use -100"),
        ("'a', priority => null", "priority NULL is out of range", "Use -100"),
        (
            "'a', delay => '7000 years'",
            "delay '7000 years' is out of range",
            "before the year 9000",
        ),
    ],
)
def test_a_refusal_of_enqueue_names_the_fix(
    admin: Connection, call: str, complaint: str, fix: str
) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as refusal:
        admin.execute(f"select tenure.enqueue({call})")
    assert str(refusal.value.diag.message_primary).startswith(complaint)
    assert fix in str(refusal.value.diag.message_hint)
    [(count,)] = admin.execute("select count(*) from tenure.job").fetchall()
    assert count == 0


def test_what_enqueue_accepts_can_be_claimed(pg_migrated_url: str, admin: Connection) -> None:
    for call in (
        "'a'",
        "repeat('Z', 200), queue => repeat('9', 200), priority => -100",
        "task => '_a.b:c<d>-e', queue => '_', args => '[1]', priority => 100, delay => '-1 s'",
    ):
        admin.execute(f"select tenure.enqueue({call})")
    with open_store(pg_migrated_url) as store:
        claimed = [
            job.task
            for queue in ("default", "9" * 200, "_")
            for job in take(store, datetime.now(UTC), queue=queue)
        ]
    assert claimed == ["a", "Z" * 200, "_a.b:c<d>-e"]
