"""An application on another database, by another clock, and as it was before."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.errors import InvalidInput, OutOfRange
from tenure.testing import Clock, drain_async, frozen


def test_a_clock_goes_forward_only() -> None:
    clock = Clock(datetime(2031, 5, 1, tzinfo=UTC))
    assert clock.advance(60) == clock.now == datetime(2031, 5, 1, 0, 1, tzinfo=UTC)
    clock.advance_to(datetime(2031, 6, 1, tzinfo=UTC))
    with pytest.raises(InvalidInput, match="cannot go back"):
        clock.advance_to(datetime(2031, 5, 31, tzinfo=UTC))
    with pytest.raises(OutOfRange):
        clock.advance(-1)
    with pytest.raises(OutOfRange, match="time zone"):
        Clock(datetime(2031, 5, 1))  # noqa: DTZ001
    assert repr(clock) == "<Clock 2031-06-01T00:00:00+00:00>"


def test_every_time_is_the_clocks(url: str) -> None:
    app = Tenure()

    @app.task(name="look")
    def look() -> None: ...

    async def test() -> datetime:
        handle = await look.enqueue_async()
        return (await app.get_async(handle.id)).created_at

    with frozen(app, url=url) as clock:
        assert app.get(look.enqueue().id).created_at == clock.now
        clock.advance(60)
        assert asyncio.run(test()) == clock.now
        assert app.about().now == clock.now
        assert app.store.for_tenant("acme").about().now == clock.now


def test_afterwards_the_application_is_as_it_was(url: str, tmp_path: Path) -> None:
    theirs = f"sqlite:///{tmp_path / 'theirs.db'}"
    with Tenure(theirs) as app:

        @app.task(name="look")
        def look() -> None: ...

        look.enqueue()
        with frozen(app, url=url):
            assert app.url == url
            assert app.list_jobs().jobs == ()
            look.enqueue()
            look.enqueue()
        assert app.url == theirs
        assert len(app.list_jobs().jobs) == 1
        with pytest.raises(ZeroDivisionError), frozen(app, url=url):
            1 / len(app.list_jobs().jobs[2:])
        assert app.url == theirs


def test_an_open_loop_does_not_stay_on_the_other_database(pg_migrated_url: str, url: str) -> None:
    """Connections of an event loop are its own: they must not be taken for those of the trial."""
    app = Tenure(pg_migrated_url)

    @app.task(name="look")
    async def look() -> None: ...

    async def test() -> None:
        await look.enqueue_async()
        other = f"{url}&schema=trial" if url == pg_migrated_url else url
        with frozen(app, url=other):
            await app.migrate_async()
            assert (await app.list_jobs_async()).jobs == ()
            await look.enqueue_async()
            await look.enqueue_async()
            assert len(await drain_async(app)) == 2
        assert [job.state for job in (await app.list_jobs_async()).jobs] == ["queued"]
        await app.close_async()

    asyncio.run(test())


def test_names_that_do_not_exist_are_refused() -> None:
    import tenure.testing

    with pytest.raises(AttributeError, match="has no 'drian'; it has Clock"):
        tenure.testing.drian  # noqa: B018
    assert set(tenure.testing.__all__) <= set(dir(tenure.testing))
