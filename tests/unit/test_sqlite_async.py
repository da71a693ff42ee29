"""The threads behind an async SQLite store: shared commits, reads that do not wait, a clean end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tenure.errors import InvalidInput
from tenure.rules.job import NewJob
from tenure.store import open_async_store, open_store
from tests.support.audit import audit
from tests.support.callers import (
    line_of,
    process_of,
    session_of,
    write_lock_of_another,
)
from tests.support.patience import PATIENCE_SECONDS, until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


_before: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def threads_of_others() -> None:
    """A store of an earlier test may wait for the garbage collector."""
    _before.clear()
    _before.update(threading.enumerate())


def own_threads() -> list[str]:
    return [
        thread.name for thread in threading.enumerate()
        if thread.name.startswith("tenure-sqlite") and thread not in _before
    ]  # fmt: skip


def test_tasks_of_an_event_loop_share_commits_and_never_keep_a_read_waiting(
    url: str, path: Path
) -> None:
    commits = 0

    def count() -> bool:
        nonlocal commits
        commits += 1
        return False

    async def scenario() -> None:
        async with open_async_store(url) as store:
            process_of(store).writer.set_commit_hook(count)
            with write_lock_of_another(path):
                adding = [
                    asyncio.create_task(store.enqueue([NewJob(task=f"t{number}")]))
                    for number in range(64)
                ]
                await asyncio.to_thread(until, lambda: line_of(store))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    assert await store.count_live() == []
            answers = await asyncio.gather(*adding)
            for number, [answer] in enumerate(answers):
                assert (await store.get(answer.id)).task == f"t{number}"

    asyncio.run(scenario())
    assert commits == 1
    assert own_threads() == []
    audit(url)


def test_one_await_after_the_other_takes_one_thread(url: str) -> None:
    async def scenario() -> None:
        async with open_async_store(url) as store:
            for _ in range(20):
                await store.enqueue([NewJob(task="t")])
            assert len(own_threads()) == 1

    asyncio.run(scenario())


def test_a_closed_async_store_says_so_and_keeps_no_thread(url: str) -> None:
    async def scenario() -> None:
        store = open_async_store(url)
        await store.enqueue([NewJob(task="a")])
        await store.list_jobs()
        await store.close()
        await store.close()
        with pytest.raises(InvalidInput, match="this store is closed"):
            await store.enqueue([NewJob(task="b")])
        with pytest.raises(InvalidInput, match="this store is closed"):
            await store.list_jobs()
        assert own_threads() == []

    asyncio.run(scenario())


def test_a_store_that_does_not_own_its_session_has_few_threads_and_leaves_it_open(url: str) -> None:
    async def scenario() -> None:
        with open_store(url) as store:
            borrowing = store.in_threads(most=2, owns_session=False)
            await asyncio.gather(*(borrowing.enqueue([NewJob(task="t")]) for _ in range(20)))
            assert 1 <= len(own_threads()) <= 2
            await borrowing.close()
            await borrowing.close()
            assert own_threads() == []
            with pytest.raises(InvalidInput, match="this store is closed"):
                await borrowing.enqueue([NewJob(task="t")])
            assert len(store.list_jobs().jobs) == 20

    asyncio.run(scenario())


def test_an_async_store_that_is_closed_under_load_answers_everybody(url: str, path: Path) -> None:
    async def scenario() -> None:
        store = open_async_store(url)
        with write_lock_of_another(path):
            adding = [asyncio.create_task(store.enqueue([NewJob(task="t")])) for _ in range(64)]
            await asyncio.to_thread(until, lambda: line_of(store))
            adding += [asyncio.create_task(store.enqueue([NewJob(task="t")])) for _ in range(64)]
            closing = asyncio.create_task(store.close())
            await asyncio.to_thread(until, lambda: session_of(store)._closed)
        await closing
        assert own_threads() == []
        answers = await asyncio.gather(*adding, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, InvalidInput)]
        kept = [answer for answer in answers if isinstance(answer, list)]
        assert len(refused) + len(kept) == 128
        assert len(refused) >= 64
        with open_store(url) as again:
            assert len(again.list_jobs().jobs) == len(kept)

    asyncio.run(scenario())
