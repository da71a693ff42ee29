"""The SQLite session under interrupts, signal handlers, stuck threads and a close in between.

What happens to one thread must not reach another, and what a caller was told must stay true.
"""

from __future__ import annotations

import ctypes
import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from tenure.errors import InvalidInput, JobNotFound, OutcomeUnknown, StoreBusy, StoreUnavailable
from tenure.rules.job import NewJob
from tenure.store import Store, open_store
from tenure.store.sqlite import driver as sqlite_driver
from tenure.store.sqlite.group_commit import Call, Group
from tenure.store.sqlite.session import SQLite
from tenure.store.sqlite.tx import SQLiteTx
from tests.support.audit import audit
from tests.support.callers import (
    Caller,
    add,
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


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        yield opened
        assert not line_of(opened)
        assert process_of(opened).lock.is_free()
    audit(url)


@pytest.fixture
def impatient(url: str) -> Iterator[Store]:
    """A store that gives up soon."""
    with open_store(url, give_up_seconds=0.2) as opened:
        yield opened
    audit(url)


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_main_thread() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def strike(ident: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Raise in another thread, wherever it is: the way of an interrupt in the main thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(error))


def stored(store: Store) -> list[str]:
    return sorted(job.task for job in store.list_jobs(limit=1000).jobs)


def in_one_group(store: Store, tasks: list[str], *, apart: bool = False) -> list[Caller]:
    """Callers that stand in the line together before one of them may lead.

    Jobs that come at the same time are written in one go; `apart` gives each a time of its own.
    """
    now = datetime.now(UTC)
    times = [now + timedelta(seconds=number) if apart else None for number in range(len(tasks))]
    return all_at_once(
        store,
        [partial(add, store, task, time) for task, time in zip(tasks, times, strict=True)],
    )


def all_at_once(store: Store, calls: Sequence[Callable[[], object]]) -> list[Caller]:
    """The same for any calls that write, in this order."""
    lock = process_of(store).lock
    assert lock.acquire()
    try:
        callers = []
        for number, call in enumerate(calls, 1):
            callers.append(Caller(call))
            until(lambda: len(line_of(store)) == number)  # noqa: B023
    finally:
        lock.release()
    return [caller.join() for caller in callers]


class Trap:
    """Springs in the thread that runs the given insert, once."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, insert: int, spring: Callable[[], None]
    ) -> None:
        self.inserts = 0
        self.ident: int | None = None
        original = SQLiteTx.insert_jobs

        async def insert_jobs(tx: SQLiteTx, jobs: Any) -> None:
            self.inserts += 1
            await original(tx, jobs)
            if self.inserts == insert:
                self.ident = threading.get_ident()
                spring()

        monkeypatch.setattr(SQLiteTx, "insert_jobs", insert_jobs)


def raise_interrupt() -> None:
    raise KeyboardInterrupt


def strike_itself() -> None:
    strike(threading.get_ident())
    for _ in range(10):  # it comes with one of the next steps
        len([])


def raise_timeout() -> None:
    """As the handler of an alarm does."""
    raise TimeoutError("the alarm rang")


@pytest.mark.parametrize(("insert", "apart"), [(1, False), (1, True), (2, True), (3, True)])
@pytest.mark.parametrize("spring", [raise_interrupt, strike_itself])
def test_an_interrupt_ends_the_leaders_call_and_no_other(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    insert: int,
    apart: bool,
    spring: Callable[[], None],
) -> None:
    trap = Trap(monkeypatch, insert, spring)

    callers = in_one_group(store, ["a", "b", "c"], apart=apart)

    [struck] = [caller for caller in callers if caller.error is not None]
    assert isinstance(struck.error, KeyboardInterrupt)
    assert struck.ident == trap.ident
    kept = {caller.answer for caller in callers if caller is not struck}
    assert {job.id for job in store.list_jobs().jobs} == kept
    assert len(kept) == 2


@pytest.mark.parametrize(("insert", "apart"), [(1, False), (1, True), (2, True), (3, True)])
def test_an_error_raised_by_a_signal_handler_ends_the_leaders_call_and_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, insert: int, apart: bool
) -> None:
    """It comes out of the operation that happens to run, which may be a neighbour's."""
    trap = Trap(monkeypatch, insert, raise_timeout)

    callers = in_one_group(store, ["a", "b", "c"], apart=apart)

    [struck] = [caller for caller in callers if caller.error is not None]
    assert isinstance(struck.error, TimeoutError)
    assert struck.ident == trap.ident
    assert len(store.list_jobs().jobs) == 2


def test_an_error_of_a_signal_handler_is_not_lost_beside_one_of_an_operation(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group begins again without the leader, and the orphan's caller is told then."""
    trap = Trap(monkeypatch, 1, raise_timeout)

    orphan = NewJob(task="orphan", parents=(999_999,))
    callers = all_at_once(
        store,
        [partial(add, store, "a"), partial(store.enqueue, [orphan]), partial(add, store, "b")],
    )

    leader = next(caller for caller in callers if caller.ident == trap.ident)
    assert isinstance(leader.error, TimeoutError)
    others = [type(caller.error) for caller in callers if caller is not leader]
    kept = ["a", "b"] if leader is callers[1] else ["b"] if leader is callers[0] else ["a"]
    assert sorted(map(str, others)) == sorted(
        map(str, [type(None)] * len(kept) + [JobNotFound] * (leader is not callers[1]))
    )
    assert stored(store) == kept


@pytest.mark.parametrize("apart", [False, True])
def test_an_error_of_an_operation_itself_goes_to_its_own_caller(
    store: Store, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    original = SQLiteTx.insert_jobs

    async def insert_jobs(tx: SQLiteTx, jobs: Any) -> None:
        await original(tx, jobs)
        if any(job.task == "b" for _, job in jobs):
            raise LookupError("as always")

    monkeypatch.setattr(SQLiteTx, "insert_jobs", insert_jobs)

    callers = in_one_group(store, ["a", "b", "c"], apart=apart)

    assert [type(caller.error) for caller in callers] == [type(None), LookupError, type(None)]
    assert stored(store) == ["a", "c"]


@pytest.mark.parametrize("landed", [True, False])
def test_an_interrupt_at_the_commit_answers_what_was_committed_and_repeats_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    original = SQLite._commit
    commits = itertools.count()

    def commit(session: SQLite, connection: Any) -> None:
        if next(commits):
            return original(session, connection)
        if landed:
            original(session, connection)
        raise KeyboardInterrupt

    monkeypatch.setattr(SQLite, "_commit", commit)

    callers = in_one_group(store, ["a", "b", "c"])

    answers = [caller.answer for caller in callers if caller.error is None]
    assert len(answers) == 2
    ids = {job.id for job in store.list_jobs().jobs}
    assert ids >= set(answers)
    assert len(ids) == (3 if landed else 2)


@pytest.mark.usefixtures("interruptible")
def test_nobody_commits_the_call_of_an_interrupted_caller(store: Store, path: Path) -> None:
    with write_lock_of_another(path):
        leader = Caller(lambda: add(store, "leader"))
        until(lambda: not process_of(store).lock.is_free())

        def interrupt() -> None:
            until(lambda: len(line_of(store)) == 2)
            interrupt_main_thread()

        helper = Caller(interrupt)
        with pytest.raises(KeyboardInterrupt):
            add(store, "interrupted")
        helper.join()
    assert leader.join().error is None
    add(store, "later")
    assert stored(store) == ["later", "leader"]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_caller_whose_call_is_being_committed_learns_the_end(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the interrupt reaches the caller, everything has been decided."""
    inside, go_on, returned = threading.Event(), threading.Event(), threading.Event()

    def pause() -> None:
        inside.set()
        assert go_on.wait(PATIENCE_SECONDS)

    Trap(monkeypatch, 1, pause)
    other = write_lock_of_another(path)
    other.__enter__()
    leader = Caller(lambda: add(store, "leader"))
    until(lambda: not process_of(store).lock.is_free())

    def interrupt() -> None:
        until(lambda: len(line_of(store)) == 2)
        call = line_of(store)[1]
        other.__exit__(None, None, None)
        assert inside.wait(PATIENCE_SECONDS)
        interrupt_main_thread()
        until(lambda: call.gone)
        assert not returned.wait(0.1)
        go_on.set()

    helper = Caller(interrupt)
    with pytest.raises(KeyboardInterrupt):
        add(store, "interrupted")
    returned.set()
    assert stored(store) == ["interrupted", "leader"]
    assert helper.join().error is None
    assert leader.join().error is None


class Handler:
    """A signal handler that makes one call, and notes what it got."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.answer: object = None
        self.error: Exception | None = None

    def __call__(self, *_: object) -> None:
        try:
            self.answer = self._call()
        except Exception as error:  # noqa: BLE001 - noted
            self.error = error


@contextmanager
def handling(call: Callable[[], object]) -> Iterator[Handler]:
    handler = Handler(call)
    before = signal.signal(signal.SIGUSR1, handler)
    yield handler
    signal.signal(signal.SIGUSR1, before)


def send_signal() -> None:
    signal.raise_signal(signal.SIGUSR1)


def test_a_signal_handler_that_writes_in_the_middle_of_a_write_is_told_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trap(monkeypatch, 1, send_signal)
    with handling(lambda: add(store, "handler")) as handler:
        add(store, "interrupted")
    assert isinstance(handler.error, InvalidInput)
    assert "do not call the store from a signal handler" in str(handler.error)
    add(store, "later")
    assert stored(store) == ["interrupted", "later"]


def test_a_signal_handler_may_read_in_the_middle_of_a_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trap(monkeypatch, 1, send_signal)
    with handling(lambda: stored(store)) as handler:
        add(store, "interrupted")
    assert handler.error is None
    assert handler.answer == []


def test_a_signal_handler_that_closes_the_store_in_the_middle_of_a_write_is_told_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trap(monkeypatch, 1, send_signal)
    with handling(store.close) as handler:
        add(store, "interrupted")
    assert isinstance(handler.error, InvalidInput)
    assert stored(store) == ["interrupted"]


def test_a_signal_handler_that_reads_in_the_middle_of_a_read_is_told_so(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = add(store, "a")
    original = SQLiteTx.fetch
    fetches = itertools.count()

    async def fetch(tx: SQLiteTx, statement: str, **params: object) -> Any:
        if next(fetches) == 0:
            send_signal()
        return await original(tx, statement, **params)

    monkeypatch.setattr(SQLiteTx, "fetch", fetch)
    with handling(lambda: store.get(id)) as handler:
        assert store.get(id).task == "a"
    assert isinstance(handler.error, InvalidInput)


@pytest.mark.slow
def test_a_call_gives_up_when_another_thread_stays_inside(impatient: Store) -> None:
    process = process_of(impatient)
    inside, go_on = threading.Event(), threading.Event()

    def stay() -> None:
        assert process.lock.acquire()
        assert process.read_lock.acquire()
        inside.set()
        assert go_on.wait(PATIENCE_SECONDS)
        process.read_lock.release()
        process.lock.release()

    stuck = Caller(stay)
    assert inside.wait(PATIENCE_SECONDS)
    calls: list[Callable[[], object]] = [
        lambda: add(impatient, "given.up"),
        impatient.list_jobs,
        impatient.migrate,
        impatient.close,
    ]
    for call in calls:
        with pytest.raises(StoreBusy, match="another thread of this process"):
            call()
    go_on.set()
    assert stuck.join().error is None
    add(impatient, "later")
    assert stored(impatient) == ["later"]


def test_a_caller_whose_leader_is_stuck_in_its_transaction_does_not_know_the_end(
    impatient: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    trap = Trap(monkeypatch, 1, lambda: cast(None, go_on.wait(PATIENCE_SECONDS)))
    lock = process_of(impatient).lock
    assert lock.acquire()
    callers = [Caller(lambda task=task: add(impatient, task)) for task in "ab"]  # type: ignore[misc]
    until(lambda: len(line_of(impatient)) == 2)
    lock.release()
    until(lambda: trap.ident is not None)
    [follower] = [caller for caller in callers if caller.ident != trap.ident]
    follower.join()
    go_on.set()
    for caller in callers:
        caller.join()
    assert isinstance(follower.error, OutcomeUnknown)
    assert "unique key" in str(follower.error)
    assert stored(impatient) == ["a", "b"]


def test_what_waits_when_the_store_is_closed_is_refused_and_opens_nothing(
    store: Store, path: Path
) -> None:
    session, process = session_of(store), process_of(store)
    assert process.lock.acquire()
    assert process.read_lock.acquire()
    writers = [Caller(lambda: add(store, "late")) for _ in range(3)]
    reader = Caller(store.list_jobs)
    until(lambda: len(line_of(store)) == 3)
    closer = Caller(store.close)
    until(lambda: session._closed)
    process.read_lock.release()
    process.lock.release()

    assert closer.join().error is None
    for caller in [*writers, reader]:
        error = caller.join().error
        assert isinstance(error, InvalidInput)
        assert "this store is closed; open another one" in str(error)
    assert process.writer is None
    assert process.reader is None
    status = path.stat()
    assert (status.st_dev, status.st_ino) not in sqlite_driver._open_files


class Connection:
    """A connection that fails on one statement."""

    def __init__(self, inner: Any, statement: str) -> None:
        self._inner = inner
        self._statement = statement
        self.closed = False

    @property
    def in_transaction(self) -> bool:
        return bool(self._inner.in_transaction)

    def execute(self, sql: str, *params: Any) -> Any:
        if sql == self._statement:
            raise apsw.exception_for(apsw.SQLITE_IOERR)
        return self._inner.execute(sql, *params)

    def executemany(self, sql: str, rows: Any) -> Any:
        return self._inner.executemany(sql, rows)

    def close(self) -> None:
        self.closed = True
        self._inner.close()


def failing(store: Store, which: str, statement: str) -> Connection:
    process = process_of(store)
    store.list_jobs()
    broken = Connection(getattr(process, which), statement)
    setattr(process, which, broken)
    return broken


def test_a_read_that_cannot_begin_says_so_in_our_words(store: Store) -> None:
    broken = failing(store, "reader", "begin")
    with pytest.raises(StoreUnavailable, match="check the disk") as caught:
        store.list_jobs()
    assert isinstance(caught.value.__cause__, apsw.IOError)
    assert broken.closed
    assert store.list_jobs().jobs == ()


@pytest.mark.parametrize("which", ["reader", "writer"])
def test_a_rollback_that_fails_hides_no_error_and_costs_the_connection(
    store: Store, which: str
) -> None:
    broken = failing(store, which, "rollback")
    call = store.get if which == "reader" else store.cancel
    with pytest.raises(JobNotFound):
        call(999_999)
    assert broken.closed
    add(store, "later")
    assert stored(store) == ["later"]


def test_an_interrupted_read_leaves_no_snapshot_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = add(store, "a")
    store.get(id)
    with monkeypatch.context() as patch:

        async def fetch(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(SQLiteTx, "fetch", fetch)
        with pytest.raises(KeyboardInterrupt):
            store.get(id)
    assert not process_of(store).reader.in_transaction
    assert store.get(id).task == "a"


def test_a_leader_leaves_alone_the_call_of_a_caller_that_has_gone() -> None:
    async def nothing(tx: Any) -> None:
        pass

    group, call = Group(), Call([nothing])
    assert call.join(group)
    assert call.running()
    group.over = True  # its leader was interrupted
    call.gone = True
    assert not call.join(Group())
    assert not call.running()
    assert not call.has_result()


@pytest.mark.parametrize("which", ["reader", "writer"])
def test_what_an_interrupted_rollback_left_open_is_undone_by_the_next_call(
    store: Store, which: str
) -> None:
    store.list_jobs()
    getattr(process_of(store), which).execute("begin")
    id = add(store, "a")
    assert store.get(id).task == "a"


@pytest.mark.slow
def test_interrupts_at_any_moment_harm_nobody_else_and_leave_nothing_behind(
    store: Store, path: Path
) -> None:
    """One thread is struck again and again, wherever it happens to be; two others go on. What it
    does not find stored when an interrupt has reached it is never stored."""
    over = threading.Event()
    ready, struck = threading.Event(), threading.Event()
    plain = apsw.Connection(str(path))
    acknowledged: list[str] = []
    undone: list[str] = []

    def victim() -> None:
        number, current = 0, ""
        while not over.is_set():
            try:
                while not over.is_set():
                    ready.set()
                    number += 1
                    current = f"victim.{number}"
                    id = add(store, current)
                    acknowledged.append(current)
                    store.get(id)
            except KeyboardInterrupt:
                found = list(plain.execute("select 1 from tenure_job where task = ?", (current,)))
                if not found:
                    undone.append(current)
                ready.clear()
                struck.set()

    def neighbour(name: str) -> list[str]:
        tasks: list[str] = []
        while not over.is_set():
            tasks.append(f"{name}.{len(tasks)}")
            store.get(add(store, tasks[-1]))
        return tasks

    neighbours = [Caller(lambda name=name: neighbour(name)) for name in ("x", "y")]  # type: ignore[misc]
    prey = Caller(victim)
    for turn in range(300):
        struck.clear()
        assert ready.wait(PATIENCE_SECONDS)
        pause = time.perf_counter() + (turn % 50) / 10_000
        while time.perf_counter() < pause:
            pass
        strike(prey.ident)
        assert struck.wait(PATIENCE_SECONDS), prey.error
    over.set()
    for caller in (prey, *neighbours):
        assert caller.join().error is None

    rows = [task for (task,) in plain.execute("select task from tenure_job")]
    plain.close()
    assert len(rows) == len(set(rows))
    assert set(acknowledged) <= set(rows)
    assert {task for caller in neighbours for task in caller.answer} <= set(rows)
    assert undone
    assert not set(undone) & set(rows)
    for connection in (process_of(store).reader, process_of(store).writer):
        assert not connection.in_transaction
