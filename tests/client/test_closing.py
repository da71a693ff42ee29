"""Opening, closing and opening again; threads and event loops, several of them."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tenure import State, Tenure, Worker
from tenure.errors import InvalidInput
from tests.support.patience import until
from tests.support.recycled import KEEPER
from tests.support.working import QUICK, working


def test_a_closed_application_opens_again_when_it_is_used(app: Tenure) -> None:
    @app.task()
    def work() -> int:
        return 7

    first = work.enqueue()
    app.close()
    app.close()
    assert app.get(first.id).state is State.QUEUED
    with working(app):
        assert work.enqueue().wait(timeout_seconds=30) == 7
        first.wait(timeout_seconds=30)
    app.close()
    with app:
        assert app.get(first.id).state is State.SUCCEEDED


def test_both_colours_can_be_mixed_and_closed_together(app: Tenure) -> None:
    @app.task()
    def work() -> None: ...

    async def main() -> None:
        async with app:
            one = await work.enqueue_async()
            two = await asyncio.to_thread(work.enqueue)
            assert await app.get_async(two.id) == await asyncio.to_thread(app.get, two.id)
            assert app.get(one.id).state is State.QUEUED
        await app.close_async()
        assert (await app.get_async(one.id)).state is State.QUEUED
        await app.close_async()

    asyncio.run(main())


def connections(url: str) -> int:
    """How many others are connected to this database."""
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend' and application_name <> %s",
            [KEEPER],
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_closing_leaves_no_connection_behind(pg_migrated_url: str) -> None:
    app = Tenure(pg_migrated_url)

    async def main() -> None:
        async with app:
            await app.list_jobs_async()
            await asyncio.to_thread(app.list_jobs)
            assert connections(pg_migrated_url) == 2

    asyncio.run(main())
    until(lambda: connections(pg_migrated_url) == 0)


@pytest.mark.slow
def test_loops_that_end_without_closing_leave_nothing_behind_either(pg_migrated_url: str) -> None:
    """As in a script that calls `asyncio.run` again and again, or a test suite."""
    app = Tenure(pg_migrated_url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            asyncio.run(app.list_jobs_async())
            gc.collect()
    assert connections(pg_migrated_url) == 1  # of the last one, which nobody has missed yet
    app.close()
    until(lambda: connections(pg_migrated_url) == 0)


def test_several_event_loops_at_once(app: Tenure) -> None:
    @app.task()
    def work(n: int) -> None: ...

    together = threading.Barrier(4)
    ids: list[int] = []
    failures: list[BaseException] = []

    async def main(number: int) -> None:
        await asyncio.to_thread(together.wait, 30)
        for n in range(5):
            handle = await work.enqueue_async(10 * number + n)
            assert (await app.get_async(handle.id)).state is State.QUEUED
            ids.append(handle.id)
        await app.close_loop()

    def loop(number: int) -> None:
        try:
            asyncio.run(main(number))
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert sorted(ids) == sorted(job.id for job in app.list_jobs().jobs)
    assert len(ids) == 20


def test_a_file_is_opened_once_for_all_threads_and_loops(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}")
    seen: list[Any] = []

    async def look() -> None:
        seen.append(app.whole_async_store._scope.session)

    asyncio.run(look())
    asyncio.run(look())
    seen.append(app.whole_store._scope.session)
    assert seen[0] is seen[1] is seen[2]
    app.close()


def test_the_file_is_closed_when_only_one_colour_was_used(tmp_path: Path) -> None:
    app = Tenure(f"sqlite:///{tmp_path / 'jobs.db'}")
    app.list_jobs()
    store = app.whole_store
    asyncio.run(app.close_async())
    assert app._store is None
    with pytest.raises(InvalidInput, match="closed"):
        store.list_jobs()


def test_an_application_is_not_closed_under_its_worker(app: Tenure) -> None:
    refusals: list[str] = []

    @app.task()
    def closes_everything() -> None:
        try:
            app.close()
        except InvalidInput as error:
            refusals.append(str(error))

    @app.task()
    async def closes_everything_too() -> None:
        try:
            await app.close_async()
        except InvalidInput as error:
            refusals.append(str(error))

    with working(app):
        closes_everything.enqueue().wait(timeout_seconds=30)
        closes_everything_too.enqueue().wait(timeout_seconds=30)
    assert refusals == ["a worker of this application is running; stop it first"] * 2
    app.close()


def test_a_worker_can_be_used_again(app: Tenure) -> None:
    @app.task()
    async def work() -> int:
        return 7

    async def main() -> None:
        async with app:
            worker = Worker(app, **QUICK)
            for _ in range(2):
                async with worker:
                    handle = await work.enqueue_async()
                    assert await handle.wait_async(timeout_seconds=10) == 7

    asyncio.run(main())
