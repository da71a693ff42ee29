"""transaction() on PostgreSQL: whose session it is, which tables it may write, and how many."""

# ruff: noqa: PT012 - what is tested is a block, and what it raises at its end

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import psycopg
import pytest

from tenure.errors import InvalidInput, NotCommitted, OutcomeUnknown, StoreBusy
from tenure.store import open_async_store, open_store
from tenure.store.migrate import MIN_CODE, VERSION
from tests.support.plain import Plain
from tests.support.races import Background
from tests.support.work import job


def test_a_block_that_goes_on_after_an_error_of_postgres_is_not_committed(
    pg_migrated_url: str,
) -> None:
    """PostgreSQL itself says nothing: its COMMIT of such a transaction is a ROLLBACK."""
    with open_store(pg_migrated_url) as store:
        with pytest.raises(NotCommitted, match="SAVEPOINT"), store.transaction() as transaction:
            store.enqueue([job()], on=transaction)
            with pytest.raises(psycopg.errors.UndefinedTable):
                transaction.execute("insert into payment values (1)")
        assert store.list_jobs().jobs == ()


def test_a_migration_that_shuts_out_old_code_ends_its_transactions(pg_migrated_url: str) -> None:
    """Seen failing without the lock of its users: old code wrote after the migration."""
    with open_store(pg_migrated_url) as store, open_store(pg_migrated_url) as new_code:
        with pytest.raises(psycopg.OperationalError), store.transaction() as transaction:
            with Plain(pg_migrated_url) as plain:
                plain.rows("update tenure.schema_version set min_code = 0")
            new_code.migrate()
            transaction.execute("select 1")
        with Plain(pg_migrated_url) as plain:
            plain.rows("update tenure.schema_version set min_code = %s", MIN_CODE[VERSION])
        with store.transaction() as transaction:
            store.enqueue([job()], on=transaction)
        assert len(store.list_jobs().jobs) == 1


def test_connections_that_were_lost_while_they_were_kept_are_not_used(
    pg_migrated_url: str,
) -> None:
    with open_store(pg_migrated_url) as store:
        meet = threading.Barrier(3)

        def block() -> None:
            with store.transaction():
                meet.wait(30)

        for thread in [Background(block) for _ in range(3)]:
            thread.result()
        with psycopg.connect(pg_migrated_url) as other:
            ended = other.execute(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            ).fetchone()
        assert ended is not None
        assert ended[0] >= 3
        with store.transaction() as transaction:
            store.enqueue([job()], on=transaction)
        assert len(store.list_jobs().jobs) == 1


def test_no_more_connections_are_lent_than_a_store_may_have(pg_migrated_url: str) -> None:
    """Seen failing without turns: each block had a connection, until the server had none."""
    full = "for transaction\\(\\) have been in use"
    inside, over = threading.Semaphore(0), threading.Event()
    with open_store(pg_migrated_url, connections=2, give_up_seconds=0.5) as store:

        def block() -> None:
            with store.transaction():
                inside.release()
                over.wait()

        others = [Background(block) for _ in range(2)]
        for _ in others:
            inside.acquire()
        for _ in range(3):  # one that is refused takes no turn from others
            with pytest.raises(StoreBusy, match=full), store.transaction():
                pass
        store.enqueue([job()])  # operations have connections of their own
        over.set()
        for other in others:
            other.result()
        for _ in range(3):
            with store.transaction():
                pass

    async def main() -> None:
        async with open_async_store(pg_migrated_url, connections=2, give_up_seconds=0.5) as store:
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(2):
                    await in_a_context(stack.enter_async_context(store.transaction()))
                with pytest.raises(StoreBusy, match=full):
                    await in_a_context(stack.enter_async_context(store.transaction()))
            async with store.transaction():
                pass

    async def in_a_context(act: Any) -> None:
        await asyncio.ensure_future(act)

    asyncio.run(main())


def test_a_block_waits_for_its_turn(pg_migrated_url: str) -> None:
    async def main() -> None:
        async with open_async_store(pg_migrated_url, connections=2) as store:

            async def block() -> int:
                async with store.transaction() as transaction:
                    row = await transaction.execute("select pg_backend_pid()")
                    [(pid,)] = await row.fetchall()
                return int(pid)

            pids = await asyncio.gather(*(block() for _ in range(20)))
            assert len(set(pids)) <= 2
            waiting = [asyncio.ensure_future(block()) for _ in range(20)]
            await asyncio.sleep(0)
            for task in waiting[::2]:
                task.cancel()
            assert len(await asyncio.gather(*waiting[1::2])) == 10
            await asyncio.gather(*(block() for _ in range(4)))

    asyncio.run(main())


_SESSION = """select current_user = session_user, current_setting('search_path'),
    (select count(*) from pg_listening_channels()), to_regclass('pg_temp.mine') is null,
    (select count(*) from pg_locks where pid = pg_backend_pid() and objid in (42, 43)),
    (select count(*) from pg_cursors), (select count(*) from pg_prepared_statements),
    pg_backend_pid()"""


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_next_caller_has_a_session_as_good_as_new(pg_migrated_url: str, ends: str) -> None:
    """Seen failing with `reset all` alone: the next caller had the role of the last one."""
    with open_store(pg_migrated_url) as store:
        with store.transaction() as transaction:
            new = transaction.execute(_SESSION).fetchone()
        with contextlib.suppress(ZeroDivisionError), store.transaction() as transaction:
            transaction.execute("select pg_advisory_lock(42), pg_advisory_lock_shared(43)")
            transaction.execute("set role pg_monitor")
            transaction.execute("set search_path = pg_catalog")
            transaction.execute("listen news")
            transaction.execute("prepare theirs as select 1")
            transaction.execute("declare mine cursor with hold for select 1")
            transaction.execute(
                "reset role; create temporary table mine (n int); set role pg_monitor"
            )
            if ends == "rollback":
                raise ZeroDivisionError
        with store.transaction() as transaction:
            assert transaction.execute(_SESSION).fetchone() == new


def test_a_transaction_of_another_database_of_postgres_is_refused(
    pg_migrated_url: str, pg_url: str
) -> None:
    """Seen failing without the comparison: the job was written to the database of the transaction,
    not to that of the store."""
    other_schema = f"{pg_url}{'&' if '?' in pg_url else '?'}schema=other"
    for url, other_url in ((pg_migrated_url, pg_url), (pg_url, other_schema)):
        with open_store(url) as store, open_store(other_url) as other:
            before = len(store.list_jobs().jobs)
            other.migrate()
            with other.transaction() as transaction:
                with pytest.raises(InvalidInput, match="another database or schema"):
                    store.enqueue([job()], on=transaction)
                other.enqueue([job()], on=transaction)
            assert (len(store.list_jobs().jobs), len(other.list_jobs().jobs)) == (before, 1)
    with open_store(pg_migrated_url) as store, open_store(pg_migrated_url) as same:
        with same.transaction() as transaction:
            store.enqueue([job()], on=transaction)
        assert len(store.list_jobs().jobs) == 1


def test_a_commit_without_a_reply_may_have_been_kept(
    pg_migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(pg_migrated_url) as store:
        with pytest.raises(OutcomeUnknown), store.transaction() as transaction:
            store.enqueue([job()], on=transaction)
            wire: Any = transaction._lent._wire  # type: ignore[attr-defined]
            real = wire.script

            async def lost(sql: str) -> None:
                await real(sql)
                wire.connection.close()
                raise psycopg.OperationalError("server closed the connection unexpectedly")

            monkeypatch.setattr(wire, "script", lost)
        assert len(store.list_jobs().jobs) == 1
