"""Many threads, or many tasks of one event loop, on one store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import apsw
import pytest

from tenure.errors import JobNotFound
from tenure.rules import lifecycle
from tenure.rules.codec import encode
from tenure.rules.job import Enqueued, NewJob, State
from tenure.store import LANDED, AsyncStore, Store, open_async_store, open_store
from tenure.store.sqlite.session import SQLite
from tests.support.audit import audit
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.plain import Plain

THREADS = 64


def numbered(number: int) -> NewJob:
    return NewJob(task="app.numbered", args=encode({"number": number}))


def check_answers(url: str, answers: dict[int, int]) -> None:
    """Every caller was given the id of its own job."""
    with Plain(url) as plain:
        rows: dict[int, str] = dict(plain.rows("select id, cast(args as text) from tenure.job"))
    assert {number: json.loads(rows[id])["number"] for number, id in answers.items()} == {
        number: number for number in answers
    }
    assert sorted(rows) == sorted(answers.values())
    audit(url)


class Commits:
    """Counts the commits of a store's writing connection."""

    def __init__(self, store: Store) -> None:
        self._session = cast(SQLite, cast(Any, store)._scope.session)
        self.count = 0
        writer = cast(apsw.Connection, self._process.writer)
        writer.set_commit_hook(self._note)

    @property
    def _process(self) -> Any:
        return self._session._processes[-1]

    @property
    def waiting(self) -> int:
        """How many operations stand in the waiting line."""
        return len(self._process.waiting)

    def _note(self) -> bool:
        self.count += 1
        return False


def together(store: Store, url: str, calls: list[Callable[[], Any]]) -> tuple[int, list[Any]]:
    """Make all calls while a stranger holds the write lock; answers commits and results."""
    commits = Commits(store)
    stranger = apsw.Connection(url.removeprefix("sqlite:///"))
    stranger.execute("begin immediate")
    with ThreadPoolExecutor(len(calls)) as pool:
        futures: list[Future[Any]] = [pool.submit(call) for call in calls]
        most = len(calls) * 3 // 4  # the first ones wait for the stranger
        until(lambda: commits.waiting >= most, "the callers wait")
        stranger.execute("rollback")
        results = [future.exception(PATIENCE_SECONDS) or future.result() for future in futures]
    stranger.close()
    return commits.count, results


def test_threads_share_commits_and_each_gets_its_own_answer(file_url: str) -> None:
    store = open_store(file_url)
    calls: list[Callable[[], Any]] = [
        partial(store.enqueue, [numbered(number)]) for number in range(THREADS)
    ]

    commits, results = together(store, file_url, calls)

    print(f"\n{THREADS} jobs of {THREADS} threads in {commits} commits")
    assert 1 <= commits <= THREADS // 4 + 1
    check_answers(file_url, {number: answer.id for number, [answer] in enumerate(results)})
    store.close()


def test_what_fails_in_a_group_does_not_disturb_its_neighbours(file_url: str) -> None:
    store = open_store(file_url)
    orphan = NewJob(task="app.orphan", parents=(999_999,))
    calls: list[Callable[[], Any]] = []
    for number in range(THREADS):
        match number % 4:
            case 0:
                calls.append(lambda: store.enqueue([numbered(0), orphan]))
            case 1:
                calls.append(lambda: store.cancel(999_999))
            case _:
                calls.append(partial(store.enqueue, [numbered(number)]))

    commits, results = together(store, file_url, calls)

    assert commits <= THREADS // 4 + 1
    refused = [result for result in results if isinstance(result, JobNotFound)]
    assert len(refused) == THREADS // 2
    check_answers(
        file_url,
        {number: answers[0].id for number, answers in enumerate(results) if number % 4 > 1},
    )
    store.close()


def test_a_lone_caller_pays_one_commit(file_url: str) -> None:
    store = open_store(file_url)
    commits = Commits(store)
    store.enqueue([numbered(1)])
    assert commits.count == 1
    store.close()


def test_threads_on_one_store_get_their_own_answers(url: str) -> None:
    store = open_store(url)
    gate = threading.Barrier(THREADS)

    def enqueue(number: int) -> list[Enqueued]:
        gate.wait(30)
        return [store.enqueue([numbered(number + THREADS * turn)])[0] for turn in range(5)]

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(enqueue, range(THREADS)))

    check_answers(
        url,
        {
            number + THREADS * turn: answer.id
            for number, answers in enumerate(results)
            for turn, answer in enumerate(answers)
        },
    )
    store.close()


@pytest.mark.slow
def test_threads_of_one_store_claim_each_job_once(url: str) -> None:
    """They share what the store knows of its lines: many queues, several priorities."""
    store = open_store(url)
    queues = [f"q{number}" for number in range(8)]
    ids = [
        answer.id
        for priority in range(5)
        for answer in store.enqueue(
            [NewJob(task="a", queue=queues[n % 8], priority=priority) for n in range(800)]
        )
    ]

    def work(number: int) -> list[int]:
        mine: list[int] = []
        while leases := store.claim(f"w{number}", {queues[number % 8]: 7, queues[0]: 3}):
            for lease in leases:
                ends = [lifecycle.succeed(held) for held in lease.jobs]
                assert store.settle(lease.worker, ends) == [LANDED] * len(ends)
                mine += [held.id for held in lease.jobs]
        return mine

    with ThreadPoolExecutor(16) as pool:
        settled = [id for mine in pool.map(work, range(16)) for id in mine]

    assert sorted(settled) == sorted(ids)
    store.close()


def test_tasks_of_one_event_loop_get_their_own_answers(url: str) -> None:
    async def enqueue(store: AsyncStore, number: int) -> tuple[int, int]:
        [answer] = await store.enqueue([numbered(number)])
        return number, answer.id

    async def main() -> dict[int, int]:
        async with open_async_store(url) as store:
            return dict(await asyncio.gather(*(enqueue(store, n) for n in range(200))))

    check_answers(url, asyncio.run(main()))


def test_a_task_that_is_cancelled_in_mid_operation_harms_nobody(url: str) -> None:
    async def main() -> None:
        async with open_async_store(url) as store:
            for turn in range(30):
                task = asyncio.create_task(store.enqueue([NewJob(task="app.dropped")] * 50))
                for _ in range(turn % 10):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                [kept] = await store.enqueue([NewJob(task="app.kept")])
                assert (await store.get(kept.id)).state is State.QUEUED

    asyncio.run(main())
    audit(url)
