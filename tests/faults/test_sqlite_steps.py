"""The disk is full, read-only or broken, at each step of each operation.

Whoever called is told by an error that names the fix; nothing is half done; and when the cause is
gone the same call is answered as if nothing had been.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import apsw
import pytest

from tenure.codec import encode
from tenure.errors import OutcomeUnknown, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from tenure.job import NewJob
from tenure.store import Store, open_store
from tests.faults.breaking import Breaking, Fault, breaking
from tests.faults.deeds import ALL
from tests.support.audit import audit
from tests.support.audit import check as check_rows
from tests.support.callers import process_of
from tests.support.plain import Plain
from tests.support.stores import Clock

SEVERAL = {"claim", "sweep", "fire"}
"""Operations of more than one transaction: what was committed before the fault stays."""
MOST = 400
Steps = Callable[[int], Iterable[int]]


class Bench:
    """One file; `near` lays the scenes, `far` meets the faults."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.near = open_store(self.url)
        self.far = open_store(self.url)
        self.plain = Plain(self.url)

    def close(self) -> None:
        self.plain.close()
        self.far.close()
        self.near.close()

    @property
    def writer(self) -> apsw.Connection:
        """The connection of `far` that writes."""
        found = process_of(self.far).writer
        assert isinstance(found, apsw.Connection)
        return found

    def do(
        self,
        name: str,
        faulty: Callable[[], AbstractContextManager[None]],
        error: type[StoreError],
        says: str,
    ) -> bool:
        """Lay the scene and act while `faulty` lasts. Answers whether it was refused."""
        self.plain.wipe()
        deed = ALL[name](self.near, self.plain, Clock())
        before = self.plain.everything()
        try:
            with faulty():
                answer = deed.do(self.far)
        except StoreError as refusal:
            assert isinstance(refusal, error), repr(refusal)
            assert says in str(refusal)
            check_rows(self.plain)
            if self.plain.everything() != before:
                assert name in SEVERAL
                return True
            answer = deed.do(self.far)
            refused = True
        else:
            refused = False
        check_rows(self.plain)
        deed.check(answer, self.far)
        check_rows(self.plain)
        assert self.plain.rows("pragma integrity_check") == [("ok",)]
        return refused


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Breaking]:
    with breaking(tmp_path) as failing:
        yield failing


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> Steps:
    """At which steps something happens: at all of them with --whole, else at one of so many."""
    if request.config.getoption("--whole"):
        return lambda _: range(1, MOST)
    return lambda every: range(1, MOST, every)


@pytest.fixture
def bench(tmp_path: Path, disk: Breaking) -> Iterator[Bench]:
    opened = Bench(tmp_path / "jobs.db")
    yield opened
    disk.order(None)
    opened.close()
    audit(opened.url)


WRITES_NOTHING = {"connect"}
DISKS = {
    "full": ("write", apsw.SQLITE_FULL, StoreFull, "free some and try again"),
    "broken": ("write", apsw.SQLITE_IOERR_WRITE, StoreUnavailable, "check the disk"),
    "unsynced": ("sync", apsw.SQLITE_IOERR_FSYNC, OutcomeUnknown, "check the disk"),
}


@pytest.mark.parametrize("kind", DISKS)
@pytest.mark.parametrize("name", sorted({*ALL} - WRITES_NOTHING))
def test_the_disk_fails_at_each_write_and_sync(
    bench: Bench, disk: Breaking, steps: Steps, name: str, kind: str
) -> None:
    call, code, error, says = DISKS[kind]
    refused = 0
    for number in steps(6 if kind == "broken" else 2 if kind == "full" else 1):

        @contextmanager
        def failing(fault: Fault = Fault(call, number, code)) -> Iterator[None]:
            disk.order(fault)
            try:
                yield
            finally:
                struck.append(disk.struck)
                disk.order(None)

        struck: list[bool] = []
        refused += bench.do(name, failing, error, says)
        if struck == [False]:
            break
    else:
        raise AssertionError("it never ended")
    print(f"{refused} refusals")
    assert refused >= 1


@pytest.mark.parametrize("name", sorted({*ALL} - WRITES_NOTHING))
@pytest.mark.parametrize("kind", ["read-only", "full"])
def test_the_file_becomes_read_only_or_full_at_each_statement(
    bench: Bench, steps: Steps, name: str, kind: str
) -> None:
    """Really: SQLite refuses by itself to write any more, or to let the file grow."""
    error, says = {
        "read-only": (StoreReadOnly, "give this user write access"),
        "full": (StoreFull, "free some and try again"),
    }[kind]
    refused = 0
    for number in steps(3 if kind == "read-only" else 6):
        reached: list[int] = []

        @contextmanager
        def failing(number: int = number, reached: list[int] = reached) -> Iterator[None]:
            writer = bench.writer
            set_in, set_out = settings_of(writer, kind)

            def note(_: object, sql: str, __: object) -> bool:
                if not sql.startswith("pragma"):
                    reached.append(1)
                    if len(reached) == number:
                        list(writer.execute(set_in))
                return True

            writer.exec_trace = note
            try:
                yield
            finally:
                writer.exec_trace = None
                list(writer.execute(set_out))

        refused += bench.do(name, failing, error, says)
        if len(reached) < number:
            break
    else:
        raise AssertionError("it never ended")
    print(f"{refused} refusals")
    assert refused >= (1 if kind == "read-only" or name == "enqueue many" else 0)


def settings_of(writer: apsw.Connection, kind: str) -> tuple[str, str]:
    """How to let a file be like that, and how to end it."""
    if kind == "read-only":
        return "pragma query_only = on", "pragma query_only = off"
    [(pages,)] = writer.execute("pragma page_count")
    return f"pragma max_page_count = {pages}", "pragma max_page_count = 1000000"


def test_a_commit_that_could_not_be_synced_may_come_back(
    bench: Bench, disk: Breaking, tmp_path: Path
) -> None:
    """So its outcome is unknown: it is undone here, and a crash right now would bring it back."""
    bench.near.enqueue([NewJob(task="app.first")])
    disk.order(Fault("sync", 1, apsw.SQLITE_IOERR_FSYNC))
    with pytest.raises(OutcomeUnknown, match="may have been kept"):
        bench.far.enqueue([NewJob(task="app.second")])
    disk.order(None)
    assert len(bench.near.list_jobs().jobs) == 1
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    for name in ("jobs.db", "jobs.db-wal"):
        (crashed / name).write_bytes((tmp_path / name).read_bytes())
    with open_store(f"sqlite:///{crashed}/jobs.db") as store:
        assert len(store.list_jobs().jobs) == 2


STEP_BYTES = 1237


def test_a_file_that_may_not_grow_at_any_byte(tmp_path: Path) -> None:
    """By a limit of the operating system, which cuts a write in the middle."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    wal = tmp_path / "jobs.db-wal"
    store = open_store(url)
    kept = [store.enqueue([NewJob(task="app.work")])[0].id]
    refused = 0
    for extra in range(0, 60 * STEP_BYTES, STEP_BYTES):
        try:
            with at_most(wal.stat().st_size + extra):
                answers = store.enqueue([NewJob(task="app.work", args=encode("x" * 9000))] * 5)
        except StoreUnavailable as error:
            assert "check the disk" in str(error)
            refused += 1
        else:
            kept += [answer.id for answer in answers]
        assert sorted(job.id for job in store.list_jobs(limit=1000).jobs) == kept
        kept += [store.enqueue([NewJob(task="app.work")])[0].id]  # there is room again
    assert 10 < refused < 60
    store.close()
    audit(url)


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """No file of this process may become larger. Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
