"""Jobs that several callers enqueue at the same time are written in one go. Nobody notices.

Callers are threads, which meet in the line of the SQLite session, or tasks of an event loop, which
meet before they are sent to a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenure.errors import InvalidInput, JobNotFound
from tenure.rules.job import Enqueued, NewJob, Unique
from tenure.store import AsyncStore, Store, open_async_store, open_store
from tenure.store.sqlite import threads
from tenure.store.sqlite.session import SQLite
from tenure.store.sqlite.tx import SQLiteTx
from tests.support.audit import audit
from tests.support.callers import (
    Caller,
    line_of,
    process_of,
    write_lock_of_another,
)
from tests.support.patience import until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> Iterator[str]:
    yield f"sqlite:///{path}"
    audit(f"sqlite:///{path}")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The tasks of the jobs that were written in one go, for each time."""
    seen: list[list[str]] = []
    original = SQLiteTx.insert_jobs

    async def insert_jobs(tx: SQLiteTx, jobs: Sequence[tuple[int, NewJob]]) -> None:
        seen.append([job.task for _, job in jobs])
        await original(tx, jobs)

    monkeypatch.setattr(SQLiteTx, "insert_jobs", insert_jobs)
    return seen


@pytest.fixture
def hops(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations each thread that was sent has taken along."""
    seen: list[int] = []
    original = SQLite.transact_each

    def transact_each(session: SQLite, ops: Any) -> Any:
        seen.append(len(ops))
        return original(session, ops)

    monkeypatch.setattr(SQLite, "transact_each", transact_each)
    return seen


def by_threads(url: str, groups: Sequence[Sequence[NewJob]]) -> list[Any]:
    """A thread for each group of jobs; all stand in the line before one of them may lead."""
    with open_store(url) as store:
        lock = process_of(store).lock
        assert lock.acquire()
        callers = []
        for jobs in groups:
            callers.append(Caller(partial(store.enqueue, jobs)))
            until(lambda: len(line_of(store)) == len(callers))
        lock.release()
        return [caller.join().error or caller.answer for caller in callers]


def by_tasks(url: str, groups: Sequence[Sequence[NewJob]]) -> list[Any]:
    """The same by tasks of one event loop."""

    async def scenario() -> list[Any]:
        async with open_async_store(url) as store:
            calls = [store.enqueue(jobs) for jobs in groups]
            return list(await asyncio.gather(*calls, return_exceptions=True))

    return asyncio.run(scenario())


both_styles = pytest.mark.parametrize("style", [by_threads, by_tasks])
Style = Callable[[str, Sequence[Sequence[NewJob]]], list[Any]]


def rows(url: str) -> dict[int, str]:
    with open_store(url) as store:
        return {job.id: job.task for job in store.list_jobs(limit=1000).jobs}


def named(*tasks: str) -> list[NewJob]:
    return [NewJob(task=task) for task in tasks]


@both_styles
def test_jobs_of_several_callers_are_one_batch_in_the_order_of_their_calls(
    url: str, style: Style, batches: list[list[str]]
) -> None:
    answers = style(url, [named("a"), named("b", "c"), named("d")])

    assert batches == [["a", "b", "c", "d"]]
    ids = [answer.id for group in answers for answer in group]
    assert [len(group) for group in answers] == [1, 2, 1]
    assert ids == sorted(ids)
    assert rows(url) == dict(zip(ids, "abcd", strict=True))
    with open_store(url) as store:
        [lease] = store.claim("w", {"default": 10})
    assert [job.task for job in lease.jobs] == list("abcd")


@both_styles
def test_a_caller_whose_jobs_are_refused_fails_alone_and_with_all_of_them(
    url: str, style: Style, batches: list[list[str]]
) -> None:
    orphan = NewJob(task="orphan", parents=(999_999,))
    answers = style(url, [named("a"), [*named("b"), orphan], named("c"), [orphan]])

    assert [type(answer) for answer in answers] == [list, JobNotFound, list, JobNotFound]
    assert rows(url) == {answers[0][0].id: "a", answers[2][0].id: "c"}
    assert batches[0] == ["a", "b", "orphan", "c", "orphan"]


@both_styles
def test_of_several_callers_with_one_key_the_first_has_it(url: str, style: Style) -> None:
    keyed = NewJob(task="keyed", unique=Unique(key="k"))
    first, _, second, third = style(url, [[keyed], named("a"), [keyed, *named("b")], [keyed]])

    [holder] = first
    assert holder.created
    assert second[0] == third[0] == Enqueued(holder.id, created=False, same_args=True)
    assert second[1].created
    assert sorted(rows(url).values()) == ["a", "b", "keyed"]


def test_another_operation_in_the_line_keeps_its_place(url: str, batches: list[list[str]]) -> None:
    with open_store(url) as store:
        [old] = store.enqueue(named("old"))
        lock = process_of(store).lock
        assert lock.acquire()
        calls: list[Callable[[], object]] = [
            partial(store.enqueue, named("a")),
            partial(store.enqueue, named("b")),
            partial(store.cancel, old.id),
            partial(store.enqueue, named("c")),
            partial(store.cancel, 999_999),
        ]
        callers = []
        for call in calls:
            callers.append(Caller(call))
            until(lambda: len(line_of(store)) == len(callers))
        lock.release()
        errors = [type(caller.join().error) for caller in callers]
    assert errors == [*[type(None)] * 4, JobNotFound]
    assert batches == [["old"], ["a", "b"], ["c"]]


async def start(store: AsyncStore, *tasks: str) -> list[asyncio.Task[list[Enqueued]]]:
    """A task for each of these, begun."""
    begun = [asyncio.create_task(store.enqueue(named(task))) for task in tasks]
    await asyncio.sleep(0)
    return begun


@contextmanager
def held_up(store: AsyncStore, path: Path) -> Iterator[Callable[[], Any]]:
    """Nobody can write. What is yielded waits until somebody wants to."""
    with write_lock_of_another(path):
        yield partial(asyncio.to_thread, until, lambda: line_of(store))


def test_what_comes_while_others_are_written_goes_together_afterwards(
    url: str, path: Path, hops: list[int]
) -> None:
    async def scenario() -> None:
        async with open_async_store(url) as store:
            with held_up(store, path) as somebody_waits:
                adding = await start(store, "first")
                await somebody_waits()
                for number in range(10):
                    adding += await start(store, f"t{number}")
            answers = [answer.id for [answer] in await asyncio.gather(*adding)]
            assert answers == sorted(answers)

    asyncio.run(scenario())
    assert hops == [1, 10]


def test_a_crowd_goes_in_several_parts(
    url: str, hops: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "GATHERING_LIMIT", 4)
    answers = by_tasks(url, [named(f"t{number}") for number in range(10)])
    assert hops == [4, 4, 2]
    assert rows(url) == {answer.id: f"t{number}" for number, [answer] in enumerate(answers)}


def test_a_cancelled_task_leaves_the_others_alone(url: str, path: Path) -> None:
    """What has not been sent is not written; what a thread has taken is."""

    async def scenario() -> None:
        async with open_async_store(url) as store:
            with held_up(store, path) as somebody_waits:
                sent = await start(store, "sent.1", "sent.cancelled", "sent.2")
                await somebody_waits()
                collected = await start(store, "collected.1", "collected.cancelled", "collected.2")
                for task in (sent[1], collected[1]):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
            for task in (sent[0], sent[2], collected[0], collected[2]):
                assert len(await task) == 1

    asyncio.run(scenario())
    assert sorted(rows(url).values()) == [
        "collected.1", "collected.2", "sent.1", "sent.2", "sent.cancelled"
    ]  # fmt: skip


def test_all_of_a_tick_may_be_cancelled(url: str) -> None:
    async def scenario() -> None:
        async with open_async_store(url) as store:
            for task in await start(store, "a", "b"):
                task.cancel()
            [answer] = await store.enqueue(named("c"))
            assert answer.created

    asyncio.run(scenario())
    assert list(rows(url).values()) == ["c"]


class Interrupter:
    """Interrupts the thread that makes a call, once, just before it or just after it."""

    def __init__(self, when: str) -> None:
        self._when = when
        self.is_armed = True

    def __call__(self, call: Callable[..., Any], *args: Any) -> Any:
        if self.is_armed and self._when == "before":
            self.is_armed = False
            raise KeyboardInterrupt
        answer = call(*args)
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt
        return answer


def interrupt_sending(patch: pytest.MonkeyPatch, interrupter: Interrupter) -> None:
    original = ThreadPoolExecutor.submit
    patch.setattr(ThreadPoolExecutor, "submit", lambda pool, fn: interrupter(original, pool, fn))


def interrupt_answering(patch: pytest.MonkeyPatch, interrupter: Interrupter) -> None:
    class Future(asyncio.Future[Any]):
        def set_result(self, result: Any) -> None:
            interrupter(super().set_result, result)

    patch.setattr(asyncio.BaseEventLoop, "create_future", lambda loop: Future(loop=loop))


@pytest.mark.parametrize("where", [interrupt_sending, interrupt_answering])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_of_the_event_loop_loses_no_answer_and_writes_nothing_twice(
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    where: Callable[[pytest.MonkeyPatch, Interrupter], None],
    when: str,
) -> None:
    """The loop runs again, as it does for whoever catches the interrupt."""
    interrupter = Interrupter(when)
    with closing(asyncio.new_event_loop()) as loop:
        store = open_async_store(url)
        adding = [loop.create_task(store.enqueue(named(task))) for task in "abc"]
        with monkeypatch.context() as patch:
            where(patch, interrupter)
            with pytest.raises(KeyboardInterrupt):
                loop.run_forever()
        assert not interrupter.is_armed
        ids = [loop.run_until_complete(task)[0].id for task in adding]
        [later] = loop.run_until_complete(store.enqueue(named("later")))
        loop.run_until_complete(store.close())
    assert rows(url) == dict(zip([*ids, later.id], ["a", "b", "c", "later"], strict=True))


def test_without_a_thread_the_callers_are_told_and_the_next_ones_may_have_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        async with open_async_store(url) as store:
            with monkeypatch.context() as patch:
                patch.setattr(ThreadPoolExecutor, "submit", submit)
                calls = [store.enqueue(named(task)) for task in "ab"]
                refused = await asyncio.gather(*calls, return_exceptions=True)
                assert [str(error) for error in refused] == ["can't start new thread"] * 2
            assert len(await store.enqueue(named("c"))) == 1

    asyncio.run(scenario())
    assert list(rows(url).values()) == ["c"]


def test_event_loops_of_several_threads_share_a_store(url: str) -> None:
    loops = 4
    with open_store(url) as store:
        shared = store.in_threads(owns_session=False)
        gate = threading.Barrier(loops)

        async def enqueue_all(name: str) -> list[int]:
            gate.wait(30)
            answers = []
            for turn in range(5):
                tasks = [f"{name}.{turn}.{number}" for number in range(8)]
                answers += await asyncio.gather(*(shared.enqueue(named(task)) for task in tasks))
            return [answer.id for [answer] in answers]

        callers = [
            Caller(lambda name=name: asyncio.run(enqueue_all(name)))  # type: ignore[misc]
            for name in ("a", "b", "c", "d")
        ]
        for caller in callers:
            assert caller.join().error is None
        asyncio.run(shared.close())
    stored = rows(url)
    assert len(stored) == loops * 40
    for name, caller in zip(("a", "b", "c", "d"), callers, strict=True):
        expected = [f"{name}.{turn}.{number}" for turn in range(5) for number in range(8)]
        assert [stored[id] for id in caller.answer] == expected


def test_what_a_store_that_does_not_own_its_session_has_gathered_is_written_when_it_is_closed(
    url: str,
) -> None:
    async def scenario(store: Store) -> None:
        borrowing = store.in_threads(owns_session=False)
        adding = await start(borrowing, "a", "b")
        await borrowing.close()
        for task in adding:
            assert len(await task) == 1
        with pytest.raises(InvalidInput, match="this store is closed"):
            await borrowing.enqueue(named("late"))

    with open_store(url) as store:
        asyncio.run(scenario(store))
    assert sorted(rows(url).values()) == ["a", "b"]


def test_a_loop_that_ends_before_its_answers_come_harms_nobody(url: str, path: Path) -> None:
    store = open_async_store(url)

    async def leave() -> None:
        with held_up(store, path) as somebody_waits:
            await start(store, "left.behind")
            await somebody_waits()

    asyncio.run(leave())  # cancels the task, and closes the loop

    async def come() -> None:
        async with store:
            assert len(await store.enqueue(named("next"))) == 1

    asyncio.run(come())
    assert set(rows(url).values()) >= {"next"}


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65])
def test_any_number_of_rows_is_written_once_and_in_order(url: str, count: int) -> None:
    with open_store(url) as store:
        answers = store.enqueue([NewJob(task=f"t{number}") for number in range(count)])
    with closing(apsw.Connection(url.removeprefix("sqlite:///"))) as plain:
        found = list(plain.execute("select id, task from tenure_job order by position"))
    assert found == [(answer.id, f"t{number}") for number, answer in enumerate(answers)]
