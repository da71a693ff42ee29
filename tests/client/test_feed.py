"""Follow the feed from an application: loops, listeners, and what they do after a restart."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from tenure import Ended, State, Tenure
from tenure.errors import FeedMissed, InvalidInput, StoreUnavailable
from tenure.store.feed import readers
from tests.support.patience import until


def cancelled(app: Tenure, count: int) -> list[int]:
    """Jobs that have ended."""

    @app.task(name=f"work.{threading.get_ident()}.{len(list(app))}")
    def work() -> None: ...

    ids = [work.enqueue().id for _ in range(count)]
    for id in ids:
        app.cancel(id)
    return ids


def test_a_loop_gets_all_ends_and_goes_on_where_it_was(app: Tenure) -> None:
    assert list(app.feed("r", follow=False)) == []  # adds the reader
    ids = cancelled(app, 5)
    assert [end.id for end in app.feed("r", follow=False, limit=2)] == ids
    assert list(app.feed("r", follow=False)) == []


def test_the_ends_of_a_page_that_was_not_done_come_again(app: Tenure) -> None:
    app.add_reader("r")
    ids = cancelled(app, 5)
    seen: list[int] = []
    for end in app.feed("r", limit=2):
        seen.append(end.id)
        if len(seen) == 3:
            break
    assert seen == ids[:3]
    assert [end.id for end in app.feed("r", follow=False)] == ids[2:]


def test_a_loop_waits_for_what_comes(app: Tenure) -> None:
    app.add_reader("r")
    ends = app.feed("r")
    got: list[Ended] = []
    thread = threading.Thread(target=lambda: got.append(next(ends)), daemon=True)
    thread.start()
    [id] = cancelled(app, 1)
    thread.join(60)
    assert [end.id for end in got] == [id]
    assert got[0].state is State.CANCELLED


def test_a_loop_in_async_code_waits_for_what_comes(app: Tenure) -> None:
    async def follow() -> list[int]:
        async with app:
            await app.add_reader_async("r")
            ids = await asyncio.to_thread(cancelled, app, 3)
            found: list[int] = []
            async for end in app.feed_async("r", limit=2):
                found.append(end.id)
                if len(found) == 3:
                    later = await asyncio.to_thread(cancelled, app, 1)
                    ids += later
                if len(found) == 4:
                    break
            assert found == ids
            return found

    assert len(asyncio.run(follow())) == 4


def test_a_reader_that_was_away_is_told_by_the_loop(
    app: Tenure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "SEEN_SECONDS", 0.0)
    app.add_reader("r", kept_seconds=86_400)
    app.add_reader("here")
    about = app.about()
    app.prune(now=about.now.replace(year=about.now.year + 1))
    with pytest.raises(FeedMissed):
        next(app.feed("r", follow=False))


def test_a_listener_hears_of_every_end_in_order_until_it_is_stopped(app: Tenure) -> None:
    heard: list[int] = []
    with app.listen_everywhere(lambda end: heard.append(end.id)):
        ids = cancelled(app, 5)
        until(lambda: len(heard) == 5)
        assert len(app.readers()) == 1
    assert heard == ids
    cancelled(app, 1)
    assert heard == ids
    assert app.readers() == []


def test_a_listener_that_fails_hears_of_the_next_end(
    app: Tenure, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []

    def hear(end: Ended) -> None:
        heard.append(end.id)
        if len(heard) == 1:
            raise ValueError

    with caplog.at_level(logging.ERROR, "tenure.feed"), app.listen_everywhere(hear):
        ids = cancelled(app, 2)
        until(lambda: len(heard) == 2)
    assert heard == ids
    assert next(record.message for record in caplog.records).startswith("a listener failed for job")


def test_a_listener_with_a_name_goes_on_after_a_restart(app: Tenure) -> None:
    heard: list[int] = []
    app.listen_everywhere(lambda end: heard.append(end.id), reader="bills").stop()
    ids = cancelled(app, 2)
    with app.listen_everywhere(lambda end: heard.append(end.id), reader="bills"):
        until(lambda: len(heard) == 2)
    assert heard == ids
    assert [reader.name for reader in app.readers()] == ["bills"]


def test_a_listener_goes_on_after_an_outage_and_after_it_was_lost(
    app: Tenure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[int] = []
    with (
        caplog.at_level(logging.WARNING, "tenure.feed"),
        app.listen_everywhere(lambda end: heard.append(end.id), reader="r"),
    ):
        broken = threading.Event()
        whole = app.store.run

        def run(operation: object, *args: object, **kwargs: object) -> object:
            if operation is readers.read_feed and not broken.is_set():
                broken.set()
                raise StoreUnavailable("the server is away")
            return whole(operation, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(app.store, "run", run)
        until(broken.is_set)
        [first] = cancelled(app, 1)
        until(lambda: heard == [first])
        app.remove_reader("r")
        until(lambda: "has missed ends" in caplog.text)
        until(app.readers)
        [second] = cancelled(app, 1)
        until(lambda: heard == [first, second])
    assert caplog.text.count("cannot read the feed, trying again") == 1


def test_a_listener_must_be_a_function(app: Tenure) -> None:
    with pytest.raises(InvalidInput, match="takes a function, not 5"):
        app.listen_everywhere(5)  # type: ignore[arg-type]
